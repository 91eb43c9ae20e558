# Writing: the writes between open and close replace the tensor as a whole or not at all, in each way to write. After each test
# the whole archive is compared, so a changed byte elsewhere fails the test. test_stress.py tests writes before an unmount,
# test_writers.py concurrent writes.
import errno
import os
import time

import numpy as np
import pytest
from archive_file import ArchiveFile, Expectation, random_bytes, write_bytes_tensors
from mounted import errno_of, shell
from written_tensor import T, check_shown, read, run


# ---- the ways that people write ----

def dd(*options):
    def way(source, target):
        return run("dd", f"if={source}", f"of={target}", *options)

    return way


way_dd_notrunc = dd("conv=notrunc", "bs=64k")
way_dd_truncating = dd("bs=64k")
way_dd_odd_blocks = dd("bs=777")
way_dd_one_block = dd("bs=16M")
way_dd_fsync = dd("conv=notrunc,fsync", "bs=64k")
way_dd_direct = dd("conv=notrunc", "oflag=direct", "bs=64k")
way_dd_direct_truncating = dd("oflag=direct", "bs=64k")
way_dd_sync = dd("oflag=sync", "bs=64k")
way_dd_dsync_notrunc = dd("oflag=dsync", "conv=notrunc", "bs=64k")
way_dd_append_truncating = dd("oflag=append", "bs=64k")


def way_cp(source, target):
    return run("cp", source, target)


def way_cp_preserving_mode_and_time(source, target):
    os.chmod(source, os.stat(target).st_mode & 0o777)
    return run("cp", "-p", source, target)


def script(text):
    def way(source, target):
        return shell(text, source, target)

    return way


way_cat = script('cat "$1" > "$2"')
way_cat_read_write = script('cat "$1" 1<> "$2"')
way_tee = script('tee "$2" < "$1" > /dev/null')
way_group_of_commands = script('{ head -c 100001 "$1"; tail -c +100002 "$1"; } > "$2"')
way_loop_of_commands = script(
    'for i in 0 1 2 3 4 5 6 7 8 9; do dd if="$1" bs=31000 skip=$i count=1 status=none; done > "$2"')


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


def test_the_same_content_again_is_no_error(mount, expected):
    for _ in range(3):
        (mount / T).write_bytes(expected.tensor(T))
    check_shown(mount, expected)


def test_an_empty_tensor_takes_empty_content(mount, expected):
    before = mount.archive.content()
    assert shell(': > "$1"', mount / "empty").returncode == 0
    (mount / "empty").write_bytes(b"")
    assert mount.archive.content() == before
    fd = os.open(mount / "empty", os.O_WRONLY)
    assert errno_of(os.write, fd, b"x") == errno.EFBIG
    assert errno_of(os.close, fd) == errno.EINVAL
    expected.check()
