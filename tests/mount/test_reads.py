# Reading: each way to read gives the bytes that the reference library finds in the archive.
import hashlib
import mmap
import os
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from archive_file import (NUMPY_TYPES, ArchiveFile, random_bytes, save_with_reference,
                          write_bytes_tensors)
from mounted import run_python
from safetensors import safe_open

LARGE = 5 * 1024 * 1024 + 77


@pytest.fixture
def large(tmp_path, mounts):
    """A tensor of several kernel requests that starts and ends at odd places."""
    contents = {"before": b"x" * 13, "large": random_bytes(LARGE, 1), "after": random_bytes(999, 2)}
    mount = mounts(write_bytes_tensors(tmp_path / "large.safetensors", contents))
    mount.contents = contents
    return mount


def read_direct(path, offset, size_bytes):
    """One O_DIRECT read past the page cache."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        buffer = mmap.mmap(-1, max(size_bytes, 1))
        with buffer:
            count = os.preadv(fd, [memoryview(buffer)[:size_bytes]], offset)
            return buffer[:count]
    finally:
        os.close(fd)


def test_every_tensor_has_the_bytes_that_the_reference_reads(mount, archive):
    for name, (_, _, data) in archive.reference().items():
        assert (mount / name).read_bytes() == data, name


def test_np_memmap_shows_the_tensor(mount, archive):
    with safe_open(archive.path, framework="np") as reference:
        due = reference.get_tensor("layers.0.weight")
    mapped = np.memmap(mount / "layers.0.weight", np.float32, "r", shape=due.shape)
    assert mapped.tobytes() == due.tobytes()


@pytest.mark.parametrize("offset, size_bytes", [
    (0, 1), (1, 1), (4095, 2), (4096, 4096), (4097, 8191), (131071, 131074), (1048575, 3), (LARGE - 1, 1),
    (LARGE - 1, 100), (LARGE - 5000, 5000), (LARGE, 10), (LARGE + 1, 10), (LARGE + 10_000_000, 10), (12345, 0)])
def test_pread_at_odd_places(large, open_fd, offset, size_bytes):
    fd = open_fd(large / "large")
    assert os.pread(fd, size_bytes, offset) == large.contents["large"][offset:offset + size_bytes]


@pytest.mark.parametrize("offset, size_bytes", [
    (0, 4096), (512, 512), (4096, 131072), (1048576, 1048576), (0, LARGE + 4096), (7, 131), (LARGE - 77, 4096),
    (LARGE, 512)])
def test_o_direct_reads(large, offset, size_bytes):
    assert read_direct(large / "large", offset, size_bytes) == (
        large.contents["large"][offset:offset + size_bytes])


def test_a_whole_large_tensor_by_each_block_size(large):
    due = hashlib.sha256(large.contents["large"]).hexdigest()
    for block in ("777", "4k", "64k", "1M", "16M"):
        done = subprocess.run(f"dd if='{large / 'large'}' bs={block} status=none | sha256sum", shell=True,
                              capture_output=True, text=True)
        assert done.stdout.split()[0] == due, block


def test_cp_leaves_no_hole_where_there_are_bytes(large, tmp_path):
    """cp asks SEEK_DATA and SEEK_HOLE; a wrong answer loses data."""
    done = subprocess.run(["cp", "--sparse=auto", large / "large", tmp_path / "copy"])
    assert done.returncode == 0 and (tmp_path / "copy").read_bytes() == large.contents["large"]


def test_mapped_reads_shared_and_private(large, open_fd):
    for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
        fd = open_fd(large / "large")
        with mmap.mmap(fd, 0, flags, mmap.PROT_READ) as mapped:
            assert len(mapped) == LARGE
            for at in (LARGE - 1, 0, 4096 * 100 + 3, 1):
                assert mapped[at] == large.contents["large"][at]
            assert mapped[:] == large.contents["large"]


def test_a_mapping_reads_on_after_close_and_ends_in_zeros(large):
    fd = os.open(large / "large", os.O_RDONLY)
    rounded = -(-LARGE // mmap.PAGESIZE) * mmap.PAGESIZE
    mapped = mmap.mmap(fd, LARGE, mmap.MAP_SHARED, mmap.PROT_READ)
    os.close(fd)
    with mapped:
        assert mapped[:] == large.contents["large"]
    tail = run_python(
        "import ctypes, os, sys\n"
        "libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p\n"
        "libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]\n"
        "size, rounded = int(sys.argv[2]), int(sys.argv[3])\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "at = libc.mmap(None, rounded, 1, 1, fd, 0)\n"
        "print(ctypes.string_at(at + size, rounded - size) == bytes(rounded - size))\n",
        large / "large", LARGE, rounded)
    assert tail.stdout == "True\n", tail.stderr


def test_parallel_readers_each_see_the_right_bytes(large):
    due = large.contents["large"]

    def read_some(seed):
        randomly = random.Random(seed)
        fd = os.open(large / "large", os.O_RDONLY)
        try:
            for _ in range(60):
                offset, size_bytes = randomly.randrange(LARGE), randomly.randrange(1, 300_000)
                if os.pread(fd, size_bytes, offset) != due[offset:offset + size_bytes]:
                    return f"seed {seed}: wrong bytes at {offset}, {size_bytes} long"
            return None
        finally:
            os.close(fd)

    with ThreadPoolExecutor(8) as pool:
        assert [wrong for wrong in pool.map(read_some, range(8)) if wrong] == []


@pytest.mark.parametrize("options", ["", "threads=1", "threads=2", "threads=7"])
def test_parallel_first_reads_of_every_tensor(archive, mounts, options):
    mount, names = mounts(archive.path, options), sorted(archive.layout()) * 4
    with ThreadPoolExecutor(16) as pool:
        for name, data in zip(names, pool.map(lambda name: (mount / name).read_bytes(), names)):
            assert data == archive.tensor(name), name


def test_an_empty_tensor_is_an_empty_file(mount):
    assert os.stat(mount / "empty").st_size == 0
    assert (mount / "empty").read_bytes() == b""
    assert read_direct(mount / "empty", 0, 512) == b""


def test_lseek_to_the_end_data_and_holes(large, open_fd):
    fd = open_fd(large / "large")
    assert os.lseek(fd, 0, os.SEEK_END) == LARGE
    assert os.lseek(fd, 0, os.SEEK_DATA) == 0
    assert os.lseek(fd, 0, os.SEEK_HOLE) == LARGE
    with pytest.raises(OSError):
        os.lseek(fd, LARGE, os.SEEK_DATA)


def test_a_read_only_descriptor_cannot_write(mount, open_fd):
    fd = open_fd(mount / "odd")
    with pytest.raises(OSError):
        os.write(fd, b"x")
    with pytest.raises(OSError):
        os.ftruncate(fd, 0)


def test_reading_changes_nothing(archive, mounts):
    before, status = archive.content(), os.stat(archive.path)
    mount = mounts(archive.path)
    for name in os.listdir(mount.path):
        (mount / name).read_bytes()
    assert mount.unmount() == 0
    after = os.stat(archive.path)
    assert archive.content() == before
    assert (after.st_mtime_ns, after.st_ino, after.st_size) == (
        status.st_mtime_ns, status.st_ino, status.st_size)


def test_the_reference_library_can_use_a_copy_made_of_the_files(mount, archive, tmp_path):
    tensors = {name: np.fromfile(mount / name, NUMPY_TYPES[dtype]).reshape(shape)
               for name, (dtype, shape, _, _) in archive.layout().items()}
    copy = ArchiveFile(save_with_reference(tmp_path / "copy.safetensors", tensors))
    assert copy.reference() == archive.reference()
