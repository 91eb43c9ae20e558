# Mounts of deltas: variants of one base side by side, each read as an archive and as files, while the base stays as it is.
# A base that is another one is refused by its name.
import errno
import json
import os
import shutil
import signal
import subprocess

import archive_file
import ml_dtypes
import mounted
import numpy as np
import pytest
import safetensors
from mounted import errno_of, eventually
from sharded_model import ShardedModel, is_equal, read_archive_view

STFS = mounted.BUILD / "stfs"
LEAVE_JOURNAL = mounted.BUILD / "tests" / "leave_journal"


def stfs(*words, wanted=0):
    done = subprocess.run([STFS, *map(str, words)], capture_output=True, text=True, timeout=60 * mounted.PATIENCE)
    assert done.returncode == wanted, (words, done.stdout, done.stderr)
    return done.stdout + done.stderr


def tuned(base):
    """Other values in two tensors, a new one, and one less."""
    tensors = dict(base)
    tensors["layers.1.weight"] = tensors["layers.1.weight"][::-1].copy()
    tensors["odd"] = tensors["odd"] ^ 5
    tensors["adapter.größe"] = np.arange(9000, dtype=np.int64)
    del tensors["layers.0.bias"]
    return tensors


def quantized(base):
    """Other dtypes and shapes."""
    tensors = dict(base)
    tensors["layers.0.weight"] = np.full((7, 301), 3, np.int8)
    tensors["layers.1.weight"] = np.arange(256, dtype=np.float32).astype(ml_dtypes.bfloat16)
    return tensors


def renamed(base):
    """Every tensor is removed or new, but one."""
    return {("embed" if name == "embed" else f"model.{name}"): array for name, array in base.items()}


VARIANTS = {"tuned": tuned, "quantized": quantized, "renamed": renamed}


class Variants:
    """A base and its deltas in directories of their own, and the variants as the reference library reads them."""

    def __init__(self, directory, is_sharded):
        self.tensors = archive_file.sample_tensors()
        self.directory = directory / "base"
        self.directory.mkdir()
        if is_sharded:
            model = ShardedModel(self.directory, tensors=self.tensors)
            self.base = model.index
            self.files = [self.directory / name for name in model.names]
        else:
            self.base = archive_file.save_with_reference(self.directory / "model.safetensors", self.tensors)
            self.files = [self.base]
        self.deltas, self.wanted = {}, {}
        for name, make in VARIANTS.items():
            whole = archive_file.save_with_reference(directory / "whole.safetensors", make(self.tensors), {"variant": name})
            self.deltas[name] = directory / f"{name}.delta.safetensors"
            stfs("diff", "-q", self.base, whole, "--out", self.deltas[name])
            self.wanted[name] = archive_file.ArchiveFile(whole).reference()
            whole.unlink()
        self.known = self.state()

    def state(self):
        """All that may be seen of the base's files and of the deltas, and what lies beside them."""
        paths = [*self.files, *self.deltas.values()]
        beside = sorted(os.listdir(self.directory)), sorted(os.listdir(self.directory.parent))
        return beside[0], [(os.stat(path).st_mtime_ns, os.stat(path).st_ino, path.read_bytes()) for path in paths]

    def mount(self, mounts, *names, options=""):
        deltas = ":".join(str(self.deltas[name]) for name in names)
        return mounts(self.base, options=f"delta={deltas}{options}")

    def check(self, mount, name):
        """The mount shows the variant, in all its forms."""
        arrays = VARIANTS[name](self.tensors)
        assert sorted(os.listdir(mount.path)) == sorted(arrays)
        view = mount / ".safetensors" / "archive.safetensors"
        assert read_archive_view(view) == self.wanted[name]
        with safetensors.safe_open(view, "numpy") as file:  # maps it
            assert file.metadata() == {"variant": name}
            for tensor, array in arrays.items():
                if array.dtype.kind in "iuf" and not array.dtype.name.startswith("float8"):
                    assert is_equal(file.get_tensor(tensor), array), tensor
        for tensor, array in arrays.items():
            assert (mount / tensor).read_bytes() == array.tobytes(), tensor
            assert json.loads(mount.attribute(tensor, "shape")) == list(array.shape), tensor
        assert np.array_equal(np.load(mount / ".safetensors" / "npy" / "embed.npy", mmap_mode="r").view(np.uint16),
                              arrays["embed"].view(np.uint16))
        assert json.loads((mount / ".safetensors" / "metadata.json").read_text()) == {"variant": name}


