# Models of many shards through a real mount and the reference library: the mounted tree, views, writes, changes of the source.
# tests/fs/filesystem_model_test.cc tests state that each shard keeps separately.
import errno
import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors
from archive_file import random_bytes, save_with_reference
from mounted import errno_of, eventually, in_child, shell
from sharded_model import check_tree, hub_cache, is_equal, read_archive_view

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from page_cache import cached_share, drop  # noqa: E402


@pytest.fixture
def sharded(model, mounts):
    mount = mounts(model.index)
    mount.model = model
    return mount


# ---- the mounted tree ----

def test_an_index_mounts_as_one_tree(sharded):
    check_tree(sharded, sharded.model)
    assert sharded.attribute(None, "archive") == str(sharded.model.index)
    assert sharded.attribute(None, "metadata.title") == "a sample"
    assert sharded.entry()[0] == str(sharded.model.index)


def test_a_mount_reads_the_headers_and_nothing_else(tmp_path, mounts):
    data_bytes = 24 << 20
    names = [f"layers.{number}.weight" for number in range(4)]
    index = {"weight_map": {}}
    for number, name in enumerate(names):
        file = f"model-{number + 1:05}-of-00004.safetensors"
        save_with_reference(tmp_path / file, {name: np.frombuffer(random_bytes(data_bytes, number), np.uint8)})
        index["weight_map"][name] = file
        drop(tmp_path / file)
        if cached_share(tmp_path / file) != 0:
            pytest.skip("the temporary directory lies in memory, so nothing of a file can be evicted")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    mount = mounts(tmp_path / "model.safetensors.index.json")
    assert {entry.name: entry.stat().st_size for entry in os.scandir(mount.path)} == dict.fromkeys(names, data_bytes)
    shares = [cached_share(tmp_path / file) for file in sorted(index["weight_map"].values())]
    assert 0 < max(shares) < 0.1  # a header, and what the kernel reads ahead
    (mount / names[2]).read_bytes()
    shares = [cached_share(tmp_path / file) for file in sorted(index["weight_map"].values())]
    assert shares[2] > 0.9 and max(shares[0], shares[1], shares[3]) < 0.1


def test_a_directory_with_an_index_is_that_model(model, mounts):
    save_with_reference(model.directory / "unrelated.safetensors")
    check_tree(mounts(model.directory), model)


def test_a_snapshot_of_a_hub_cache(model, mounts, tmp_path):
    mount = mounts(hub_cache(tmp_path / "hub", model))
    check_tree(mount, model)
    data = random_bytes(12345, 1)
    (mount / "odd").write_bytes(data)
    assert model.stored("odd") == data
    assert sorted(os.listdir(tmp_path / "hub" / "blobs")) == ["blob0", "blob1", "blob2", "blob3"]
    assert all((model.directory / name).is_symlink() for name in model.names)


