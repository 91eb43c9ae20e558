# The place of the state of a weight sync: for models that share a directory, and after a pull of a wrong path.
import json
import os
import shutil

import archive_file
import pytest
from published_weights import Trainer, save
from test_weight_sync import stfs

TENSORS = {"a": archive_file.random_array("f2", (4001,), 1), "b": archive_file.random_array("u1", (1234,), 2)}


@pytest.fixture
def trainer(tmp_path):
    """Version 0 is full; version 1 changes it."""
    trainer = Trainer(tmp_path / "published", save(tmp_path / "published/weight_v000000", TENSORS, shards=1))
    trainer.step()
    return trainer


@pytest.fixture
def pair(trainer, tmp_path):
    """A directory with two archives of version 0."""
    pair = tmp_path / "pair"
    pair.mkdir()
    for name in ("a.safetensors", "b.safetensors"):
        shutil.copyfile(trainer.published / "weight_v000000/model.safetensors", pair / name)
    return pair


def test_each_of_two_archives_in_a_directory_has_its_own_version(trainer, pair):
    before = (pair / "b.safetensors").read_bytes()
    assert stfs("pull", pair / "a.safetensors", trainer.published).endswith("has version 000001\n")
    assert (pair / "b.safetensors").read_bytes() == before
    said = stfs("pull", pair / "b.safetensors", trainer.published)
    assert "version 000001: changed" in said and said.endswith("has version 000001\n"), said
    assert (pair / "a.safetensors").read_bytes() == (pair / "b.safetensors").read_bytes() != before
    assert not (pair / ".weight_sync").exists()
    for name in ("a", "b"):
        state = json.loads((pair / f".{name}.safetensors.weight_sync/state.json").read_text())
        assert state["version"] == "000001" and state["model"] == f"{name}.safetensors"
        assert stfs("pull", pair / f"{name}.safetensors", trainer.published) == f"{pair / name}.safetensors has version 000001\n"
    trainer.step()
    assert "version 000002: changed" in stfs("apply", pair / "a.safetensors", trainer.published / "weight_v000002")
    assert "000001" in stfs("pull", "--status", pair / "b.safetensors", trainer.published)


def test_an_archive_that_comes_later_does_not_take_the_version_of_the_first(trainer, pair):
    os.unlink(pair / "b.safetensors")
    stfs("pull", pair / "a.safetensors", trainer.published)
    assert (pair / ".weight_sync/state.json").exists()
    shutil.copyfile(trainer.published / "weight_v000000/model.safetensors", pair / "b.safetensors")
    assert "version 000001: changed" in stfs("pull", pair / "b.safetensors", trainer.published)
    assert stfs("pull", pair / "a.safetensors", trainer.published).endswith("has version 000001\n")
    assert sorted(name for name in os.listdir(pair) if name.startswith(".")) == [".b.safetensors.weight_sync", ".weight_sync"]


def test_a_state_without_a_model_is_that_of_the_directorys_own(trainer, pair):
    """As other receivers write it: it can't be that of one of two archives."""
    (pair / ".weight_sync").mkdir()
    (pair / ".weight_sync/state.json").write_text('{"version": "000001"}')
    assert "version 000001: changed" in stfs("pull", pair / "b.safetensors", trainer.published)
    os.unlink(pair / "b.safetensors")
    assert stfs("pull", pair / "a.safetensors", trainer.published).endswith("has version 000001\n")


@pytest.mark.parametrize("made", [0, 1, 2])
def test_the_next_pull_finishes_the_first_that_was_killed_before_it_had_an_index(tmp_path, made):
    published = Trainer(tmp_path / "sharded", save(tmp_path / "sharded/weight_v000000", TENSORS, shards=2)).published
    whole = tmp_path / "whole"
    stfs("pull", whole, published)
    half = tmp_path / "half"
    (half / ".weight_sync").mkdir(parents=True)
    index, archives = "model.safetensors.index.json", sorted(path.name for path in whole.glob("*.safetensors"))
    for name in archives[:made]:
        shutil.copyfile(whole / name, half / name)
    (half / "index.new").write_text("{")
    note = {"ready": False, "archives": archives, "step": ["index.new", index], "after": [], "removed": []}
    (half / ".weight_sync/switch.json").write_text(json.dumps(note))
    stfs("pull", half, published)
    assert sorted(os.listdir(half)) == sorted(os.listdir(whole))
    assert set(os.listdir(half / ".weight_sync")) <= {"lock", "state.json"}
    assert json.loads((half / ".weight_sync/state.json").read_text())["model"] == index


def test_a_pull_of_a_wrong_path_leaves_nothing(trainer, tmp_path):
    wrong = tmp_path / "wrong"
    (wrong / "empty").mkdir(parents=True)
    save(wrong / "other", {"c": TENSORS["a"]}, shards=1)
    (wrong / "note.txt").write_text("no model")
    shutil.rmtree(trainer.published / "weight_v000000")
    before = sorted(wrong.rglob("*"))
    for model, published in [(wrong / "other", tmp_path / "nowhere"), (wrong / "other", wrong / "note.txt"),
                             (wrong / "missing", trainer.published), (wrong / "missing/below", trainer.published),
                             (wrong / "empty", trainer.published), (wrong / "other", trainer.published),
                             (wrong / "note.txt", trainer.published), (wrong / "missing", tmp_path / "nowhere")]:
        stfs("pull", model, published, wanted=1)
        assert sorted(wrong.rglob("*")) == before, (model, published)
    stfs("apply", wrong / "other", trainer.published / "weight_v000001", wanted=1)
    assert sorted(wrong.rglob("*")) == before
    assert "nothing is published yet" in stfs("pull", wrong / "other", wrong / "empty")
    assert sorted(wrong.rglob("*")) == before


def test_a_file_that_is_no_model_is_not_replaced_by_one(trainer, tmp_path):
    config = tmp_path / "config.json"
    config.write_text("{}")
    stfs("pull", config, trainer.published, wanted=1)
    assert config.read_text() == "{}" and not (tmp_path / ".weight_sync").exists()


def test_a_place_that_is_a_link_is_refused(trainer, tmp_path):
    host = tmp_path / "host"
    shutil.copytree(trainer.published / "weight_v000000", host)
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", host / ".weight_sync")
    assert "is a symbolic link" in stfs("pull", host, trainer.published, wanted=1)
    assert os.listdir(tmp_path / "elsewhere") == []
