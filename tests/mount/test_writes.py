# Writing: what is written between open and close replaces the tensor as a whole or not at all. After
# each test the whole archive is compared, so that a byte elsewhere that changed is seen.
import ctypes
import errno
import mmap
import os
import subprocess
import time

import numpy as np
import pytest
from archive_file import ArchiveFile, Expectation, random_bytes, save_with_reference, write_bytes_tensors
from mounted import errno_of, eventually, shell

libc = ctypes.CDLL(None, use_errno=True)
T = "layers.0.weight"  # 308,224 bytes, amid others


@pytest.fixture
def fresh(tmp_path, expected):
    """fresh(N) -> (bytes, path of a plain file with them): new content of N bytes, T's size by default."""
    made = []

    def make(size_bytes=None):
        size_bytes = expected.size(T) if size_bytes is None else size_bytes
        data = random_bytes(size_bytes, 1000 + len(made))
        path = tmp_path / f"fresh{len(made)}"
        path.write_bytes(data)
        made.append(path)
        return data, path

    return make


def read(path):
    with open(path, "rb") as file:
        return file.read()


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


def check_shown(mount, expected):
    """The archive is as expected, and the mount shows the same for every tensor."""
    expected.check()
    for name in expected.layout:
        assert read(mount / name) == expected.tensor(name), name


# ---- the ways that people write ----

def way_dd_notrunc(source, target):
    return run("dd", f"if={source}", f"of={target}", "conv=notrunc", "bs=64k")


def way_dd_truncating(source, target):
    return run("dd", f"if={source}", f"of={target}", "bs=64k")


def way_dd_odd_blocks(source, target):
    return run("dd", f"if={source}", f"of={target}", "bs=777")


def way_dd_one_block(source, target):
    return run("dd", f"if={source}", f"of={target}", "bs=16M")


def way_dd_fsync(source, target):
    return run("dd", f"if={source}", f"of={target}", "conv=notrunc,fsync", "bs=64k")


def way_dd_direct(source, target):
    return run("dd", f"if={source}", f"of={target}", "conv=notrunc", "oflag=direct", "bs=64k")


def way_dd_direct_truncating(source, target):
    return run("dd", f"if={source}", f"of={target}", "oflag=direct", "bs=64k")


def way_dd_sync(source, target):
    return run("dd", f"if={source}", f"of={target}", "oflag=sync", "bs=64k")


def way_dd_dsync_notrunc(source, target):
    return run("dd", f"if={source}", f"of={target}", "oflag=dsync", "conv=notrunc", "bs=64k")


def way_dd_append_truncating(source, target):
    return run("dd", f"if={source}", f"of={target}", "oflag=append", "bs=64k")


def way_cp(source, target):
    return run("cp", source, target)


def way_cp_preserving_mode_and_time(source, target):
    os.chmod(source, os.stat(target).st_mode & 0o777)
    return run("cp", "-p", source, target)


def way_cat(source, target):
    return shell('cat "$1" > "$2"', source, target)


def way_cat_read_write(source, target):
    return shell('cat "$1" 1<> "$2"', source, target)


def way_tee(source, target):
    return shell('tee "$2" < "$1" > /dev/null', source, target)


def way_group_of_commands(source, target):
    return shell('{ head -c 100001 "$1"; tail -c +100002 "$1"; } > "$2"', source, target)


def way_loop_of_commands(source, target):
    return shell('for i in 0 1 2 3 4 5 6 7 8 9; do dd if="$1" bs=31000 skip=$i count=1 status=none; done > "$2"',
                 source, target)


def way_python_wb(source, target):
    with open(target, "wb") as file:
        file.write(read(source))


def way_python_r_plus_b(source, target):
    with open(target, "r+b") as file:
        file.write(read(source))


def way_python_w_plus_b(source, target):
    data = read(source)
    with open(target, "w+b") as file:
        file.write(data)
        file.seek(1000)
        assert file.read(5000) == data[1000:6000]


