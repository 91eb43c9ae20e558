# Files of the source directory that programs write: one program's close does not end another program's writes, and the mount
# closes all files afterwards.
import contextlib
import mmap
import os
import re

import pytest
from edited_mount import save
from mounted import eventually


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "model.safetensors"
    save(path, {"a": 16})
    return path


@pytest.fixture
def mount(source, mounts):
    return mounts(source)


def open_for_writing(source, mount):
    """How many files beside the model the mount has open for writing."""
    count = 0
    for fd in os.listdir(f"/proc/{mount.process.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            path = os.readlink(f"/proc/{mount.process.pid}/fd/{fd}")
            with open(f"/proc/{mount.process.pid}/fdinfo/{fd}") as info:
                flags = int(re.search(r"flags:\s*(\d+)", info.read())[1], 8)
            count += os.path.dirname(path) == str(source.parent) and flags & os.O_ACCMODE != os.O_RDONLY
    return count


def test_files_that_are_written_by_a_mapping_after_their_close_are_closed_in_the_end(source, mount):
    directory = mount / ".safetensors" / "pretrained"
    before = open_for_writing(source, mount)
    for number in range(100):
        fd = os.open(directory / f"f{number}", os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 4096)
        mapped = mmap.mmap(fd, 4096)
        os.close(fd)
        mapped[:1] = b"x"
        mapped.close()
    assert eventually(lambda: open_for_writing(source, mount) == before)
    for number in range(100):
        assert (source.parent / f"f{number}").read_bytes() == b"x" + bytes(4095)


def test_a_reader_that_closes_a_deleted_file_takes_it_from_no_writer(mount):
    path = mount / ".safetensors" / "pretrained" / "notes.txt"
    writer = os.open(path, os.O_RDWR | os.O_CREAT)
    assert os.write(writer, b"one ") == 4
    reader = os.open(path, os.O_RDONLY)
    os.unlink(path)
    assert os.write(writer, b"two ") == 4
    os.close(reader)
    copy = os.dup(writer)
    os.close(copy)
    assert os.write(writer, b"three") == 5
    os.fsync(writer)
    assert os.pread(writer, 100, 0) == b"one two three"
    os.close(writer)


def test_a_change_by_a_path_leaves_no_file_open(source, mount):
    directory = mount / ".safetensors" / "pretrained"
    before = open_for_writing(source, mount)
    for number in range(100):
        (directory / f"f{number}").write_bytes(b"text")
    os.mknod(directory / "node", 0o600)
    for number in range(100):
        os.truncate(directory / f"f{number}", 2)
        os.utime(directory / f"f{number}", (1000, 1000))
    assert eventually(lambda: open_for_writing(source, mount) == before)
