# Mounts of deltas: variants of one base side by side, each read as an archive and as files, while the base stays as it is;
# what changes underneath, and tools.
import errno
import json
import os
import subprocess

import archive_file
import mounted
import numpy as np
import pytest
from delta_variants import STFS, VARIANTS, quantized, single, stfs, tuned, variants, write_later  # noqa: F401
from mounted import errno_of, eventually
from sharded_model import read_archive_view

LEAVE_JOURNAL = mounted.BUILD / "tests" / "leave_journal"


# ---- what is shown ----

def test_variants_side_by_side_are_what_they_were_made_of(variants, mounts):
    mounted_variants = {name: variants.mount(mounts, name, options=",ro") for name in VARIANTS}
    for name, mount in mounted_variants.items():
        variants.check(mount, name)
        assert "comparing" not in mount.log()  # no byte of the base was read for the mount
    plain = mounts(variants.base, options="ro")
    for name, array in variants.tensors.items():
        assert (plain / name).read_bytes() == array.tobytes()
    for mount in mounted_variants.values():
        assert mount.unmount() == 0
    assert variants.state() == variants.known


def test_dots_of_names_may_be_directories(variants, mounts):
    mount = variants.mount(mounts, "tuned", options=",layout=tree")
    assert (mount / "layers/1/weight").read_bytes() == tuned(variants.tensors)["layers.1.weight"].tobytes()
    assert (mount / "adapter/größe").exists() and not (mount / "layers/0/bias").exists()


def test_read_only_every_change_is_refused(variants, mounts):
    mount = variants.mount(mounts, "tuned", options=",ro")
    views = mount / ".safetensors"
    for path in (mount / "embed", mount / "odd", views / "archive.safetensors"):
        assert errno_of(open, path, "r+b") == errno.EROFS
    assert errno_of(os.unlink, mount / "embed") == errno.EROFS
    assert errno_of(os.mkdir, views / "transactions" / "t") == errno.EROFS
    assert errno_of(os.truncate, mount / "odd", 0) == errno.EROFS
    assert "ro" in mount.entry()[2]
    assert variants.state() == variants.known


def test_a_delta_on_top_of_a_delta(single, mounts, tmp_path):
    """The second delta was made from the mount of the first one."""
    first = single.mount(mounts, "tuned")
    more = dict(tuned(single.tensors), small=np.array([7, 8, 9], np.int8))
    archive_file.save_with_reference(tmp_path / "more.safetensors", more, {"variant": "more"})
    single.deltas["more"] = tmp_path / "more.delta.safetensors"
    stfs("diff", "-q", first.path, tmp_path / "more.safetensors", "--out", single.deltas["more"])
    known = single.state()
    assert list(archive_file.ArchiveFile(single.deltas["more"]).layout()) == ["small"]
    both = single.mount(mounts, "tuned", "more")
    assert "comparing" not in both.log()
    assert read_archive_view(both / ".safetensors" / "archive.safetensors") == archive_file.ArchiveFile(
        tmp_path / "more.safetensors").reference()
    assert both.attribute(None, "delta") == f"{single.deltas['tuned']}:{single.deltas['more']}"
    assert stfs("diff", both.path, tmp_path / "more.safetensors").endswith(": equal\n")
    with pytest.raises(mounted.MountFailed, match='was made for another base, "model.safetensors"'):
        single.mount(mounts, "more")
    assert single.state() == known


def test_a_commit_that_is_not_in_the_base_yet_counts_and_stays_where_it_is(single, mounts):
    if not LEAVE_JOURNAL.exists():
        pytest.skip(f"{LEAVE_JOURNAL} is not built")
    begin, end = archive_file.ArchiveFile(single.base).layout()["layers.0.weight"][2:]
    block = (begin + 4095) // 4096
    assert (block + 1) * 4096 <= end
    done = subprocess.run([LEAVE_JOURNAL, single.base, str(block * 4096)], input=bytes(4096), capture_output=True, check=True)
    known = single.state()
    assert os.path.basename(done.stdout.decode().strip()) in known[0]
    mount = single.mount(mounts, "quantized")  # has that tensor of its own
    assert "a commit to it is not in the file yet" in mount.log()
    single.check(mount, "quantized")
    with pytest.raises(mounted.MountFailed, match="is not the base of .*/tuned.delta.safetensors"):
        single.mount(mounts, "tuned")
    assert single.state() == known


# ---- changes underneath ----

def test_a_base_that_is_only_touched_is_compared_and_shown_again(variants, mounts):
    mount = variants.mount(mounts, "tuned")
    variants.check(mount, "tuned")
    os.utime(variants.files[0])
    assert eventually(lambda: "was replaced: the mount shows the new model" in mount.log())
    assert f"{variants.deltas['tuned']}: fits {variants.base}" in mount.log()
    variants.check(mount, "tuned")


