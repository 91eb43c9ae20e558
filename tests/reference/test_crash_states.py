"""Crash states of long sequences of edits and patches, read by the reference library.

The explorer judges each state by our own plain reader. Here the reference judges some of them: it refuses a state, or finds
a content that was there. Both must accept the same states, or the explorer's verdict on all others would prove little. The
model that a sequence ends with is the one that the explorer kept in memory.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import safetensors

ROOT = Path(__file__).resolve().parents[2]
EXPLORER = Path(os.environ.get("STFS_BUILD_DIR", ROOT / "build" / "release")) / "tests" / "crash_explorer"
FREE = "__safetensorsfs.free."
STEPS = 100_000 if "STFS_LONG" in os.environ else 1500
SCENARIOS = ["one archive", "shards", "one archive, kept journals"]


def read(path):
    """Returns tensors and metadata as the reference library reads them, or None if it refuses the file."""
    content = path.read_bytes()
    try:
        rows = safetensors.deserialize(content)
    except safetensors.SafetensorError:
        return None
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    tensors = {name: {"dtype": row["dtype"], "shape": row["shape"], "data": row["data"].hex()}
               for name, row in rows if not name.startswith(FREE)}
    return {"tensors": tensors, "metadata": header.get("__metadata__", {})}


def structure(content):
    """Returns everything but the bytes."""
    return content["metadata"], {name: (row["dtype"], row["shape"]) for name, row in content["tensors"].items()}


@pytest.fixture(scope="module", params=SCENARIOS)
def directory(request, tmp_path_factory):
    made = tmp_path_factory.mktemp("sequence")
    done = subprocess.run([EXPLORER, "--kind", "sequences", "--workload", request.param, "--states", "1",
                           "--steps", str(STEPS), "--keep", made], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    edits, patches = map(int, re.search(r": (\d+) edits, (\d+) patches", done.stdout).groups())
    assert edits + patches == STEPS
    return made


@pytest.mark.timeout(3600)
def test_every_crash_state_is_refused_or_was_there(directory):
    states = sorted(directory.glob("state-*.json"))
    refused = 0
    for about in states:
        state = json.loads(about.read_text())
        found = read(about.with_suffix(".safetensors"))
        assert (found is not None) == state["is_read"], about
        if found is None:
            refused += 1
        elif state["is_mixed"]:
            assert structure(found) in map(structure, state["allowed"]), about
        else:
            assert found in state["allowed"], about
    assert len(states) > 5


@pytest.mark.timeout(3600)
def test_the_last_model_is_the_one_in_memory(directory):
    due = json.loads((directory / "model.json").read_text())["shards"]
    files = {path.name for path in (directory / "model").glob("*.safetensors")}
    assert files == due.keys()
    for name, content in due.items():
        assert read(directory / "model" / name) == content, name
    for index in (directory / "model").glob("*.index.json"):
        document = json.loads(index.read_text())
        assert document["weight_map"] == {tensor: name for name in due for tensor in due[name]["tensors"]}
        assert document["metadata"]["total_size"] == sum(
            len(row["data"]) // 2 for content in due.values() for row in content["tensors"].values())
