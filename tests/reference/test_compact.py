"""After `stfs compact` an archive is as short as it can be, and the safetensors library reads the same model from it: archives
as the library writes them, without room in the header, and archives after many edits; shards too.
"""

import fcntl
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from test_edit import Editor, content, random_array, same

ROOT = Path(__file__).resolve().parents[2]
STFS = Path(os.environ.get("STFS_BUILD_DIR", ROOT / "build" / "release")) / "stfs"
FREE = "__safetensorsfs.free."
READERS_BYTE = (1 << 62) - 1


def stfs(*words, code=0):
    done = subprocess.run([STFS, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == code, (words, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def header(path):
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        return 8 + length, json.loads(file.read(length))


def fillers(path):
    return [size for name, tensor in header(path)[1].items() if name.startswith(FREE) for size in tensor["shape"]]


def check_compact(path):
    """The archive has no filler, and no bytes behind the last tensor."""
    assert fillers(path) == []
    data_at, tensors = header(path)
    ends = [tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__" and not name.startswith(FREE)]
    assert path.stat().st_size == data_at + max(ends, default=0)
    assert "the archive is compact" in stfs("compact", path)
    assert not list(path.parent.glob(f".{path.name}*"))


@pytest.mark.parametrize("seed", range(8))
def test_archives_after_edits(tmp_path, seed):
    rng = random.Random(seed)
    path = tmp_path / "m.safetensors"
    arrays = {f"t{number}": random_array(rng) for number in range(8)}
    safetensors.numpy.save_file(arrays, path, {"format": "np"})
    editor = Editor(path, arrays, {"format": "np"}, tmp_path, rng, keeps_space=True)
    for _ in range(4):
        for _ in range(rng.randrange(12)):
            editor.edit()
        dry = json.loads(stfs("compact", "--dry-run", "--json", path))
        before = path.stat().st_size
        done = json.loads(stfs("compact", "--json", path))
        assert done == {**dry, "changed": dry["steps"] > 0}
        assert done["freed_bytes"] == max(0, before - path.stat().st_size)
        found, metadata = content(path)
        same(found, editor.arrays)
        assert metadata == editor.metadata
        check_compact(path)


@pytest.mark.parametrize("gone", ["first", "large", "middle", "all but one", "all", "small"])
@pytest.mark.parametrize("room", [False, True])
def test_what_was_deleted_is_given_back(tmp_path, gone, room):
    rng = np.random.default_rng(1)
    sizes = {f"w{number:03}": size for number, size in enumerate([70_000, 3, 4096, 1_000_000, 12, 200_000] + [5000] * 100)}
    arrays = {name: rng.integers(0, 256, size, "u1") for name, size in sizes.items()}
    arrays["half"] = rng.standard_normal(9001).astype("f2")
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file(arrays, path, {"k": "v"})
    if room:
        stfs("set", "--keep-space", path, "--metadata", "k=v2")
    names = sorted(arrays)
    deleted = {"first": ["half"], "large": ["w003"], "middle": names[20:40], "all but one": names[1:], "all": names, "small": ["w001"]}[gone]
    stfs("rm", "--keep-space", path, *deleted)
    stfs("compact", path)
    found, metadata = content(path)
    same(found, {name: array for name, array in arrays.items() if name not in deleted})
    assert metadata == {"k": "v2" if room else "v"}
    check_compact(path)


def test_bytes_are_moved_about_once(tmp_path):
    """There is a small gap before many tensors. Few tensors move twice."""
    arrays = {f"w{number:03}": np.full(50_000, number, "u1") for number in range(200)} | {"first": np.zeros(1000, "f8")}
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file(arrays, path)
    stfs("set", path, "--metadata", "k=v")
    stfs("compact", path)
    stfs("rm", "--keep-space", path, "w000")
    total = sum(array.nbytes for array in arrays.values())
    plan = json.loads(stfs("compact", "--dry-run", "--json", path))
    assert plan["moved_bytes"] < 1.2 * total and plan["steps"] < 70 and plan["needed_bytes"] < total / 8, plan
    stfs("compact", path)
    check_compact(path)
    del arrays["w000"]
    same(content(path)[0], arrays)


def test_shards_are_compacted_one_after_the_other(tmp_path):
    arrays = {f"t{number}": np.full(20_000 + number, number, "u1") for number in range(9)}
    safetensors.numpy.save_file(arrays, tmp_path / "all.safetensors", {"format": "np"})
    index = tmp_path / "model.safetensors.index.json"
    stfs("repack", "--shard-size", "70K", tmp_path / "all.safetensors", index)
    stfs("rm", "--keep-space", index, "t0", "t4")
    before = index.read_bytes()
    stfs("compact", index)
    assert index.read_bytes() == before
    found = {}
    for shard in sorted(set(json.loads(before)["weight_map"].values())):
        check_compact(tmp_path / shard)
        found |= content(tmp_path / shard)[0]
    same(found, {name: array for name, array in arrays.items() if name not in ("t0", "t4")})


@pytest.fixture
def holed(tmp_path):
    """An archive whose compaction needs several steps."""
    # No tensor fits the space of the first one, so all tensors move.
    arrays = {f"w{number:02}": np.full(1_000_000 + 8 * number, number, "u1") for number in range(40)}
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file(arrays, tmp_path / "all.safetensors")
    stfs("repack", "--slack", "64K", tmp_path / "all.safetensors", path)
    first = next(name for name, tensor in header(path)[1].items() if name != "__metadata__" and tensor["data_offsets"][0] == 0)
    stfs("rm", "--keep-space", path, first)
    del arrays[first]
    return path, arrays


def test_who_has_the_archive_open_is_told(holed):
    path, arrays = holed
    before = path.read_bytes()
    with open(path, "rb") as reader:
        lock = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, READERS_BYTE, 1, 0)
        fcntl.fcntl(reader, 37, lock)  # F_OFD_SETLK, as every reader does
        message = stfs("compact", path, code=1)
        assert "has the archive open" in message and f"process {os.getpid()}" in message
        assert "steps" in stfs("compact", "--dry-run", path)
    assert path.read_bytes() == before
    stfs("compact", path)
    same(content(path)[0], arrays)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_end_at_any_moment_leaves_an_archive_that_goes_on(holed, number, tmp_path):
    path, arrays = holed
    rng = random.Random(5)
    for _ in range(8):
        copy = tmp_path / "copy.safetensors"
        shutil.copy(path, copy)
        process = subprocess.Popen([STFS, "compact", copy], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stdout.readline()  # its plan
        time.sleep(rng.random() * 0.1)
        process.send_signal(number)
        _, errors = process.communicate()
        assert process.returncode in (0, 1, -number)
        if process.returncode == 1:
            assert "the same command goes on from here" in errors, errors
            same(content(copy)[0], arrays)
        stfs("recover", copy)
        same(content(copy)[0], arrays)
        stfs("compact", copy)
        same(content(copy)[0], arrays)
        check_compact(copy)
