# Files that programs make among the tensors are scratch files until they have a dtype and a shape.
import errno
import json
import os
import shutil

import numpy as np
import pytest
from edited_mount import EditedMount, renameat2, save, stfs
from mounted import errno_of, shell
from own_disk import full_but_for, own_disk
from sharded_model import ShardedModel
from test_checksums import LONG_BYTES, write_sparse

SIZES = {"a": 4096, "b": 300}
FORM = "user.safetensors."


@pytest.fixture
def edited(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    due = save(path, SIZES)
    edited = EditedMount(mounts(path), [path], due)
    os.setxattr(edited / "a", FORM + "dtype", b"F32")
    os.setxattr(edited / "a", FORM + "shape", b"[64,16]")
    edited.due["a"] = ("F32", [64, 16], due["a"][2])
    return edited


def test_a_typo_adds_no_tensor(edited, tmp_path):
    (edited / "wieght").write_bytes(b"typo")
    assert edited.stored() == edited.due
    assert (edited / "wieght").read_bytes() == b"typo"
    assert "wieght" in os.listdir(edited.mount.path)
    assert "wieght" in stfs("info", tmp_path / "m.safetensors")
    assert json.loads(stfs("info", "--json", tmp_path / "m.safetensors"))["scratch_files"] == ["wieght"]
    assert '"wieght" is a scratch file' in edited.mount.log()
    assert (tmp_path / ".m.safetensors.scratch" / "wieght").read_bytes() == b"typo"
    os.truncate(edited / "wieght", 2)
    os.rename(edited / "wieght", edited / "other")
    assert (edited / "other").read_bytes() == b"ty"
    os.unlink(edited / "other")
    assert not (tmp_path / ".m.safetensors.scratch").exists()
    edited.check()


def test_a_scratch_file_as_large_as_its_tensor_delays_no_mount(tmp_path, mounts):
    """A crash may leave such a file, and anybody may plant one beside an own archive."""
    path = write_sparse(tmp_path / "m.safetensors")
    left = tmp_path / ".m.safetensors.scratch" / "long"
    left.parent.mkdir()
    left.touch()
    os.truncate(left, LONG_BYTES)
    mount = mounts(path)
    assert sorted(os.listdir(mount.path)) == ["long", "short"]
    assert left.exists()


def test_a_listing_shows_a_thousand_scratch_files_once(edited, tmp_path):
    names = [f"scratch{at:04}" for at in range(1000)]
    (edited / names[0]).write_bytes(b"made in the mount")
    for name in names[1:]:
        (tmp_path / ".m.safetensors.scratch" / name).touch(0o644)
    listed = os.listdir(edited.mount.path)
    assert sorted(listed) == sorted(["a", "b", *names])
    for name in names[::2]:
        os.unlink(edited / name)
    assert sorted(os.listdir(edited.mount.path)) == sorted(["a", "b", *names[1::2]])
    for name in names[1::2]:
        os.unlink(edited / name)
    edited.check()


def test_dd_and_cp_of_a_numpy_file_make_scratch_files(edited, tmp_path):
    np.save(tmp_path / "good.npy", np.zeros(3))
    done = shell(f"dd of={edited / 'wieght'} < good.npy && cp good.npy {edited / 'x.npy'} && touch {edited / '.DS_Store'}",
                 cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert edited.stored() == edited.due
    assert (np.load(edited / "x.npy") == 0).all()
    assert sorted(os.listdir(edited.mount.path)) == [".DS_Store", "a", "b", "wieght", "x.npy"]
    shell(f"cd {edited.mount.path} && rm wieght x.npy .DS_Store")
    edited.check()


def test_programs_that_replace_a_tensor_keep_its_form(edited, tmp_path):
    new = tmp_path / "new"
    for command in ("cp --remove-destination new MOUNT/a", "mv -f moved MOUNT/a", "install new MOUNT/a",
                    "mkdir t; cp new t/a; tar -C t -cf - a | tar -C MOUNT -x --no-same-owner --no-same-permissions -f -",
                    "cp new MOUNT/a.tmp; mv MOUNT/a.tmp MOUNT/a", "rsync -I new MOUNT/a", "rm MOUNT/a; cp new MOUNT/a",
                    "mv MOUNT/a MOUNT/a~; cp new MOUNT/a; rm MOUNT/a~"):
        data = os.urandom(4096)
        new.write_bytes(data)
        shutil.copy(new, tmp_path / "moved")
        done = shell(command.replace("MOUNT", str(edited.mount.path)), cwd=tmp_path)
        edited.due["a"] = ("F32", [64, 16], data)
        assert edited.stored() == edited.due, (command, done.stderr)
    edited.check()


def test_attributes_travel_from_mount_to_mount(edited, tmp_path, mounts):
    due = save(tmp_path / "n.safetensors", {"z": 10})
    other = EditedMount(mounts(tmp_path / "n.safetensors"), [tmp_path / "n.safetensors"], due)
    done = shell(f"cp -a {edited.mount.path}/a {other.mount.path}/a")
    other.due["a"] = edited.due["a"]
    assert other.stored() == other.due, done.stderr
    done = shell(f"tar -C {edited.mount.path} --xattrs -cf - b | tar -C {other.mount.path} --xattrs -xf -")
    other.due["b"] = edited.due["b"]
    assert other.stored() == other.due, done.stderr
    os.unlink(other / "a")
    done = shell(f"rsync -aX {edited.mount.path}/a {other.mount.path}/copy")
    other.due["copy"] = other.due.pop("a")
    assert other.stored() == other.due, done.stderr
    other.check()


def test_a_regular_file_by_mknod_is_a_scratch_file(edited):
    os.mknod(edited / "made")
    assert (edited / "made").read_bytes() == b""
    assert edited.stored() == edited.due
    assert errno_of(os.mkfifo, edited / "fifo") == errno.EPERM
    os.unlink(edited / "made")


def test_a_transaction_with_a_file_without_a_form_is_not_committed(edited):
    transaction = edited / ".safetensors" / "transactions" / "T"
    transaction.mkdir()
    (transaction / "formless").write_bytes(b"x")
    committed = edited / ".safetensors" / "committed" / "T"
    assert errno_of(os.rename, transaction, committed) == errno.ENODATA
    assert '"formless"' in edited.mount.log().splitlines()[-1]
    os.setxattr(transaction / "formless", FORM + "dtype", b"U8")
    os.setxattr(transaction / "formless", FORM + "shape", b"[1]")
    os.rename(transaction, committed)
    edited.due["formless"] = ("U8", [1], b"x")
    edited.check()


def test_unknown_flags_of_renameat2_are_refused(edited):
    RENAME_WHITEOUT = 4
    assert renameat2(edited / "a", edited / "c", RENAME_WHITEOUT) == errno.EINVAL
    (edited / "scratch").write_bytes(b"1")
    assert renameat2(edited / "scratch", edited / "c", RENAME_WHITEOUT) == errno.EINVAL
    os.unlink(edited / "scratch")
    edited.check()


def test_an_empty_tensor_is_in_the_archive_when_close_returns(edited):
    fd = os.open(edited / "empty", os.O_CREAT | os.O_WRONLY)
    os.setxattr(fd, FORM + "shape", b"[0,3]")
    os.setxattr(fd, FORM + "dtype", b"F16")
    os.close(fd)
    edited.due["empty"] = ("F16", [0, 3], b"")
    assert edited.stored() == edited.due
    edited.check()


def test_two_mounts_show_the_same_scratch_files(edited, tmp_path, mounts):
    other = mounts(tmp_path / "m.safetensors")
    assert errno_of(os.stat, other / "x.lock") == errno.ENOENT
    (edited / "x.lock").write_bytes(b"1")
    assert (other / "x.lock").read_bytes() == b"1"
    assert errno_of(os.open, other / "x.lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY) == errno.EEXIST
    with open(other / "x.lock", "ab") as file:
        file.write(b"23")
    assert (edited / "x.lock").read_bytes() == b"123"
    assert sorted(os.listdir(other.path)) == ["a", "b", "x.lock"]
    os.rename(edited / "x.lock", edited / "y.lock")
    assert sorted(os.listdir(other.path)) == ["a", "b", "y.lock"]
    os.unlink(other / "y.lock")
    assert errno_of(os.stat, edited / "y.lock") == errno.ENOENT
    assert sorted(os.listdir(edited.mount.path)) == ["a", "b"]
    assert not (tmp_path / ".m.safetensors.scratch").exists()


def test_scratch_files_survive_an_unmount_and_a_killed_mount(edited, tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    (edited / "kept").write_bytes(b"moved there")
    assert edited.mount.unmount() == 0
    assert f"scratch files stay in {tmp_path}/.m.safetensors.scratch: \"kept\"" in edited.mount.log()
    again = mounts(path)
    assert (again / "kept").read_bytes() == b"moved there"
    (again / "other").write_bytes(b"2")
    again.kill()
    last = mounts(path)
    assert (last / "kept").read_bytes() + (last / "other").read_bytes() == b"moved there2"
    readers = mounts(path, "ro")
    assert sorted(os.listdir(readers.path)) == ["a", "b"]
    os.unlink(last / "kept")
    os.unlink(last / "other")
    assert not (tmp_path / ".m.safetensors.scratch").exists()


def test_shards_and_deltas_have_a_scratch_directory_of_their_own(tmp_path, mounts):
    model = ShardedModel(tmp_path / "model")
    mount = mounts(model.index)
    (mount / "new").write_bytes(b"1")
    assert os.listdir(model.directory / ".model.safetensors.index.json.scratch") == ["new"]
    assert "new" not in os.listdir(mount / ".safetensors" / "pretrained")
    assert ".model.safetensors.index.json.scratch" not in os.listdir(mount / ".safetensors" / "pretrained")
    delta = tmp_path / "d.safetensors"
    variant = mounts(model.index, f"delta={delta}")
    assert "new" not in os.listdir(variant.path)
    (variant / "other").write_bytes(b"12")
    assert os.listdir(tmp_path / ".d.safetensors.scratch") == ["other"]
    os.setxattr(variant / "other", FORM + "dtype", b"F16")
    os.setxattr(variant / "other", FORM + "shape", b"[1]")
    assert variant.attribute("other", "archive") == str(delta)
    assert not (tmp_path / ".d.safetensors.scratch").exists()
    os.unlink(mount / "new")
    assert model.directory / ".model.safetensors.index.json.scratch" not in list(model.directory.iterdir())


def test_in_a_directory_of_models_each_model_has_its_own(tmp_path, mounts):
    directory = tmp_path / "models"
    directory.mkdir()
    for name in ("one", "two"):
        save(directory / f"{name}.safetensors", SIZES)
    mount = mounts(directory)
    (mount / "one" / "note").write_bytes(b"1")
    assert sorted(os.listdir(mount / "one")) == ["a", "b", "note"]
    assert sorted(os.listdir(mount / "two")) == ["a", "b"]
    assert sorted(os.listdir(mount.path)) == ["one", "two"]
    assert os.listdir(directory / ".one.safetensors.scratch") == ["note"]
    os.unlink(mount / "one" / "note")


def test_a_planted_link_is_not_followed(edited, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / ".m.safetensors.scratch").symlink_to(elsewhere)
    assert errno_of(lambda: (edited / "x").write_bytes(b"1")) == errno.EACCES
    assert "is a link or a file" in (edited.mount / ".safetensors" / "log").read_text().splitlines()[-1]
    assert os.listdir(elsewhere) == []
    (tmp_path / ".m.safetensors.scratch").unlink()
    (edited / "x").write_bytes(b"1")
    secret = tmp_path / "secret"
    secret.write_bytes(b"kept")
    scratch = tmp_path / ".m.safetensors.scratch"
    (scratch / "link").symlink_to(secret)
    os.link(secret, scratch / "hard")
    (scratch / "%2F").write_bytes(b"")
    assert sorted(set(os.listdir(edited.mount.path)) - {"hard"}) == ["a", "b", "x"]
    for name in ("link", "hard"):
        assert errno_of(lambda: (edited / name).write_bytes(b"1")) != 0
    assert secret.read_bytes() == b"kept"
    shutil.rmtree(scratch)


@pytest.mark.needs_root
def test_a_full_disk_is_an_error_of_the_writer(tmp_path, mounts):
    with own_disk("tmpfs", tmp_path / "disk") as disk:
        due = save(disk / "m.safetensors", SIZES)
        edited = EditedMount(mounts(disk / "m.safetensors"), [disk / "m.safetensors"], due)
        with full_but_for(disk, 0):
            # The page cache may take a write that the close then refuses.
            assert errno_of(lambda: (edited / "x").write_bytes(bytes(1 << 20))) == errno.ENOSPC
            assert edited.stored() == edited.due
        (edited / "x").write_bytes(bytes(1 << 20))
        assert (edited / "x").read_bytes() == bytes(1 << 20)
        os.unlink(edited / "x")
        edited.check()
        assert edited.mount.unmount() == 0


def test_a_numpy_file_of_another_shape_needs_reshape(edited, tmp_path, mounts):
    np.save(tmp_path / "x.npy", np.zeros((4, 4), "f4"))
    done = shell(f"cp x.npy {edited.npy('a')}", cwd=tmp_path)
    assert done.returncode != 0 and "mount with -o reshape" in edited.mount.log()
    edited.check()
    assert shell(f"cp x.npy {edited.npy('new')}", cwd=tmp_path).returncode == 0
    edited.due["new"] = ("F32", [4, 4], bytes(64))
    np.save(edited.npy("new"), np.ones((4, 4), "i4"))  # another dtype
    edited.due["new"] = ("I32", [4, 4], np.ones((4, 4), "i4").tobytes())
    edited.check()
    assert edited.mount.unmount() == 0
    again = EditedMount(mounts(tmp_path / "m.safetensors", "reshape"), edited.archives, edited.due)
    assert shell(f"cp x.npy {again.npy('a')}", cwd=tmp_path).returncode == 0
    again.due["a"] = ("F32", [4, 4], bytes(64))
    again.check()


@pytest.mark.parametrize("key, value, other", [("dtype", b"F32", ("shape", b"[2]")), ("shape", b"[2]", ("dtype", b"F32"))])
def test_one_attribute_of_a_scratch_file_outlives_the_mount(edited, tmp_path, mounts, key, value, other):
    data = np.array([1, 2], "f4").tobytes()
    (edited / "half").write_bytes(data)
    os.setxattr(edited / "half", FORM + key, value)
    os.rename(edited / "half", edited / "new")
    assert edited.stored() == edited.due
    kept = tmp_path / ".m.safetensors.scratch" / "new"
    edited.mount.unmount()
    assert os.getxattr(kept, FORM + key) == value
    again = EditedMount(mounts(tmp_path / "m.safetensors"), [tmp_path / "m.safetensors"], edited.due)
    assert os.getxattr(again / "new", FORM + key) == value
    assert again.stored() == again.due
    os.setxattr(again / "new", FORM + other[0], other[1])
    again.due["new"] = ("F32", [2], data)
    assert again.stored() == again.due
    assert not kept.parent.exists()
    again.check()


def test_bad_attributes_of_a_scratch_file_are_ignored(edited, tmp_path, mounts):
    (edited / "odd").write_bytes(b"odd")
    edited.mount.unmount()
    os.setxattr(tmp_path / ".m.safetensors.scratch" / "odd", FORM + "dtype", b"FLOAT")
    os.setxattr(tmp_path / ".m.safetensors.scratch" / "odd", FORM + "shape", b"[")
    again = mounts(tmp_path / "m.safetensors")
    assert (again / "odd").read_bytes() == b"odd"
    assert errno_of(os.getxattr, again / "odd", FORM + "dtype") == errno.ENODATA
