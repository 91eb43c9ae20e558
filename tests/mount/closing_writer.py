# A program that writes a tensor and ends in one way or another (closing_writer.c), for the tests of closes.
import shutil
import subprocess
from pathlib import Path

import pytest
from mounted import PATIENCE
from written_tensor import T

SIZE = 308_224  # of T
WHOLE = b"w" * SIZE


def whole(expected):
    expected.change(T, WHOLE)
    return expected


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """closing_writer.c, compiled where everybody may run it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    directory = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    directory.chmod(0o755)
    program = directory / "closing_writer"
    source = Path(__file__).with_name("closing_writer.c")
    subprocess.run([compiler, "-O1", "-pthread", "-o", str(program), str(source)], check=True)
    yield str(program)
    shutil.rmtree(directory)


def write_and_end(program, target, how, threads=3, flags="t", before=(), size_bytes=SIZE):
    return subprocess.run([*before, program, str(target), flags, str(threads), str(size_bytes), how],
                          capture_output=True, text=True, timeout=60 * PATIENCE)
