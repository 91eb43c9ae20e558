"""After `stfs commit` the base of a delta equals the variant: the safetensors library reads both as the same model. A base
that has changed is refused, and stays as it is.
"""

import json
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy

ROOT = Path(__file__).resolve().parents[2]
STFS = Path(os.environ.get("STFS_BUILD_DIR", ROOT / "build" / "release")) / "stfs"
FREE = "__safetensorsfs.free."


def stfs(*words, code=0):
    done = subprocess.run([STFS, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == code, (words, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def content(path):
    """Returns bytes, dtypes, shapes and metadata, as the reference library reads them."""
    with safetensors.safe_open(path, "np") as archive:
        arrays = {name: archive.get_tensor(name) for name in archive.keys() if not name.startswith(FREE)}
        return {name: (str(array.dtype), array.shape, array.tobytes()) for name, array in arrays.items()}, archive.metadata() or {}


def content_of_index(index):
    names = json.loads(index.read_text())["weight_map"]
    found = {}
    for shard in sorted(set(names.values())):
        arrays, metadata = content(index.parent / shard)
        assert {name for name in arrays} == {name for name in names if names[name] == shard}
        found |= arrays
    return found


def weights(seed=1):
    random = np.random.default_rng(seed)
    return {f"layers.{layer}.{part}": random.standard_normal((64, 96)).astype("f4") for layer in range(4) for part in ("q", "up")}


def tuned(base):
    """Returns a variant in which only bytes differ."""
    return {**base, "layers.2.q": base["layers.2.q"] * 2, "layers.0.up": base["layers.0.up"] + 1}


def rebuilt(base):
    """Returns a variant with other bytes, another dtype, another shape, new tensors with and without bytes, and without
    some tensors."""
    other = tuned(base)
    other["layers.1.q"] = other["layers.1.q"].astype("f2")
    other["layers.1.up"] = other["layers.1.up"].reshape(96, 64)
    other["adapter.größe"] = np.arange(7, dtype="i8")
    other["empty"] = np.zeros((0, 4), "f4")
    del other["layers.3.q"], other["layers.3.up"]
    return other


@pytest.fixture(params=[tuned, rebuilt], ids=["tuned", "rebuilt"])
def pair(request, tmp_path):
    base = weights()
    metadata = {"format": "pt", "step": "1"} if request.param is rebuilt else {"step": "2", "note": "ü"}
    safetensors.numpy.save_file(base, tmp_path / "base.safetensors", metadata)
    safetensors.numpy.save_file(request.param(base), tmp_path / "other.safetensors", {"step": "2", "note": "ü"})
    stfs("diff", tmp_path / "base.safetensors", tmp_path / "other.safetensors", "--out", tmp_path / "delta.safetensors")
    return tmp_path


def test_the_base_becomes_the_variant(pair):
    message = stfs("commit", pair / "delta.safetensors")
    assert content(pair / "base.safetensors") == content(pair / "other.safetensors")
    assert "delete it" in message
    assert not list(pair.glob(".*"))


def test_a_dry_run_and_into_change_neither(pair):
    before = {name: (pair / name).read_bytes() for name in ("base.safetensors", "delta.safetensors")}
    message = stfs("commit", "--dry-run", pair / "delta.safetensors")
    assert "change layers.2.q: F32 [64,96], 24.0 KiB\n" in message and "would have changed " in message
    stfs("commit", pair / "delta.safetensors", "--into", pair / "merged.safetensors")
    assert content(pair / "merged.safetensors") == content(pair / "other.safetensors")
    assert "exists" in stfs("commit", pair / "delta.safetensors", "--into", pair / "merged.safetensors", code=1)
    assert "base" in stfs("commit", pair / "delta.safetensors", "--into", pair / "base.safetensors", "--force", code=1)
    assert {name: (pair / name).read_bytes() for name in before} == before


def test_shards_change_with_their_index(pair):
    index = pair / "model.safetensors.index.json"
    stfs("repack", "--shard-size", "60K", pair / "base.safetensors", index)
    stfs("commit", "--base", index, pair / "delta.safetensors")
    assert content_of_index(index) == content(pair / "other.safetensors")[0]
    stfs("verify", index)


def test_a_patch_moves_nothing(tmp_path):
    """Dtypes and shapes are equal: the bytes change in their places, and the header stays."""
    base = weights()
    safetensors.numpy.save_file(base, tmp_path / "base.safetensors")
    safetensors.numpy.save_file(tuned(base), tmp_path / "other.safetensors")
    stfs("diff", tmp_path / "base.safetensors", tmp_path / "other.safetensors", "--out", tmp_path / "delta.safetensors")
    stfs("commit", tmp_path / "delta.safetensors")
    assert (tmp_path / "base.safetensors").read_bytes() == (tmp_path / "other.safetensors").read_bytes()
    # A second commit changes nothing.
    stfs("commit", tmp_path / "delta.safetensors")
    assert (tmp_path / "base.safetensors").read_bytes() == (tmp_path / "other.safetensors").read_bytes()


def test_a_base_that_has_changed_is_refused(pair):
    stfs("put", pair / "base.safetensors", "layers.0.q", "--from-tensor", "layers.1.q", pair / "copy.safetensors", code=1)
    (pair / "q.bin").write_bytes(bytes(64 * 96 * 4))
    stfs("put", pair / "base.safetensors", "layers.0.q", pair / "q.bin")
    before = (pair / "base.safetensors").read_bytes()
    for options in ([], ["--dry-run"], ["--into", pair / "merged.safetensors"]):
        message = stfs("commit", *options, pair / "delta.safetensors", code=1)
        assert "base.safetensors: is not the base of" in message and "the bytes of some tensors have changed" in message
    assert (pair / "base.safetensors").read_bytes() == before and not (pair / "merged.safetensors").exists()


def test_another_base_and_no_base_are_refused(pair):
    safetensors.numpy.save_file({"w": np.zeros(4, "f4")}, pair / "stranger.safetensors")
    message = stfs("commit", "--base", pair / "stranger.safetensors", pair / "delta.safetensors", code=1)
    assert 'it was made for another base, "base.safetensors"' in message
    (pair / "base.safetensors").rename(pair / "elsewhere.safetensors")
    message = stfs("commit", pair / "delta.safetensors", code=1)
    assert "its base base.safetensors does not lie beside it" in message and "--base" in message
    message = stfs("commit", pair / "other.safetensors", code=1)
    assert "not usable as a delta" in message
    stfs("commit", "--base", pair / "elsewhere.safetensors", pair / "delta.safetensors")
    assert content(pair / "elsewhere.safetensors") == content(pair / "other.safetensors")


def test_a_chain_is_committed_from_the_bottom_up(tmp_path):
    models = [weights()]
    models.append({**tuned(models[0]), "new": np.arange(5)})
    models.append({name: array for name, array in models[1].items() if name != "layers.1.q"} | {"more": np.arange(6)})
    for number, model in enumerate(models):
        safetensors.numpy.save_file(model, tmp_path / f"m{number}.safetensors")
    (tmp_path / "base.safetensors").write_bytes((tmp_path / "m0.safetensors").read_bytes())
    stfs("diff", tmp_path / "m0.safetensors", tmp_path / "m1.safetensors", "--out", tmp_path / "d1.safetensors")
    stfs("diff", tmp_path / "m1.safetensors", tmp_path / "m2.safetensors", "--out", tmp_path / "d2.safetensors")
    message = stfs("commit", "--base", tmp_path / "base.safetensors", tmp_path / "d2.safetensors", code=1)
    assert "made for another base" in message and "the lowest first" in message
    stfs("commit", tmp_path / "d1.safetensors", tmp_path / "d2.safetensors", code=2)
    for number in (1, 2):
        stfs("commit", "--base", tmp_path / "base.safetensors", tmp_path / f"d{number}.safetensors")
        assert content(tmp_path / "base.safetensors") == content(tmp_path / f"m{number}.safetensors")


def test_json_tells_what_was_done(pair):
    document = json.loads(stfs("commit", "--json", pair / "delta.safetensors"))
    assert document["changed"] and {"layers.2.q", "layers.0.up"} <= {tensor["name"] for tensor in document["replaced"]}
    assert document["delta"] == str(pair / "delta.safetensors") and document["path"] == str(pair / "base.safetensors")
    other, _ = content(pair / "other.safetensors")
    assert not set(document["removed"]) & set(other) and {tensor["name"] for tensor in document["added"]} <= set(other)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_end_by_a_signal_leaves_base_or_variant(pair, number):
    before = content(pair / "base.safetensors")
    process = subprocess.Popen([STFS, "commit", pair / "delta.safetensors"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.send_signal(number)
    process.communicate()
    stfs("recover", pair / "base.safetensors")
    assert content(pair / "base.safetensors") in (before, content(pair / "other.safetensors"))
    assert not list(pair.glob(".*"))
