# Edits in a transaction's directory, of each kind of source: shards, a tree, a directory of models, a delta, without edits.
import errno
import json
import os

import pytest
from edited_mount import EditedMount, save, stfs, u8, write_tensor
from mounted import errno_of, shell
from sharded_model import ShardedModel
from transaction_edits import METADATA, SIZES, begin, commit, edited, images, metadata_of  # noqa: F401


def test_everything_in_one_commit_of_a_sharded_model(tmp_path, mounts):
    model = ShardedModel(tmp_path / "sharded")
    edited = EditedMount(mounts(model.index), [model.directory / name for name in model.names], model.reference())
    before = images(model.directory)
    one, other, third = (model.tensors_of(name) for name in model.names)
    directory = begin(edited)
    patched, removed, moved, over, grown = one[0], one[1], other[0], third[0], other[1]
    data = os.urandom(len(edited.due[patched][2]))
    (tmp_path / "data").write_bytes(data)
    done = shell('cp "$1" "$2" && rm "$3" && mv "$4" "$5"', tmp_path / "data", directory / patched,
                 directory / removed, directory / moved, directory / over)
    assert done.returncode == 0, done.stderr
    write_tensor(directory / "new", b"x" * 100_000)
    with open(directory / grown, "r+b", buffering=0) as file:
        os.setxattr(directory / grown, "user.safetensors.dtype", b"F32")
        os.setxattr(directory / grown, "user.safetensors.shape", b"[5]")
        file.write(b"12345678901234567890")
    os.setxattr(directory, METADATA + "tuned", b"yes")
    assert images(model.directory) == before
    edited.check()  # nothing of it is seen outside
    assert shell('mv "$1" "$2"', directory, edited / ".safetensors/committed").returncode == 0
    due = edited.due
    due[patched] = (*due[patched][:2], data)
    del due[removed]
    due[over] = due.pop(moved)
    due["new"] = u8(b"x" * 100_000)
    due[grown] = ("F32", [5], b"12345678901234567890")
    edited.check()
    assert edited.mount.attribute(None, "metadata.tuned") == "yes"
    assert metadata_of(edited.archives[0])["tuned"] == "yes"
    assert metadata_of(edited.view)["tuned"] == "yes"
    assert json.loads(model.index.read_text())["weight_map"].keys() == due.keys()
    assert os.listdir(edited / ".safetensors/committed") == ["T"]
    stfs("verify", model.index)
    edited.mount.unmount()
    assert images(model.directory).keys() == before.keys()


def test_in_a_tree_names_are_flat_and_directories_follow(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    due = save(path, SIZES)
    tree = EditedMount(mounts(path, "layout=tree"), [path], due)
    directory = begin(tree)
    os.rename(directory / "layers.0.c", directory / "head.w")
    write_tensor(directory / "x.y.z", b"new")
    os.unlink(directory / "layers.1.c")
    assert sorted(os.listdir(directory)) == ["head.w", "x.y.z"]
    commit(tree)
    due["head.w"] = due.pop("layers.0.c")
    due["x.y.z"] = u8(b"new")
    del due["layers.1.c"]
    tree.due = due
    tree.check({name.replace(".", "/"): name for name in due})


def test_each_model_of_a_directory_has_transactions(tmp_path, mounts):
    due = save(tmp_path / "one.safetensors", SIZES)
    save(tmp_path / "two.safetensors", SIZES, seed=2)
    other = (tmp_path / "two.safetensors").read_bytes()
    mount = mounts(tmp_path)
    model = mount / "one"
    directory = model / ".safetensors" / "transactions" / "T"
    directory.mkdir()
    os.unlink(directory / "b")
    write_tensor(directory / "new", b"new")
    os.rename(directory, model / ".safetensors" / "committed" / "T")
    del due["b"]
    due["new"] = u8(b"new")
    assert sorted(os.listdir(model)) == sorted(due)
    edited = EditedMount(mount, [tmp_path / "one.safetensors"], due)
    assert edited.stored() == due
    assert (tmp_path / "two.safetensors").read_bytes() == other


@pytest.mark.parametrize("options", ["", ",edit=off"])
def test_a_delta_takes_transactions_and_its_base_stays(tmp_path, mounts, options):
    (tmp_path / "base").mkdir()
    base, delta = tmp_path / "base" / "m.safetensors", tmp_path / "delta.safetensors"
    due = save(base, SIZES)
    image = base.read_bytes()
    mount = mounts(base, f"delta={delta}{options}")
    for step in range(2):  # the second time the patched tensor is one of the delta
        directory = mount / ".safetensors" / "transactions" / "T"
        directory.mkdir()
        with open(directory / "large", "r+b") as file:
            file.seek(1000)
            file.write(b"patched %d" % step)
        (directory / "layers.0.d").write_bytes(b"%d" % step * 4096)
        if not options:
            os.rename(directory / "b", directory / f"b{step}") if step == 0 else os.unlink(directory / "b0")
            write_tensor(directory / f"new{step}", b"new")
            os.setxattr(directory, METADATA + "step", b"%d" % step)
        with open(mount / "large", "rb", buffering=0) as reader:
            reader.read(4096)
            os.rename(directory, mount / ".safetensors" / "committed" / "T")
            due["large"] = u8(due["large"][2][:1000] + b"patched %d" % step + due["large"][2][1009:])
            reader.seek(0)
            assert reader.readall() == due["large"][2]
        due["layers.0.d"] = u8(b"%d" % step * 4096)
        if not options:
            due[f"new{step}"] = u8(b"new")
            old = due.pop("b0", None) or due.pop("b")
            if step == 0:
                due["b0"] = old
            assert mount.attribute(None, "metadata.step") == str(step)
        EditedMount(mount, [], due).check_shown()
        assert base.read_bytes() == image
    mount.unmount()
    mount = mounts(base, f"delta={delta}")
    EditedMount(mount, [], due).check_shown()
    assert base.read_bytes() == image


def test_without_edits_only_patches_are_staged(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    due = save(path, SIZES)
    edited = EditedMount(mounts(path, "edit=off"), [path], due)
    directory = begin(edited)
    assert errno_of(os.unlink, directory / "b") == errno.EPERM
    assert errno_of(os.rename, directory / "b", directory / "x") == errno.EPERM
    assert errno_of((directory / "new").write_bytes, b"x") == errno.EPERM
    assert errno_of(os.setxattr, directory / "b", "user.safetensors.dtype", b"I8") == errno.EPERM
    assert errno_of(os.setxattr, directory, METADATA + "k", b"v") == errno.EPERM
    (directory / "b").write_bytes(b"123")
    commit(edited)
    edited.due["b"] = u8(b"123")
    edited.check()
