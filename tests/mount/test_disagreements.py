# An index and shards that do not agree: what is told by name, what is mounted all the same, and what is refused.
import errno
import os
import shutil

import pytest
from archive_file import save_with_reference
from mounted import MountFailed, errno_of
from sharded_model import check_tree, read_archive_view

pytestmark = pytest.mark.sequential


def missing_tensor(model):
    model.weight_map["gone.weight"] = model.names[1]
    model.write_index()
    return ["gone.weight", "not in", model.names[1]], ["gone.weight"]


def elsewhere(model):
    model.write_index({**model.weight_map, "odd": model.names[0]})
    assert model.weight_map["odd"] != model.names[0]
    return ["odd", model.weight_map["odd"], "and not in"], []


def unlisted(model):
    model.write_index({name: shard for name, shard in model.weight_map.items() if name != "odd"})
    return ["odd", model.weight_map["odd"], "not in the index"], []


def twice(model):
    other = next(name for name in model.names if name != model.weight_map["odd"])
    mine = {name: array for name, array in model.tensors.items() if model.weight_map[name] == other}
    save_with_reference(model.directory / other, {**mine, "odd": model.tensors["odd"][::-1].copy()})
    return ["odd", other, "too"], []


def missing_shard(model):
    os.remove(model.directory / model.names[1])
    return [model.names[1], "No such file"], model.tensors_of(model.names[1])


def short_shard(model):
    path = model.directory / model.names[2]
    os.truncate(path, path.stat().st_size - 1)
    return [model.names[2]], model.tensors_of(model.names[2])


def garbage(model):
    (model.directory / model.names[0]).write_bytes(b"no archive, just words")
    return [model.names[0], "header"], model.tensors_of(model.names[0])


def loop(model):
    path = model.directory / model.names[1]
    os.remove(path)
    os.symlink(path.name, path)
    return [model.names[1], "Too many levels of symbolic links"], model.tensors_of(model.names[1])


def same_file(model):
    path = model.directory / model.names[1]
    os.remove(path)
    os.link(model.directory / model.names[0], path)
    return [model.names[1], "the same file as", model.names[0]], model.tensors_of(model.names[1])


DISAGREEMENTS = [missing_tensor, elsewhere, unlisted, twice, missing_shard, short_shard, garbage, loop, same_file]


@pytest.mark.parametrize("disagree", DISAGREEMENTS)
def test_what_does_not_agree_is_told_by_name_and_the_rest_is_mounted(model, mounts, disagree):
    words, unserved = disagree(model)
    stored = {name: model.tensors[name].tobytes() for name in model.tensors if name not in unserved}
    mount = mounts(model.index)
    for word in words:
        assert word in mount.log(), mount.log()
    assert sorted(os.listdir(mount.path)) == sorted(stored)
    for name, data in stored.items():
        assert (mount / name).read_bytes() == data
    for name in unserved:
        assert errno_of(lambda path=mount / name: path.read_bytes()) == errno.EIO
        assert f'"{name}"' in mount.log()
    assert errno_of(lambda: (mount / "never").read_bytes()) == errno.ENOENT
    found = read_archive_view(mount / ".safetensors" / "archive.safetensors")
    assert {name: data for name, (_, _, data) in found.items()} == stored


@pytest.mark.parametrize("disagree", DISAGREEMENTS)
def test_strict_refuses_it(model, mounts, disagree):
    words, _ = disagree(model)
    with pytest.raises(MountFailed) as refused:
        mounts(model.index, "strict")
    assert refused.value.status == 1
    assert str(model.index) in refused.value.log
    for word in words:
        assert word in refused.value.log


def test_strict_takes_what_agrees(model, mounts):
    check_tree(mounts(model.index, "strict"), model)


@pytest.mark.parametrize("entry", ["../secret.safetensors", "/etc/secret.safetensors", "sub/a.safetensors", "..",
                                   "a\u0000.safetensors", "a.bin"])
def test_an_index_that_leads_elsewhere_is_refused(model, mounts, tmp_path, entry):
    save_with_reference(tmp_path / "secret.safetensors")
    model.write_index({**model.weight_map, "odd": entry})
    with pytest.raises(MountFailed) as refused:
        mounts(model.index)
    assert refused.value.status == 1
    assert str(model.index) in refused.value.log and "byte" in refused.value.log and "odd" in refused.value.log


@pytest.mark.parametrize("text", ["", "{}", "[]", "{\"weight_map\":{}}", "{\"weight_map\":[]}", "\xff",
                                  "{\"weight_map\":{\"a\":1}}", "[" * 100000])
def test_a_bad_index_is_refused_with_its_name(model, mounts, text):
    model.index.write_bytes(text.encode("latin-1"))
    with pytest.raises(MountFailed) as refused:
        mounts(model.index)
    assert refused.value.status == 1 and str(model.index) in refused.value.log


def test_two_indexes_in_a_directory_are_named(model, mounts, tmp_path):
    shutil.copy(model.index, model.directory / "other.safetensors.index.json")
    with pytest.raises(MountFailed) as refused:
        mounts(model.directory)
    assert refused.value.status == 1
    assert str(model.index) in refused.value.log
    assert str(model.directory / "other.safetensors.index.json") in refused.value.log
    (tmp_path / "other").mkdir()
    check_tree(mounts(model.directory / "other.safetensors.index.json", path=tmp_path / "other"), model)