def test_a_base_with_other_bytes_gives_eio_until_it_is_mended(single, mounts):
    mount = single.mount(mounts, "tuned")
    begin = archive_file.ArchiveFile(single.base).layout()["embed"][2]
    old = single.tensors["embed"].tobytes()
    with open(mount / "embed", "rb") as kept, open(mount / "odd", "rb") as own:
        assert kept.read() == old
        write_later(single.base, begin, b"other")
        assert eventually(lambda: "its tensors give EIO" in mount.log())
        assert eventually(lambda: errno_of(os.pread, kept.fileno(), 4096, 0) == errno.EIO)
        assert own.read() == tuned(single.tensors)["odd"].tobytes()
    for name in ("embed", "odd", ".safetensors/archive.safetensors"):
        assert eventually(lambda name=name: errno_of(open, mount / name, "rb") == errno.EIO), name
    problem = json.loads((mount / ".safetensors" / "stats.json").read_text())["problem"]
    assert f"{single.base}: is not the base of {single.deltas['tuned']}" in problem
    write_later(single.base, begin, old[:5])
    assert eventually(lambda: "was replaced: the mount shows the new model" in mount.log())
    single.check(mount, "tuned")


def test_a_delta_that_is_replaced_shows(variants, mounts):
    mount = variants.mount(mounts, "tuned")
    variants.check(mount, "tuned")
    os.rename(variants.deltas["quantized"], variants.deltas["tuned"])
    assert eventually(lambda: "was replaced: the mount shows the new model" in mount.log())
    variants.check(mount, "quantized")


def test_a_mount_in_the_background_finds_its_delta_again(single, tmp_path):
    point = tmp_path / "mnt"
    point.mkdir()
    delta = single.deltas["tuned"]
    subprocess.run([mounted.BINARY, "-o", f"delta={delta.name}", "base/model.safetensors", "mnt"], cwd=tmp_path, check=True)
    try:
        assert os.getxattr(point, "user.safetensors.delta").decode() == str(delta)
        assert (point / "adapter.größe").exists()
        os.rename(single.deltas["quantized"], delta)
        assert eventually(lambda: not (point / "adapter.größe").exists())
    finally:
        mounted.unmount_by_force(point)


def test_a_base_that_is_replaced_by_another_model_is_refused(single, mounts, tmp_path):
    mount = single.mount(mounts, "tuned")
    other = dict(single.tensors, embed=single.tensors["embed"][::-1].copy())
    archive_file.save_with_reference(tmp_path / "other.safetensors", other)
    with open(mount / "embed", "rb") as open_file:
        os.rename(tmp_path / "other.safetensors", single.base)
        assert eventually(lambda: f"{single.base}: is not the base of" in mount.log())
        assert eventually(lambda: errno_of(open, mount / "embed", "rb") == errno.EIO)
        assert open_file.read() == single.tensors["embed"].tobytes()  # the file of before


# ---- tools ----

def test_tools_read_the_variant_behind_a_mount(variants, mounts, tmp_path):
    mount = variants.mount(mounts, "tuned", options=",ro")
    wanted = tuned(variants.tensors)
    view = mount / ".safetensors" / "archive.safetensors"
    whole = archive_file.save_with_reference(tmp_path / "whole.safetensors", wanted, {"variant": "tuned"})
    for target in (mount.path, view):
        assert stfs("ls", "--names", target).split() == stfs("ls", "--names", view).split()
        assert sorted(stfs("ls", "--names", target).split()) == sorted(wanted)
        assert stfs("diff", "-q", target, whole).endswith(": equal\n")
        out = subprocess.run([STFS, "cat", target, "odd", "embed"], capture_output=True, check=True).stdout
        assert out == wanted["odd"].tobytes() + wanted["embed"].tobytes()
    stfs("verify", mount.path)
    assert '"tensors": 26' in stfs("info", "--json", mount.path) or "tensors" in stfs("info", mount.path)
    stfs("repack", mount.path, tmp_path / "again.safetensors")
    assert archive_file.ArchiveFile(tmp_path / "again.safetensors").reference() == variants.wanted["tuned"]
    for name in ("odd", "embed"):  # one of the delta, one of the base
        out = subprocess.run([STFS, "cat", mount / name], capture_output=True, check=True).stdout
        assert out == wanted[name].tobytes()
        refused = stfs("put", "--raw", mount / name, whole, wanted=1)
        assert "lies in a read-only mount" in refused or "is read-only" in refused
    refused = stfs("apply", mount.path, whole, wanted=1)
    assert f"{mount.path}: lies in a mount of {variants.deltas['tuned']} on top of {variants.base}, which is read-only" in refused
    stfs("upload", "--device", "cpu", "--verify", "--select", "adapter.größe", mount.path)
    assert variants.state()[1] == variants.known[1]
