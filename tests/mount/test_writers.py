# Writers: the archive after a sync, the bytes that a writer reads back, and writers that share a descriptor or a tensor.
import os
import subprocess

import pytest
from mounted import eventually, shell
from written_tensor import T, check_shown, run


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


# ---- reads by the writer ----

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


def test_a_background_process_that_keeps_the_descriptor_does_not_hold_the_commit(mount, expected, fresh):
    data, path = fresh()
    done = shell('exec 3>"$2"; sleep 30 & cat "$1" >&3; exec 3>&-; kill $!', path, mount / T)
    assert done.returncode == 0, done.stderr
    expected.change(T, data)
    assert eventually(expected.matches)
    check_shown(mount, expected)


# ---- two writers: of patches, tests/fs/filesystem_write_test.cc and test_stress.py ----

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
