# A mounted directory of models, and the expected content of each model.
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file


def values(seed=1, count=4):
    random = np.random.default_rng(seed)
    return {f"layer.{at}": random.standard_normal((100, 64)).astype("f4") for at in range(count)}


def is_same(got, due):
    return sorted(got) == sorted(due) and all(np.array_equal(got[name], due[name]) for name in due)


def check_model(zoo, mount, name, due):
    """The archive in the source directory, the model's directory, and the archive in the mount."""
    assert is_same(load_file(zoo / f"{name}.safetensors"), due)
    assert sorted(os.listdir(mount / name)) == sorted(due)
    for tensor, array in due.items():
        assert (mount / name / tensor).read_bytes() == array.tobytes()
    assert is_same(load_file(mount / f"{name}.safetensors"), due)
    assert is_same(load_file(mount / name / ".safetensors" / "archive.safetensors"), due)


def whole(path, due):
    """An archive's bytes."""
    save_file(due, path)
    return path.read_bytes()


@pytest.fixture
def zoo(tmp_path):
    directory = tmp_path / "zoo"
    directory.mkdir()
    save_file(values(0), directory / "base.safetensors")
    return directory


@pytest.fixture
def mount(zoo, mounts):
    return mounts(zoo)
