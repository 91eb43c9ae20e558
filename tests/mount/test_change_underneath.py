# The archive changes while it is mounted: cut, deleted, replaced, written by other programs. Reads never give zeros that are
# not in the archive; the daemon never crashes, and never writes into the wrong file.
import errno
import json
import mmap
import os
import signal
import struct

import pytest
from archive_file import ArchiveFile, random_bytes, write_bytes_tensors
from mounted import errno_of, eventually, run_python

T = "layers.0.weight"
BLOCK = 1 << 16


def read_direct(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        size_bytes = os.fstat(fd).st_size
        with mmap.mmap(-1, size_bytes + 4096) as buffer:
            done = 0
            while count := os.preadv(fd, [memoryview(buffer)[done:done + BLOCK]], done):
                done += count
            return buffer[:done]
    finally:
        os.close(fd)


@pytest.fixture
def in_order(tmp_path, mounts):
    """Ten tensors of 100,003 bytes, one after the other, none of them read yet."""
    contents = {f"t{number}": random_bytes(100_003, number) for number in range(10)}
    mount = mounts(write_bytes_tensors(tmp_path / "ten.safetensors", contents))
    mount.archive = ArchiveFile(mount.source)
    mount.contents = contents
    return mount


# ---- deleted ----

def test_a_deleted_archive_is_read_to_its_end(mount, expected):
    os.unlink(mount.archive.path)
    for name in expected.layout:
        assert (mount / name).read_bytes() == expected.tensor(name), name
        assert read_direct(mount / name) == expected.tensor(name), name


# ---- cut ----

def test_a_cut_archive_gives_eio_where_it_is_cut_and_bytes_elsewhere(in_order):
    _, _, begin, end = in_order.archive.layout()["t5"]
    cut_at = (begin + end) // 2
    os.truncate(in_order.source, cut_at)
    for number in range(5):
        assert (in_order / f"t{number}").read_bytes() == in_order.contents[f"t{number}"], number
    for number in range(6, 10):
        assert errno_of((in_order / f"t{number}").read_bytes) == errno.EIO, number
        assert errno_of(read_direct, in_order / f"t{number}") == errno.EIO, number
    due, fd = in_order.contents["t5"], os.open(in_order / "t5", os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 4096)
    for at in range(0, len(due), 4096):
        try:
            count = os.preadv(fd, [buffer], at)
        except OSError as error:
            assert error.errno == errno.EIO
            assert begin + at + 4096 > cut_at, "EIO for bytes that are still there"
        else:
            assert buffer[:count] == due[at:at + 4096], f"wrong bytes at {at}"
            assert begin + at + count <= cut_at
    os.close(fd)
    assert eventually(lambda: in_order.source in in_order.log())


def test_slices_of_what_is_cut_are_eio_and_of_the_rest_right(in_order):
    """These views are gathered from the map, where a missing page is a signal."""
    slices = in_order / ".safetensors" / "slice"
    os.truncate(in_order.source, 500_000)
    for turn in range(3):
        assert (slices / f"t0[{turn}::7]").read_bytes() == in_order.contents["t0"][turn::7]
        assert errno_of((slices / f"t9[{turn}::7]").read_bytes) == errno.EIO
        assert errno_of((slices / f"t9[:{turn}:-7]").read_bytes) == errno.EIO
    assert in_order.process.poll() is None


@pytest.mark.parametrize("to", [0, 1, 8, 100, 4096])
def test_an_archive_cut_into_its_header_never_shows_zeros(in_order, to):
    os.truncate(in_order.source, to)
    for name in in_order.contents:
        assert errno_of(read_direct, in_order / name) == errno.EIO
    assert len(os.listdir(in_order.path)) == 10


def test_a_mapping_of_a_cut_tensor_is_sigbus_for_the_reader_only(in_order):
    os.truncate(in_order.source, 200_000)
    done = run_python("import mmap, os, sys\n"
                      "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
                      "mapped = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)\n"
                      "print(sum(mapped[:]))\n", in_order / "t9")
    assert done.returncode == -signal.SIGBUS, done.stdout
    assert (in_order / "t0").read_bytes() == in_order.contents["t0"]


def test_a_write_into_a_cut_archive_fails_and_does_not_grow_it(in_order):
    os.truncate(in_order.source, 500_000)
    assert errno_of((in_order / "t9").write_bytes, b"x" * 100_003) == errno.EIO
    assert os.stat(in_order.source).st_size == 500_000


# ---- written by others ----

def test_foreign_data_are_noticed_and_shown(mount, expected):
    """Another program patches the file in place, as `dd conv=notrunc` onto the archive does."""
    assert (mount / T).read_bytes() == expected.tensor(T)  # cached by the kernel
    generation = mount.generation(T)
    begin = expected.layout[T][2]
    with open(mount.archive.path, "r+b") as file:
        file.seek(begin + 1000)
        file.write(b"foreign" * 100)
    expected.change(T, b"foreign" * 100, 1000)
    assert eventually(lambda: (mount / T).read_bytes() == expected.tensor(T)), "old bytes go on"
    assert read_direct(mount / T) == expected.tensor(T)
    assert mount.generation(T) > generation
    for name in expected.layout:
        assert (mount / name).read_bytes() == expected.tensor(name)
    assert mount.attribute(T, "checksum").startswith("xxh128:")


def test_a_foreign_header_is_never_read_through(mount, expected):
    """Two tensors of one size swap their ranges in the header: the old table would show wrong bytes."""
    (mount / "odd").read_bytes()
    size_bytes, header = mount.archive.header()
    one, two = header["layers.0.weight"], header["layers.1.weight"]
    one["data_offsets"], two["data_offsets"] = two["data_offsets"], one["data_offsets"]
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    assert len(text) <= size_bytes
    with open(mount.archive.path, "r+b") as file:
        file.write(struct.pack("<Q", size_bytes) + text.ljust(size_bytes))
    changed = mount.archive.content()
    (old_zero, old_one) = expected.tensor(T), expected.tensor("layers.1.weight")

    def shown():
        try:
            return read_direct(mount / T)
        except OSError as error:
            assert error.errno == errno.EIO
            return b""

    assert eventually(lambda: shown() == old_one), "tensors are still read through the old header"
    assert read_direct(mount / "layers.1.weight") == old_zero
    assert mount.archive.content() == changed
    assert mount.archive.path in mount.log()
