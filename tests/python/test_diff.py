# The differences of two models, compared with NumPy's, and models with a delta on top.
import errno
import json
import subprocess

import numpy as np
import pytest

import stfs
from archive_file import save_with_reference
from conftest import BUILD


@pytest.fixture
def pair(tmp_path):
    """Two archives, and their arrays."""
    numbers = np.random.default_rng(3)
    a = {"same": numbers.random((4, 5), "f4"), "other": numbers.random((30, 40), "f4"), "gone": np.arange(3),
         "shape": np.arange(6.0), "dtype": np.arange(4, dtype="i4"), "zero": np.zeros(4), "nan": np.array([1, np.nan, 3], "f4")}
    b = {**a, "other": a["other"] + numbers.normal(0, 0.1, (30, 40)).astype("f4"), "shape": np.arange(6.0).reshape(2, 3),
         "dtype": np.arange(4, dtype="u4"), "zero": np.ones(4), "nan": np.array([2, 5, 3], "f4"), "new": np.ones(2, "f2")}
    del b["gone"]
    return (save_with_reference(tmp_path / "a.safetensors", a, {"k": "1", "both": "x"}),
            save_with_reference(tmp_path / "b.safetensors", b, {"k": "2", "both": "x", "own": ""}), a, b)


def test_differences_are_numpys(pair):
    path_a, path_b, a, b = pair
    found = stfs.diff(path_a, path_b)
    assert found and found.compared == 8
    assert found.added == {"new": ("F16", (2,))} and found.removed == {"gone": ("I64", (3,))}
    assert found.metadata == {"k": ("1", "2"), "own": (None, "")}
    assert list(found.changed) == [name for name in found.changed if name in ("other", "shape", "dtype", "zero", "nan")]
    assert len(found.changed) == 5
    assert found.changed["shape"] == (("F64", (6,)), ("F64", (2, 3)), None)
    assert found.changed["dtype"] == (("I32", (4,)), ("U32", (4,)), None)
    its = found.changed["other"].statistics
    x, y = a["other"].astype("f8").ravel(), b["other"].astype("f8").ravel()
    apart = np.abs(x - y)
    assert its.different == np.count_nonzero(apart) and its.not_finite == 0
    assert its.largest_difference == apart.max()
    assert its.largest_relative_difference == pytest.approx((apart / np.maximum(np.abs(x), np.abs(y))).max(), rel=1e-12)
    assert its.cosine == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y), rel=1e-12)
    assert (its.norm_a, its.norm_b) == (pytest.approx(np.linalg.norm(x)), pytest.approx(np.linalg.norm(y)))
    assert its.norm_difference == pytest.approx(np.linalg.norm(apart))
    zero = found.changed["zero"].statistics
    assert zero.cosine is None and zero.largest_difference == 1 and zero.different == 4
    nan = found.changed["nan"].statistics
    assert (nan.different, nan.not_finite, nan.largest_difference) == (2, 1, 1)


def test_progress_of_a_comparison(pair):
    path_a, path_b, _, _ = pair
    said = []
    stfs.diff(path_a, path_b, progress=lambda done, total: said.append((done, total)))
    assert said[0][0] == 0 and said[-1][0] == said[-1][1] > 0

    def stop(done, total):
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        stfs.diff(path_a, path_b, progress=stop)


def test_differences_are_those_of_the_command(pair):
    path_a, path_b, _, _ = pair
    done = subprocess.run([BUILD / "stfs", "diff", "--json", path_a, path_b], capture_output=True, text=True)
    due = {row["name"]: row for row in json.loads(done.stdout)["differences"]}
    found = stfs.diff(path_a, path_b)
    assert {*found.added, *found.removed, *found.changed} == due.keys()
    for name, change in found.changed.items():
        statistics = due[name]["statistics"]
        assert (change.statistics is None) == (statistics is None)
        if statistics is not None:
            assert change.statistics._asdict() == pytest.approx(statistics)


def test_models_names_and_no_statistics(pair):
    path_a, path_b, _, _ = pair
    with stfs.open(path_a) as a, stfs.open(path_b, "r+") as b:
        assert not stfs.diff(a, a) and not stfs.diff(a, path_a)
        found = stfs.diff(a, b, ["o*", "same"], statistics=False, threads=2)
        assert found.compared == 2 and list(found.changed) == ["other"] and not found.metadata
        assert found.changed["other"].statistics is None
        b["other"] = a["other"].copy()
        assert not stfs.diff(a, b, "other")
        with pytest.raises(FileNotFoundError, match="othe: no tensor matches, did you mean other\\?"):
            stfs.diff(a, b, "othe")
        with pytest.raises(ValueError, match="selects nothing"):
            stfs.diff(a, b, [])
        b.close()
        with pytest.raises(ValueError, match="closed"):
            stfs.diff(a, b)
    with pytest.raises(FileNotFoundError):
        stfs.diff(path_a, path_a.parent / "none.safetensors")


def make_delta(path_a, path_b, path):
    done = subprocess.run([BUILD / "stfs", "diff", path_a, path_b, "--out", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


def test_a_delta_lies_on_its_base(pair, tmp_path):
    path_a, path_b, _, b = pair
    delta = make_delta(path_a, path_b, tmp_path / "b.delta.safetensors")
    before = path_a.read_bytes()
    for deltas in (delta, str(delta), [delta]):
        with stfs.open(path_a, delta=deltas) as model:
            assert set(model) == set(b) and model.metadata == {"k": "2", "both": "x", "own": ""}
            for name, array in b.items():
                assert model[name].tobytes() == array.tobytes() and model[name].shape == array.shape
            assert not stfs.diff(model, path_b)
            with pytest.raises(OSError, match="for reading only"):
                del model["other"]
            with pytest.raises(OSError, match="an upload reads no delta"):
                model.upload(device="cpu")
    assert path_a.read_bytes() == before


def test_deltas_lie_on_deltas(pair, tmp_path):
    path_a, path_b, _, _ = pair
    first = make_delta(path_a, path_b, tmp_path / "1.safetensors")
    path_c = save_with_reference(tmp_path / "c.safetensors", {"new": np.arange(5)}, {"c": "c"})
    second = make_delta(path_b, path_c, tmp_path / "2.safetensors")
    with stfs.open(path_a, delta=[first, second]) as model:
        assert list(model) == ["new"] and model["new"].numpy().tolist() == list(range(5)) and not stfs.diff(model, path_c)
    with pytest.raises(ValueError):
        stfs.open(path_a, delta=[second, first])


def test_a_delta_of_another_base_is_refused(pair, tmp_path):
    path_a, path_b, a, _ = pair
    delta = make_delta(path_a, path_b, tmp_path / "b.delta.safetensors")
    with pytest.raises(FileNotFoundError):
        stfs.open(path_a, delta=tmp_path / "none.safetensors")
    with pytest.raises(ValueError):
        stfs.open(path_a, delta=path_b)
    with pytest.raises(TypeError):
        stfs.open(path_a, delta=[3])
    # The names, dtypes and shapes fit. The bytes do not.
    save_with_reference(path_a, {**a, "same": a["same"] + 1}, {"k": "1", "both": "x"})
    with pytest.raises(ValueError, match="base") as caught:
        stfs.open(path_a, delta=delta)
    assert getattr(caught.value, "errno", errno.EINVAL) == errno.EINVAL
