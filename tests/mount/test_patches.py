# Patches: a write into a part of a tensor, by offset or through a mapping, keeps the other bytes. test_large_patches.py,
# test_stress.py and tests/core/staging_test.cc test many and overlapping writes in one open.
import ctypes
import mmap
import os

import numpy as np
import pytest
from mounted import eventually
from written_tensor import T, check_shown, run

pytestmark = pytest.mark.sequential

libc = ctypes.CDLL(None, use_errno=True)


def map_and_close(path, size_bytes):
    """The address of a mapping whose descriptor is closed: Python's mmap keeps one of its own."""
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    fd = os.open(path, os.O_RDWR)
    at = libc.mmap(None, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    os.close(fd)
    return at


@pytest.mark.parametrize("block, seek, count", [(1, 0, 1), (1, 4095, 3), (4096, 1, 2), (4096, 7, 1), (1000, 13, 9),
                                                (65536, 0, 2), (131072, 1, 1), (1, 308_223, 1)])
def test_dd_seek_notrunc_patches_only_that_range(mount, expected, fresh, block, seek, count):
    data, path = fresh(block * count)
    done = run("dd", f"if={path}", f"of={mount / T}", f"bs={block}", f"seek={seek}", "conv=notrunc")
    assert done.returncode == 0, done.stderr
    expected.change(T, data, block * seek)
    check_shown(mount, expected)


def test_an_open_for_writing_that_writes_nothing_changes_nothing(mount, expected):
    before, generation = os.stat(mount.archive.path).st_mtime_ns, mount.generation(T)
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
        os.close(os.open(mount / T, flags))
    expected.check()
    assert os.stat(mount.archive.path).st_mtime_ns == before
    assert mount.generation(T) == generation


def test_memmap_patches_a_part(mount, expected):
    mapped = np.memmap(mount / T, np.uint8, "r+")
    mapped[100_000:100_010] = 7
    mapped[5] = 9
    mapped.flush()
    expected.change(T, b"\7" * 10, 100_000)
    expected.change(T, b"\x09", 5)
    expected.check()  # after the flush, not only after the map has gone
    mapped[8191:8193] = 3
    del mapped
    expected.change(T, b"\3\3", 8191)
    check_shown(mount, expected)


def test_a_mapping_written_after_its_descriptor_closed_commits_when_it_goes(mount, expected):
    at = map_and_close(mount / T, expected.size(T))
    ctypes.memset(at + 50_000, 0x55, 5_000)
    assert libc.munmap(at, expected.size(T)) == 0
    expected.change(T, b"\x55" * 5_000, 50_000)
    assert eventually(expected.matches), "the mapping's bytes never came"
    check_shown(mount, expected)


def test_msync_of_a_mapping_whose_descriptor_is_closed_commits(mount, expected):
    at = map_and_close(mount / T, expected.size(T))
    try:
        ctypes.memset(at + 4096, 0x66, 4096)
        assert libc.msync(at, expected.size(T), 4) == 0
        expected.change(T, b"\x66" * 4096, 4096)
        expected.check()
    finally:
        libc.munmap(at, expected.size(T))


def test_a_private_mapping_never_writes(mount, expected, open_fd):
    fd = open_fd(mount / T, os.O_RDWR)
    with mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
        mapped[:1000] = b"p" * 1000
    os.close(fd)
    check_shown(mount, expected)
