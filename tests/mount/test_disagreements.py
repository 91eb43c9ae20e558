# An index and shards that do not agree: the messages with names, the mountable cases, and the refused cases.
import errno
import os

import pytest
from archive_file import save_with_reference
from mounted import MountFailed, errno_of
from sharded_model import check_tree, read_archive_view

pytestmark = pytest.mark.sequential


def missing_tensor(model):
    model.weight_map["gone.weight"] = model.names[1]
    model.write_index()
    return ["gone.weight", "not in", model.names[1]], ["gone.weight"]


def twice(model):
    other = next(name for name in model.names if name != model.weight_map["odd"])
    mine = {name: array for name, array in model.tensors.items() if model.weight_map[name] == other}
    save_with_reference(model.directory / other, {**mine, "odd": model.tensors["odd"][::-1].copy()})
    return ["odd", other, "also in"], []


def missing_shard(model):
    os.remove(model.directory / model.names[1])
    return [model.names[1], "No such file"], model.tensors_of(model.names[1])


# Each other one: tests/core/model_test.cc; what makes an index a bad one: model_index_test.cc, test_startup.py.
DISAGREEMENTS = [missing_tensor, twice, missing_shard]


@pytest.mark.parametrize("disagree", DISAGREEMENTS)
def test_what_does_not_agree_is_told_by_name_and_the_rest_is_mounted_unless_strictly(model, mounts, disagree):
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
    with pytest.raises(MountFailed) as refused:
        mounts(model.index, "strict")
    assert refused.value.status == 1
    for word in (str(model.index), *words):
        assert word in refused.value.log


def test_strict_takes_what_agrees(model, mounts):
    check_tree(mounts(model.index, "strict"), model)

