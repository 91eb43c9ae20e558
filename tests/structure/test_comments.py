"""clang-format leaves comments as they are, because it would break tables and drawings. So their width is tested here, and
that what they name is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 110
# Functions of Linux and of other programs. Comments name the files of these programs by their paths.
FOREIGN = {"complete_walk", "force_page_cache_ra", "fuse_allow_current_process", "fuse_reply_data", "generic_permission",
           "memfd_add_seals", "named_parameters"}  # fmt: skip
FOREIGN_FILES = {"FhgfsOpsSuper.h", "Python.h", "nvml.h", "xxhash.h", "zstd.h"}
FOREIGN_FOLDERS = ("include/", "linux/", "mm/", "fs/fuse/", "numpy/", "safetensors/", "torch/")


def sources(*suffixes: str) -> list[Path]:
    files = [file for part in ("core", "fs", "tools", "tests", "packaging") for file in (ROOT / part).rglob("*")
             if file.suffix in suffixes and file.is_file()]
    assert files
    return files


def split(line: str) -> tuple[str, str]:
    """A line's code and its comment."""
    at = line.find("//")
    while at > 0 and line[:at].count('"') % 2:
        at = line.find("//", at + 2)
    return (line, "") if at < 0 else (line[:at], line[at:])


def test_comments_are_no_wider_than_code():
    wide = [f"{file.relative_to(ROOT)}:{number}" for file in sources(".h", ".cc", ".cu")
            for number, line in enumerate(file.read_text().splitlines(), 1)
            if re.match(r" *//", line) and len(line) > WIDTH]
    assert not wide, "\n".join(wide)


def test_comments_and_pages_name_files_and_functions_that_are_there():
    known: set[str] = set()  # the ends of paths, and identifiers
    said: list[tuple[str, str]] = []
    for file in sources(".h", ".cc", ".c", ".cu", ".py", ".md", ""):
        parts = file.relative_to(ROOT).parts
        known.update("/".join(parts[at:]) for at in range(len(parts)))
        if file.suffix in (".py", ""):
            known.update(re.findall(r"[A-Za-z_]\w*", file.read_text(errors="replace")))
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            code, words = ("", line) if file.suffix == ".md" else split(line)
            known.update(re.findall(r"[A-Za-z_]\w*", code))
            if words:
                said.append((f"{file.relative_to(ROOT)}:{number}", words))
    missing = []
    for place, words in said:
        for name in re.findall(r"(?<![\w./*-])[\w./-]+\.(?:h|cc|cu|md)\b", words):
            is_foreign = name in FOREIGN_FILES or name.startswith(FOREIGN_FOLDERS)
            is_pattern = "NAME" in name or "VERB" in name
            if name not in known and not is_foreign and not is_pattern:
                missing.append(f"{place}: {name}")
        missing += [f"{place}: {name}()" for name in re.findall(r"([A-Za-z_]\w*)\(\)", words)
                    if name not in known and name not in FOREIGN]
    assert not missing, "\n".join(missing)
