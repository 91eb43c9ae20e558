# Sizes that don't fit a tensor: what is too short, too long or truncated is refused and changes nothing.
import errno
import os

import pytest
from mounted import errno_of, eventually, shell
from written_tensor import T, check_shown, run

pytestmark = pytest.mark.sequential


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
    for at in (1 << 40, (1 << 63) - 2):
        fd = os.open(mount / T, os.O_WRONLY)
        assert errno_of(os.pwrite, fd, b"x", at) == errno.EFBIG
        assert errno_of(os.pwrite, fd, b"x", 0) == errno.EINVAL  # the content is refused by now
        assert errno_of(os.close, fd) == errno.EINVAL
        check_shown(mount, expected)


def test_the_bytes_of_a_refused_write_are_not_shown(mount, expected, open_fd):
    reader = open_fd(mount / T)
    assert os.pread(reader, expected.size(T), 0) == expected.tensor(T)  # all of its pages are in the cache
    fd = os.open(mount / T, os.O_RDWR)
    # Refused for its length; what follows is refused since this one was.
    assert errno_of(os.pwrite, fd, b"x" * 5000, expected.size(T) - 100) == errno.EFBIG
    assert errno_of(os.pwrite, fd, b"y" * 5000, 8000) == errno.EINVAL
    assert eventually(lambda: os.pread(reader, expected.size(T), 0) == expected.tensor(T)), "refused bytes are shown"
    assert errno_of(os.close, fd) == errno.EINVAL
    assert os.pread(reader, expected.size(T), 0) == expected.tensor(T)
    expected.check()


@pytest.mark.parametrize("more", [1, 4096, 3_000_000])
def test_cp_of_a_longer_file_fails_and_changes_nothing(mount, expected, fresh, more):
    _, path = fresh(expected.size(T) + more)
    done = run("cp", path, mount / T)
    assert done.returncode != 0
    assert "File too large" in done.stderr
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