def test_statfs_counts_every_shard(sharded):
    found = os.statvfs(sharded.path)
    blocks = sum(-(-(sharded.model.directory / name).stat().st_size // 4096) for name in sharded.model.names)
    assert found.f_blocks - found.f_bfree == blocks


# ---- views ----

def test_the_archive_view_is_one_archive_of_all_shards(sharded):
    path = sharded / ".safetensors" / "archive.safetensors"
    raw = path.read_bytes()
    assert (8 + int.from_bytes(raw[:8], "little")) % 4096 == 0
    assert path.stat().st_size == len(raw)
    assert read_archive_view(path) == sharded.model.reference()
    header = json.loads((sharded / ".safetensors" / "header.json").read_bytes())
    assert header["__metadata__"] == {"format": "pt", "title": "a sample"}
    assert json.loads((sharded / ".safetensors" / "metadata.json").read_bytes()) == header["__metadata__"]


def test_safe_open_of_the_archive_view_gives_each_tensor_and_slice(sharded):
    model = sharded.model

    def look():
        random = np.random.default_rng(5)
        with safetensors.safe_open(str(sharded / ".safetensors" / "archive.safetensors"), "numpy") as whole:
            assert sorted(whole.keys()) == sorted(model.tensors)
            for shard in model.names:
                with safetensors.safe_open(str(model.directory / shard), "numpy") as plain:
                    assert whole.metadata() == plain.metadata()
                    for name in plain.keys():
                        try:
                            want = plain.get_tensor(name)
                        except Exception:  # a dtype that it does not give to NumPy
                            continue
                        assert is_equal(whole.get_tensor(name), want), name
                        if want.ndim == 0 or want.size == 0:
                            continue
                        for _ in range(20):
                            ends = [sorted(random.integers(0, size + 1, 2)) for size in want.shape]
                            part = tuple(slice(int(a), int(b)) for a, b in ends)
                            if any(a == b for a, b in ends):
                                continue
                            found = whole.get_slice(name)[part]
                            assert is_equal(found, plain.get_slice(name)[part]), (name, part)

    in_child(look)


def test_npy_slices_and_float32_of_any_shard(sharded):
    views = sharded / ".safetensors"
    for name in ("layers.0.weight", "layers.1.weight"):
        want = sharded.model.tensors[name]
        np.testing.assert_array_equal(np.load(views / "npy" / f"{name}.npy").view("u4"), want.view("u4"))
        part = np.load(views / "slice" / f"{name}[3:9,::5].npy")
        np.testing.assert_array_equal(part.view("u4"), want[3:9, ::5].copy().view("u4"))
    bits = np.frombuffer(sharded.model.stored("embed"), "<u2").astype("<u4") << 16
    found = np.load(views / "float32" / "embed.npy").reshape(-1).view("<u4")
    quiet = np.isnan(bits.view("<f4"))
    np.testing.assert_array_equal(found[~quiet], bits[~quiet])


# ---- writing ----

def test_many_small_writes_over_all_shards_leave_no_journal(sharded):
    model = sharded.model
    for turn in range(3):
        for name in ("small", "scalar", "odd", "dtype.F16"):
            (sharded / name).write_bytes(random_bytes(model.tensors[name].nbytes, turn))
    check_tree(sharded, model)
    assert sharded.unmount() == 0
    assert sorted(os.listdir(model.directory)) == sorted([*model.names, model.index.name])


def stage_everywhere(mount, seed):
    """One tensor of each shard, in a transaction that waits for its mv."""
    model = mount.model
    names = [next(name for name, shard in sorted(model.weight_map.items())
                  if shard == each and model.tensors[name].nbytes > 4) for each in model.names]
    directory = mount / ".safetensors" / "transactions" / "T"
    directory.mkdir()
    content = {name: random_bytes(model.tensors[name].nbytes, seed + at) for at, name in enumerate(names)}
    for name, data in content.items():
        (directory / name).write_bytes(data)
    return directory, content


def test_a_transaction_over_all_shards_commits(sharded):
    model = sharded.model
    directory, content = stage_everywhere(sharded, 1)
    assert {model.weight_map[name] for name in content} == set(model.names) and len(model.names) > 1
    done = shell(f"mv {directory} {sharded / '.safetensors' / 'committed'}/")
    assert done.returncode == 0, done.stderr
    for name, data in content.items():
        assert model.stored(name) == data == (sharded / name).read_bytes()
    check_tree(sharded, model)
    assert sharded.unmount() == 0
    assert sorted(os.listdir(model.directory)) == sorted([*model.names, model.index.name])


def test_a_transaction_over_shards_that_is_killed_is_whole_or_not_at_all(model, mounts):
    verdicts = {"old": 0, "new": 0}
    for attempt in range(16):
        mount = mounts(model.directory)
        mount.model = model
        before = {name: model.stored(name) for name in model.tensors}
        directory, content = stage_everywhere(mount, 100 * attempt)
        mover = threading.Thread(target=lambda: shell(f"mv {directory} {mount / '.safetensors' / 'committed'}/"))
        mover.start()
        time.sleep(0.0015 * attempt)
        mount.kill()
        mover.join()
        # Another mount recovers every shard.
        mount = mounts(model.directory)
        found = {name: (mount / name).read_bytes() for name in content}
        is_new = found == content
        assert is_new or found == {name: before[name] for name in content}, f"torn in attempt {attempt}"
        verdicts["new" if is_new else "old"] += 1
        assert mount.unmount() == 0
        assert sorted(os.listdir(model.directory)) == sorted([*model.names, model.index.name])
    print(verdicts)


# ---- change underneath ----

def test_a_shard_that_is_cut_hits_its_tensors_alone(sharded):
    model = sharded.model
    name = max(model.tensors_of(model.names[0]), key=lambda name: model.archive_of(name).layout()[name][2])
    assert model.archive_of(name).layout()[name][3] > 1
    path = model.shard_of(name)
    rest = {other: model.stored(other) for other in model.tensors if model.shard_of(other) != path}
    os.truncate(path, path.stat().st_size - 1)
    assert errno_of(lambda: (sharded / name).read_bytes()) == errno.EIO
    for other, data in rest.items():
        assert (sharded / other).read_bytes() == data


def test_a_link_that_is_led_elsewhere_is_followed(model, mounts, tmp_path):
    mount = mounts(hub_cache(tmp_path / "hub", model))
    path = model.shard_of("odd")
    shutil.copy(path, tmp_path / "hub" / "blobs" / "other")
    os.symlink("../../blobs/other", model.directory / "new")
    os.rename(model.directory / "new", path)
    assert eventually(lambda: "was replaced" in mount.log())
    (mount / "odd").write_bytes(random_bytes(12345, 3))
    assert (tmp_path / "hub" / "blobs" / "other").read_bytes() == path.read_bytes()
    assert model.stored("odd") == random_bytes(12345, 3)

