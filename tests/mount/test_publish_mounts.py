# stfs diff --encoding with a mount as the new model: what has changed since a generation, while a trainer writes.
import json
import os
import shutil
import threading
import time

import archive_file
import numpy as np
import pytest
from mounted import eventually
from published_weights import INDEX, save, state_of, tensors_of, version_directory
from test_weight_sync import stfs

TENSORS = {"a.w": archive_file.random_array("f2", (40_001,), 1), "b.w": archive_file.random_array("u1", (12_345,), 2),
           "c": archive_file.random_array("f4", (), 3), "empty": archive_file.random_array("f4", (0,), 4),
           "d/e": archive_file.random_array("u1", (777,), 5)}


class Training:
    """A model in a mount, and the last version that was published of it."""

    def __init__(self, directory, mounts, shards=1, options=""):
        self.model = save(directory / "model", TENSORS, shards)
        self.last = shutil.copytree(self.model, directory / "last")
        self.published = directory / "published"
        self.source = self.model / (INDEX if shards > 1 else "model.safetensors")
        self.mounts, self.options = mounts, options
        self.mount = mounts(self.source, options=options)
        self.files = {}
        for path in self.mount.path.rglob("*"):
            if ".safetensors" not in path.parts and path.is_file():
                self.files[os.getxattr(path, "user.safetensors.name").decode()] = path
        self.version = 0

    def write(self, name, content=None):
        content = content if content is not None else os.urandom(TENSORS[name].nbytes)
        self.files[name].write_bytes(content)
        return content

    def publish(self, since=None, pulls=True, encoding="xor"):
        self.version += 1
        words = [] if since is None else ["--since", since]
        told = json.loads(stfs("diff", self.last, self.mount.path, "--json", "--encoding", encoding, "--version", self.version,
                               "--out", self.published, *words))
        if pulls:
            stfs("pull", self.last, self.published)
            assert state_of(self.last) == self.version
        return told

    def check(self):
        assert tensors_of(self.last) == {name: path.read_bytes() for name, path in self.files.items()}


@pytest.fixture(params=["", "layout=tree", "delta", "shards"])
def training(request, tmp_path, mounts):
    options = f"delta={tmp_path / 'd.safetensors'}" if request.param == "delta" else request.param.replace("shards", "")
    return Training(tmp_path, mounts, 3 if request.param == "shards" else 1, options)


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_only_what_has_changed_since_is_read(training, encoding):
    training.write("b.w")
    first = training.publish(encoding=encoding)
    assert (first["tensors"], first["read_tensors"], first["changed_tensors"]) == (5, 5, 1)
    training.check()
    for name in ("a.w", "d/e"):
        training.write(name)
        told = training.publish(first["generation"], encoding=encoding)
        assert (told["tensors"], told["read_tensors"], told["changed_tensors"]) == (5, 1, 1)
        assert int(told["generation"]) > int(first["generation"]) and told["size_bytes"] == first["size_bytes"]
        training.check()
        first = told
    training.write("c", training.files["c"].read_bytes())  # the bytes that it has
    training.write("b.w")
    told = training.publish(first["generation"])
    assert told["changed_tensors"] == 1 and told["read_tensors"] in (1, 2)
    training.check()
    nothing = training.publish(told["generation"])
    assert (nothing["read_tensors"], nothing["changed_tensors"]) == (0, 0) and nothing["generation"] == told["generation"]


def test_the_text_tells_the_generation(training):
    said = stfs("diff", training.last, training.mount.path, "--encoding", "xor", "--version", "1", "--out", training.published)
    generation = os.getxattr(training.mount.path, "user.safetensors.generation").decode()
    assert said.splitlines()[1:] == [f"generation {generation}"]


def test_a_transaction_is_published_as_a_whole(training):
    first = training.publish()
    transaction = training.mount / ".safetensors/transactions/t"
    transaction.mkdir()
    for name in ("a.w", "b.w"):
        (transaction / name).write_bytes(os.urandom(TENSORS[name].nbytes))
    assert training.publish(first["generation"])["read_tensors"] == 0
    os.rename(transaction, training.mount / ".safetensors/committed/t")
    assert training.publish(first["generation"])["changed_tensors"] == 2
    training.check()


def test_generations_of_an_earlier_mount_tell_nothing(training):
    first = training.publish()
    training.write("b.w")
    training.mount.unmount()
    training.mount = training.mounts(training.source, path=training.mount.path, options=training.options)
    told = training.publish(first["generation"])
    assert (told["read_tensors"], told["changed_tensors"]) == (5, 1)
    training.check()


def test_a_change_by_another_program_counts(tmp_path, mounts):
    training = Training(tmp_path, mounts)
    first = training.publish()
    (tmp_path / "raw").write_bytes(os.urandom(777))
    stfs("put", training.source, "d/e", tmp_path / "raw")
    assert eventually(lambda: int(os.getxattr(training.mount.path, "user.safetensors.generation")) > int(first["generation"]))
    assert training.publish(first["generation"])["changed_tensors"] == 1
    training.check()


def test_what_is_refused(tmp_path, mounts):
    training = Training(tmp_path, mounts)
    version = ["--encoding", "xor", "--version", "1", "--out", training.published]
    mount = training.mount.path
    for new in (training.model, training.source, mount / ".safetensors/archive.safetensors"):
        assert f"--since: {new}: is no mount" in stfs("diff", training.last, new, *version, "--since", "1", wanted=2)
    assert "--since: is for versions" in stfs("diff", training.last, mount, "--since", "1", wanted=2)
    future = int(os.getxattr(mount, "user.safetensors.generation")) + 1
    assert f"which is before {future}" in stfs("diff", training.last, mount, *version, "--since", future, wanted=1)
    assert "missing" in stfs("diff", training.last, tmp_path / "missing", *version, "--since", "1", wanted=1)
    (mount / "new").write_bytes(b"123")
    os.setxattr(mount / "new", "user.safetensors.dtype", b"U8")
    os.setxattr(mount / "new", "user.safetensors.shape", b"[3]")
    assert '"new" is missing in OLD' in stfs("diff", training.last, mount, *version, wanted=1)
    assert not training.published.exists() or os.listdir(training.published) == []


@pytest.mark.sequential
@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_no_tensor_is_mixed_while_a_trainer_writes(tmp_path, mounts, encoding, monkeypatch):
    """Each state has one number in all of its blocks, and the next one is written while a version is published."""
    blocks, block = 6000, 4096
    monkeypatch.setitem(TENSORS, "large", np.zeros(blocks * block, "u1"))
    training = Training(tmp_path, mounts)
    is_over, writes = threading.Event(), [0]
    began = time.monotonic()
    told = training.publish(None, encoding=encoding)
    pause = max(0.02, time.monotonic() - began)  # so that some of the readings meet no write, however slow they are

    def train():
        while not is_over.is_set():
            writes[0] += 1
            training.write("large", (bytes([writes[0] % 251]) + bytes(block - 1)) * blocks)
            is_over.wait(pause)
    trainer = threading.Thread(target=train)
    trainer.start()
    states = set()
    try:
        for _ in range(8):
            told = training.publish(told["generation"], encoding=encoding)
            there = tensors_of(training.last)["large"]
            assert there == there[:block] * blocks
            states.add(there[0])
    finally:
        is_over.set()
        trainer.join()
    training.publish(told["generation"])
    training.check()
    assert len(states) > 2, (states, writes)
    assert version_directory(training.published, 1).exists()
