# The annotations of the module agree with each other and with a program: checked by mypy and pyright, where they are installed.
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "packaging" / "python"
PROGRAM = HERE / "typed_program.py"
WRONG = [at for at, line in enumerate(PROGRAM.read_text().splitlines(), 1) if "# WRONG" in line]
# The packages that a user may lack.
OPTIONAL = ("torch", "jax", "ml_dtypes", "tqdm")


def run(*command):
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=600, env={**os.environ, "MYPYPATH": str(PACKAGE)})
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def mypy(tmp_path_factory):
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    directory = tmp_path_factory.mktemp("mypy")
    (directory / "mypy.ini").write_text("[mypy]\nstrict = true\npython_version = 3.10\nwarn_unused_ignores = false\n" + "".join(
        f"[mypy-{name}.*]\nignore_missing_imports = true\nfollow_imports = skip\n" for name in OPTIONAL))
    return lambda *arguments: run(sys.executable, "-m", "mypy", "--config-file", directory / "mypy.ini", "--cache-dir", directory, *arguments)


def wrong_lines(printed):
    return sorted({int(line) for line in re.findall(r"typed_program\.py:(\d+):.*error", printed)})


def test_mypy_finds_nothing_wrong_with_the_module(mypy):
    printed = mypy("-p", "stfs")
    # Without PyTorch and JAX their types are Any.
    errors = [line for line in printed.splitlines() if ": error:" in line and "no-any-return" not in line and "Returning Any" not in line]
    assert errors == [] and ("Success" in printed or "Found" in printed), printed


def test_mypy_checks_a_program_against_the_module(mypy):
    printed = mypy(PROGRAM)
    assert wrong_lines(printed) == WRONG, printed


@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_pyright_finds_the_same(tmp_path):
    shutil.copytree(PACKAGE / "stfs", tmp_path / "stfs")
    shutil.copy(PROGRAM, tmp_path)
    (tmp_path / "pyrightconfig.json").write_text('{"pythonVersion": "3.10", "reportMissingImports": false, "reportMissingModuleSource": false}')
    printed = run("pyright", "--project", tmp_path, "--pythonpath", sys.executable)
    assert wrong_lines(printed.replace(" - error", ": error")) == WRONG, printed
    assert len(re.findall(r":\d+ - error", printed)) == len(WRONG), printed


def test_every_public_name_has_annotations():
    import inspect

    import stfs
    import stfs.numpy
    missing = []
    for module in (stfs, stfs.numpy):
        for name in module.__all__:
            made = getattr(module, name)
            members = {name: made} if inspect.isfunction(made) else vars(made) if inspect.isclass(made) else {}
            for member, function in members.items():
                function = function.fget if isinstance(function, property) else function
                is_ours = inspect.isfunction(function) and Path(function.__code__.co_filename).parent == Path(stfs.__file__).parent
                if is_ours and "return" not in function.__annotations__:
                    missing.append(f"{module.__name__}.{name}.{member}")
    assert missing == []
    assert (Path(stfs.__file__).parent / "py.typed").exists()
