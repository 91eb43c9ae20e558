# Files that programs make among the tensors are scratch files until they have a dtype and a shape.
import errno
import os
import shutil

import pytest
from edited_mount import EditedMount, save, stfs
from mounted import errno_of, shell

SIZES = {"a": 4096, "b": 300}
FORM = "user.safetensors."


@pytest.fixture
def edited(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    due = save(path, SIZES)
    edited = EditedMount(mounts(path), [path], due)
    os.setxattr(edited / "a", FORM + "shape", b"[64,16]")
    os.setxattr(edited / "a", FORM + "dtype", b"F32")
    edited.due["a"] = ("F32", [64, 16], due["a"][2])
    return edited


def test_a_typo_adds_no_tensor(edited, tmp_path):
    (edited / "wieght").write_bytes(b"typo")
    assert edited.stored() == edited.due
    assert (edited / "wieght").read_bytes() == b"typo"
    assert "wieght" in os.listdir(edited.mount.path)
    assert "wieght" in stfs("info", tmp_path / "m.safetensors")
    assert (tmp_path / ".m.safetensors.scratch" / "wieght").read_bytes() == b"typo"
    os.truncate(edited / "wieght", 2)
    os.rename(edited / "wieght", edited / "other")
    assert (edited / "other").read_bytes() == b"ty"
    os.unlink(edited / "other")
    assert not (tmp_path / ".m.safetensors.scratch").exists()
    edited.check()


def test_programs_that_replace_a_tensor_keep_its_form(edited, tmp_path):
    new = tmp_path / "new"
    for command in ("cp --remove-destination new MOUNT/a", "mv -f moved MOUNT/a", "install new MOUNT/a",
                    "mkdir t; cp new t/a; tar -C t -cf - a | tar -C MOUNT -x --no-same-owner --no-same-permissions -f -",
                    "cp new MOUNT/a.tmp; mv MOUNT/a.tmp MOUNT/a"):
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
    os.setxattr(transaction / "formless", FORM + "dtype", b"U8")
    os.setxattr(transaction / "formless", FORM + "shape", b"[1]")
    os.rename(transaction, committed)
    edited.due["formless"] = ("U8", [1], b"x")
    edited.check()
