"""What `stfs repack` writes, the safetensors library reads: every dtype, in every order, whole and in shards, and
converted as ml_dtypes converts.
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


def stfs(*words):
    done = subprocess.run([STFS, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """All dtypes, scalars, empty tensors, and names of every kind."""
    path = tmp_path_factory.mktemp("repack") / "model.safetensors"
    stfs("sample", "--odd", path)
    return path


@pytest.mark.parametrize("options", [[], ["--order", "name"], ["--order", "reference"], ["--align", "2M", "--slack", "0"]])
def test_the_reference_reads_what_repack_writes(sample, tmp_path, options):
    stfs("repack", *options, sample, tmp_path / "out.safetensors")
    assert parsed(tmp_path / "out.safetensors") == parsed(sample)


def test_the_order_of_the_reference_is_that_of_the_reference(tmp_path):
    arrays = {f"{name}.{number}": np.zeros(3, dtype) for number in (2, 10) for name, dtype in
              {"a": "u1", "b": "i8", "c": "f4", "d": "f2", "e": ml_dtypes.bfloat16, "f": "f8", "g": "?", "h": "u4"}.items()}
    safetensors.numpy.save_file(arrays, tmp_path / "reference.safetensors")
    stfs("repack", "--order", "name", tmp_path / "reference.safetensors", tmp_path / "named.safetensors")
    stfs("repack", "--order", "reference", tmp_path / "named.safetensors", tmp_path / "out.safetensors")
    due, named, found = (stfs("ls", "--names", tmp_path / f"{name}.safetensors") for name in ("reference", "named", "out"))
    assert found == due != named


def test_shards_are_each_an_archive_and_join_to_the_same(sample, tmp_path):
    index = tmp_path / "split.safetensors.index.json"
    stfs("repack", "--shard-size", "64K", sample, index)
    tensors, metadata = parsed(sample)
    document = json.loads(index.read_text())
    assert document["metadata"]["total_size"] == sum(len(data) for _, _, data in tensors.values())
    shards = set(document["weight_map"].values())
    assert len(shards) > 2
    joined = {}
    for shard in shards:
        part, its_metadata = parsed(tmp_path / shard)
        assert its_metadata == metadata
        assert {document["weight_map"][name] for name in part} == {shard}
        joined |= part
    assert joined == tensors
    stfs("repack", index, tmp_path / "joined.safetensors")
    assert parsed(tmp_path / "joined.safetensors") == (tensors, metadata)


TARGETS = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn,
           "F8_E5M2": ml_dtypes.float8_e5m2}


@pytest.mark.parametrize("target", TARGETS)
def test_numbers_are_converted_as_ml_dtypes_does(tmp_path, target):
    random = np.random.default_rng(5)
    # More than a piece of 4 MiB, and all magnitudes.
    wide = (random.standard_normal(1_200_003) * 10.0 ** random.integers(-12, 12, 1_200_003)).astype(np.float32)
    arrays = {"f32": wide, "bf16": wide[:1000].astype(ml_dtypes.bfloat16), "f64": wide[:1000].astype(np.float64),
              "i32": np.arange(7, dtype=np.int32)}
    safetensors.numpy.save_file(arrays, tmp_path / "m.safetensors")
    said = json.loads(stfs("repack", "--json", "--threads", 3, "--dtype", target, tmp_path / "m.safetensors", tmp_path / "out.safetensors"))
    tensors, _ = parsed(tmp_path / "out.safetensors")
    assert tensors.pop("i32") == ("I32", [7], arrays["i32"].tobytes())
    overflows = 0
    for name, (dtype, shape, data) in tensors.items():
        with np.errstate(over="ignore"):
            due = arrays[name].astype(TARGETS[target])
        assert (dtype, shape) == (target, [len(due)])
        found = np.frombuffer(data, TARGETS[target])
        is_nan = np.isnan(due.astype(np.float32))
        assert (np.isnan(found.astype(np.float32)) == is_nan).all()
        assert (found.view(np.uint8).reshape(len(due), -1)[~is_nan] == due.view(np.uint8).reshape(len(due), -1)[~is_nan]).all()
        overflows += int((~np.isfinite(due.astype(np.float32))).sum())
    assert said["overflows"] == overflows

