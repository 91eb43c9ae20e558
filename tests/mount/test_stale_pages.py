# Stale pages in the kernel's cache must not be seen: pages of files that stay open or mapped while their content changes.
import errno
import mmap
import os
import signal

import pytest
from archive_file import random_bytes
from mounted import errno_of, eventually

@pytest.fixture
def transaction(mount):
    directory = mount / ".safetensors" / "transactions" / "T"
    directory.mkdir()
    return directory


def read_all(descriptor):
    return os.pread(descriptor, 1 << 20, 0)


def test_an_open_file_of_a_transaction_shows_what_others_commit(mount, expected, transaction):
    descriptor = os.open(transaction / "odd", os.O_RDONLY)
    try:
        assert read_all(descriptor) == expected.tensor("odd")
        for seed in (70, 71):  # by another writer; then by one who commits the same tensor once more
            data = random_bytes(expected.size("odd"), seed)
            (mount / "odd").write_bytes(data)
            expected.change("odd", data)
            assert read_all(descriptor) == data
    finally:
        os.close(descriptor)
    expected.check()


def test_bytes_of_a_killed_writer_leave_the_pages_of_a_transaction(mount, expected, transaction):
    first = random_bytes(expected.size("odd"), 72)
    (transaction / "odd").write_bytes(first)
    descriptor = os.open(transaction / "odd", os.O_RDONLY)
    try:
        assert read_all(descriptor) == first
        child = os.fork()
        if child == 0:
            own = os.open(transaction / "odd", os.O_RDWR)
            read_all(own)  # then what it writes goes to pages that are there
            os.pwrite(own, random_bytes(100, 73), 0)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        # The writer is killed: its content is rolled back, with all that was staged in it.
        assert eventually(lambda: read_all(descriptor) == expected.tensor("odd")), "bytes that were rolled back show"
    finally:
        os.close(descriptor)
    expected.check()


def test_bytes_of_a_mapping_that_were_refused_leave_the_pages(mount, expected):
    descriptor = os.open(mount / "odd", os.O_RDWR)
    mapping = mmap.mmap(descriptor, 0)
    # The content is cut, and its close refuses it: from then on nothing comes through it.
    os.ftruncate(descriptor, 0)
    assert errno_of(os.close, descriptor) == errno.EINVAL
    assert eventually(lambda: os.stat(mount / "odd").st_size == expected.size("odd"))
    mapping[:100] = random_bytes(100, 74)
    with pytest.raises(OSError):
        mapping.flush()
    assert eventually(lambda: (mount / "odd").read_bytes() == expected.tensor("odd")), "bytes that were refused show"
    mapping.close()
    expected.check()