def way_python_ab_truncated(source, target):
    fd = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_TRUNC)
    for at in range(0, len(read(source)), 50_000):
        os.write(fd, read(source)[at:at + 50_000])
    os.close(fd)


def way_backwards(source, target):
    data, fd = read(source), os.open(target, os.O_WRONLY | os.O_TRUNC)
    for at in range(len(data) // 10_000 * 10_000, -1, -10_000):
        os.pwrite(fd, data[at:at + 10_000], at)
    os.close(fd)


def way_numpy_tofile(source, target):
    np.fromfile(source, np.uint8).tofile(target)


def way_memmap_r_plus_flush(source, target):
    mapped = np.memmap(target, np.uint8, "r+")
    mapped[:] = np.fromfile(source, np.uint8)
    mapped.flush()
    del mapped


def way_memmap_r_plus_without_flush(source, target):
    mapped = np.memmap(target, np.uint8, "r+")
    mapped[:] = np.fromfile(source, np.uint8)
    del mapped


def way_memmap_w_plus(source, target):
    data = np.fromfile(source, np.uint8)
    mapped = np.memmap(target, np.uint8, "w+", shape=data.shape)
    mapped[:] = data
    mapped.flush()
    del mapped


WAYS = {name[4:]: function for name, function in list(globals().items()) if name.startswith("way_")}


@pytest.mark.parametrize("way", WAYS)
def test_the_archive_gets_exactly_what_was_written_by(way, mount, expected, fresh):
    data, path = fresh()
    for name in expected.layout:
        read(mount / name)  # in the kernel's cache, which must not go stale
    inode, size_bytes = os.stat(mount.archive.path).st_ino, os.stat(mount.archive.path).st_size
    generations = {name: mount.generation(name) for name in expected.layout}
    started = time.time()
    done = WAYS[way](path, mount / T)
    if done is not None:
        assert done.returncode == 0, done.stderr
    expected.change(T, data)
    check_shown(mount, expected)
    status = os.stat(mount.archive.path)
    assert (status.st_ino, status.st_size) == (inode, size_bytes)
    assert started - 2 < status.st_mtime < time.time() + 2
    assert mount.generation(T) > generations.pop(T)
    assert {name: mount.generation(name) for name in generations} == generations


@pytest.mark.parametrize("name", ["small", "scalar", "odd", "embed", "dtype.BOOL", "layers.0.bias"])
def test_tensors_of_every_size_can_be_overwritten(name, mount, expected, fresh):
    data, path = fresh(expected.size(name))
    assert run("cp", path, mount / name).returncode == 0
    expected.change(name, data)
    check_shown(mount, expected)


def test_a_write_survives_the_unmount(mount, expected, fresh, mounts):
    data, path = fresh()
    assert run("cp", path, mount / T).returncode == 0
    expected.change(T, data)
    assert mount.unmount() == 0
    expected.check()
    check_shown(mounts(mount.archive.path), expected)


def test_a_tensor_of_many_requests_can_be_overwritten(tmp_path, mounts):
    size_bytes = 9 * 1024 * 1024 + 5
    path = write_bytes_tensors(tmp_path / "l.safetensors", {"a": b"1" * 7, "l": random_bytes(size_bytes, 1), "z": b"2"})
    mount = mounts(path)
    expected = Expectation(ArchiveFile(path))
    for seed, way in enumerate((way_dd_one_block, way_cp, way_memmap_r_plus_without_flush, way_dd_notrunc)):
        data = random_bytes(size_bytes, 50 + seed)
        (tmp_path / "new").write_bytes(data)
        way(tmp_path / "new", mount / "l")
        expected.change("l", data)
        check_shown(mount, expected)


def test_all_tensors_one_after_another(mount, expected, fresh):
    for name in expected.layout:
        data, path = fresh(expected.size(name))
        done = run("cp", path, mount / name)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        expected.change(name, data)
    check_shown(mount, expected)


def test_the_same_content_again_is_no_error(mount, expected):
    for _ in range(3):
        (mount / T).write_bytes(expected.tensor(T))
    check_shown(mount, expected)


def test_an_empty_tensor_takes_empty_content(mount, expected):
    before = mount.archive.content()
    assert shell(': > "$1"', mount / "empty").returncode == 0
    (mount / "empty").write_bytes(b"")
    assert mount.archive.content() == before
    assert errno_of((mount / "empty").write_bytes, b"x") in (errno.EFBIG, errno.EINVAL)
    expected.check()


# ---- partial patches ----

@pytest.mark.parametrize("block, seek, count", [(1, 0, 1), (1, 4095, 3), (4096, 1, 2), (4096, 7, 1), (1000, 13, 9),
                                                (65536, 0, 2), (131072, 1, 1)])
def test_dd_seek_notrunc_patches_only_that_range(mount, expected, fresh, block, seek, count):
    data, path = fresh(block * count)
    done = run("dd", f"if={path}", f"of={mount / T}", f"bs={block}", f"seek={seek}", "conv=notrunc")
    assert done.returncode == 0, done.stderr
    expected.change(T, data, block * seek)
    check_shown(mount, expected)


def test_the_last_byte_can_be_patched(mount, expected):
    size_bytes = expected.size(T)
    assert shell('printf Z | dd of="$1" bs=1 seek=$2 conv=notrunc status=none', mount / T,
                 size_bytes - 1).returncode == 0
    expected.change(T, b"Z", size_bytes - 1)
    check_shown(mount, expected)


def test_many_scattered_patches_in_one_open(mount, expected, open_fd):
    fd = open_fd(mount / T, os.O_WRONLY)
    for number in range(0, 300, 7):
        os.pwrite(fd, bytes([number % 256]) * 11, number * 1000 + 3)
        expected.change(T, bytes([number % 256]) * 11, number * 1000 + 3)
    os.close(fd)
    check_shown(mount, expected)


def test_a_patch_over_a_patch_the_last_wins(mount, expected, open_fd):
    fd = open_fd(mount / T, os.O_WRONLY)
    for data, at in ((b"a" * 10_000, 5_000), (b"b" * 10, 5_100), (b"c" * 9_000, 3_000), (b"d", 11_999)):
        os.pwrite(fd, data, at)
        expected.change(T, data, at)
    os.close(fd)
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
    fd = os.open(mount / T, os.O_RDWR)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    at = libc.mmap(None, expected.size(T), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    os.close(fd)
    ctypes.memset(at + 50_000, 0x55, 5_000)
    assert libc.munmap(at, expected.size(T)) == 0
    expected.change(T, b"\x55" * 5_000, 50_000)
    assert eventually(expected.matches), "the mapping's bytes never came"
    check_shown(mount, expected)


def test_msync_of_a_mapping_whose_descriptor_is_closed_commits(mount, expected):
    fd = os.open(mount / T, os.O_RDWR)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    at = libc.mmap(None, expected.size(T), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    os.close(fd)
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


# ---- sizes that don't fit ----

@pytest.mark.parametrize("short_by", [1, 1000, 308223])
def test_too_little_is_einval_at_close_and_changes_nothing(mount, expected, short_by):
    fd = os.open(mount / T, os.O_WRONLY | os.O_TRUNC)
    os.write(fd, b"s" * (expected.size(T) - short_by))
    assert errno_of(os.close, fd) == errno.EINVAL
    check_shown(mount, expected)
    assert os.stat(mount / T).st_size == expected.size(T)


def test_the_log_says_what_came_and_what_was_due(mount, expected):
    errno_of((mount / T).write_bytes, b"s" * 4321)
    assert eventually(lambda: T in mount.log())
    (line,) = [line for line in mount.log().splitlines() if "4321" in line]
    assert T in line and str(expected.size(T)) in line


def test_truncating_to_nothing_is_einval_at_close(mount, expected):
    assert errno_of((mount / T).write_bytes, b"") == errno.EINVAL
    check_shown(mount, expected)


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_TRUNC])
def test_writing_past_the_end_is_efbig_at_once_and_commits_nothing(mount, expected, flags):
    size_bytes = expected.size(T)
    fd = os.open(mount / T, flags)
    written = os.write(fd, b"w" * size_bytes)
    while written < size_bytes:
        written += os.write(fd, b"w" * (size_bytes - written))
    assert errno_of(os.write, fd, b"!") == errno.EFBIG
    assert errno_of(os.close, fd) == errno.EINVAL
    check_shown(mount, expected)


def test_a_patch_across_the_end_is_efbig(mount, expected):
    fd = os.open(mount / T, os.O_WRONLY)
    assert errno_of(os.pwrite, fd, b"x" * 100, expected.size(T) - 50) == errno.EFBIG
    assert errno_of(os.close, fd) == errno.EINVAL
    check_shown(mount, expected)


def test_a_write_far_past_the_end_is_efbig(mount, expected):
    fd = os.open(mount / T, os.O_WRONLY)
    assert errno_of(os.pwrite, fd, b"x", 1 << 40) == errno.EFBIG
    assert errno_of(os.pwrite, fd, b"x", (1 << 63) - 2) in (errno.EFBIG, errno.EINVAL)
    assert errno_of(os.close, fd) == errno.EINVAL
    check_shown(mount, expected)


@pytest.mark.parametrize("more", [1, 4096, 3_000_000])
def test_cp_of_a_longer_file_fails_and_changes_nothing(mount, expected, fresh, more):
    _, path = fresh(expected.size(T) + more)
    done = run("cp", path, mount / T)
    assert done.returncode != 0
    assert "File too large" in done.stderr or "Invalid argument" in done.stderr
    check_shown(mount, expected)


def test_cp_of_a_shorter_file_fails_and_changes_nothing(mount, expected, fresh):
    _, path = fresh(expected.size(T) - 1)
    done = run("cp", path, mount / T)
    assert done.returncode != 0 and "Invalid argument" in done.stderr
    check_shown(mount, expected)


def test_dd_of_a_longer_file_fails_and_changes_nothing(mount, expected, fresh):
    _, path = fresh(expected.size(T) + 1)
    for conversion in ("conv=notrunc", "conv=fsync"):
        done = run("dd", f"if={path}", f"of={mount / T}", "bs=4k", conversion)
        assert done.returncode != 0 and "File too large" in done.stderr
        check_shown(mount, expected)


def test_append_is_efbig(mount, expected):
    fd = os.open(mount / T, os.O_WRONLY | os.O_APPEND)
    assert errno_of(os.write, fd, b"more") == errno.EFBIG
    assert errno_of(os.close, fd) == errno.EINVAL
    done = shell('echo more >> "$1"', mount / T)
    assert done.returncode != 0 and "File too large" in done.stderr
    check_shown(mount, expected)


def test_after_a_refused_write_the_next_one_works(mount, expected, fresh):
    errno_of((mount / T).write_bytes, b"short")
    data, path = fresh()
    assert run("cp", path, mount / T).returncode == 0
    expected.change(T, data)
    check_shown(mount, expected)


# ---- truncate ----

def test_ftruncate_to_the_same_size_is_fine(mount, expected):
    fd = os.open(mount / T, os.O_RDWR)
    os.ftruncate(fd, expected.size(T))
    os.pwrite(fd, b"q", 10)
    os.close(fd)
    expected.change(T, b"q", 10)
    check_shown(mount, expected)


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR])
@pytest.mark.parametrize("to", [0, 1, 5000, 4096 * 3])
def test_ftruncate_shorter_and_then_all_of_it_is_fine(mount, expected, fresh, flags, to):
    data, _ = fresh()
    fd = os.open(mount / T, flags)
    os.ftruncate(fd, to)
    for at in range(0, len(data), 100_000):
        os.pwrite(fd, data[at:at + 100_000], at)
    os.close(fd)
    expected.change(T, data)
    check_shown(mount, expected)


