"""The commands of the README, typed as they stand by a new user."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STFS_BUILD_DIR", ROOT / "build" / "release")).resolve()
README = (ROOT / "README.md").read_text()


def script_of(section):
    """A script of bash with the commands of a section. What follows `>>>` goes to the Python that was started before."""
    lines, python = [], False
    for line in re.findall(r"^ {4}(\$ |>>> )(.*)$", section, re.M):
        kind, text = line
        if kind == ">>> " and not python:
            assert lines.pop() == "python3"
            lines.append("python3 -i 2>&1 <<'PYTHON'")
            lines.append("import sys; sys.excepthook = lambda *e: (sys.__excepthook__(*e), __import__('os')._exit(1))")
        elif kind == "$ " and python:
            lines.append("PYTHON")
        python = kind == ">>> "
        lines.append(text)
    return "\n".join(["set -e", *lines, ""]).replace("$PWD/build/release", str(BUILD))


@pytest.fixture
def typed(tmp_path):
    """typed(SCRIPT) runs it at the repository's root, with an empty home and this Python."""
    if not os.access("/dev/fuse", os.W_OK):
        pytest.skip("/dev/fuse can't be opened here")

    def run(script):
        environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        return subprocess.run(["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)

    yield run
    subprocess.run(["fusermount3", "-uz", tmp_path / "mnt"], capture_output=True)


def test_the_session_works_as_it_stands(typed, tmp_path):
    section = README[README.index("## A session") : README.index("## What it is for")]
    with_mount, without = section.split("\n`stfs` does the same work without a mount.")
    done = typed(script_of(with_mount))
    assert done.returncode == 0, done.stdout + done.stderr
    # What the README shows is what comes.
    assert 'user.safetensors.shape="[512,64]"' in done.stdout
    assert "(512, 64)" in done.stdout and "(10, 32)" in done.stdout
    sizes = re.findall(r"^ {4}-rw-r--r-- 1 me me +(\d+) .{12} (\S+)$", section, re.M)
    assert len(sizes) == 3
    for size, name in sizes:
        assert re.search(rf"^-rw\S+ .* {size} .* {re.escape(name)}$", done.stdout, re.M), name
    listed = subprocess.run([BUILD / "stfs", "ls", "--names", tmp_path / "model.safetensors"], capture_output=True, text=True)
    names = listed.stdout.split()
    assert "model.norm.weight" in names and not {"adapter.weight", "final_norm.weight"} & set(names)
    assert not any(name.startswith("model.layers.1.mlp.") for name in names)

    done = typed("export PATH=$PWD/build/release:$PATH; cd\n".replace("$PWD/build/release", str(BUILD)) + script_of(without))
    assert done.returncode == 0, done.stdout + done.stderr
    listed = subprocess.run([BUILD / "stfs", "ls", "--names", tmp_path / "model.safetensors"], capture_output=True, text=True)
    assert not any(name.startswith("model.layers.1.") for name in listed.stdout.split())


def test_the_sample_loads_with_the_released_library(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    from safetensors.numpy import load_file

    subprocess.run([BUILD / "stfs", "sample", tmp_path / "m.safetensors"], check=True, capture_output=True)
    tensors = load_file(tmp_path / "m.safetensors")
    assert tensors["lm_head.weight"].dtype == ml_dtypes.bfloat16 and len(tensors) == 21


def test_the_commands_of_the_other_sections_exist():
    section = README[README.index("## Build and test by hand") :]
    programs = re.findall(r"^ {4}(?:\.venv/bin/python )?(\.?/?[\w./-]+)", section, re.M)
    assert len(programs) > 5
    assert [name for name in programs if "/" in name and not (ROOT / name).exists()] == []
    presets = re.findall(r"cmake --preset (\S+) && cmake --build --preset (\S+)", section)
    assert presets and all(f'"name": "{name}"' in (ROOT / "CMakePresets.json").read_text() for pair in presets for name in pair)
