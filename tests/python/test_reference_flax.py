# stfs.flax returns what safetensors.flax does, where JAX is installed.
import numpy as np
import pytest
import safetensors

import stfs
from both_libraries import check_same

TENSORS = {"a": np.arange(6, dtype="f4").reshape(2, 3), "b": np.array(3, "i4"), "none": np.zeros((0, 2), "f4"), "half": np.ones(3, "f2")}


@pytest.fixture(scope="module", autouse=True)
def jax():
    try:
        import jax
        import safetensors.flax
    except ImportError:
        pytest.skip("jax is not installed")
    import stfs.flax  # noqa: F401
    return jax


def plain(arrays):
    return {name: np.array(array) for name, array in arrays.items()}


def test_files_are_equal_byte_for_byte_and_read_the_same(jax, tmp_path):
    arrays = {name: jax.numpy.asarray(array) for name, array in TENSORS.items()}
    content = check_same(lambda package: package.flax.save(arrays, {"a": "b"}))
    check_same(lambda package: package.flax.save_file(arrays, tmp_path / package.__name__, metadata={"a": "b"}))
    assert (tmp_path / "stfs").read_bytes() == (tmp_path / "safetensors").read_bytes() == content
    check_same(lambda package: plain(package.flax.load_file(tmp_path / "stfs")))
    check_same(lambda package: dict(sorted(plain(package.flax.load(content)).items())))
    loaded = stfs.flax.load_file(tmp_path / "stfs")
    assert all(isinstance(array, jax.Array) for array in loaded.values())
    with safetensors.safe_open(tmp_path / "stfs", "flax") as theirs, stfs.safe_open(tmp_path / "stfs", "flax") as ours:
        assert ours.get_slice("a")[1:, ::2].tolist() == theirs.get_slice("a")[1:, ::2].tolist()


def test_a_tensor_of_stfs_becomes_an_array_of_jax(jax, tmp_path):
    stfs.save_file(TENSORS, tmp_path / "a")
    with stfs.open(tmp_path / "a") as model:
        assert all(np.array(model[name].jax()).tobytes() == array.tobytes() for name, array in TENSORS.items())