def test_ftruncate_shorter_keeps_the_bytes_before(mount, expected, fresh):
    data, _ = fresh()
    fd = os.open(mount / T, os.O_WRONLY)
    os.ftruncate(fd, 5001)
    os.pwrite(fd, data[5001:], 5001)
    os.close(fd)
    expected.change(T, data[5001:], 5001)
    check_shown(mount, expected)


def test_ftruncate_shorter_and_back_leaves_zeros(mount, expected):
    fd = os.open(mount / T, os.O_WRONLY)
    os.ftruncate(fd, 5001)
    os.ftruncate(fd, expected.size(T))
    os.close(fd)
    expected.change(T, bytes(expected.size(T) - 5001), 5001)
    check_shown(mount, expected)


def test_ftruncate_shorter_alone_is_einval_at_close(mount, expected):
    fd = os.open(mount / T, os.O_WRONLY)
    os.ftruncate(fd, 5001)
    assert errno_of(os.close, fd) == errno.EINVAL
    check_shown(mount, expected)


def test_ftruncate_longer_is_efbig(mount, expected):
    fd = os.open(mount / T, os.O_WRONLY)
    assert errno_of(os.ftruncate, fd, expected.size(T) + 1) == errno.EFBIG
    errno_of(os.close, fd)
    check_shown(mount, expected)


