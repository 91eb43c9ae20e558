# stfs beside mounts of deltas: it changes the delta as the mount does, and never the base.
import errno
import json
import os
import subprocess

import numpy as np
import pytest
from delta_variants import STFS, single, stfs  # noqa: F401
from edited_mount import content, u8
from mounted import eventually
from safetensors.numpy import save_file
from test_delta_writes import Base, Variant


@pytest.fixture
def shown(tmp_path, mounts):
    base = Base(tmp_path)
    yield Variant(base, tmp_path / "delta.safetensors", mounts)
    assert base.state() == base.known


def settled(variant):
    """After another program has changed a header, archive.safetensors gives EIO, also by a name that the kernel has cached, until
    the mount has opened the model again. A tensor's name may lead to its old form for a moment longer."""
    def is_shown():
        try:
            variant.check_shown()
        except (AssertionError, OSError) as error:
            assert not isinstance(error, OSError) or error.errno in (errno.EIO, errno.ENOENT, errno.ENODATA), error
            return False
        return True
    eventually(is_shown)
    variant.check()


def test_edits_and_patches_by_stfs_go_to_the_delta(shown, tmp_path):
    mount = shown.mount.path
    zeros, ones = tmp_path / "zeros.npy", tmp_path / "ones.npy"
    np.save(zeros, np.zeros(10_000, "u1"))
    np.save(ones, np.ones(300, "u1"))
    stfs("put", mount, "a", zeros)
    shown.due["a"] = u8(bytes(10_000))
    settled(shown)
    stfs("put", mount / "b", ones)  # the tensor's file
    shown.due["b"] = u8(b"\1" * 300)
    settled(shown)
    stfs("put", "--create", mount, "new", ones)
    shown.due["new"] = u8(b"\1" * 300)
    settled(shown)
    stfs("mv", mount, "c.w", "c")
    shown.due["c"] = shown.due.pop("c.w")
    stfs("rm", mount, "d.w")
    del shown.due["d.w"]
    stfs("set", mount, "b", "--dtype", "F32", "--shape", "75")
    shown.due["b"] = ("F32", [75], shown.due["b"][2])
    settled(shown)
    assert subprocess.run([STFS, "cat", mount / "c"], capture_output=True, check=True).stdout == shown.due["c"][2]
    assert content(shown.delta).keys() == {"a", "b", "new"}


def test_apply_changes_tensors_of_base_and_delta_at_once(shown, tmp_path):
    shown.patch("a", 0, b"in the delta")
    save_file({"a": np.full(10_000, 3, "u1"), "b": np.full(300, 4, "u1")}, tmp_path / "patch.safetensors")
    stfs("apply", shown.mount.path, tmp_path / "patch.safetensors")
    shown.due["a"], shown.due["b"] = u8(b"\3" * 10_000), u8(b"\4" * 300)
    settled(shown)
    assert content(shown.delta).keys() == {"a", "b"}


def test_a_mounted_delta_is_not_committed(single, mounts):
    delta = single.deltas["tuned"]
    mount = single.mount(mounts, "tuned")
    os.rename(mount / "embed", mount / "embedding")
    refused = stfs("commit", "--base", single.base, delta, wanted=1)
    assert f"{delta}: is mounted, or another program has it open: unmount it first" in refused
    assert (mount / "embedding").read_bytes() == single.tensors["embed"].tobytes()
    assert mount.unmount() == 0
    plan = json.loads(stfs("commit", "--json", "--dry-run", "--base", single.base, delta))
    assert plan["renamed"] == {"embed": "embedding"} and plan["changed"] is False
    assert "rename embed to embedding: BF16 [" in stfs("commit", "--dry-run", "--base", single.base, delta)
    assert "renamed or retyped 1 tensor" in stfs("commit", "--base", single.base, delta)
    plain = mounts(single.base)
    assert (plain / "embedding").read_bytes() == single.tensors["embed"].tobytes() and not (plain / "embed").exists()


def test_a_delta_is_committed_right_after_its_unmount(single, mounts):
    delta = single.deltas["tuned"]
    mount = single.mount(mounts, "tuned")
    os.rename(mount / "embed", mount / "embedding")
    # The command returns before the process of the mount has ended.
    subprocess.run(["fusermount3", "-u", mount.path], check=True)
    assert "renamed or retyped 1 tensor" in stfs("commit", "--base", single.base, delta)
    mount.wait()


def test_commit_finds_the_base_where_the_mount_found_it(shown):
    shown.rename("a", "z")
    shown.check()
    assert shown.delta.parent != shown.base.path.parent and shown.mount.unmount() == 0
    plan = stfs("commit", "--dry-run", shown.delta)
    assert "rename a to z" in plan and f"in {shown.base.path}" in plan


def test_a_variant_with_renamed_tensors_is_written_and_compared(shown, tmp_path):
    shown.rename("a", "z")
    os.setxattr(shown / "c.w", "user.safetensors.shape", b"[700,100]")
    shown.due["c.w"] = ("U8", [700, 100], shown.due["c.w"][2])
    shown.check()
    assert shown.mount.unmount() == 0
    out = tmp_path / "out.safetensors"
    stfs("repack", "--delta", shown.delta, shown.base.path, out)
    assert content(out) == shown.due
    again = tmp_path / "again.delta.safetensors"
    stfs("diff", "-q", shown.base.path, out, "--out", again)  # fits copies of the base too
    stfs("repack", "--delta", again, shown.base.path, tmp_path / "second.safetensors")
    assert content(tmp_path / "second.safetensors") == shown.due
    stfs("commit", "--base", shown.base.path, "--into", tmp_path / "third.safetensors", shown.delta)
    assert content(tmp_path / "third.safetensors") == shown.due
    shown.mount = shown.mounts(shown.base.path, options=f"delta={shown.delta}")
    assert stfs("diff", shown.mount.path, out).endswith(": equal\n")
    stfs("upload", "--device", "cpu", "--verify", shown.mount.path)
