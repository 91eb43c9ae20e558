# Fixtures of the tests of `stfs serve`, to be imported: an archive, a place for the socket, and servers that always end with
# the test.
import shutil
import subprocess
import tempfile
from pathlib import Path

import archive_file
import mounted
import numpy as np
import pytest
from lease_client import STFS, Server

TENSORS = {"w": np.arange(3000, dtype="f4"), "b": np.arange(7, dtype="u1"), "none": np.zeros((0, 3), "f4")}


def stfs(*arguments, wanted=0, before=(), **kwargs):
    result = subprocess.run([*before, STFS, *map(str, arguments)], capture_output=True, text=True,
                            timeout=60 * mounted.PATIENCE, **kwargs)
    assert result.returncode == wanted, (arguments, result.stderr)
    return result


def change_b(source, directory):
    raw = directory / "b.bin"
    raw.write_bytes(b"changed")
    stfs("put", source, "b", raw)


@pytest.fixture
def directory():
    """Paths of sockets are short; pytest's own directories are not."""
    path = Path(tempfile.mkdtemp(prefix="stfs-serve-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def path(directory):
    return directory / "s"


@pytest.fixture
def source(directory):
    return archive_file.save_with_reference(directory / "m.safetensors", TENSORS)


@pytest.fixture
def serve(path):
    """serve(SOURCE, ...) -> Server, not waited for."""
    made = []

    def make(*arguments, at=path, **kwargs):
        made.append(Server(at, *arguments, **kwargs))
        return made[-1]

    yield make
    wrong = [problem for problem in (server.finish() for server in made) if problem]
    assert not wrong, "\n".join(wrong)
