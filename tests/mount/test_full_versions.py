# Full versions of a weight sync that take the place of a model with other tensors: the model is one version or the other, and
# its state agrees.
import json
import os

import archive_file
import numpy as np
import pytest
from mounted import eventually
from published_weights import INDEX, Trainer, save, state_of, tensors_of, version_directory
from test_weight_sync import stfs

OLD = {"a": archive_file.random_array("f2", (4001,), 1), "b": archive_file.random_array("u1", (12_345,), 2),
       "c": archive_file.random_array("f4", (), 3)}
NEW = {"a": archive_file.random_array("f4", (77, 3), 4), "b": archive_file.random_array("u1", (12_345,), 5),
       "d": archive_file.random_array("f2", (9,), 6), "e": archive_file.random_array("f8", (0, 4), 7)}


def content(tensors):
    return {name: array.tobytes() for name, array in tensors.items()}


@pytest.fixture
def published(tmp_path):
    return tmp_path / "published"


@pytest.fixture
def host(tmp_path, published):
    """host(shards) -> a model of version 0, pulled."""
    def make(shards):
        save(version_directory(published, 0), OLD, shards)
        host = tmp_path / "host"
        stfs("pull", host, published)
        (host / "foreign.safetensors.bak").write_text("stays")
        return host
    return make


def names_in(host):
    return sorted(name for name in os.listdir(host) if name != "foreign.safetensors.bak")


def check(host, tensors, version):
    assert tensors_of(host) == content(tensors) and state_of(host) == version
    assert (host / "foreign.safetensors.bak").read_text() == "stays"
    assert sorted(os.listdir(host / ".weight_sync")) == ["lock", "state.json"]


def test_other_tensors_under_the_same_names(host, published):
    host = host(2)
    save(version_directory(published, 7), NEW, 2)
    (version_directory(published, 7) / "config.json").write_text("new")
    event = json.loads(stfs("pull", "--json", host, published))["events"]
    assert [(one["event"], one["version"]) for one in event] == [("seeded", "000007")]
    check(host, NEW, 7)
    assert names_in(host) == [".weight_sync", "config.json", "model-00001-of-00002.v000007.safetensors",
                              "model-00002-of-00002.v000007.safetensors", INDEX]
    assert (host / "config.json").read_text() == "new"
    # A new chain, and names that are free again.
    trainer = Trainer(published, version_directory(published, 7))
    trainer.states = [trainer.states[0]] * 8
    trainer.step()
    stfs("pull", host, published)
    assert tensors_of(host) == {name: bytes(data) for name, data in trainer.states[8].items()} and state_of(host) == 8
    save(version_directory(published, 9), OLD, 2)
    stfs("pull", host, published)
    check(host, OLD, 9)
    assert names_in(host) == [".weight_sync", "config.json", "model-00001-of-00002.safetensors",
                              "model-00002-of-00002.safetensors", INDEX]


def test_apply_names_the_command_that_replaces_a_model(host, published):
    host = host(2)
    save(version_directory(published, 1), NEW, 2)
    said = stfs("apply", host, version_directory(published, 1), wanted=1)
    assert "a: it is F32 [77,3], and the model's F16 [4001] (and " in said
    assert said.endswith("`stfs pull` puts this full version in the model's place\n"), said
    check(host, OLD, 0)


@pytest.mark.parametrize("before,after,names", [
    (1, 1, ["model.safetensors"]),
    (1, 3, [f"model-0000{at}-of-00003.safetensors" for at in (1, 2, 3)] + [INDEX]),
    (3, 1, ["model.safetensors", INDEX]),
    (2, 3, [f"model-0000{at}-of-00003.safetensors" for at in (1, 2, 3)] + [INDEX])])
def test_another_number_of_archives(host, published, before, after, names):
    host = host(before)
    save(version_directory(published, 1), NEW, after)
    stfs("pull", host, published)
    check(host, NEW, 1)
    assert names_in(host) == [".weight_sync", *names]
    assert stfs("ls", host).count("\n") >= len(NEW)


def test_a_model_that_is_named_by_its_archive(host, published):
    host = host(1)
    os.rename(host / "model.safetensors", host / "mine.safetensors")
    save(version_directory(published, 1), NEW, 1)
    stfs("pull", host / "mine.safetensors", published)
    check(host, NEW, 1)
    assert names_in(host) == [".weight_sync", "mine.safetensors"]
    save(version_directory(published, 2), OLD, 2)
    said = stfs("pull", host / "mine.safetensors", published, wanted=1)
    assert "mine.safetensors: is one archive, and version 000002 has an index: name the directory" in said
    check(host, NEW, 1)
    stfs("pull", host, published)
    check(host, OLD, 2)