def test_truncate_by_path(mount, expected):
    size_bytes = expected.size(T)
    assert errno_of(os.truncate, mount / T, size_bytes) == 0
    assert errno_of(os.truncate, mount / T, size_bytes - 1) == errno.EINVAL
    assert errno_of(os.truncate, mount / T, 0) == errno.EINVAL
    assert errno_of(os.truncate, mount / T, size_bytes + 1) == errno.EFBIG
    check_shown(mount, expected)
    assert os.stat(mount / T).st_size == size_bytes


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR])
def test_a_hole_reads_as_zeros_once_committed(mount, expected, flags):
    size_bytes = expected.size(T)
    fd = os.open(mount / T, flags | os.O_TRUNC)
    os.pwrite(fd, b"head", 0)
    os.lseek(fd, size_bytes - 1, os.SEEK_SET)
    os.write(fd, b"!")
    os.close(fd)
    expected.change(T, b"head" + bytes(size_bytes - 5) + b"!")
    check_shown(mount, expected)


# ---- fsync and synchronous writes ----

@pytest.mark.parametrize("sync", [os.fsync, os.fdatasync])
@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR])
def test_fsync_commits_what_is_whole(mount, expected, open_fd, sync, flags):
    fd = open_fd(mount / T, flags)
    os.pwrite(fd, b"first" * 100, 1000)
    expected.change(T, b"first" * 100, 1000)
    sync(fd)
    check_shown(mount, expected)
    os.pwrite(fd, b"second", 2000)
    sync(fd)
    expected.change(T, b"second", 2000)
    expected.check()
    os.pwrite(fd, b"third", 3000)
    os.close(fd)
    expected.change(T, b"third", 3000)
    check_shown(mount, expected)


