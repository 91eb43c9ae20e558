"""`stfs rm` of all tensors of a shard is killed at any moment: the next change of the model finishes all shards, also those
that the new index does not name, and leaves no file of ours. Readers in between see one model or the other.
"""

import json
import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

ROOT = Path(__file__).resolve().parents[2]
STFS = Path(os.environ.get("STFS_BUILD_DIR", ROOT / "build" / "release")) / "stfs"
KILLS = 2500 if "STFS_LONG" in os.environ else 25
SHARDS = ("s1", "s2", "s3")


def stfs(*words):
    done = subprocess.run([STFS, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def tensors_of(shard):
    return {f"{shard}.{number}": np.full(20_000, number, dtype=np.float32) for number in range(6)}


def save_model(directory):
    names = {}
    for shard in SHARDS:
        safetensors.numpy.save_file(tensors_of(shard), directory / f"{shard}.safetensors")
        names |= dict.fromkeys(tensors_of(shard), f"{shard}.safetensors")
    index = {"metadata": {"total_size": 3 * 6 * 80_000}, "weight_map": names}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def names_by_reference(directory):
    """Returns the names that the safetensors library finds in the shards, after a check with the index."""
    named = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    found = {}
    for shard in SHARDS:
        for name, array in safetensors.numpy.load_file(directory / f"{shard}.safetensors").items():
            if not name.startswith("__safetensorsfs"):
                found[name] = f"{shard}.safetensors"
                assert np.array_equal(array, tensors_of(shard)[name])
    assert found == named
    return set(found)


@pytest.mark.parametrize("shard", SHARDS)
def test_kills_of_rm(tmp_path, shard):
    rng = random.Random(shard)
    template = tmp_path / "template"
    template.mkdir()
    save_model(template)
    every = {name for each in SHARDS for name in tensors_of(each)}
    kept = every - set(tensors_of(shard))
    longest = 0.0
    done = 0
    for kill in range(KILLS):
        work = tmp_path / "work"
        shutil.copytree(template, work)
        index = work / "model.safetensors.index.json"
        begin = time.monotonic()
        rm = subprocess.Popen([STFS, "rm", index, f"{shard}.*"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if kill == 0:  # measures the time of a whole run
            assert rm.wait() == 0
            longest = time.monotonic() - begin
        else:
            try:
                rm.wait(rng.uniform(0, longest))
            except subprocess.TimeoutExpired:
                rm.kill()
            rm.wait()
        shown = {tensor["name"] for tensor in json.loads(stfs("ls", "--json", index))["tensors"]}
        assert shown in (every, kept)
        stfs("set", index, "--metadata", "key=value")
        assert not list(work.glob(".*")), kill
        assert names_by_reference(work) == shown
        done += shown == kept
        shutil.rmtree(work)
    assert done > 0
