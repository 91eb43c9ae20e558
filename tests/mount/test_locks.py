# Several writers of one archive: two mounts, and a process that holds a lock. test_waiting.py and
# tests/fs/filesystem_waiting_test.cc test a commit that waits for such a lock.
import contextlib
import threading

import pytest
from archive_file import Expectation, random_bytes
from mounted import eventually, start_python, wait_ready

LOCK_BASE = 2 ** 62
HOLD = """
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(fd, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, int(sys.argv[2]), int(sys.argv[3]), 0))
print("ready")
sys.stdin.read()
"""  # 37: F_OFD_SETLK


@pytest.fixture
def two(archive, mounts):
    return mounts(archive.path), mounts(archive.path)


def write_in_threads(jobs):
    """Runs each job of (path, [content, ...]) in a separate thread. Returns their errors."""
    errors = []

    def work(path, contents):
        try:
            for content in contents:
                path.write_bytes(content)
        except OSError as error:
            errors.append((path, error))

    threads = [threading.Thread(target=work, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


# Tensors in separate blocks, tensors that share a block, and one tensor of both, which keeps the last content of either mount.
@pytest.mark.parametrize("names", [["layers.0.weight", "layers.1.weight", "embed", "odd"],
                                   ["dtype.U8", "dtype.I8", "dtype.I16", "dtype.U16", "small", "scalar"],
                                   ["embed", "embed"]])
def test_two_mounts_write_side_by_side_and_lose_nothing(archive, two, names):
    expected = Expectation(archive)
    contents = [[random_bytes(expected.size(name), 100 * at + step) for step in range(15)]
                for at, name in enumerate(names)]
    assert write_in_threads([(two[at % 2] / name, contents[at]) for at, name in enumerate(names)]) == []
    for at, name in enumerate(names):
        last = [written[-1] for other, written in zip(names, contents) if other == name]
        assert archive.tensor(name) in last
        expected.change(name, archive.tensor(name))
    expected.check()


def test_the_other_mount_sees_a_commit_soon(archive, two):
    expected = Expectation(archive)
    name = "layers.0.weight"
    assert (two[1] / name).read_bytes() == expected.tensor(name)
    before = two[1].generation(name)
    data = random_bytes(expected.size(name), 5)
    (two[0] / name).write_bytes(data)
    assert eventually(lambda: (two[1] / name).read_bytes() == data, 5)
    assert two[1].generation(name) > before


@contextlib.contextmanager
def held_by_another(archive, name):
    """The process that holds the lock on a tensor's bytes."""
    _, _, begin, end = archive.layout()[name]
    holder = start_python(HOLD, archive.path, LOCK_BASE + begin, end - begin)
    try:
        wait_ready(holder)
        yield holder
    finally:
        holder.kill()
        holder.wait()


def test_nolock_asks_nobody(archive, mounts):
    expected = Expectation(archive)
    mount = mounts(archive.path, "nolock")
    data = random_bytes(expected.size("embed"), 4)
    with held_by_another(archive, "embed"):
        (mount / "embed").write_bytes(data)
    expected.change("embed", data)
    expected.check()
