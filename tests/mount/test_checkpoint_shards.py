# save_pretrained(..., max_shard_size=...) into `.safetensors/pretrained`: the files and their index are one checkpoint. No library
# of models is installed here, so save() writes what transformers writes, in its order.
import errno
import json
import os
import re

import numpy as np
import pytest
from mounted import errno_of
from safetensors.numpy import load_file, save_file

FORMAT = {"format": "pt"}
INDEX = "model.safetensors.index.json"
PATTERN = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


def values(count=9, seed=1):
    random = np.random.default_rng(seed)
    return {f"layer.{at}.weight": random.standard_normal((300, 256)).astype("f4") for at in range(count)}


def save(path, tensors, shards, config='{"saved": true}', has_index=True):
    os.makedirs(path, exist_ok=True)
    for name in ("config.json", "generation_config.json"):
        with open(path / name, "w", encoding="utf-8") as file:
            file.write(config)
    names = sorted(tensors)
    parts = [names[at::shards] for at in range(shards)]
    files = {f"model-{at:05}-of-{shards:05}.safetensors": part for at, part in enumerate(parts, 1)}
    for name in os.listdir(path):
        if PATTERN.fullmatch(name) and name not in files:
            os.remove(path / name)
    for name, part in files.items():
        save_file({tensor: tensors[tensor] for tensor in part}, path / name, metadata=FORMAT)
    if has_index:
        index = {"metadata": {"total_size": sum(array.nbytes for array in tensors.values())},
                 "weight_map": {tensor: name for name, part in files.items() for tensor in part}}
        with open(path / INDEX, "w", encoding="utf-8") as file:
            file.write(json.dumps(index, indent=2, sort_keys=True) + "\n")


def is_same(got, due):
    return sorted(got) == sorted(due) and all(
        got[name].dtype == due[name].dtype and np.array_equal(got[name], due[name]) for name in due)


def stored(path):
    return {name: array for name, array in load_file(path).items() if not name.startswith("__safetensorsfs.free.")}


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "source" / "model.safetensors"
    path.parent.mkdir()
    save_file(values(), path, metadata=FORMAT)
    (path.parent / "config.json").write_text("{}")
    return path


def test_shards_and_their_index_are_one_checkpoint(archive, mounts):
    mount = mounts(archive)
    path = mount.path / ".safetensors/pretrained"
    due = values()
    due["layer.3.weight"][7, 5] = 3
    save(path, due, 3)
    assert is_same(stored(archive), due) and is_same(load_file(path / "model.safetensors"), due)
    assert (archive.parent / "config.json").read_text() == '{"saved": true}'
    assert "checkpoint of 3 files saved: 1 of 9 tensors differed" in mount.log()
    assert sorted(os.listdir(path)) == ["config.json", "generation_config.json", "model.safetensors"]
    due = {**values(7, seed=2), "new": np.arange(5), "layer.0.weight": due["layer.0.weight"].astype("f2")}
    save(path, due, 4)
    assert is_same(stored(archive), due) and is_same(load_file(path / "model.safetensors"), due)
    save(path, due, 4)
    assert "checkpoint of 4 files saved: 0 of 8 tensors differed" in mount.log()
    assert is_same(stored(archive), due)
    assert sorted(os.listdir(archive.parent)) == ["config.json", "generation_config.json", "model.safetensors"]


def test_shards_go_to_a_delta(archive, mounts, tmp_path):
    delta = tmp_path / "run.safetensors"
    before = archive.read_bytes()
    mount = mounts(archive, f"delta={delta}")
    due = values()
    due["layer.8.weight"][:] = 8
    del due["layer.1.weight"]
    save(mount.path / ".safetensors/pretrained", due, 2)
    assert is_same(load_file(mount.path / ".safetensors/archive.safetensors"), due)
    assert archive.read_bytes() == before and (archive.parent / "config.json").read_text() == "{}"
    assert (mount.path / ".safetensors/pretrained/config.json").read_text() == '{"saved": true}'


def test_shards_without_their_index_change_nothing(archive, mounts):
    before = archive.read_bytes()
    mount = mounts(archive)
    path = mount.path / ".safetensors/pretrained"
    other = values(seed=3)
    save(path, other, 3, has_index=False)
    assert archive.read_bytes() == before
    name = "model-00001-of-00003.safetensors"
    for index in ("no index", json.dumps({"weight_map": {"layer.0.weight": "missing.safetensors"}}),
                  json.dumps({"weight_map": {"layer.0.weight": name}}), json.dumps({"weight_map": {"none": name}})):
        assert errno_of((path / INDEX).write_text, index) == errno.EINVAL
        assert archive.read_bytes() == before
    save(path, other, 3)
    assert is_same(stored(archive), other)


def test_a_read_only_mount_refuses_before_the_first_byte(archive, mounts):
    before = archive.read_bytes()
    path = mounts(archive, "ro").path / ".safetensors/pretrained"
    assert errno_of(save, path, values(seed=3), 3) == errno.EROFS
    assert archive.read_bytes() == before and (archive.parent / "config.json").read_text() == "{}"
