# Attributes in the kernel's cache must not be older than a change that came while they were looked up.
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from archive_file import write_raw
from mounted import eventually

COUNT = 20_000
PROGRAMS = 4
WALK = """
import os, sys
first, end, step = map(int, sys.argv[2:])
for at in range(first, end, step):
    os.stat(f"{sys.argv[1]}/t{at}")
"""


def forget_inodes():
    Path("/proc/sys/vm/drop_caches").write_text("2")


@pytest.mark.needs_root
def test_files_that_were_looked_up_during_a_change_of_the_mode_have_the_last_mode(tmp_path, mounts):
    archive = tmp_path / "m.safetensors"
    write_raw(archive, [(f"t{at}", "U8", [1], b"x") for at in range(COUNT)])
    mount = mounts(archive)
    forget_inodes()
    programs = [subprocess.Popen([sys.executable, "-c", WALK, mount.path, str(first), str(COUNT), str(PROGRAMS)])
                for first in range(PROGRAMS)]
    changes = 0
    while any(program.poll() is None for program in programs):
        changes += 1
        mode = 0o600 if changes % 2 else 0o644
        archive.chmod(mode)
        # The mount has noticed the change: the attributes of the root come from the same notice.
        assert eventually(lambda mode=mode: stat.S_IMODE(os.stat(mount.path).st_mode) & 0o044 == mode & 0o044)
    assert [program.returncode for program in programs] == [0] * PROGRAMS and changes > 1
    left = set(range(COUNT))

    def all_are_new():
        left.intersection_update([at for at in left if stat.S_IMODE(os.stat(mount / f"t{at}").st_mode) != mode])
        return not left

    assert eventually(all_are_new, seconds=20), f"{len(left)} files have an old mode"
