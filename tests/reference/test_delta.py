"""A delta of `stfs diff --out` and its base are the other model again, bit by bit: a fine-tuning, and a quantization with
other dtypes, shapes and names. The safetensors library reads bases, deltas and variants.
"""

import json
import os
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from parsed_archive import parsed

ROOT = Path(__file__).resolve().parents[2]
STFS = Path(os.environ.get("STFS_BUILD_DIR", ROOT / "build" / "release")) / "stfs"
LAYERS = 4


def stfs(*words, wanted=0):
    done = subprocess.run([STFS, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == wanted, (words, done.stdout, done.stderr)
    return done.stdout + done.stderr


def weights(seed):
    random = np.random.default_rng(seed)
    names = [f"model.layers.{layer}.{part}.weight" for layer in range(LAYERS) for part in ("q", "up", "down")]
    return {name: random.standard_normal((128, 96)).astype(ml_dtypes.bfloat16) for name in ["embed.weight", *names]}


def fine_tuned(base):
    """Returns a model with other values in one layer, a new adapter, and without the embedding."""
    tuned = dict(base)
    for part in ("q", "up"):
        name = f"model.layers.2.{part}.weight"
        tuned[name] = (tuned[name].astype(np.float32) * 1.01).astype(ml_dtypes.bfloat16)
    tuned["adapter.größe"] = np.arange(7, dtype=np.int64)
    del tuned["embed.weight"]
    return tuned


def quantized(base):
    """Returns a model in which all layers but one are integers of another shape, with scales beside them."""
    tensors = dict(base)
    for name in base:
        if "layers" not in name or "layers.0" in name:
            continue
        values = tensors.pop(name).astype(np.float32)
        scale = np.abs(values).max(axis=1, keepdims=True) / 7
        tensors[name.replace(".weight", ".qweight")] = np.round(values / scale).astype(np.int8).reshape(64, -1)
        tensors[name] = scale.astype(np.float16)
    return tensors


@pytest.fixture(params=[fine_tuned, quantized], ids=["fine-tuned", "quantized"])
def pair(request, tmp_path):
    base = weights(1)
    safetensors.numpy.save_file(base, tmp_path / "base.safetensors", metadata={"format": "pt", "step": "1"})
    safetensors.numpy.save_file(request.param(base), tmp_path / "other.safetensors", metadata={"step": "2", "note": "ü\n\"x\""})
    stfs("diff", tmp_path / "base.safetensors", tmp_path / "other.safetensors", "--out", tmp_path / "delta.safetensors")
    return tmp_path


def test_base_and_delta_are_the_other_model(pair):
    stfs("repack", "--delta", pair / "delta.safetensors", pair / "base.safetensors", pair / "again.safetensors")
    assert parsed(pair / "again.safetensors") == parsed(pair / "other.safetensors")


def test_the_base_may_be_packed_otherwise(pair):
    index = pair / "split.safetensors.index.json"
    stfs("repack", "--order", "name", "--shard-size", "64K", pair / "base.safetensors", index)
    stfs("repack", "--delta", pair / "delta.safetensors", index, pair / "again.safetensors")
    assert parsed(pair / "again.safetensors") == parsed(pair / "other.safetensors")


def test_a_delta_is_an_archive_of_what_differs(pair):
    base, _ = parsed(pair / "base.safetensors")
    other, its_metadata = parsed(pair / "other.safetensors")
    tensors, metadata = parsed(pair / "delta.safetensors")
    assert tensors == {name: tensor for name, tensor in other.items() if base.get(name) != tensor}
    ours = {key: value for key, value in metadata.items() if key.startswith("safetensorsfs.delta")}
    assert {key: value for key, value in metadata.items() if key not in ours} == its_metadata
    assert sorted(json.loads(ours["safetensorsfs.delta.removed"])) == sorted(set(base) - set(other))
    assert ours["safetensorsfs.delta.base"] == "base.safetensors"


def test_the_way_back_is_a_delta_too(pair):
    stfs("diff", pair / "other.safetensors", pair / "base.safetensors", "--out", pair / "back.safetensors")
    stfs("repack", "--delta", pair / "back.safetensors", pair / "other.safetensors", pair / "again.safetensors")
    assert parsed(pair / "again.safetensors") == parsed(pair / "base.safetensors")


def test_another_base_is_refused_by_name(pair):
    wrong = stfs("repack", "--delta", pair / "delta.safetensors", pair / "other.safetensors", pair / "again.safetensors", wanted=1)
    assert 'made for another base, "base.safetensors"' in wrong
    # The base has the same tensors, with other bytes in a tensor that the variant keeps.
    changed = weights(1) | {"model.layers.0.q.weight": weights(2)["model.layers.0.q.weight"]}
    safetensors.numpy.save_file(changed, pair / "changed.safetensors")
    wrong = stfs("repack", "--delta", pair / "delta.safetensors", pair / "changed.safetensors", pair / "again.safetensors", wanted=1)
    assert "changed.safetensors: is not the base of " in wrong
    assert not (pair / "again.safetensors").exists()