def test_fsync_of_whole_new_content_commits(mount, expected, open_fd, fresh):
    data, _ = fresh()
    fd = open_fd(mount / T, os.O_WRONLY | os.O_TRUNC)
    os.write(fd, data)
    os.fsync(fd)
    expected.change(T, data)
    check_shown(mount, expected)
    os.close(fd)
    check_shown(mount, expected)


def test_fsync_of_incomplete_content_is_einval_and_changes_nothing(mount, expected, open_fd):
    fd = open_fd(mount / T, os.O_WRONLY | os.O_TRUNC)
    os.write(fd, b"short")
    assert errno_of(os.fsync, fd) == errno.EINVAL
    assert errno_of(os.close, fd) == errno.EINVAL
    check_shown(mount, expected)


def test_fsync_of_nothing_is_fine(mount, expected, open_fd):
    os.fsync(open_fd(mount / T, os.O_WRONLY))
    os.fsync(open_fd(mount / T, os.O_RDONLY))
    expected.check()


def test_fsync_of_the_directory_is_fine(mount, open_fd):
    os.fsync(open_fd(mount.path, os.O_RDONLY | os.O_DIRECTORY))
    assert run("sync", "-f", mount / T).returncode == 0


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC])
@pytest.mark.parametrize("access", [os.O_WRONLY, os.O_RDWR])
def test_a_synchronous_patch_is_committed_when_write_returns(mount, expected, open_fd, flag, access):
    fd = open_fd(mount / T, access | flag)
    for number in range(3):
        os.pwrite(fd, b"sync" + bytes([number]), number * 50_000 + 7)
        expected.change(T, b"sync" + bytes([number]), number * 50_000 + 7)
        expected.check()


