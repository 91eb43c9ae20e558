# stfs pull --status reports how far a model is behind, with and without a receiver, and changes nothing.
import fcntl
import json
import os
import shutil
import subprocess
import threading
import time

import archive_file
import mounted
import pytest
from published_weights import INDEX, Trainer, save, version_directory
from test_weight_sync import stfs

STFS = mounted.BUILD / "stfs"
TENSORS = {"a": archive_file.random_array("f2", (1_001,), 1), "b": archive_file.random_array("u1", (345,), 2)}


@pytest.fixture
def trainer(tmp_path):
    """Version 0 is full and published."""
    return Trainer(tmp_path / "published", save(tmp_path / "published/weight_v000000", TENSORS))


@pytest.fixture
def host(tmp_path, trainer):
    stfs("pull", tmp_path / "host", trainer.published)
    return tmp_path / "host"


def status(host, trainer, wanted=0):
    done = subprocess.run([STFS, "pull", "--status", "--json", host, trainer.published], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (wanted, ""), done
    document = json.loads(done.stdout)
    assert (document["path"], document["published"]) == (str(host), str(trainer.published))
    return document


def age(path, seconds):
    os.utime(path, (time.time() - seconds,) * 2)


def test_a_model_that_has_the_newest_version_lacks_none(host, trainer):
    age(host / ".weight_sync/state.json", 200)
    said = stfs("pull", "--status", host, trainer.published)
    assert said == "version     000000, for 3 min\nnewest      000000\nmissing     none\nupdate      none under way\n"
    told = status(host, trainer)
    assert (told["version"], told["newest"], told["missing"], told["updating"]) == ("000000", "000000", [], False)
    assert 200 <= told["version_seconds"] < 200 + 60 * mounted.PATIENCE
    assert told["newest_seconds"] is told["unfinished"] is told["problem"] is None


def test_a_model_that_is_behind_lacks_what_a_pull_would_apply(host, trainer):
    before = {path: path.read_bytes() for path in host.rglob("*") if path.is_file()}
    for _ in range(3):
        trainer.step()
    age(version_directory(trainer.published, 3) / INDEX, 3 * 3600)
    told = status(host, trainer)
    assert (told["version"], told["newest"], told["missing"]) == ("000000", "000003", ["000001", "000002", "000003"])
    assert "newest      000003, published 3 h ago\nmissing     3 versions: 000001 to 000003\n" in stfs("pull", "--status", host, trainer.published)
    assert before == {path: path.read_bytes() for path in host.rglob("*") if path.is_file()}
    stfs("pull", "--to", "2", host, trainer.published)
    assert "missing     1 version: 000003\n" in stfs("pull", "--status", host, trainer.published)


def test_a_model_that_does_not_exist_lacks_the_newest_full_version(tmp_path, trainer):
    trainer.step()
    host = tmp_path / "new"
    assert stfs("pull", "--status", host, trainer.published).startswith("version     none yet\nnewest      000001, published ")
    told = status(host, trainer)
    assert (told["version"], told["version_seconds"], told["missing"]) == (None, None, ["000000", "000001"])
    assert not host.exists()


def test_an_unfinished_version_is_told_with_what_lacks(host, trainer):
    trainer.step()
    (trainer.step() / INDEX).unlink()
    told = status(host, trainer)
    assert (told["newest"], told["newest_seconds"], told["missing"], told["problem"]) == ("000002", None, ["000001"], None)
    assert "weight_v000002: " in told["unfinished"] and "unfinished" in told["unfinished"]
    assert "\nunfinished  " in stfs("pull", "--status", host, trainer.published)


def test_what_a_pull_would_fail_with_is_told_and_is_status_1(host, trainer):
    trainer.step()
    trainer.step()
    shutil.rmtree(version_directory(trainer.published, 1))
    why = stfs("pull", host, trainer.published, wanted=1).removeprefix("stfs pull: ").rstrip("\n")
    assert "version 000001 is not published" in why
    told = status(host, trainer, wanted=1)
    assert (told["problem"], told["version"], told["newest"], told["missing"]) == (why, "000000", "000002", [])
    done = subprocess.run([STFS, "pull", "--status", host, trainer.published], capture_output=True, text=True)
    assert done.returncode == 1 and f"\nproblem     {why}\n" in done.stdout and "missing" not in done.stdout


def test_changes_of_a_model_that_is_not_there(trainer, tmp_path):
    trainer.step()
    shutil.rmtree(version_directory(trainer.published, 0))
    why = f"{tmp_path}/none: there is no model yet, and {trainer.published}/weight_v000001 only changes one: " \
          "put the model of version 000000 there first, or publish a full version"
    assert status(tmp_path / "none", trainer, wanted=1)["problem"] == why
    assert why in stfs("pull", tmp_path / "none", trainer.published, wanted=1)


def test_a_version_that_is_withdrawn_meanwhile_is_looked_for_again(host, trainer, tmp_path):
    versions = [trainer.step() for _ in range(12)]
    (tmp_path / "hidden").mkdir()
    is_over = threading.Event()

    def hide():
        while not is_over.is_set():
            for version in versions:
                os.rename(version, tmp_path / "hidden" / version.name)
                time.sleep(0.001)
                os.rename(tmp_path / "hidden" / version.name, version)
    thread = threading.Thread(target=hide)
    thread.start()
    try:
        for _ in range(100):
            done = subprocess.run([STFS, "pull", "--status", host, trainer.published], capture_output=True, text=True)
            assert done.returncode == 0 or "is not published" in done.stdout, done
    finally:
        is_over.set()
        thread.join()


def test_a_receiver_that_holds_the_lock_is_told(host, trainer):
    with open(host / ".weight_sync/lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert status(host, trainer)["updating"] is True
        assert "update      under way: a receiver holds the lock\n" in stfs("pull", "--status", host, trainer.published)
    assert status(host, trainer)["updating"] is False


def test_nothing_published_and_no_such_directory(host, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "newest      nothing is published yet\nmissing     none\n" in stfs("pull", "--status", host, tmp_path / "empty")
    assert str(tmp_path / "gone") in stfs("pull", "--status", host, tmp_path / "gone", wanted=1)
    (host / ".weight_sync/state.json").write_text("{}")
    assert "it has no version" in stfs("pull", "--status", host, tmp_path / "empty", wanted=1)


@pytest.mark.parametrize("option", ["--to=1", "--follow", "--exec=true"])
def test_options_of_a_pull_that_changes_are_wrong_usage(host, trainer, option):
    assert option.split("=")[0] in stfs("pull", "--status", option, host, trainer.published, wanted=2)