@pytest.fixture(params=[False, True], ids=["archive", "sharded"])
def variants(request, tmp_path):
    return Variants(tmp_path, request.param)


@pytest.fixture
def single(tmp_path):
    return Variants(tmp_path, False)


def has_attributes(path):
    try:
        os.setxattr(path, "user.probe", b"")
    except OSError:
        return False
    os.removexattr(path, "user.probe")
    return True


def write_later(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


# ---- what is shown ----

def test_variants_side_by_side_are_what_they_were_made_of(variants, mounts):
    mounted_variants = {name: variants.mount(mounts, name) for name in VARIANTS}
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


def test_every_change_is_refused(variants, mounts):
    mount = variants.mount(mounts, "tuned")
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


# ---- another base ----

def test_a_copy_of_the_base_is_compared_once(variants, mounts, tmp_path):
    copies = tmp_path / "copies"
    copies.mkdir()
    for file in variants.files:
        shutil.copyfile(file, copies / file.name)
    if len(variants.files) > 1:
        shutil.copyfile(variants.base, copies / variants.base.name)
    variants.base = copies / variants.base.name
    first = variants.mount(mounts, "tuned")
    variants.check(first, "tuned")
    assert " was last changed at " in first.log() and f" MB of {variants.base} with what the delta was made for" in first.log()
    if not has_attributes(variants.deltas["tuned"]):
        return
    assert f"{variants.deltas['tuned']}: fits {variants.base}, which is remembered" in first.log()
    second = variants.mount(mounts, "tuned")
    variants.check(second, "tuned")
    assert "comparing" not in second.log()


def test_shards_may_be_joined_and_an_archive_split(variants, mounts, tmp_path):
    if len(variants.files) > 1:
        stfs("repack", variants.base, tmp_path / "joined.safetensors")
        variants.base = tmp_path / "joined.safetensors"
    else:
        stfs("repack", "--shard-size", "500K", variants.base, tmp_path / "split.safetensors.index.json")
        variants.base = tmp_path / "split.safetensors.index.json"
    mount = variants.mount(mounts, "quantized")
    assert "the base has " in mount.log()
    variants.check(mount, "quantized")


def test_a_changed_base_is_refused_by_its_name(variants, mounts):
    file = next(file for file in variants.files if "embed" in archive_file.ArchiveFile(file).layout())
    write_later(file, archive_file.ArchiveFile(file).layout()["embed"][2], b"other")
    for _ in range(2):
        with pytest.raises(mounted.MountFailed) as refused:
            variants.mount(mounts, "tuned")
        assert refused.value.status == 1
        assert f"{variants.base}: is not the base of {variants.deltas['tuned']}: the bytes of some tensors" in refused.value.log
        assert f"{file}: was last changed at " in refused.value.log
    # What the delta has of its own may be anything, and so may a tensor that it removes.
    layout = {name: place[2:] for path in variants.files for name, place in archive_file.ArchiveFile(path).layout().items()}
    write_later(file, archive_file.ArchiveFile(file).layout()["embed"][2], variants.tensors["embed"].tobytes()[:5])
    assert layout and variants.mount(mounts, "tuned").attribute(None, "delta") == str(variants.deltas["tuned"])


def test_what_makes_no_variant_is_refused(single, mounts, tmp_path):
    def why(source, deltas):
        with pytest.raises(mounted.MountFailed) as refused:
            mounts(source, options=f"delta={deltas}")
        return refused.value.log

    delta = single.deltas["tuned"]
    assert f"{single.base}: not usable as a delta: it is the same file as {single.base}" in why(single.base, single.base)
    os.symlink(single.base, tmp_path / "link.safetensors")
    assert "it is the same file as" in why(single.base, tmp_path / "link.safetensors")
    assert "it is the same file as" in why(single.base, f"{delta}:{delta}")
    assert "was made for another base" in why(single.base, f"{delta}:{single.deltas['quantized']}")
    assert "its metadata has no key safetensorsfs.delta" in why(single.base, shutil.copy(single.base, tmp_path / "copy.safetensors"))
    assert "is a directory of archives: a delta needs one model" in why(single.directory, delta)
    assert "No such file" in why(single.base, tmp_path / "absent.safetensors")
    assert "delta must be the path of a delta" in why(single.base, "")


@pytest.fixture
def slow(tmp_path):
    """A base of many zeros that must be read, which takes a while."""
    base = tmp_path / "large.safetensors"
    entries = {"large": {"dtype": "U8", "shape": [1 << 36], "data_offsets": [0, 1 << 36]},
               "small": {"dtype": "U8", "shape": [4], "data_offsets": [1 << 36, (1 << 36) + 4]}}
    header = json.dumps(entries).encode()
    header += b" " * (-(8 + len(header)) % 4096)
    with open(base, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + (1 << 36) + 4)
    archive_file.write_bytes_tensors(tmp_path / "patch.safetensors", {"small": b"1234"})
    return base


def delta_of(path, base, **keys):
    """A delta that was not made by this program, for this base."""
    names = {"": "1", ".base": base.name, ".base_tensors": "0" * 32, ".base_bytes": "0" * 32, ".removed": "[]"} | keys
    archive_file.write_bytes_tensors(path, {"small": b"1234"}, {f"safetensorsfs.delta{key}": value for key, value in names.items()})
    return path


def digest_of(directory, base):
    """The digest of names, dtypes and shapes, from a delta of the base's twin that has no bytes of it to be read."""
    import xxhash
    _, header = archive_file.ArchiveFile(base).header()
    digest = xxhash.xxh128()

    def add(value):
        digest.update(value.to_bytes(8, "little") if isinstance(value, int) else len(value).to_bytes(8, "little") + value)

    for name in sorted(header):
        add(name.encode())
        add(header[name]["dtype"].encode())
        add(len(header[name]["shape"]))
        for size in header[name]["shape"]:
            add(size)
    return digest.hexdigest()


def test_ctrl_c_ends_a_comparison(slow, tmp_path):
    delta = delta_of(tmp_path / "d.safetensors", slow, **{".base_tensors": digest_of(tmp_path, slow)})
    point = tmp_path / "mnt"
    point.mkdir()
    known = delta.read_bytes(), sorted(os.listdir(tmp_path)), os.stat(slow).st_mtime_ns
    with open(tmp_path.parent / f"{tmp_path.name}.log", "w+") as log:
        process = subprocess.Popen([mounted.BINARY, "-f", "-o", f"delta={delta}", slow, point], stderr=log, stdout=log)
        try:
            assert eventually(lambda: f"comparing 68719.5 MB of {slow}" in open(log.name).read()), open(log.name).read()
            process.send_signal(signal.SIGINT)
            assert process.wait(10 * mounted.PATIENCE) == -signal.SIGINT
        finally:
            process.kill()
            process.wait()
            mounted.unmount_by_force(point)
    assert mounted.mount_entry(point) is None
    assert (delta.read_bytes(), sorted(os.listdir(tmp_path)), os.stat(slow).st_mtime_ns) == known


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


def test_an_unmount_ends_a_comparison(slow, tmp_path, mounts):
    stat = os.stat(slow)
    files = json.dumps([[slow.name, stat.st_size, stat.st_mtime_ns]])
    delta = delta_of(tmp_path / "d.safetensors", slow, **{
        "": "2", ".base_tensors": digest_of(tmp_path, slow), ".base_files": files})
    mount = mounts(slow, options=f"delta={delta}")
    assert (mount / "small").read_bytes() == b"1234"
    os.utime(slow)
    assert eventually(lambda: "comparing 68719.5 MB" in mount.log())
    assert (mount / "small").read_bytes() == b"1234"
    assert mount.unmount() == 0
    assert "its tensors give EIO" not in mount.log()


# ---- tools ----

def test_tools_read_the_variant_behind_a_mount(variants, mounts, tmp_path):
    mount = variants.mount(mounts, "tuned")
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