# ---- what a writer sees itself ----

def test_a_read_write_descriptor_reads_what_it_wrote(mount, expected, open_fd):
    fd = open_fd(mount / T, os.O_RDWR)
    assert os.pread(fd, 50_000, 0) == expected.tensor(T)[:50_000]
    os.pwrite(fd, b"mine" * 5000, 4099)
    expected.change(T, b"mine" * 5000, 4099)
    due = expected.tensor(T)
    for at, size_bytes in ((0, 4096), (4095, 10), (4099, 20_000), (20_000, 9_999), (0, len(due)), (len(due) - 5, 9)):
        assert os.pread(fd, size_bytes, at) == due[at:at + size_bytes]
    os.close(fd)
    check_shown(mount, expected)


def test_another_read_write_descriptor_sees_it_too(mount, expected, open_fd):
    one, two = open_fd(mount / T, os.O_RDWR), open_fd(mount / T, os.O_RDWR)
    os.pwrite(one, b"from one", 70_001)
    assert os.pread(two, 8, 70_001) == b"from one"
    os.pwrite(two, b"from two", 70_005)
    assert os.pread(one, 12, 70_001) == b"fromfrom two"
    os.close(one)
    os.close(two)
    expected.change(T, b"fromfrom two", 70_001)
    check_shown(mount, expected)


def test_a_truncated_read_write_descriptor_reads_its_own_length(mount, expected, open_fd, fresh):
    data, _ = fresh()
    fd = open_fd(mount / T, os.O_RDWR | os.O_TRUNC)
    os.write(fd, data[:10_000])
    assert os.pread(fd, 20_000, 5_000) == data[5_000:10_000]
    os.write(fd, data[10_000:])
    assert os.pread(fd, len(data), 0) == data
    os.close(fd)
    expected.change(T, data)
    check_shown(mount, expected)


# ---- descriptors that are shared ----

def test_a_duplicate_that_closes_commits_and_the_original_goes_on(mount, expected):
    fd = os.open(mount / T, os.O_WRONLY)
    duplicate = os.dup(fd)
    os.pwrite(duplicate, b"dup", 100)
    os.close(duplicate)
    expected.change(T, b"dup", 100)
    expected.check()
    generation = mount.generation(T)
    os.close(fd)
    expected.check()
    assert mount.generation(T) == generation, "the second close committed again"


def test_whole_content_through_two_duplicates_is_one_content(mount, expected, fresh):
    data, _ = fresh()
    fd = os.open(mount / T, os.O_WRONLY | os.O_TRUNC)
    duplicate = os.dup(fd)
    os.write(fd, data[:100_000])
    os.write(duplicate, data[100_000:])
    os.close(fd)
    os.close(duplicate)
    expected.change(T, data)
    check_shown(mount, expected)


def _fork_and_exit():
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_child_that_inherits_a_half_written_descriptor_does_no_harm(mount, expected, fresh):
    data, _ = fresh()
    fd = os.open(mount / T, os.O_WRONLY | os.O_TRUNC)
    os.write(fd, data[:100_000])
    _fork_and_exit()
    expected.check()
    os.write(fd, data[100_000:])
    os.close(fd)
    expected.change(T, data)
    check_shown(mount, expected)


def test_a_child_that_inherits_a_patch_does_not_commit_it(mount, expected):
    fd = os.open(mount / T, os.O_WRONLY)
    os.pwrite(fd, b"one", 0)
    _fork_and_exit()
    expected.check()
    os.pwrite(fd, b"two", 200_000)
    os.close(fd)
    expected.change(T, b"one", 0)
    expected.change(T, b"two", 200_000)
    check_shown(mount, expected)


