# Programs that were linked with an earlier libstfs keep working: abidiff compares the interface that a header declares with the
# interface of the last release. The libraries that it compares have only what the header declares.
import re
import shutil
import subprocess

import pytest
from test_install import REPOSITORY

HEADER = REPOSITORY / "tools/libstfs/stfs.h"
pytestmark = pytest.mark.skipif(shutil.which("abidiff") is None or shutil.which("cc") is None, reason="there is no abidiff or cc")
CHANGED, INCOMPATIBLE = 4, 8  # bits of abidiff's exit status


@pytest.fixture
def library(tmp_path):
    def make(name, header):
        """A library whose functions are declared by this header. Nobody calls them."""
        place = tmp_path / name
        place.mkdir()
        (place / "stfs.h").write_text(header)
        code = re.sub(r"//[^\n]*|/\*.*?\*/", "", header, flags=re.S)
        functions = re.findall(r"^STFS_API ([^;{]*\));", code, re.M)
        assert len(functions) > 40
        (place / "stfs.c").write_text('#include "stfs.h"\n' + "".join(f"{each} {{ __builtin_trap(); }}\n" for each in functions))
        made = place / "libstfs.so.0"
        subprocess.run(["cc", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-o", made, place / "stfs.c"], check=True)
        return made
    return make


def compared(before, after):
    done = subprocess.run(["abidiff", before, after], capture_output=True, text=True)
    assert done.returncode & 3 == 0, done.stderr  # an error, or wrong usage
    return done


def edited(header, before, after):
    assert header.count(before) >= 1, before
    return header.replace(before, after, 1)


CHANGES = {
    "a function less": ("STFS_API const char* stfs_version(void);", "", INCOMPATIBLE),
    "another type of a result": ("STFS_API const char* stfs_version(void);", "STFS_API int stfs_version(void);", CHANGED),
    "an argument more": ("stfs_code_name(int32_t code)", "stfs_code_name(int32_t code, int32_t more)", CHANGED),
    "a function more": ("STFS_API const char* stfs_version(void);", "STFS_API const char* stfs_version(void);\nSTFS_API int stfs_new(void);", 0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_interface_is_noticed(library, change):
    before, after, noticed = CHANGES[change]
    header = HEADER.read_text()
    done = compared(library("before", header), library("after", edited(header, before, after)))
    assert done.returncode & noticed == noticed and (noticed or done.returncode & INCOMPATIBLE == 0), done.stdout


def test_programs_of_the_last_release_keep_working(library):
    git = ["git", "-C", REPOSITORY, "-c", "safe.directory=*"]
    tags = subprocess.run([*git, "tag", "--list", "v[0-9]*", "--sort=-version:refname"], capture_output=True, text=True).stdout.split()
    if not tags:
        pytest.skip("no release has been made yet")
    text = subprocess.run([*git, "show", f"{tags[0]}:tools/libstfs/stfs.h"], capture_output=True, text=True, check=True).stdout
    done = compared(library("before", text), library("after", HEADER.read_text()))
    assert done.returncode & INCOMPATIBLE == 0, f"since {tags[0]}; a library that changes so needs another SOVERSION\n{done.stdout}"
