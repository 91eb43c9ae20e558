# Edits of the structure on ext4, xfs, btrfs and tmpfs: of archives as the reference library writes them, and on a full disk.
import os
import random
import subprocess

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from mounted import BUILD
from own_disk import KINDS, full_but_for, own_disk

STFS = BUILD / "stfs"
FREE = "__safetensorsfs.free."


@pytest.fixture(params=KINDS)
def disk(request, tmp_path):
    """An empty file system of each kind."""
    with own_disk(request.param, tmp_path / "disk") as path:
        yield path


def stfs(*words, code=0):
    done = subprocess.run([STFS, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def content(path):
    with safetensors.safe_open(path, "np") as archive:
        return {name: archive.get_tensor(name).tobytes() for name in archive.keys() if not name.startswith(FREE)}


def test_every_edit_of_a_tight_archive(disk, tmp_path):
    rng = random.Random(1)
    path, raw = disk / "m.safetensors", tmp_path / "raw"
    arrays = {name: np.frombuffer(rng.randbytes(size), "u1") for name, size in
              {"large": 5_000_001, "b": 3, "c": 70_000, "d": 4096}.items()}
    safetensors.numpy.save_file(arrays, path)
    due = {name: array.tobytes() for name, array in arrays.items()}
    for size in (1, 8000, 3_000_000):
        raw.write_bytes(rng.randbytes(size))
        due[f"new{size}"] = raw.read_bytes()
        stfs("put", "--create", "--dtype", "U8", path, f"new{size}", raw)
        assert content(path) == due
    used = path.stat().st_blocks
    stfs("rm", "--keep-space", path, "large")
    del due["large"]
    assert content(path) == due
    assert used - path.stat().st_blocks > 4_900_000 // 512, "a deleted tensor's space comes back at once"
    size_bytes = path.stat().st_size
    raw.write_bytes(rng.randbytes(2_000_000))
    due["again"] = raw.read_bytes()
    stfs("put", "--create", "--keep-space", "--dtype", "U8", path, "again", raw)
    assert content(path) == due and path.stat().st_size == size_bytes, "a new tensor takes the place of a deleted one"
    stfs("mv", path, "*", "a.longer.name.than.before.*")
    stfs("set", path, "a.longer.name.than.before.d", "--dtype", "I8", "--shape", "64,64")
    stfs("set", path, "--metadata", "key=" + "v" * 60_000)
    assert content(path) == {f"a.longer.name.than.before.{name}": data for name, data in due.items()}


@pytest.mark.sequential
def test_a_full_disk_refuses_before_anything_changes(disk, tmp_path):
    path, raw = disk / "m.safetensors", tmp_path / "raw"
    safetensors.numpy.save_file({"a": np.ones(3_000_000, "u1"), "b": np.ones(9000, "u1")}, path)
    raw.write_bytes(bytes(3_000_000))
    stfs("put", "--create", "--dtype", "U8", path, "c", raw)
    stfs("rm", "--keep-space", path, "a")  # a hole now
    before = content(path)
    free = os.statvfs(disk)
    # Room for the journal of a new tensor, and not for the tensor.
    with open(disk / "filler", "wb") as filler:
        filler.write(b"x" * (free.f_bavail * free.f_frsize - 5_000_000))
    os.sync()
    refused = False
    for number in range(20):  # root has a reserve on ext4
        done = subprocess.run([STFS, "put", "--create", "--dtype", "U8", path, f"n{number}", raw], capture_output=True, text=True)
        if done.returncode == 0:
            before[f"n{number}"] = raw.read_bytes()
            continue
        refused = True
        assert "No space left" in done.stderr and "committed" not in done.stderr
        assert content(path) == before
        assert not list(disk.glob(".m.*"))
        break
    assert refused
    (disk / "filler").unlink()
    os.sync()
    stfs("put", "--create", "--dtype", "U8", path, "later", raw)
    assert content(path) == before | {"later": raw.read_bytes()}


def save_with_holes(path, deleted):
    """In the order of their names, with room in the header."""
    rng = random.Random(2)
    arrays = {f"w{number:02}": np.frombuffer(rng.randbytes(size), "u1") for number, size in
              enumerate([1 << 20, 3_000_001, 4096, 5 << 20, 1 << 20, 70_000, 8 << 20, 2 << 20])}
    safetensors.numpy.save_file(arrays, path)
    stfs("set", path, "--metadata", "k=v")
    stfs("rm", "--keep-space", path, *deleted)
    return {name: array.tobytes() for name, array in arrays.items() if name not in deleted}


@pytest.mark.parametrize("deleted", [["w00"], ["w03"], ["w01", "w05"], ["w06", "w02"]])
def test_a_compacted_archive_takes_no_more_than_its_tensors(disk, deleted):
    path = disk / "m.safetensors"
    due = save_with_holes(path, deleted)
    stfs("compact", path)
    assert content(path) == due
    with open(path, "rb") as file:
        header = file.read(8 + int.from_bytes(file.read(8), "little"))
    assert path.stat().st_size - len(header) - sum(map(len, due.values())) < 100
    os.sync()
    assert path.stat().st_blocks * 512 < path.stat().st_size + (1 << 20)
    assert not list(disk.glob(".m.*"))


@pytest.mark.sequential
def test_a_full_disk_stops_a_compaction_and_room_lets_it_go_on(disk):
    path = disk / "m.safetensors"
    due = save_with_holes(path, ["w00"])
    assert content(path) == due
    with full_but_for(disk, 0):
        message = stfs("compact", path, code=1)
        assert "No space left" in message and "the same command goes on" in message and "committed" not in message
        assert content(path) == due
    stfs("compact", path)
    assert content(path) == due
    assert "the archive is compact" in stfs("compact", path)


def test_a_delta_is_committed(disk):
    base, other = disk / "base.safetensors", disk / "other.safetensors"
    arrays = {name: np.frombuffer(random.Random(name).randbytes(size), "u1") for name, size in
              {"a": 2_000_000, "b": 5000, "c": 70_000}.items()}
    safetensors.numpy.save_file(arrays, base)
    safetensors.numpy.save_file({"b": arrays["b"][::-1].copy(), "c": arrays["c"], "new": arrays["a"][:1_000_001].copy()}, other)
    stfs("diff", base, other, "--out", disk / "d.safetensors")
    stfs("commit", disk / "d.safetensors")
    assert content(base) == content(other)
    stfs("compact", base)
    assert content(base) == content(other)
    assert not list(disk.glob(".*"))
