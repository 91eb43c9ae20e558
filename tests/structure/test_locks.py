"""Each mutex is one of core/base/mutex.h, so that clang checks its use (.ci/check_locks)."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNCHECKED = re.compile(r"std::(?:(?:recursive_|shared_)?(?:timed_)?mutex|condition_variable(?:_any)?)\b")
WRAPPERS = {"core/base/mutex.h"}
# Not converted yet: other work on these files is under way.
LEFT = {"fs/model/structure_edits.h", "fs/write/commit_turn.h", "tools/libstfs/edit_handle.h", "tools/libstfs/handles.h",
        "tools/sync/version_apply.cc"}  # fmt: skip


def test_each_mutex_is_one_that_clang_checks():
    files = [file for part in ("core", "fs", "tools") for file in (ROOT / part).rglob("*") if file.suffix in (".h", ".cc", ".cu")]
    code = {str(file.relative_to(ROOT)): re.sub(r"//.*", "", file.read_text()) for file in files}
    assert {name for name, text in code.items() if UNCHECKED.search(text)} - WRAPPERS == LEFT