def test_an_index_of_another_name(host, published):
    host = host(2)
    os.rename(host / INDEX, host / "policy.safetensors.index.json")
    save(version_directory(published, 1), NEW, 2)
    stfs("pull", host / "policy.safetensors.index.json", published)
    assert state_of(host) == 1 and INDEX not in os.listdir(host)
    assert tensors_of(host, "policy.safetensors.index.json") == content(NEW)


def test_archives_that_are_not_the_models_stay(host, published, tmp_path):
    """A lone archive without a state, and those that another index names."""
    lone = tmp_path / "lone"
    lone.mkdir()
    archive_file.save_with_reference(lone / "adapter.safetensors", NEW)
    before = (lone / "adapter.safetensors").read_bytes()
    host = host(2)
    stfs("pull", lone, published)
    assert tensors_of(lone) == content(OLD) and (lone / "adapter.safetensors").read_bytes() == before
    shared = "model-00001-of-00002.safetensors"
    (host / "other.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shared}}))
    save(version_directory(published, 1), NEW, 2)
    stfs("pull", host / INDEX, published)
    check(host, NEW, 1)
    assert shared in os.listdir(host) and "model-00002-of-00002.safetensors" not in os.listdir(host)


def test_deltas_on_top_are_refused(host, published, tmp_path, mounts):
    host = host(1)
    mount = mounts(host / "model.safetensors", options=f"rw,delta={tmp_path / 'd.safetensors'}")
    save(version_directory(published, 1), NEW, 1)
    before = names_in(host)
    assert "deltas on top" in stfs("pull", mount.path, published, wanted=1)
    check(host, OLD, 0)
    assert names_in(host) == before


@pytest.mark.parametrize("shards", [1, 2])
def test_a_mount_follows_and_open_files_keep_the_old_model(host, published, mounts, shards):
    host = host(shards)
    mount = mounts(host / (INDEX if shards > 1 else "model.safetensors"))
    descriptor = os.open(mount / "a", os.O_RDONLY)
    generation = mount.generation(mount / "b")
    save(version_directory(published, 1), NEW, shards)
    stfs("pull", host, published)
    assert eventually(lambda: sorted(os.listdir(mount.path)) == sorted(NEW))
    # The kernel is told of each name after the directory has the new ones.
    assert eventually(lambda: {name: (mount / name).read_bytes() for name in NEW} == content(NEW))
    assert mount.generation(mount / "b") > generation
    assert os.pread(descriptor, 1 << 20, 0) == OLD["a"].tobytes()
    os.close(descriptor)


def test_a_damaged_note_is_named(host, published):
    host = host(2)
    note = host / ".weight_sync/switch.json"
    for text in ("{", "[]", '{"ready": true, "archives": ["../x"], "step": ["a", "b"], "after": [], "removed": []}',
                 '{"ready": true, "archives": [], "step": ["a"], "after": [], "removed": []}', ""):
        note.write_text(text)
        assert "switch.json: damaged" in stfs("pull", host, published, wanted=1)
    note.unlink()
    check(host, OLD, 0)


@pytest.mark.needs_root
def test_a_note_of_a_user_who_may_not_remove_the_model_is_refused(host, published, nobody):
    """Else root would remove what the user cannot."""
    host = host(2)
    note = host / ".weight_sync/switch.json"
    note.write_text(json.dumps({"ready": True, "archives": [], "step": ["gone.tmp", "gone"], "after": [],
                                "removed": ["model-00001-of-00002.safetensors"]}))
    nobody.own(note)
    for mode in (0o755, 0o1777):
        host.chmod(mode)
        assert f"switch.json: belongs to user {nobody.uid}, who may not write" in stfs("pull", host, published, wanted=1)
        assert tensors_of(host) == content(OLD)
    note.unlink()
    check(host, OLD, 0)


def test_a_new_host_gets_the_versions_only_archive(published, tmp_path):
    save(version_directory(published, 0), {"x": np.zeros((), "u1")}, 1)
    stfs("pull", tmp_path / "new", published)
    assert sorted(os.listdir(tmp_path / "new")) == [".weight_sync", "model.safetensors"]
