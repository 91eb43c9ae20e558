# The disk under an archive fails: a loop device whose image is cut short gives EIO after the cut, and a map gives a signal
# there. Each way of reading gives the right bytes or EIO. The daemon survives, and reads everything when the disk works again.
import mmap
import subprocess

import mounted
import pytest
from cut_archive import TENSOR_BYTES, read_direct
from failing_disk import NEEDS_LOOP_DISKS, ROUNDS, disk, outcome  # noqa: F401
from lease_client import STFS
from test_cut_under_readers import VIEWS

pytestmark = [NEEDS_LOOP_DISKS, pytest.mark.sequential]


def test_what_is_read_of_a_mount_on_a_failing_disk_is_right_or_eio(disk, mounts):  # noqa: F811
    buffer = mmap.mmap(-1, 4 * TENSOR_BYTES)
    views = list(VIEWS)
    outcomes = {view: [] for view in [*views, "checksum"]}
    sums = None
    for _ in range(ROUNDS):
        # A page that was read once stays in the map, so each round makes a new mount.
        mount = mounts(disk.path, "ro")
        sums = sums or mount.attribute("b", "checksum")
        mount.unmount()
        mount = mounts(disk.path, "ro")
        disk.cut()
        disk.random.shuffle(views)
        for view in views:
            name, due, body = VIEWS[view]
            outcomes[view].append(outcome(lambda: body(read_direct(mount / name, buffer)), due(disk.contents)))
        outcomes["checksum"].append(outcome(lambda: mount.attribute("b", "checksum"), sums))
        assert mount.process.poll() is None
        disk.restore()
        for name, data in disk.contents.items():
            assert read_direct(mount / name, buffer) == data, name
        assert mount.unmount() == 0
    # The test is only valid if each way has given both outcomes.
    assert all(len(set(seen)) == 2 for seen in outcomes.values()), outcomes


@pytest.mark.parametrize("verb", [["cat", "b"], ["slice", "b[:, ::3]"], ["slice", "b[::2]"], ["verify", "--json"],
                                  ["upload", "--device", "cpu", "--verify"]], ids=lambda verb: "_".join(verb[:2]))
def test_stfs_on_a_failing_disk_does_its_work_or_says_why_not(disk, verb):  # noqa: F811
    command = [STFS, verb[0], disk.path, *verb[1:]]
    due = subprocess.run(command, check=True, capture_output=True).stdout if verb[0] != "upload" else None
    codes = []
    for _ in range(ROUNDS):
        disk.cut()
        result = subprocess.run(command, capture_output=True, timeout=60 * mounted.PATIENCE)
        disk.restore()
        codes.append(result.returncode)
        if result.returncode == 0:
            assert due in (None, result.stdout)
        else:
            assert result.returncode == 1 and disk.path.encode() in result.stderr, (result.returncode, result.stderr)
    assert set(codes) == {0, 1}, codes
