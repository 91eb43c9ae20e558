# The next mount finishes the commit of a dead writer; it leaves an untrusted journal alone, and logs it.
# tests/core/recovery_test.cc tests each kind of journal; test_io.py and test_foreign_writers.py test read-only mounts.
import errno
import os
import shutil
import subprocess

import pytest
from archive_file import ArchiveFile, Expectation, random_bytes, write_bytes_tensors
from mounted import BUILD, errno_of

LEAVE_JOURNAL = BUILD / "tests" / "leave_journal"
BLOCK = 4096


@pytest.fixture
def archive(tmp_path):
    """Large, neighbouring tensors: the promised block lies in the middle of the second."""
    if not LEAVE_JOURNAL.exists():
        pytest.skip(f"{LEAVE_JOURNAL} is not built")
    return ArchiveFile(write_bytes_tensors(tmp_path / "model.safetensors",
                                           {name: random_bytes(20_000, ord(name)) for name in "abc"}))


class Left:
    """A committed journal of a dead owner, beside the archive."""

    def __init__(self, archive, directory=None):
        self.old, self.new = Expectation(archive), Expectation(archive)
        data = random_bytes(2 * BLOCK, 77)
        self.new.image[6 * BLOCK:8 * BLOCK] = data
        made = subprocess.run([LEAVE_JOURNAL, archive.path, str(6 * BLOCK)], input=data, capture_output=True,
                              check=True)
        self.path = made.stdout.decode().strip()
        assert os.path.exists(self.path)
        self.old.check()


@pytest.fixture
def left(archive):
    return Left(archive)


def test_a_dead_owners_commit_is_applied_by_the_mount(archive, mounts, left):
    mount = mounts(archive.path)
    left.new.check()
    assert not os.path.exists(left.path)
    assert (mount / "b").read_bytes() == left.new.tensor("b")
    assert left.path in mount.log()


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0] ^ 1
        file.seek(offset)
        file.write(bytes([byte]))


def test_a_damaged_journal_is_reported_and_nothing_is_written(archive, mounts, left):
    flip(left.path, 100 + BLOCK)
    mount = mounts(archive.path)
    assert os.path.basename(left.path) in mount.log()
    for name in "abc":
        assert (mount / name).read_bytes() == left.old.tensor(name)
    assert errno_of((mount / "a").write_bytes, random_bytes(20_000, 1)) == errno.EIO
    left.old.check()
    assert os.path.exists(left.path)


def test_a_journal_that_is_not_ours_is_left_alone(archive, mounts, left, tmp_path):
    shutil.copy(archive.path, tmp_path / "copy")
    os.rename(tmp_path / "copy", archive.path)
    mount = mounts(archive.path)
    assert os.path.basename(left.path) in mount.log()
    left.old.check()
    assert os.path.lexists(left.path)
    data = random_bytes(20_000, 5)
    (mount / "c").write_bytes(data)
    left.old.change("c", data)
    left.old.check()
    assert os.path.lexists(left.path)
