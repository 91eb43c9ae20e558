"""A new user types the commands of the README as they are."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from session import missing_from, script_of

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STFS_BUILD_DIR", ROOT / "build" / "release")).resolve()
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


@pytest.fixture
def typed(tmp_path):
    """typed(SCRIPT) runs a script at the repository's root, with an empty home, this build and this Python."""
    if not os.access("/dev/fuse", os.W_OK):
        pytest.skip("/dev/fuse can't be opened here")

    def run(script):
        environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        script = script.replace("$PWD/build/release", str(BUILD))
        return subprocess.run(["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)

    yield run
    subprocess.run(["fusermount3", "-uz", tmp_path / "mnt"], capture_output=True)


def names_in(archive):
    listed = subprocess.run([BUILD / "stfs", "ls", "--names", archive], capture_output=True, text=True, check=True)
    return set(listed.stdout.split())


def test_the_session_works_as_it_stands(typed, tmp_path):
    section = README[README.index("## A session") : README.index("## Compared with other tools")]
    with_mount, without = section.split("`stfs` works without a mount")
    done = typed(script_of(with_mount))
    assert done.returncode == 0, done.stdout + done.stderr
    assert missing_from(done.stdout, with_mount) == [], done.stdout
    archive = tmp_path / "model.safetensors"
    assert "lm_head.weight" in names_in(archive) and "adapter.weight" not in names_in(archive)
    information = subprocess.run([BUILD / "stfs", "info", "--json", archive], capture_output=True, check=True).stdout
    assert json.loads(information)["metadata"]["step"] == "1000"

    done = typed("export PATH=$PWD/build/release:$PATH; cd\n" + script_of(without))
    assert done.returncode == 0, done.stdout + done.stderr
    assert not any(name.startswith("model.layers.1.") for name in names_in(archive))


def test_the_sample_loads_with_the_released_library(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    from safetensors.numpy import load_file

    subprocess.run([BUILD / "stfs", "sample", tmp_path / "m.safetensors"], check=True, capture_output=True)
    tensors = load_file(tmp_path / "m.safetensors")
    assert tensors["lm_head.weight"].dtype == ml_dtypes.bfloat16 and len(tensors) == 21


def test_the_commands_of_the_other_sections_exist():
    """The file names of README.md and CONTRIBUTING.md, and the presets."""
    commands = README[README.index("## Install") :] + CONTRIBUTING
    programs = re.findall(r"^ {4}(?:\.venv/bin/python )?(\.?/?[\w./-]+)", commands, re.M)
    assert len(programs) > 5
    assert [name for name in programs if "/" in name and not (ROOT / name).exists()] == []
    presets = re.findall(r"cmake --preset (\S+) && cmake --build --preset (\S+)", commands)
    assert presets and all(f'"name": "{name}"' in (ROOT / "CMakePresets.json").read_text() for pair in presets for name in pair)
