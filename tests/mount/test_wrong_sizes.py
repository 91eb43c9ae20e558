# Sizes that don't fit a tensor: a write that is too short, too long or truncated fails and changes nothing.
# tests/fs/filesystem_close_test.cc tests the log.
import errno
import os

import pytest
from mounted import errno_of, eventually, shell
from written_tensor import T, check_shown, run

pytestmark = pytest.mark.sequential


@pytest.mark.parametrize("short_by", [1, 1000, 308_223, 308_224])
def test_too_little_is_einval_at_close_and_changes_nothing(mount, expected, short_by):
    fd = os.open(mount / T, os.O_WRONLY | os.O_TRUNC)
    os.write(fd, b"s" * (expected.size(T) - short_by))
    assert errno_of(os.close, fd) == errno.EINVAL
    check_shown(mount, expected)
    assert os.stat(mount / T).st_size == expected.size(T)


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


@pytest.mark.parametrize("data, at", [(b"x" * 100, 308_174), (b"x", 1 << 40), (b"x", (1 << 63) - 2)])
def test_a_write_across_the_end_or_far_past_it_is_efbig(mount, expected, data, at):
    fd = os.open(mount / T, os.O_WRONLY)
    assert errno_of(os.pwrite, fd, data, at) == errno.EFBIG
    assert errno_of(os.pwrite, fd, b"x", 0) == errno.EINVAL  # the content is refused by now
    assert errno_of(os.close, fd) == errno.EINVAL
    check_shown(mount, expected)


def test_the_bytes_of_a_refused_write_are_not_shown(mount, expected, open_fd):
    reader = open_fd(mount / T)
    assert os.pread(reader, expected.size(T), 0) == expected.tensor(T)  # all of its pages are in the cache
    fd = os.open(mount / T, os.O_RDWR)
    # This write is refused for its length; later writes are refused because this one was.
    assert errno_of(os.pwrite, fd, b"x" * 5000, expected.size(T) - 100) == errno.EFBIG
    assert errno_of(os.pwrite, fd, b"y" * 5000, 8000) == errno.EINVAL
    assert eventually(lambda: os.pread(reader, expected.size(T), 0) == expected.tensor(T)), "refused bytes are shown"
    assert errno_of(os.close, fd) == errno.EINVAL
    assert os.pread(reader, expected.size(T), 0) == expected.tensor(T)
    expected.check()


@pytest.mark.parametrize("more, command, why", [
    (1, 'cp "$1" "$2"', "File too large"), (3_000_000, 'cp "$1" "$2"', "File too large"),
    (1, 'dd if="$1" of="$2" bs=4k conv=notrunc', "File too large"),
    (1, 'dd if="$1" of="$2" bs=4k conv=fsync', "File too large"),
    (1, 'cat "$1" >> "$2"', "File too large"), (-1, 'cp "$1" "$2"', "Invalid argument")])
def test_a_program_that_writes_too_much_or_too_little_is_told_and_changes_nothing(
        mount, expected, fresh, more, command, why):
    data, path = fresh(expected.size(T) + more)
    done = shell(command, path, mount / T)
    assert done.returncode != 0 and why in done.stderr
    check_shown(mount, expected)
    # The next one works.
    path.write_bytes(data[:expected.size(T)].ljust(expected.size(T), b"+"))
    assert run("cp", path, mount / T).returncode == 0
    expected.change(T, path.read_bytes())
    check_shown(mount, expected)


# ---- truncate ----

def end(expected):
    """All but the first 5001 bytes."""
    return bytes(expected.size(T) - 5001)


# Cases of one descriptor: the sizes of its truncations, the bytes and the offset of the following write, the errno of close,
# and the change of the tensor.
TRUNCATED = {
    "to its own size": lambda e: ([e.size(T)], b"q", 10, 0, (b"q", 10)),
    "shorter, and the rest written": lambda e: ([5001], b"r" * len(end(e)), 5001, 0, (b"r" * len(end(e)), 5001)),
    "shorter and back: zeros": lambda e: ([5001, e.size(T)], b"", 0, 0, (end(e), 5001)),
    "shorter alone": lambda e: ([5001], b"", 0, errno.EINVAL, None),
    **{f"to {to}, and all of it written": lambda e, to=to: ([to], b"s" * e.size(T), 0, 0, (b"s" * e.size(T), 0))
       for to in (0, 1, 5000, 4096 * 3)},
}


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR])
@pytest.mark.parametrize("case", TRUNCATED.values(), ids=TRUNCATED)
def test_ftruncate(mount, expected, case, flags):
    sizes, data, at, verdict, change = case(expected)
    fd = os.open(mount / T, flags)
    for size_bytes in sizes:
        os.ftruncate(fd, size_bytes)
    for begin in range(0, len(data), 100_000):
        os.pwrite(fd, data[begin:begin + 100_000], at + begin)
    assert errno_of(os.close, fd) == verdict
    if change:
        expected.change(T, *change)
    check_shown(mount, expected)


def test_truncate_by_path_and_ftruncate_longer(mount, expected):
    size_bytes = expected.size(T)
    verdicts = {size_bytes: 0, size_bytes - 1: errno.EINVAL, 0: errno.EINVAL, size_bytes + 1: errno.EFBIG}
    for to, verdict in verdicts.items():
        assert errno_of(os.truncate, mount / T, to) == verdict
    fd = os.open(mount / T, os.O_WRONLY)
    assert errno_of(os.ftruncate, fd, size_bytes + 1) == errno.EFBIG
    assert errno_of(os.close, fd) == errno.EINVAL
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


@pytest.mark.parametrize("holes", ["at the end", "amid", "all"])
@pytest.mark.parametrize("how", ["auto", "always", "never"])
def test_cp_of_a_sparse_file_writes_its_zeros(mount, expected, tmp_path, holes, how):
    size_bytes, source = expected.size(T), tmp_path / "sparse"
    with open(source, "wb") as file:
        file.truncate(size_bytes)
        if holes != "all":
            file.seek(0 if holes == "at the end" else size_bytes - 5000)
            file.write(b"d" * 5000)
    assert run("cp", f"--sparse={how}", source, mount / T).returncode == 0
    expected.change(T, source.read_bytes())
    check_shown(mount, expected)


def test_dd_that_seeks_over_zeros_at_the_end_is_refused(mount, expected, tmp_path):
    """It asks fstat(2) whether it must set the size, and a tensor's size never seems to change. No seek reaches us."""
    source = tmp_path / "sparse"
    source.write_bytes(bytes(expected.size(T)))
    done = run("dd", f"if={source}", f"of={mount / T}", "bs=64K", "conv=sparse")
    assert done.returncode == 1 and "Invalid argument" in done.stderr
    check_shown(mount, expected)
    assert run("dd", f"if={source}", f"of={mount / T}", "bs=64K").returncode == 0
    expected.change(T, source.read_bytes())
    check_shown(mount, expected)
