# The disk under an archive fails: a loop device whose image is cut short gives EIO for what lies behind the cut, where a
# map has a signal. Each way of reading gives the right bytes or EIO; the daemon lives on, and reads all when the disk
# is whole again.
import errno
import mmap
import os
import random
import subprocess
import sys
from pathlib import Path

import mounted
import pytest
from cut_archive import TENSOR_BYTES, CutArchive, difference, read_direct
from lease_client import STFS
from test_cut_under_readers import VIEWS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "replay"))
import loop_disk  # noqa: E402

ROUNDS = 100 if os.environ.get("STFS_LONG") else 10
IMAGE_BYTES = 32 << 20

pytestmark = pytest.mark.skipif(loop_disk.why_unavailable("ext4") is not None,
                                reason=str(loop_disk.why_unavailable("ext4")))


class FailingDisk:
    """An archive on a read-only file system, on a disk that loses what lies behind some place, and gets it back."""

    def __init__(self, image, directory):
        self.image = Path(image)
        self.path = str(directory / "m.safetensors")
        self.content = self.image.read_bytes()
        self.random = random.Random(2)

    def cut(self):
        with open(self.path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        # The tables of the file system lie in front. At a whole page: where the end of its image cuts a page, a loop
        # device gives stale bytes and no error.
        os.truncate(self.image, self.random.randrange(IMAGE_BYTES // 8, IMAGE_BYTES) & -4096)

    def restore(self):
        with open(self.image, "r+b") as image:
            at = image.seek(0, os.SEEK_END)
            image.write(self.content[at:])


@pytest.fixture
def disk(tmp_path):
    plain = CutArchive(tmp_path / "plain.safetensors")
    image = loop_disk.make_image(tmp_path / "image", "ext4", IMAGE_BYTES, ["-O", "^has_journal"])
    with loop_disk.mounted_image(image, "ext4", tmp_path / "disk") as directory:
        (directory / "m.safetensors").write_bytes(plain.content)
    with loop_disk.mounted_image(image, "ext4", tmp_path / "disk") as directory:
        loop_disk.remount_read_only(directory, "ext4")
        os.sync()
        failing = FailingDisk(image, directory)
        failing.contents = plain.contents
        yield failing
        failing.restore()


def outcome(read, due):
    """Whether it is right; EIO is no error."""
    try:
        got = read()
    except OSError as error:
        assert error.errno == errno.EIO, error
        return False
    assert got == due, difference(got, due)
    return True


def test_what_is_read_of_a_mount_on_a_failing_disk_is_right_or_eio(disk, mounts):
    buffer = mmap.mmap(-1, 4 * TENSOR_BYTES)
    views = list(VIEWS)
    outcomes = {view: [] for view in [*views, "checksum"]}
    sums = None
    for _ in range(ROUNDS):
        # A page that was read once stays in the map, so each round has a mount of its own.
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
    # Both outcomes were seen of each, or it was no test of it.
    assert all(len(set(seen)) == 2 for seen in outcomes.values()), outcomes


@pytest.mark.parametrize("verb", [["cat", "b"], ["slice", "b[:, ::3]"], ["slice", "b[::2]"], ["verify", "--json"],
                                  ["upload", "--device", "cpu", "--verify"]], ids=lambda verb: "_".join(verb[:2]))
def test_stfs_on_a_failing_disk_does_its_work_or_says_why_not(disk, verb):
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
