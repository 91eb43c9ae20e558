# Edits from Python of a model with a delta: they go to the delta, and the base stays unchanged.
import numpy as np
import pytest
from safetensors.numpy import save_file

import stfs


def arrays_of(model):
    return {name: np.array(tensor.numpy()) for name, tensor in model.items()}


def is_same(got, due):
    return got.keys() == due.keys() and all(got[name].dtype == due[name].dtype and np.array_equal(got[name], due[name])
                                            for name in due)


@pytest.fixture
def base(tmp_path):
    path = tmp_path / "base.safetensors"
    due = {"a": np.arange(1000, dtype="f4"), "b": np.arange(12, dtype="i2").reshape(3, 4), "c": np.zeros((0, 2), "u1")}
    save_file(due, path, metadata={"title": "base"})
    known = path.read_bytes()
    yield path, dict(due)
    assert path.read_bytes() == known


def test_each_kind_of_edit_goes_to_the_delta(base, tmp_path):
    path, due = base
    delta = tmp_path / "mine.safetensors"
    with stfs.open(path, "r+", delta=delta) as model:
        assert is_same(arrays_of(model), due)
        due["a"] = model["a"] = np.full(1000, 7, "f4")  # the same form
        due["b"] = np.arange(5, dtype="f8")
        model.replace("b", due["b"])
        model.rename("c", "empty")
        due["empty"] = due.pop("c")
        with model.transaction():
            due["n"] = model["n"] = np.ones(3, "u1")
            model.metadata["title"] = "mine"
            model.reinterpret("a", shape=(10, 100))
            due["a"] = due["a"].reshape(10, 100)
        assert is_same(arrays_of(model), due)
    for deltas, mode in (([delta], "r"), (delta, "r+")):
        with stfs.open(path, mode, delta=deltas) as model:
            assert is_same(arrays_of(model), due) and model.metadata["title"] == "mine"
    with stfs.open(path, "r+", delta=delta) as model:
        due["a"] = model["a"] = np.full((10, 100), 8, "f4")  # of the delta now: in place
        del model["n"], due["n"]
        assert is_same(arrays_of(model), due)


def test_a_failed_transaction_leaves_the_delta(base, tmp_path):
    path, due = base
    delta = tmp_path / "mine.safetensors"
    with stfs.open(path, "r+", delta=delta) as model:
        known = delta.read_bytes()
        with pytest.raises(KeyError):
            with model.transaction():
                model["a"] = np.zeros(1000, "f4")
                del model["no such tensor"]
        assert is_same(arrays_of(model), due)
    assert delta.read_bytes() == known
    with pytest.raises(FileNotFoundError):
        stfs.open(path, delta=tmp_path / "none.safetensors")
