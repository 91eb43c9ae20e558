# A real framework on a mount: PyTorch loads a model through the reference library from `.safetensors/archive.safetensors`, and
# computes the same bits as from the plain files.
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import safetensors
from edited_mount import FREE
from mounted import PATIENCE

pytestmark = pytest.mark.once

PROGRAM = Path(__file__).resolve().parent / "torch_model.py"
HOW_TO_GET_IT = "apt-get install python3-torch, or .venv/bin/pip install torch"


@pytest.fixture(scope="session")
def torch():
    """torch(arguments...): what torch_model.py prints, run by a Python that has torch. The distribution's torch
    is for the distribution's python3, which borrows the reference library of the tests' own."""
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("platlib")}

    def start(python, *arguments):
        return subprocess.run([python, *map(str, arguments)], capture_output=True, text=True, env=environment,
                              timeout=120 * PATIENCE)

    pythons = [sys.executable, shutil.which("python3"), "/usr/bin/python3"]
    python = next((python for python in pythons if python and Path(python).exists() and start(
        python, "-c", "import torch, safetensors.torch").returncode == 0), None)
    if python is None:
        pytest.skip(f"no Python here has torch ({HOW_TO_GET_IT})")

    def run(*arguments):
        done = start(python, PROGRAM, *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture
def model(torch, tmp_path):
    """Saved whole and as three shards; .due is what torch_model.py says of it."""
    directory = tmp_path / "saved"
    directory.mkdir()
    due = torch("make", directory, 3)
    assert due["logits"] != due["patched_logits"]
    return directory, due


@pytest.mark.parametrize("saved, options", [("whole.safetensors", ""), ("sharded", "layout=tree")])
def test_pytorch_computes_the_same_through_the_mount_before_and_after_a_patch(torch, model, mounts, saved, options):
    directory, due = model
    mount = mounts(directory / saved, options)
    merged = mount / ".safetensors" / "archive.safetensors"
    assert torch("run", merged) == {"load_file": due["logits"], "safe_open": due["logits"]}

    file = mount / due["patched"].replace(".", "/" if options == "layout=tree" else ".")
    with open(file, "r+b") as tensor:
        tensor.write((directory / due["patch_file"]).read_bytes())
    patched = {"load_file": due["patched_logits"], "safe_open": due["patched_logits"]}
    assert torch("run", merged) == patched

    # The patch is on the disk: another mount shows it, and other readers find it in the plain file.
    assert mount.unmount() == 0
    again = mounts(directory / saved, "ro") / ".safetensors" / "archive.safetensors"
    assert torch("run", again) == patched
    if saved == "whole.safetensors":
        assert torch("run", directory / saved) == patched


@pytest.mark.parametrize("saved", ["whole.safetensors", "sharded"])
def test_pytorch_tunes_three_variants_of_one_base_side_by_side(torch, model, mounts, tmp_path, saved):
    """Each checkpoint is saved whole. The deltas keep the layer that changed, and the base never changes."""
    directory, due = model
    source = directory / saved
    files = sorted(source.iterdir()) if source.is_dir() else [source]
    before = [(os.stat(file).st_mtime_ns, file.read_bytes()) for file in files]
    deltas = {seed: tmp_path / f"{seed}.safetensors" for seed in (1, 2, 3)}
    shown = {seed: mounts(source, f"delta={delta}") for seed, delta in deltas.items()}
    archives = {seed: mount / ".safetensors" / "archive.safetensors" for seed, mount in shown.items()}
    tuned = {}
    for step in range(2):
        for seed, archive in archives.items():
            tuned[seed] = torch("tune", archive, 10 * seed + step)["logits"]
    assert len({due["logits"], *tuned.values()}) == 4
    for seed, archive in archives.items():
        assert torch("run", archive) == {"load_file": tuned[seed], "safe_open": tuned[seed]}
        assert shown[seed].attribute(None, "metadata.step") == str(10 * seed + 1)
    assert shown[1].unmount() == 0
    again = mounts(source, f"ro,delta={deltas[1]}") / ".safetensors" / "archive.safetensors"
    assert torch("run", again) == {"load_file": tuned[1], "safe_open": tuned[1]}
    for delta in deltas.values():
        with safetensors.safe_open(delta, "numpy") as stored:
            assert [name for name in stored.keys() if not name.startswith(FREE)] == [due["patched"]]
    assert [(os.stat(file).st_mtime_ns, file.read_bytes()) for file in files] == before