def test_a_background_process_that_keeps_the_descriptor_does_not_hold_the_commit(mount, expected, fresh):
    data, path = fresh()
    done = shell('exec 3>"$2"; sleep 30 & cat "$1" >&3; exec 3>&-; kill $!', path, mount / T)
    assert done.returncode == 0, done.stderr
    expected.change(T, data)
    assert eventually(expected.matches)
    check_shown(mount, expected)


# ---- two writers ----

def test_two_whole_writers_are_never_mixed_and_the_last_close_wins(mount, expected, fresh):
    (one, _), (two, _) = fresh(), fresh()
    first = os.open(mount / T, os.O_WRONLY | os.O_TRUNC)
    second = os.open(mount / T, os.O_WRONLY | os.O_TRUNC)
    for at in range(0, len(one), 50_000):
        os.write(first, one[at:at + 50_000])
        os.write(second, two[at:at + 50_000])
    os.close(second)
    expected.change(T, two)
    check_shown(mount, expected)
    os.close(first)
    expected.change(T, one)
    check_shown(mount, expected)


def test_patches_of_two_writers_at_different_places_both_survive(mount, expected):
    first, second = os.open(mount / T, os.O_WRONLY), os.open(mount / T, os.O_WRONLY)
    os.pwrite(first, b"first", 1001)
    os.pwrite(second, b"second", 1010)
    os.pwrite(first, b"first again", 200_000)
    os.close(first)
    expected.change(T, b"first", 1001)
    expected.change(T, b"first again", 200_000)
    check_shown(mount, expected)
    os.close(second)
    expected.change(T, b"second", 1010)
    check_shown(mount, expected)


def test_concurrent_whole_writers_leave_one_of_their_contents(mount, expected, fresh):
    sources = [fresh() for _ in range(4)]
    running = [subprocess.Popen(["sh", "-c", f'for i in 1 2 3 4 5; do cp "{path}" "{mount / T}" || exit 1; done'])
               for _, path in sources]
    assert [process.wait(60) for process in running] == [0] * 4
    assert mount.archive.tensor(T) in [data for data, _ in sources]
    expected.change(T, mount.archive.tensor(T))
    check_shown(mount, expected)


def test_concurrent_writers_of_different_tensors(mount, expected, fresh):
    names = list(expected.layout)
    running = []
    for name in names:
        data, path = fresh(expected.size(name))
        running.append(subprocess.Popen(["cp", str(path), str(mount / name)]))
        expected.change(name, data)
    assert [process.wait(60) for process in running] == [0] * len(names)
    check_shown(mount, expected)


# ---- what is not a write of a tensor ----

def refusals(mount):
    t, new = mount / T, mount / "new"
    return {
        "rename": lambda: os.rename(t, new), "rename over": lambda: os.rename(t, mount / "odd"),
        "rename in": lambda: os.rename(mount.archive.path + ".x", new), "unlink": lambda: os.unlink(t),
        "create": lambda: os.close(os.open(new, os.O_WRONLY | os.O_CREAT)),
        "create exclusive": lambda: os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL)),
        "mkdir": lambda: os.mkdir(new), "symlink": lambda: os.symlink("x", new), "link": lambda: os.link(t, new),
        "mknod": lambda: os.mknod(new), "mkfifo": lambda: os.mkfifo(new),
        "chmod": lambda: os.chmod(t, 0o4755), "chmod root": lambda: os.chmod(mount.path, 0o1777),
        "chown": lambda: os.chown(t, 4242, 4242),
    }


REFUSED = ["rename", "rename over", "unlink", "create", "create exclusive", "mkdir", "symlink", "link", "mknod",
           "mkfifo", "chmod", "chmod root", "chown"]


