# Transactions of Python: all changes come at the end or not at all, also if the program is killed.
import os
import subprocess
import sys

import numpy as np
import pytest

import stfs
from archive_file import random_array
from conftest import BUILD
from edited_model import check


def test_a_transaction_changes_all_at_its_end(small):
    path, due = small
    before = path.read_bytes()
    with stfs.open(path, "r+") as model:
        with model.transaction():
            buffer = random_array("f4", (30, 40), 7).copy()
            due["a"] = buffer.copy()
            model["a"] = buffer
            buffer[:] = 0  # the transaction has a copy
            due["new"] = model["new"] = np.arange(3.0)
            del model["c"], due["c"]
            model.rename({"b": "new", "new": "b"})
            due["b"], due["new"] = due["new"], due["b"]
            model.metadata["k"] = "v"
            assert path.read_bytes() == before and "c" in model and "k" not in model.metadata
        check(path, due, {"title": "small", "k": "v"})
        with model.transaction():
            pass
        with model.transaction():
            due["a"] = model["a"] = random_array("f4", (30, 40), 8)
            due["new"] = model["new"] = random_array("f2", (7,), 9)
        check(path, due)


def test_an_exception_in_a_transaction_changes_nothing(small):
    path, due = small
    before = path.read_bytes()
    with stfs.open(path, "r+") as model:
        with pytest.raises(ZeroDivisionError):
            with model.transaction():
                model.replace("a", np.zeros(3))
                del model["b"]
                1 / 0
        with pytest.raises(KeyError):
            with model.transaction():
                del model["a"]
                del model["a"]
        assert path.read_bytes() == before and set(model) == set(due)
        assert os.listdir(path.parent) == [path.name]
        model["a"] = due["a"]
    check(path, due, {"title": "small"})


@pytest.mark.parametrize("last", ["model.metadata['k'] = 'v'", "pass"])
def test_a_program_that_is_killed_in_a_transaction_changes_nothing(small, last):
    path, due = small
    before = path.read_bytes()
    code = f"""if True:
        import os, sys, stfs
        model = stfs.open(sys.argv[1], "r+")
        with model.transaction():
            model.replace("a", bytes(4800) if {last!r} != "pass" else memoryview(bytes(4800)).cast("f", (30, 40)))
            {last}
            os.kill(os.getpid(), 9)
    """
    environment = {**os.environ, "PYTHONPATH": str(BUILD / "python")}
    assert subprocess.run([sys.executable, "-c", code, path], env=environment).returncode == -9
    assert path.read_bytes() == before
    with stfs.open(path, "r+") as model:
        model.metadata["k"] = "v"
    check(path, due, {"title": "small", "k": "v"})
    assert os.listdir(path.parent) == [path.name]
