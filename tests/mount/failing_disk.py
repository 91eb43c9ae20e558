# A disk that loses all bytes after some place: a loop device whose image is cut short gives EIO there. Reads fail, and writes
# fail if the image must not grow. For test_failing_disk.py and test_failing_disk_tools.py.
import contextlib
import errno
import fcntl
import os
import random
import sys
from pathlib import Path

import pytest
from cut_archive import TENSOR_BYTES, CutArchive, difference

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "replay"))
import loop_disk  # noqa: E402

ROUNDS = 100 if os.environ.get("STFS_LONG") else 10
IMAGE_BYTES = 32 << 20
NAME = "m.safetensors"

NEEDS_LOOP_DISKS = pytest.mark.skipif(loop_disk.why_unavailable("ext4") is not None,
                                      reason=str(loop_disk.why_unavailable("ext4")))


class FailingDisk:
    """An archive on a read-only file system, on a disk that loses all bytes after some place, and gets them back."""

    def __init__(self, image, directory):
        self.image = Path(image)
        self.path = str(directory / NAME)
        self.content = self.image.read_bytes()
        self.random = random.Random(2)

    def cut(self):
        with open(self.path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        # The tables of the file system are at the beginning, before the cut. The cut is at a whole page, because a loop device
        # whose image ends within a page gives stale bytes and no error.
        os.truncate(self.image, self.random.randrange(IMAGE_BYTES // 8, IMAGE_BYTES) & -4096)

    def restore(self):
        with open(self.image, "r+b") as image:
            at = image.seek(0, os.SEEK_END)
            image.write(self.content[at:])


class DiskForWriters:
    """An archive on a file system that can be written, until its disk fails: each use() begins with a whole one.

    The archive lies at the end, so that a disk which fails from there on has room for a journal."""

    def __init__(self, directory):
        archive, image = image_with_archive(directory, is_at_end=True)
        self.contents = archive.contents
        self.image = Path(image).read_bytes()
        self.archive_at = self.image.index(archive.contents["a"])
        self.left = None  # of the disk after use(), made whole again
        self.scratch = directory / "disk"
        self.random = random.Random(3)

    @contextlib.contextmanager
    def use(self):
        """(path of the archive, fail()). After fail(), reads and writes past the disk's end give EIO."""
        memory = os.memfd_create("disk", os.MFD_ALLOW_SEALING)
        try:
            os.pwrite(memory, self.image, 0)

            def fail(at=None):
                if at is None:
                    at = self.random.randrange(IMAGE_BYTES // 8, self.archive_at + 3 * TENSOR_BYTES) & -4096
                os.truncate(memory, at)
                # EPERM to the loop device, which is EIO to its user.
                fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)

            with loop_disk.mounted_image(f"/proc/self/fd/{memory}", "ext4", self.scratch) as directory:
                yield str(directory / NAME), fail
            left = os.pread(memory, len(self.image), 0)
        finally:
            os.close(memory)
        self.left = left + self.image[len(left):]

    @contextlib.contextmanager
    def repaired(self):
        """The path of the archive after use(), on a disk that works again."""
        memory = os.memfd_create("disk")
        try:
            os.pwrite(memory, self.left, 0)
            with loop_disk.mounted_image(f"/proc/self/fd/{memory}", "ext4", self.scratch) as directory:
                yield str(directory / NAME)
        finally:
            os.close(memory)


def image_with_archive(directory, is_at_end=False):
    """(the archive beside it, the image)"""
    plain = CutArchive(directory / "plain.safetensors")
    blocks = ["-b", "4096", "-m", "0"] if is_at_end else []
    image = loop_disk.make_image(directory / "image", "ext4", IMAGE_BYTES, ["-O", "^has_journal", *blocks])
    with loop_disk.mounted_image(image, "ext4", directory / "disk") as mounted:
        if is_at_end:
            free = os.statvfs(mounted)
            (mounted / "front").write_bytes(bytes(free.f_bavail * free.f_bsize - len(plain.content) - (64 << 10)))
            os.sync()
        (mounted / NAME).write_bytes(plain.content)
        os.sync()
        if is_at_end:
            (mounted / "front").unlink()
    return plain, image


@pytest.fixture
def disk(tmp_path):
    plain, image = image_with_archive(tmp_path)
    with loop_disk.mounted_image(image, "ext4", tmp_path / "disk") as directory:
        loop_disk.remount_read_only(directory, "ext4")
        os.sync()
        failing = FailingDisk(image, directory)
        failing.contents = plain.contents
        yield failing
        failing.restore()


@pytest.fixture
def disk_for_writers(tmp_path):
    return DiskForWriters(tmp_path)


def outcome(read, due):
    """Whether the bytes are right; EIO is no error."""
    try:
        got = read()
    except OSError as error:
        assert error.errno == errno.EIO, error
        return False
    assert got == due, difference(got, due)
    return True
