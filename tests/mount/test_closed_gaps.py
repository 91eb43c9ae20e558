"""After deletions in a mount, other programs find no rest of the tensors, or a filler that the mount's log names."""
import json
import os
import signal
import struct

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mounted import eventually

SIZES = {"a": 300_000, "b": 70_001, "c": 300_000, "d": 5, "e": 20_000}


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "m.safetensors"
    arrays = {name: np.random.default_rng(size).integers(0, 256, size, "u1") for name, size in SIZES.items()}
    save_file(arrays, path)
    return path, arrays


def delete_and_replace(mount, arrays):
    os.unlink(mount / "a")
    del arrays["a"]
    arrays["b"] = np.arange(50_000, dtype="<i2")
    np.save(mount / ".safetensors" / "npy" / "b.npy", arrays["b"])
    os.rename(mount / "e", mount / "renamed")
    arrays["renamed"] = arrays.pop("e")


def check(path, arrays):
    found = load_file(path)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert np.array_equal(found[name], array), name


def test_other_programs_find_no_filler_after_the_mount(archive, mounts):
    path, arrays = archive
    mount = mounts(path, "reshape")
    delete_and_replace(mount, arrays)
    assert mount.unmount() == 0
    check(path, arrays)
    assert not list(path.parent.glob(".m.*"))
    mount = mounts(path, "reshape")
    for name, array in arrays.items():
        assert (mount / name).read_bytes() == array.tobytes()


def fillers(path):
    return [name for name in load_file(path) if name.startswith("__safetensorsfs.free.")]


def test_an_idle_mount_closes_the_gaps_while_programs_read(archive, mounts):
    path, arrays = archive
    mount = mounts(path, "reshape")
    opened = {name: open(mount / name, "rb") for name in ("c", "d")}
    delete_and_replace(mount, arrays)
    assert fillers(path)

    def is_closed():
        for name, file in opened.items():
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(file.fileno(), 1 << 20, 0) == arrays[name].tobytes(), name
        return "closed the gaps" in mount.log()

    assert eventually(is_closed, 60)
    check(path, arrays)
    for name, array in arrays.items():
        assert (mount / name).read_bytes() == array.tobytes()
    assert os.stat(mount / "c").st_ino == os.fstat(opened["c"].fileno()).st_ino
    whole = mount / ".safetensors" / "archive.safetensors"
    assert whole.read_bytes() == path.read_bytes()
    (mount / "c").write_bytes(bytes(SIZES["c"]))
    assert not np.any(load_file(path)["c"])


def test_the_bytes_of_a_deleted_tensor_stay_while_a_program_has_it_open(archive, mounts):
    path, arrays = archive
    mount = mounts(path)
    with open(mount / "a", "rb") as reader:
        os.unlink(mount / "a")
        (mount / "b").write_bytes(arrays["b"].tobytes())
        assert reader.read() == arrays.pop("a").tobytes()
        assert fillers(path)
    assert eventually(lambda: "closed the gaps" in mount.log(), 60)
    check(path, arrays)


def test_a_filler_that_stays_is_in_the_log_with_the_command_that_removes_it(archive, mounts):
    path, arrays = archive
    mount = mounts(path, "compact=off,reshape")
    delete_and_replace(mount, arrays)
    assert mount.unmount() == 0
    assert any(name.startswith("__safetensorsfs.free.") for name in load_file(path))
    assert eventually(lambda: f"`stfs compact {path}`" in mount.log() and "compact=off" in mount.log())


def test_while_another_mount_reads_the_archive_the_filler_stays(archive, mounts):
    path, arrays = archive
    mount = mounts(path, "reshape")
    delete_and_replace(mount, arrays)
    other = mounts(path, "ro")
    assert mount.unmount() == 0
    assert "has the archive open" in mount.log()
    for name, array in arrays.items():
        assert (other / name).read_bytes() == array.tobytes()


def test_a_mount_says_that_an_earlier_one_has_left_fillers(archive, mounts):
    path, arrays = archive
    mount = mounts(path, "compact=off,reshape")
    delete_and_replace(mount, arrays)
    assert eventually(lambda: "compact=off was given" in mount.log(), 60)  # also while it lasts
    assert mount.unmount() == 0
    mount = mounts(path)
    assert "an earlier edit has left them" in mount.log() and f"`stfs compact {path}`" in mount.log()


def write_many_fillers(path, tensors):
    """An archive of empty space, in which half of the tensors have a filler before them."""
    header, end = {}, 0

    def add(name, size):
        nonlocal end
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size

    for at in range(tensors):
        if at % 2 == 0:
            add(f"__safetensorsfs.free.{at}", 8 * (1 + at * 7919 % 1000))
        add(f"t{at}", 8 * (1 + at * 104_729 % 1000))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + end)


def test_thousands_of_fillers_keep_no_mount_from_its_end(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    write_many_fillers(path, 20_000)
    mount = mounts(path)
    os.unlink(mount / "t1")
    assert mount.unmount(seconds=120) == 0  # it is seconds of work, and was hours
    assert "closing the gap would move too much" in mount.log()
    found = load_file(path)
    assert len([name for name in found if name.startswith("t")]) == 19_999
