# Fixtures of all tests of the Python module: the package out of the build tree, and a sample archive.
import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("STFS_BUILD_DIR", HERE.parents[1] / "build" / "release")).resolve()
# The archives and the mounts of tests/mount serve here too.
sys.path[:0] = [str(BUILD / "python"), str(HERE.parent / "mount"), str(HERE)]
import archive_file  # noqa: E402
import mount_set  # noqa: E402
import mounted  # noqa: E402


def why_not_importable():
    if not list((BUILD / "python" / "stfs").glob("_stfs.*so")):
        return "the module stfs is not built (apt-get install python3-dev, then build again)"
    if mounted.is_sanitized():
        return "a module with a sanitizer can't be loaded into a Python without"
    return None


class Unimportable(pytest.Module):
    """A file that imports the module stfs where there is none: its tests are skipped by name."""

    class Test(pytest.Item):
        def runtest(self):
            pytest.skip(why_not_importable())

    def collect(self):
        for node in ast.walk(ast.parse(self.path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield self.Test.from_parent(self, name=node.name)


def pytest_pycollect_makemodule(module_path, parent):
    if why_not_importable() is not None and module_path.name != "test_package.py":
        return Unimportable.from_parent(parent, path=module_path)
    return None


@pytest.fixture
def tensors():
    """{name: array} of the sample."""
    return archive_file.sample_tensors()


@pytest.fixture
def archive_path(tmp_path, tensors):
    """The sample, written by the reference library."""
    return archive_file.save_with_reference(tmp_path / "model.safetensors", tensors)


@pytest.fixture
def model(archive_path):
    import stfs

    with stfs.open(archive_path) as model:
        yield model


@pytest.fixture
def mounts(tmp_path):
    """mounts(SOURCE) -> Mount, as many as a test wants; skips where nothing can be mounted."""
    if not os.path.exists("/dev/fuse") or not mounted.BINARY.exists():
        pytest.skip("nothing can be mounted here")
    with mount_set.mounts_below(tmp_path) as make:
        yield make


@pytest.fixture(scope="session")
def torch_python():
    """A Python that has torch, and the environment in which it finds stfs."""
    environment = {**os.environ, "PYTHONPATH": str(BUILD / "python")}
    pythons = [sys.executable, shutil.which("python3"), "/usr/bin/python3"]
    for python in pythons:
        if python and Path(python).exists():
            probe = subprocess.run([python, "-c", "import torch, stfs"], capture_output=True, env=environment, timeout=120)
            if probe.returncode == 0:
                return python, environment
    pytest.skip("no Python here has torch (apt-get install python3-torch, or .venv/bin/pip install torch)")


@pytest.fixture
def small(tmp_path):
    """The path of an archive, and its tensors."""
    tensors = {"a": archive_file.random_array("f4", (30, 40), 1), "b": archive_file.random_array("f2", (7,), 2), "c": archive_file.random_array("i8", (3, 3), 3)}
    return archive_file.save_with_reference(tmp_path / "small.safetensors", tensors, {"title": "small"}), tensors
