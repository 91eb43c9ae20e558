# Changes through a mount of a delta: all of them go to the delta, and no byte of the base changes.
import errno
import json
import mmap
import os
import shutil
import signal
import subprocess

import archive_file
import mounted
import numpy as np
import pytest
from delta_variants import single, stfs, variants, write_later  # noqa: F401
from edited_mount import EditedMount, content, save, u8
from mounted import errno_of, eventually
from safetensors.numpy import load_file, save_file
from sharded_model import ShardedModel

SIZES = {"a": 10_000, "b": 300, "c.w": 70_000, "d.w": 16, "empty": 0}


class Base:
    """An archive, or two shards of an index, that no test may change."""

    def __init__(self, directory, is_sharded=False):
        self.directory = directory / "base"
        self.directory.mkdir()
        if is_sharded:
            model = ShardedModel(self.directory, tensors={name: np.full(size, 7, "u1") for name, size in SIZES.items()})
            self.path, files = model.index, model.names
            self.due = {name: u8(bytes([7]) * size) for name, size in SIZES.items()}
        else:
            self.path = self.directory / "model.safetensors"
            files = [self.path.name]
            self.due = save(self.path, SIZES, metadata={"format": "pt"})
        self.files = [self.directory / name for name in files]
        self.known = self.state()

    def state(self):
        found = [(os.stat(path).st_mtime_ns, os.stat(path).st_size, path.read_bytes()) for path in self.files]
        return sorted(os.listdir(self.directory)), found


@pytest.fixture(params=[False, True], ids=["archive", "sharded"])
def base(request, tmp_path):
    base = Base(tmp_path, request.param)
    yield base
    assert base.state() == base.known


@pytest.fixture
def lone(tmp_path):
    return Base(tmp_path)


class Variant(EditedMount):
    """A mount of a base with a delta; what it shows is compared with `due`, mounted and mounted again."""

    def __init__(self, base, delta, mounts, options=""):
        self.base, self.delta, self.mounts = base, delta, mounts
        super().__init__(mounts(base.path, options=f"reshape,delta={delta}{options}"), [], base.due)

    def stored(self):
        return self.due  # in two files; archive.safetensors shows it as one

    def again(self, options=""):
        assert self.mount.unmount() == 0
        self.mount = self.mounts(self.base.path, options=f"reshape,delta={self.delta}{options}")
        assert "comparing" not in self.mount.log()
        self.check()

    def patch(self, name, offset, data):
        write_later(self.mount / name, offset, data)
        before = self.due[name]
        self.due[name] = (*before[:2], before[2][:offset] + data + before[2][offset + len(data):])


def test_every_kind_of_change_goes_to_the_delta(base, mounts, tmp_path):
    delta = tmp_path / "delta.safetensors"
    variant = Variant(base, delta, mounts)
    assert f"{delta}: made, as a delta without changes of {base.path}" in variant.mount.log()
    variant.check()
    variant.again(options=",ro")
    variant.again()
    variant.patch("a", 5000, b"patched")
    variant.check()
    variant.patch("a", 0, b"again")  # now it is a tensor of the delta
    variant.write("b", bytes(300))
    variant.check()
    variant.rename("c.w", "c.renamed")
    variant.remove("d.w")
    variant.write("new", b"a new one")
    variant.check()
    variant.again()
    variant.rename("c.renamed", "d.w")
    os.setxattr(variant / "d.w", "user.safetensors.dtype", b"F32")
    os.setxattr(variant / "d.w", "user.safetensors.shape", b"[100,175]")
    variant.due["d.w"] = ("F32", [100, 175], variant.due["d.w"][2])
    os.setxattr(variant.mount.path, "user.safetensors.metadata.note", b"a variant")
    variant.check()
    variant.remove("a")
    variant.rename("b", "a")
    np.save(variant.npy("w"), np.arange(6, dtype=np.int16).reshape(2, 3))
    variant.due["w"] = ("I16", [2, 3], np.arange(6, dtype=np.int16).tobytes())
    variant.check()
    variant.again()
    assert variant.mount.attribute(None, "metadata.note") == "a variant"
    assert content(delta).keys() == {"a", "new", "w"}  # what is only renamed or retyped stays in the base
    # A commit makes the base the variant; here of a copy of it.
    copy = tmp_path / "copy"
    shutil.copytree(base.directory, copy)
    for path in base.files:
        shutil.copystat(path, copy / path.name)
    assert variant.mount.unmount() == 0
    stfs("commit", "--base", copy / base.path.name, delta)
    merged = {}
    for path in base.files:
        merged.update(content(copy / path.name))
    assert merged == variant.due


def test_variants_of_one_base_take_space_for_their_differences_only(lone, mounts, tmp_path):
    deltas = [tmp_path / f"{name}.safetensors" for name in "xyz"]
    shown = [Variant(lone, delta, mounts) for delta in deltas]
    sizes = [os.stat(delta).st_size for delta in deltas]
    shown[0].patch("d.w", 3, b"x")
    shown[1].patch("d.w", 3, b"y")
    shown[1].remove("c.w")
    shown[2].rename("a", "z")
    for variant in shown:
        variant.check()
        variant.again()
    grown = [os.stat(delta).st_size - size for delta, size in zip(deltas, sizes)]
    assert max(grown) <= 16 + 4096 and grown[2] == 0, grown
    assert lone.state() == lone.known


