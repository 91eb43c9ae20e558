"""clang-format leaves comments as they are, because it would break tables and drawings. So their width is tested here."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 110


def test_comments_are_no_wider_than_code():
    files = [file for part in ("core", "fs", "tools", "tests") for file in (ROOT / part).rglob("*")
             if file.suffix in (".h", ".cc", ".cu")]
    assert files
    wide = [f"{file.relative_to(ROOT)}:{number}" for file in files
            for number, line in enumerate(file.read_text().splitlines(), 1)
            if re.match(r" *//", line) and len(line) > WIDTH]
    assert not wide, "\n".join(wide)
