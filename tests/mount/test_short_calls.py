# System calls that do less than they were asked for: reads and commits are still right.
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from archive_file import ArchiveFile, Expectation, random_bytes, write_bytes_tensors
from mounted import BUILD, is_sanitized

STFS = BUILD / "stfs"
REFUSED = ["", "tmpfile", "reserve", "copy", "tmpfile reserve copy"]
SIZES = {"a": 20_000, "b": 9_000_001, "c": 20_000}


@pytest.fixture(scope="module")
def short_calls(tmp_path_factory):
    """The library to be preloaded."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    if is_sanitized():
        pytest.skip("a sanitizer has to be the first library that is loaded")
    library = tmp_path_factory.mktemp("short") / "short_calls.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, Path(__file__).with_name("short_calls.c"), "-ldl"],
                   check=True)
    return library


@pytest.fixture
def archive(tmp_path):
    return ArchiveFile(write_bytes_tensors(tmp_path / "m.safetensors",
                                           {name: random_bytes(size, ord(name)) for name, size in SIZES.items()}))


@pytest.fixture
def short(short_calls):
    """short(REFUSED, command...) -> its output. Some of its calls were short, and what is to be refused was."""
    def run(refused, *command):
        environment = {**os.environ, "LD_PRELOAD": str(short_calls), "SHORT_CALLS": refused, "SHORT_CALLS_TELL": "1"}
        done = subprocess.run(list(map(str, command)), capture_output=True, env=environment, timeout=120)
        assert done.returncode == 0, done.stderr
        run.told = dict((word, int(number)) for number, word in
                        re.findall(rb"(\d+) (calls|short|interrupted|refused)", done.stderr.splitlines()[-1]))
        return done.stdout

    return run


@pytest.mark.parametrize("refused", [*REFUSED, "end"])
@pytest.mark.parametrize("tensor", SIZES)
def test_put_is_whole(short, archive, tmp_path, refused, tensor):
    expected = Expectation(archive)
    data = random_bytes(SIZES[tensor], 90)
    (tmp_path / "data").write_bytes(data)
    short(refused, STFS, "put", archive.path, tensor, tmp_path / "data")
    assert short.told[b"short"] > 0 and short.told[b"interrupted"] > 0, short.told
    # A small change is not copied from file to file.
    assert (short.told[b"refused"] > 0) == (refused != "" and (refused != "copy" or SIZES[tensor] > 1 << 20))
    expected.change(tensor, data)
    expected.check()
    assert sorted(os.listdir(tmp_path)) == ["data", "m.safetensors"]


@pytest.mark.parametrize("refused", ["", "copy", "end"])
def test_what_is_read_is_right(short, archive, tmp_path, refused):
    expected = Expectation(archive)
    assert short(refused, STFS, "cat", archive.path, "b") == expected.tensor("b")
    short(refused, STFS, "slice", archive.path, "b[3::7]", "--raw", "-o", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == np.frombuffer(expected.tensor("b"), np.uint8)[3::7].tobytes()
    assert short(refused, STFS, "verify", "--json", archive.path) == subprocess.run(
        [STFS, "verify", "--json", archive.path], capture_output=True, check=True).stdout


@pytest.mark.parametrize("refused", REFUSED)
@pytest.mark.parametrize("options", ["", "io=pread"])
def test_a_mount_reads_and_commits_what_is_right(short_calls, archive, mounts, monkeypatch, refused, options):
    expected = Expectation(archive)
    monkeypatch.setenv("SHORT_CALLS", refused)
    mount = mounts(archive.path, options, before=["env", f"LD_PRELOAD={short_calls}"])
    for seed in range(3):
        for name, size in SIZES.items():
            data = random_bytes(size, 91 + seed)
            (mount / name).write_bytes(data)
            expected.change(name, data)
            expected.check()
            with open(mount / name, "r+b") as file:
                file.seek(4000)
                file.write(b"patch" * 1000)
            expected.change(name, b"patch" * 1000, 4000)
            expected.check()
            assert (mount / name).read_bytes() == expected.tensor(name)