def test_checkpoints_of_a_run_store_the_layers_that_changed(lone, mounts, tmp_path):
    delta = tmp_path / "run.safetensors"
    variant = Variant(lone, delta, mounts)
    whole = variant.mount / ".safetensors" / "archive.safetensors"
    arrays = load_file(whole)
    for step in range(4):
        arrays["a"][step] ^= 1
        if step == 2:
            arrays["extra"] = np.arange(5, dtype=np.float32)
        save_file(arrays, whole, metadata={"step": str(step)})
        variant.due["a"] = u8(arrays["a"].tobytes())
        if step >= 2:
            variant.due["extra"] = ("F32", [5], arrays["extra"].tobytes())
        variant.check()
        assert content(delta).keys() == ({"a", "extra"} if step >= 2 else {"a"})
    variant.again()
    assert variant.mount.attribute(None, "metadata.step") == "3"
    assert os.stat(delta).st_size < 200_000
    assert lone.state() == lone.known


def test_programs_that_have_a_tensor_open_see_its_new_bytes(lone, mounts, tmp_path):
    variant = Variant(lone, tmp_path / "delta.safetensors", mounts)
    path = variant / "a"
    with open(path, "rb") as reader, open(path, "r+b") as both:
        shown = mmap.mmap(reader.fileno(), 0, prot=mmap.PROT_READ)
        assert shown[:] == variant.due["a"][2]
        number = os.stat(path).st_ino
        variant.patch("a", 100, b"new bytes")
        assert os.stat(path).st_ino == number
        assert shown[:] == variant.due["a"][2] and reader.read() == variant.due["a"][2]
        # Through a mapping too.
        mapped = mmap.mmap(both.fileno(), 0)
        mapped[9990:] = b"0123456789"
        mapped.flush()
        mapped.close()
    variant.due["a"] = u8(variant.due["a"][2][:9990] + b"0123456789")
    variant.check()
    assert shown[:] == variant.due["a"][2]
    shown.close()
    with open(variant / "c.w", "r+b") as both:  # the first write to it comes through a mapping
        mapped = mmap.mmap(both.fileno(), 0)
        mapped[:4] = b"abcd"
        mapped.close()
    variant.due["c.w"] = u8(b"abcd" + variant.due["c.w"][2][4:])
    eventually(lambda: (variant / "c.w").read_bytes() == variant.due["c.w"][2])
    variant.again()
    assert lone.state() == lone.known


def test_what_is_refused_changes_nothing(lone, mounts, tmp_path):
    delta = tmp_path / "delta.safetensors"
    variant = Variant(lone, delta, mounts)
    short = os.open(variant / "a", os.O_WRONLY | os.O_TRUNC)
    os.write(short, bytes(9_999))
    assert errno_of(os.fsync, short) == errno.EINVAL
    assert errno_of(os.close, short) == errno.EINVAL
    long = os.open(variant / "a", os.O_WRONLY)
    assert errno_of(os.pwrite, long, b"12", 9_999) == errno.EFBIG
    assert errno_of(os.close, long) == errno.EINVAL
    assert errno_of(os.setxattr, variant / "a", "user.safetensors.shape", b"[3]") in (errno.EINVAL, errno.ENODATA)
    variant.check()
    assert content(delta) == {}
    assert errno_of(os.truncate, variant / "a", 5) == errno.EINVAL
    variant.again(options=",edit=off")
    variant.patch("a", 7, b"allowed")  # changes bytes only
    assert errno_of(os.unlink, variant / "b") == errno.EPERM
    assert errno_of(os.rename, variant / "b", variant / "bb") == errno.EPERM
    variant.check()
    variant.again()
    assert lone.state() == lone.known


def test_a_writer_that_is_killed_leaves_the_base_shown(lone, mounts, tmp_path):
    variant = Variant(lone, tmp_path / "delta.safetensors", mounts)
    writer = subprocess.Popen(["python3", "-c", "import os,sys,time; f=os.open(sys.argv[1], os.O_WRONLY);"
                               "os.write(f, b'half'); print(flush=True); time.sleep(60)", variant / "a"],
                              stdout=subprocess.PIPE)
    writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    eventually(lambda: "rolled back" in variant.mount.log() or "dropped" in variant.mount.log())
    variant.check()
    variant.again()


def test_a_delta_is_as_private_as_its_base_and_is_made_once(lone, mounts, tmp_path):
    os.chmod(lone.path, 0o400)
    delta = tmp_path / "delta.safetensors"
    variant = Variant(lone, delta, mounts)
    assert os.stat(delta).st_mode & 0o777 == 0o600
    assert os.stat(variant / "a").st_mode & 0o777 == 0o600
    variant.patch("a", 0, b"x")
    os.unlink(delta)
    # The mount still shows the delta's content, and makes no new delta in place of the deleted one.
    assert (variant / "a").read_bytes() == variant.due["a"][2]
    assert not delta.exists()


