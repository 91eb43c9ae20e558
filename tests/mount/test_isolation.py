# A handle opened write-only is isolated: the others see the old tensor until its close returns, and
# the new one from then on, whatever they had cached.
import mmap
import os

import pytest
from archive_file import random_bytes
from mounted import errno_of, start_python, wait_ready

T = "layers.0.weight"
FLAGS = {"whole": os.O_WRONLY | os.O_TRUNC, "patch": os.O_WRONLY}


def read_with(path, flags):
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        return read_from(fd)
    finally:
        os.close(fd)


def read_from(fd):
    size_bytes = os.fstat(fd).st_size
    buffer = mmap.mmap(-1, size_bytes + 8192)
    with buffer:
        done = 0
        while count := os.preadv(fd, [memoryview(buffer)[done:done + 131072]], done):
            done += count
        return buffer[:done]


@pytest.fixture(params=["whole", "patch"])
def writing(request, mount, expected, open_fd):
    """A write-only handle with its content staged and not yet closed, and what readers saw before."""
    class Writing:
        pass

    writing = Writing()
    writing.old = expected.tensor(T)
    writing.data = random_bytes(len(writing.old), 77)
    writing.cached = open_fd(mount / T)
    writing.direct = open_fd(mount / T, os.O_RDONLY | os.O_DIRECT)
    assert read_from(writing.cached) == read_from(writing.direct) == writing.old
    writing.fd = [os.open(mount / T, FLAGS[request.param])]
    for at in range(0, len(writing.data), 70_000):
        os.pwrite(writing.fd[0], writing.data[at:at + 70_000], at)
    writing.close = lambda: os.close(writing.fd.pop())
    yield writing
    for fd in writing.fd:
        os.close(fd)


def test_readers_see_the_old_tensor_until_the_close_and_the_new_one_after(writing, mount, expected):
    assert os.stat(mount / T).st_size == len(writing.old)
    assert os.fstat(writing.cached).st_size == len(writing.old)
    assert read_from(writing.cached) == writing.old
    assert read_from(writing.direct) == writing.old
    assert read_with(mount / T, 0) == writing.old
    assert read_with(mount / T, os.O_DIRECT) == writing.old
    expected.check()
    writing.close()
    assert read_from(writing.cached) == writing.data
    assert read_from(writing.direct) == writing.data
    assert read_with(mount / T, 0) == writing.data
    assert read_with(mount / T, os.O_DIRECT) == writing.data
    expected.change(T, writing.data)
    expected.check()


def test_a_half_written_whole_content_is_not_seen(mount, expected, open_fd):
    old = expected.tensor(T)
    cached = open_fd(mount / T)
    assert read_from(cached) == old
    fd = open_fd(mount / T, os.O_WRONLY | os.O_TRUNC)
    assert os.stat(mount / T).st_size == len(old)
    assert read_from(cached) == old
    os.write(fd, b"n" * 100_000)
    assert os.stat(mount / T).st_size == len(old)
    assert read_from(cached) == old
    assert read_with(mount / T, os.O_DIRECT) == old


def test_attributes_follow_the_commit_and_not_the_write(writing, mount):
    generation, checksum = mount.generation(T), mount.attribute(T, "checksum")
    mtime = os.stat(mount / T).st_mtime_ns
    writing.close()
    assert mount.generation(T) > generation
    assert mount.attribute(T, "checksum") != checksum
    assert os.stat(mount / T).st_mtime_ns > mtime


MAPPED_READER = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
mapped = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
mapped[:]
print("ready")
for line in sys.stdin:
    print(bytes(mapped[:]).hex(), flush=True)
"""


@pytest.mark.parametrize("kind", FLAGS)
def test_an_existing_mapping_of_a_reader_sees_old_then_new_and_no_sigbus(mount, expected, kind):
    old, data = expected.tensor(T), random_bytes(expected.size(T), 78)
    reader = start_python(MAPPED_READER, mount / T)
    try:
        wait_ready(reader)

        def look():
            reader.stdin.write("look\n")
            reader.stdin.flush()
            line = reader.stdout.readline()
            assert line, f"the reader died with {reader.wait()} (-7 is SIGBUS): {reader.stderr.read()}"
            return bytes.fromhex(line)

        assert look() == old
        fd = os.open(mount / T, FLAGS[kind])
        try:
            assert look() == old
            os.pwrite(fd, data[:150_000], 0)
            assert look() == old
            os.pwrite(fd, data[150_000:], 150_000)
            assert look() == old
        finally:
            os.close(fd)
        assert look() == data
    finally:
        reader.kill()
        reader.communicate()


def test_a_refused_write_leaves_nothing_in_any_cache(mount, expected, open_fd):
    cached = open_fd(mount / T)
    old = read_from(cached)
    too_long, too_short = True, False
    for flags, why in ((os.O_WRONLY | os.O_TRUNC, too_long), (os.O_RDWR | os.O_TRUNC, too_long), (os.O_RDWR, too_long),
                       (os.O_RDWR | os.O_TRUNC, too_short)):
        fd = os.open(mount / T, flags)
        os.write(fd, b"x" * 5000)
        assert why == too_short or errno_of(os.pwrite, fd, b"x", len(old)) != 0
        assert errno_of(os.close, fd) != 0
        assert os.stat(mount / T).st_size == len(old), flags
        assert read_from(cached) == old, flags
        assert read_with(mount / T, 0) == read_with(mount / T, os.O_DIRECT) == old, flags
    expected.check()


def test_commits_show_at_once_to_a_process_that_reads_in_turn(mount, expected):
    """Old bytes in the reader's cache after the writer's close would show here, soon or late."""
    fd = os.open(mount / T, os.O_RDONLY)
    try:
        for number in range(60):
            data = bytes([number + 1]) * expected.size(T)
            with open(mount / T, "r+b" if number % 2 else "wb") as file:
                file.write(data)
            assert os.pread(fd, len(data), 0) == data, f"commit {number} is not seen"
    finally:
        os.close(fd)


def test_an_open_right_after_a_refused_close_starts_afresh(mount, expected):
    """The kernel releases the refused descriptor later. A descriptor that is opened before the release is not affected."""
    for number in range(200):
        fd = os.open(mount / T, os.O_RDWR | os.O_TRUNC)
        os.write(fd, b"short")
        with pytest.raises(OSError):
            os.close(fd)
        fd = os.open(mount / T, os.O_RDWR)
        assert os.pwrite(fd, b"%05d" % number, 5) == 5
        os.close(fd)
        expected.change(T, b"%05d" % number, 5)
    expected.check()