@pytest.mark.parametrize("action", REFUSED)
def test_changes_of_the_structure_are_eperm(mount, expected, action):
    assert errno_of(refusals(mount)[action]) == errno.EPERM
    assert sorted(os.listdir(mount.path)) == sorted(expected.layout)
    expected.check()


@pytest.mark.parametrize("action", REFUSED)
def test_changes_of_the_structure_of_a_read_only_mount_are_erofs(archive, mounts, action):
    mount = mounts(archive.path, "ro")
    mount.archive = archive
    before = archive.content()
    assert errno_of(refusals(mount)[action]) == errno.EROFS
    assert archive.content() == before


def test_rmdir_is_refused(archive, mounts):
    mount = mounts(archive.path, "layout=tree")
    assert errno_of(os.rmdir, mount / "layers") in (errno.EPERM, errno.ENOTEMPTY)


def test_creating_a_name_that_exists_is_opening_it(mount, expected, fresh):
    data, _ = fresh()
    fd = os.open(mount / T, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(fd, data)
    os.close(fd)
    expected.change(T, data)
    check_shown(mount, expected)
    assert errno_of(os.open, mount / T, os.O_WRONLY | os.O_CREAT | os.O_EXCL) == errno.EEXIST


def test_what_cp_p_and_touch_do_is_accepted(mount, expected):
    status = os.stat(mount / T)
    os.chmod(mount / T, status.st_mode & 0o7777)
    os.chown(mount / T, status.st_uid, status.st_gid)
    os.utime(mount / T)
    os.utime(mount / T, (1, 2))
    assert run("touch", mount / T).returncode == 0
    expected.check()


@pytest.mark.parametrize("mode", [0, 1, 3, 0x10])
def test_fallocate_is_eopnotsupp(mount, expected, open_fd, mode):
    fd = open_fd(mount / T, os.O_RDWR)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    assert libc.fallocate(fd, mode, 0, 4096) == -1
    assert ctypes.get_errno() == errno.EOPNOTSUPP
    os.close(fd)
    expected.check()


def test_posix_fallocate_of_the_whole_tensor_changes_nothing(mount, expected, open_fd):
    fd = open_fd(mount / T, os.O_RDWR)
    os.posix_fallocate(fd, 0, expected.size(T))  # glibc does it by hand where the system can't
    os.close(fd)
    check_shown(mount, expected)


def test_sed_in_place_and_saving_under_a_new_name_fail_understandably(mount, expected):
    done = run("sed", "-i", "s/a/b/", mount / T)
    assert done.returncode != 0 and "Operation not permitted" in done.stderr
    with pytest.raises(PermissionError):
        np.save(mount / "new.npy", np.zeros(3))
    done = run("mv", mount.archive.path + "", mount / "elsewhere")
    assert done.returncode != 0 and "Operation not permitted" in done.stderr
    assert os.path.exists(mount.archive.path)
    done = run("rm", "-f", mount / T)
    assert done.returncode != 0 and "Operation not permitted" in done.stderr
    check_shown(mount, expected)


# ---- mounts that do not write ----

@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND])
def test_opening_for_writing_on_a_read_only_mount_is_erofs(archive, mounts, flags):
    mount = mounts(archive.path, "ro")
    before, status = archive.content(), os.stat(archive.path)
    assert errno_of(os.open, mount / T, flags) == errno.EROFS
    assert errno_of(os.truncate, mount / T, 0) == errno.EROFS
    assert archive.content() == before
    assert os.stat(archive.path).st_mtime_ns == status.st_mtime_ns


def test_a_mount_with_default_permissions_follows_the_mode(nobody, mounts):
    path = save_with_reference(nobody.directory / "m.safetensors")
    os.chmod(path, 0o666)
    mount = mounts(path, "allow_other,umask=0022,uid=0,gid=0", path=nobody.make_mount_point())
    assert subprocess.run([*nobody.before, "cat", mount / "odd"], capture_output=True).returncode == 0
    done = subprocess.run([*nobody.before, "sh", "-c", f"echo > '{mount / 'odd'}'"], capture_output=True, text=True)
    assert done.returncode != 0 and "Permission denied" in done.stderr