def test_a_base_without_times_that_prove_something_is_read_once(lone, mounts, tmp_path):
    os.utime(lone.path, (1_700_000_000, 1_700_000_000))
    delta = tmp_path / "delta.safetensors"
    variant = Variant(lone, delta, mounts)
    assert "the times of its files prove nothing: reading 0.1 MB" in variant.mount.log()
    assert "comparing 0.1 MB" in variant.mount.log() and "which is remembered" in variant.mount.log()
    variant.patch("a", 0, b"x")
    variant.check()
    assert variant.mount.unmount() == 0
    again = mounts(lone.path, options=f"delta={delta}")
    assert "comparing" not in again.log() and (again / "a").read_bytes() == variant.due["a"][2]
    assert again.unmount() == 0
    begin = archive_file.ArchiveFile(lone.path).layout()["c.w"][2]
    write_later(lone.path, begin, b"changed")
    os.utime(lone.path, (1_700_000_000, 1_700_000_000))
    with pytest.raises(mounted.MountFailed, match="the bytes of some tensors have changed since"):
        mounts(lone.path, options=f"delta={delta}")


def test_an_edited_delta_knows_a_copy_by_its_times(lone, mounts, tmp_path):
    delta = tmp_path / "delta.safetensors"
    variant = Variant(lone, delta, mounts)
    variant.remove("b")
    assert variant.mount.unmount() == 0
    copy = shutil.copy2(lone.path, tmp_path / "copy.safetensors")
    assert "b" not in os.listdir(mounts(copy, options=f"delta={delta}").path)
    os.utime(copy)
    with pytest.raises(mounted.MountFailed) as refused:
        mounts(copy, options=f"delta={delta}")
    assert "the delta knows it by the sizes and times of its files only" in refused.value.log
    assert str(copy) in refused.value.log and "was last changed at" in refused.value.log


def test_a_delta_of_stfs_diff_is_edited(single, mounts):
    """The delta has a digest of the tensors that the variant keeps. An edit that keeps all of them does not change the digest."""
    delta = single.deltas["tuned"]
    base = single.state()[1][0]

    def version():
        with open(delta, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return header["__metadata__"]["safetensorsfs.delta"]

    mount = single.mount(mounts, "tuned")
    write_later(mount / "odd", 0, b"!")
    os.setxattr(mount.path, "user.safetensors.metadata.k", b"v")
    assert version() == "2"
    os.rename(mount / "embed", mount / "embedding")
    assert version() == "3"
    before = (mount / "embedding").read_bytes()
    assert before == single.tensors["embed"].tobytes()
    assert mount.unmount() == 0
    again = single.mount(mounts, "tuned", options=",ro")
    assert (again / "embedding").read_bytes() == before and (again / "odd").read_bytes()[:1] == b"!"
    assert single.state()[1][0] == base


def test_a_delta_on_top_of_an_edited_delta(lone, mounts, tmp_path):
    lower, upper = tmp_path / "lower.safetensors", tmp_path / "upper.safetensors"
    first = Variant(lone, lower, mounts)
    first.rename("a", "renamed")
    first.patch("b", 0, b"lower")
    assert first.mount.unmount() == 0
    below = lower.read_bytes()
    both = Variant(lone, f"{lower}:{upper}", mounts)
    both.due = dict(first.due)
    both.check()
    both.patch("renamed", 4, b"upper")
    both.patch("b", 100, b"upper")
    both.rename("c.w", "a")
    both.remove("empty")
    both.check()
    both.again()
    assert lower.read_bytes() == below
    assert lone.state() == lone.known


def test_two_mounts_of_one_delta_follow_each_other(lone, mounts, tmp_path):
    delta = tmp_path / "delta.safetensors"
    one = Variant(lone, delta, mounts)
    other = mounts(lone.path, options=f"delta={delta}")
    one.patch("a", 0, b"one")
    eventually(lambda: (other / "a").read_bytes() == one.due["a"][2])
    one.rename("b", "bb")
    eventually(lambda: sorted(os.listdir(other.path)) == sorted(one.due))
    eventually(lambda: errno_of(write_later, other / "a", 5, b"other") == 0)
    one.due["a"] = u8(b"one" + one.due["a"][2][3:5] + b"other" + one.due["a"][2][10:])
    eventually(lambda: (one / "a").read_bytes() == one.due["a"][2])
    one.check()


def test_a_base_that_changes_stops_changes_of_the_delta(lone, mounts, tmp_path):
    delta = tmp_path / "delta.safetensors"
    variant = Variant(lone, delta, mounts)
    variant.patch("a", 0, b"x")
    begin = archive_file.ArchiveFile(lone.path).layout()["c.w"][2]
    write_later(lone.path, begin, b"changed")
    eventually(lambda: errno_of((variant / "c.w").read_bytes) == errno.EIO)
    assert errno_of(write_later, variant / "b", 0, b"y") in (errno.EIO, errno.ESTALE)
    assert "is not the base of" in variant.mount.log()
