"""Each mutex is one of core/base/mutex.h, so that clang checks its use (.ci/check_locks)."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNCHECKED = re.compile(r"std::(?:(?:recursive_|shared_)?(?:timed_)?mutex|condition_variable(?:_any)?)\b")
WRAPPERS = {"core/base/mutex.h"}


def code_of_files():
    files = [file for part in ("core", "fs", "tools") for file in (ROOT / part).rglob("*") if file.suffix in (".h", ".cc", ".cu")]
    return {str(file.relative_to(ROOT)): file.read_text() for file in files}


def test_each_mutex_is_one_that_clang_checks():
    code = {name: re.sub(r"//.*", "", text) for name, text in code_of_files().items()}
    assert {name for name, text in code.items() if UNCHECKED.search(text)} == WRAPPERS


def test_each_mutex_guards_a_member_or_says_what_it_is_for():
    mute = [f"{name}: {lock}" for name, text in code_of_files().items() if name not in WRAPPERS
            for lock, comment in re.findall(r"^[^/\n]*\b(?:Shared)?Mutex (\w+)(?: ACQUIRED_BEFORE\(\w+\))?;(.*)$", text, re.M)
            if f"GUARDED_BY({lock})" not in text and "//" not in comment]
    assert not mute, "\n".join(mute)
