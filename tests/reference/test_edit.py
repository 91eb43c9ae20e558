"""What `stfs rm`, `mv`, `set` and `put --create` leave, the safetensors library reads: archives as it writes them, without
room in the header, after many edits; and shards with their index.
"""

import json
import os
import random
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy

ROOT = Path(__file__).resolve().parents[2]
STFS = Path(os.environ.get("STFS_BUILD_DIR", ROOT / "build" / "release")) / "stfs"
FREE = "__safetensorsfs.free."
SIZES = [0, 1, 3, 500, 1024, 5000, 40_000]
DTYPES = ["u1", "i4", "f2", "f8"]


def stfs(*words, code=0):
    done = subprocess.run([STFS, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def content(path):
    """Returns arrays and metadata, as the reference library reads them."""
    with safetensors.safe_open(path, "np") as archive:
        arrays = {name: archive.get_tensor(name) for name in archive.keys() if not name.startswith(FREE)}
        return arrays, archive.metadata() or {}


def same(found, due):
    assert found.keys() == due.keys()
    for name, array in due.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name


def random_array(rng):
    return np.frombuffer(rng.randbytes(rng.choice(SIZES) * 8), rng.choice(DTYPES)).reshape(-1)


class Editor:
    """Makes the same edits on a target and on arrays in memory."""

    def __init__(self, target, arrays, metadata, directory, rng, keeps_space=False):
        self.target, self.arrays, self.metadata = target, dict(arrays), dict(metadata)
        self.directory, self.rng = directory, rng
        self.options = ["--keep-space"] * keeps_space

    def new_name(self):
        return f"layers.{self.rng.randrange(10**6)}.{'w' * self.rng.randrange(1, 200)}"

    def pick(self):
        return self.rng.choice(sorted(self.arrays))

    def remove(self):
        name = self.pick()
        del self.arrays[name]
        stfs("rm", *self.options, self.target, name)

    def rename(self):
        name, other = self.pick(), self.new_name()
        self.arrays[other] = self.arrays.pop(name)
        stfs("mv", *self.options, self.target, name, other)

    def create(self):
        name = self.new_name() if self.rng.randrange(3) else self.pick()
        self.arrays[name] = random_array(self.rng)
        np.save(self.directory / "a.npy", self.arrays[name])
        stfs("put", *self.options, "--create", self.target, name, self.directory / "a.npy")

    def reshape(self):
        name = self.pick()
        array = self.arrays[name] = self.arrays[name].reshape(1, -1).view("u1")
        stfs("set", *self.options, self.target, name, "--dtype", "U8", "--shape", ",".join(map(str, array.shape)))

    def set_metadata(self):
        key = f"key{self.rng.randrange(3)}"
        if key in self.metadata and self.rng.randrange(2):
            del self.metadata[key]
            stfs("set", *self.options, self.target, "--unset", key)
        else:
            self.metadata[key] = "v" * self.rng.randrange(3000)
            stfs("set", *self.options, self.target, "--metadata", f"{key}={self.metadata[key]}")

    def edit(self):
        few = len(self.arrays) < 2
        self.rng.choice([self.create, self.set_metadata] + [self.remove, self.rename, self.reshape] * (not few))()


def test_a_filler_that_stays_is_told_with_the_command_that_removes_it(tmp_path):
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file({name: np.full(200_000, 1, "u1") for name in "abc"}, path)
    done = subprocess.run([STFS, "rm", "--keep-space", path, "a"], capture_output=True, text=True, check=True)
    assert "--keep-space" in done.stderr and f"`stfs compact {path}`" in done.stderr
    assert FREE + "0" in safetensors.numpy.load_file(path)
    assert f"`stfs compact {path}`" in stfs("info", path)
    # The next edit also closes this gap.
    done = subprocess.run([STFS, "rm", path, "b"], capture_output=True, text=True, check=True)
    assert done.stderr == "" and "into the gap" in done.stdout
    assert set(safetensors.numpy.load_file(path)) == {"c"}
    assert "stfs compact" not in stfs("info", path)


@pytest.mark.parametrize("seed", range(4))
def test_archives_of_the_reference_take_every_edit(tmp_path, seed):
    rng = random.Random(seed)
    path = tmp_path / "m.safetensors"
    arrays = {f"t{number}": random_array(rng) for number in range(6)}
    safetensors.numpy.save_file(arrays, path, {"format": "np"})
    editor = Editor(path, arrays, {"format": "np"}, tmp_path, rng)
    for _ in range(25):
        editor.edit()
        found, metadata = content(path)
        same(found, editor.arrays)
        assert metadata == editor.metadata
        assert set(safetensors.numpy.load_file(path)) == set(editor.arrays)  # no filler
    assert not list(tmp_path.glob(".m.*"))
    # The edits have left free space. A new archive has none.
    stfs("repack", path, tmp_path / "packed.safetensors")
    same(safetensors.numpy.load_file(tmp_path / "packed.safetensors"), editor.arrays)


def test_shards_change_with_their_index(tmp_path):
    rng = random.Random(7)
    arrays = {f"t{number}": random_array(rng) for number in range(9)}
    safetensors.numpy.save_file(arrays, tmp_path / "all.safetensors", {"format": "np"})
    index = tmp_path / "model.safetensors.index.json"
    stfs("repack", "--shard-size", "90K", tmp_path / "all.safetensors", index)
    document = json.loads(index.read_text())
    index.write_text(json.dumps(document | {"kept": [1, {"a": None}]}))
    index.chmod(0o640)
    editor = Editor(index, arrays, {}, tmp_path, rng)
    for _ in range(20):
        rng.choice([editor.create, editor.remove, editor.rename] if len(editor.arrays) > 2 else [editor.create])()
        document = json.loads(index.read_text())
        assert document["weight_map"].keys() == editor.arrays.keys()
        assert document["metadata"]["total_size"] == sum(array.nbytes for array in editor.arrays.values())
        assert document["kept"] == [1, {"a": None}] and index.stat().st_mode & 0o777 == 0o640
        found = {}
        for shard in set(document["weight_map"].values()):
            found |= content(tmp_path / shard)[0]
        same(found, editor.arrays)
    assert not list(tmp_path.glob(".*"))


def test_patterns_rename_many_at_once_and_exchange_names(tmp_path):
    path = tmp_path / "m.safetensors"
    arrays = {f"model.h.{layer}.{part}": np.full(3, layer, "u1") for layer in range(12) for part in ("a.w", "b.w")}
    safetensors.numpy.save_file(arrays, path)
    stfs("mv", path, "model.h.*.a.w", "layers.*.ffn.w")
    due = {name.replace("model.h.", "layers.").replace(".a.w", ".ffn.w") if ".a.w" in name else name: array
           for name, array in arrays.items()}
    same(content(path)[0], due)
    # Each tensor takes the name of the next one.
    assert "there is a tensor of that name" in stfs("mv", path, "layers.*.ffn.w", "model.h.*.b.w", code=1)
    same(content(path)[0], due)


def test_metadata_can_be_the_text_of_a_file(tmp_path):
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file({"a": np.zeros(4096, "u1")}, path)
    card = "# A model\n" + "é" * 100_000
    (tmp_path / "card.md").write_text(card, encoding="utf-8")
    stfs("set", path, "--metadata", f"card=@{tmp_path / 'card.md'}", "--metadata", "mail=@@example")
    assert content(path)[1] == {"card": card, "mail": "@example"}
    (tmp_path / "binary").write_bytes(b"\xff")
    assert "UTF-8" in stfs("set", path, "--metadata", f"card=@{tmp_path / 'binary'}", code=2)
    assert "No such file" in stfs("set", path, "--metadata", f"card=@{tmp_path / 'none'}", code=1)
    assert content(path)[1] == {"card": card, "mail": "@example"}


@pytest.mark.parametrize("words, why", [
    (["rm", "PATH", "nothing"], "nothing: no tensor matches"),
    (["rm", "PATH", "a", "nothing*"], r"nothing\*: no tensor matches"),
    (["mv", "PATH", "a", "b"], "there is a tensor of that name"),
    (["mv", "PATH", "a", "__metadata__"], "can't be named __metadata__"),
    (["mv", "PATH", "a", "__safetensorsfs.free.1"], "are reserved"),
    (["set", "PATH", "a", "--shape", "7"], r"U8 \[7\] needs 7 bytes, its data has 4096"),
    (["set", "PATH", "a", "--shape", "18446744073709551615,2"], "more than 2"),
    (["set", "PATH", "--unset", "k"], "no metadata of the key"),
    (["put", "--create", "PATH", "c", "RAW"], "raw bytes tell no dtype"),
    (["put", "--create", "--dtype", "F64", "PATH", "c", "RAW"], "no whole number of F64"),
    (["put", "PATH", "c", "RAW"], "--create makes a new tensor"),
])
def test_what_is_refused_leaves_the_archive_as_it_was(tmp_path, words, why):
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file({name: np.zeros(4096, "u1") for name in ("a", "b")}, path)
    (tmp_path / "raw").write_bytes(b"12345")
    before = path.read_bytes()
    words = [{"PATH": str(path), "RAW": str(tmp_path / "raw")}.get(word, word) for word in words]
    assert re.search(why, stfs(*words, code=1))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) and not list(tmp_path.glob(".m.*"))
