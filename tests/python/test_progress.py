# progress=True shows a bar of tqdm. The tests replace tqdm by a class that counts.
import os
import signal
import sys
import types

import numpy as np
import pytest
import stfs

import archive_file


@pytest.fixture
def bars(monkeypatch):
    """The bars that were made."""
    made = []

    class Bar:
        def __init__(self, desc, **_):
            self.title, self.n, self.total, self.is_open, self.passes = desc, 0, None, True, 0
            made.append(self)

        def reset(self, total):
            self.n, self.total, self.passes = 0, total, self.passes + 1

        def update(self, count):
            assert count >= 0
            self.n += count

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.is_open = False
    module = types.ModuleType("tqdm.auto")
    module.tqdm = Bar
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", module)
    return made


@pytest.fixture
def two(tmp_path):
    """The paths of two archives that differ."""
    paths = [tmp_path / "one", tmp_path / "other"]
    for seed, path in enumerate(paths):
        archive_file.save_with_reference(path, {"a": archive_file.random_array("f4", (300, 400), seed)})
    return paths


def calls(two, out):
    return {"saving": lambda progress: stfs.save_file({"a": np.zeros(10_000_000)}, out, progress=progress),
            "comparing": lambda progress: stfs.diff(*two, progress=progress),
            "uploading": lambda progress: stfs.open(two[0]).upload(device="cpu", progress=progress),
            "publishing": lambda progress: stfs.publish(*two, out, 1, progress=progress)}


@pytest.mark.parametrize("title", ["saving", "comparing", "uploading", "publishing"])
def test_a_long_call_moves_a_bar_to_its_end(two, bars, tmp_path, title):
    calls(two, tmp_path / "out")[title](True)
    bar, = bars
    assert bar.title == title and bar.n == bar.total > 0 and bar.passes >= 1 and not bar.is_open


@pytest.mark.parametrize("title", ["saving", "comparing", "uploading", "publishing"])
def test_without_tqdm_a_bar_is_refused_before_the_work(two, monkeypatch, tmp_path, title):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ModuleNotFoundError, match="pip install tqdm"):
        calls(two, tmp_path / "out")[title](True)
    assert not (tmp_path / "out").exists()
    calls(two, tmp_path / "out")[title](False)


@pytest.mark.parametrize("title", ["saving", "comparing", "uploading", "publishing"])
def test_ctrl_c_ends_a_long_call_and_leaves_nothing(two, tmp_path, title):
    def interrupt(done_bytes, total_bytes):
        os.kill(os.getpid(), signal.SIGINT)
    before = {path: path.read_bytes() for path in two}
    with pytest.raises(KeyboardInterrupt):
        calls(two, tmp_path / "out")[title](interrupt)
    assert {path: path.read_bytes() for path in two} == before
    assert [name for name in os.listdir(tmp_path) if name not in ("one", "other")] in ([], ["out"])
    assert not (tmp_path / "out").exists() or os.listdir(tmp_path / "out") == []
