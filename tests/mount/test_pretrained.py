# `.safetensors/pretrained/`: a directory that from_pretrained() loads. No library of models is installed here, so the
# tests do its steps: they read the configuration and map the weights by the reference library.
import errno
import json
import os
import stat

import mounted
import pytest
import safetensors
from archive_file import random_bytes, write_bytes_tensors
from delta_variants import VARIANTS, single, variants  # noqa: F401
from mounted import errno_of, eventually, shell
from sharded_model import hub_cache, is_equal, read_archive_view

FILES = {"config.json": b'{"model_type": "sample"}', "tokenizer.json": b'{"version": "1.0"}', ".gitattributes": b"*"}
LINKS = sorted([*FILES, "1_Pooling"])
LEFT_OUT = ["other.safetensors", "pytorch.safetensors.index.json", f".model.safetensors.stj.{'0' * 32}.group.staged",
            ".stfs-1-1.tmp"]


def furnish(directory):
    """Writes the files of a model's directory other than its weights, and names that must not be shown."""
    for name, data in FILES.items():
        (directory / name).write_bytes(data)
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text('{"pooling": 1}')
    for name in LEFT_OUT:
        (directory / name).write_bytes(b"")


def of(root):
    return root / ".safetensors" / "pretrained"


def load(path):
    """(configuration, metadata, {name: array}), in the steps of from_pretrained()."""
    config = json.loads((path / "config.json").read_text())
    assert not (path / "model.safetensors.index.json").exists()
    with safetensors.safe_open(path / "model.safetensors", "numpy") as file:
        # NumPy lacks some dtypes; the comparison of bytes includes them.
        readable = [name for name in file.keys() if not file.get_slice(name).get_dtype().startswith(("BF", "F8"))]
        return config, file.metadata(), {name: file.get_tensor(name) for name in readable}


def check_directory(root, source):
    """The directory of a model of root shows what lies in source."""
    path = of(root)
    assert sorted(os.listdir(path)) == sorted([*LINKS, "model.safetensors"])
    with os.scandir(path) as entries:
        assert not [entry.name for entry in entries if entry.is_symlink()]
    for name in LINKS:
        found, real = os.stat(path / name), os.stat(source / name)
        assert (stat.S_IFMT(found.st_mode), found.st_mtime_ns) == (stat.S_IFMT(real.st_mode), real.st_mtime_ns)
        if stat.S_ISREG(real.st_mode):
            assert found.st_size == real.st_size
    for name, data in FILES.items():
        assert (path / name).read_bytes() == data
    assert json.loads((path / "1_Pooling" / "config.json").read_text()) == {"pooling": 1}
    for name in LEFT_OUT:
        assert not os.path.lexists(path / name)
    whole = (root / ".safetensors" / "archive.safetensors").read_bytes()
    assert (path / "model.safetensors").read_bytes() == whole
    assert (path / "model.safetensors").samefile(root / ".safetensors" / "archive.safetensors")


@pytest.fixture
def furnished(archive_path, tmp_path):
    """A directory of one archive, as a hub gives it."""
    source = tmp_path / "source"
    source.mkdir()
    os.rename(archive_path, source / "model.safetensors")
    furnish(source)
    return source


# ---- the shown files ----

@pytest.mark.parametrize("options", ["", "ro", "layout=tree", "ro,passthrough", "threads=1"])
def test_the_directory_of_an_archive(furnished, mounts, options):
    root = mounts(furnished / "model.safetensors", options).path
    check_directory(root, furnished)
    config, metadata, tensors = load(of(root))
    with safetensors.safe_open(furnished / "model.safetensors", "numpy") as file:
        assert metadata == file.metadata()
        assert tensors and all(is_equal(array, file.get_tensor(name)) for name, array in tensors.items())
    assert config == {"model_type": "sample"}


def test_shards_are_one_archive(model, mounts):
    furnish(model.directory)
    os.unlink(model.directory / "pytorch.safetensors.index.json")
    root = mounts(model.directory).path
    check_directory(root, model.directory)
    assert read_archive_view(of(root) / "model.safetensors") == model.reference()


def test_a_snapshot_of_a_hub_cache_is_the_directory_of_links(model, mounts, tmp_path):
    snapshot = hub_cache(tmp_path / "hub", model)
    (tmp_path / "hub" / "blobs" / "config").write_text("{}")
    os.symlink("../../blobs/config", snapshot / "config.json")
    path = of(mounts(snapshot).path)
    assert sorted(os.listdir(path)) == ["config.json", "model.safetensors"]
    assert not (path / "config.json").is_symlink()
    assert load(path)[0] == {}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_shows_its_own_tensors(variants, mounts, name):
    furnish(variants.directory)
    root = variants.mount(mounts, name).path
    assert sorted(os.listdir(of(root))) == sorted([*LINKS, "model.safetensors"])
    _, metadata, tensors = load(of(root))
    assert metadata == {"variant": name}
    assert read_archive_view(of(root) / "model.safetensors") == variants.wanted[name]
    arrays = VARIANTS[name](variants.tensors)
    assert tensors and all(is_equal(array, arrays[tensor]) for tensor, array in tensors.items())


def test_deltas_beside_the_base_are_left_out(single, mounts):
    beside = single.directory / "tuned"  # a name that does not tell
    os.rename(single.deltas["tuned"], beside)
    single.deltas["tuned"] = beside
    (single.directory / "config.json").write_text("{}")
    root = single.mount(mounts, "tuned").path
    assert sorted(os.listdir(of(root))) == ["config.json", "model.safetensors"]
    assert not os.path.lexists(of(root) / "tuned")


def test_each_model_of_a_directory_has_its_own(furnished, mounts):
    write_bytes_tensors(furnished / "other.safetensors", {"t": b"other"})
    os.unlink(furnished / "pytorch.safetensors.index.json")
    root = mounts(furnished).path
    for name in ("model", "other"):
        path = of(root / name)
        assert sorted(os.listdir(path)) == sorted([*LINKS, "model.safetensors"])
        assert (path / "model.safetensors").read_bytes() == (root / name / ".safetensors/archive.safetensors").read_bytes()
    assert read_archive_view(of(root / "other") / "model.safetensors")["t"][2] == b"other"
    inodes = {os.lstat(of(root / name) / "config.json").st_ino for name in ("model", "other")}
    assert len(inodes) == 2


# ---- changes ----

def test_files_that_come_and_go_are_seen_at_once(furnished, mounts):
    path = of(mounts(furnished / "model.safetensors").path)
    assert not os.path.lexists(path / "late.json")  # the kernel must not remember that
    assert "late.json" not in os.listdir(path)
    before = furnished.stat()
    (furnished / "late.json").write_text("late")
    os.utime(furnished, ns=(before.st_atime_ns, before.st_mtime_ns))  # no time tells of the change
    assert "late.json" in os.listdir(path)
    assert (path / "late.json").read_text() == "late"
    os.rename(furnished / "late.json", furnished / "later.json")
    assert not os.path.lexists(path / "late.json") and (path / "later.json").read_text() == "late"
    assert "late.json" not in os.listdir(path) and "later.json" in os.listdir(path)


def test_many_files(furnished, mounts):
    """More than one reply lists."""
    path = of(mounts(furnished / "model.safetensors").path)
    names = [f"{number:04}-{'n' * 240}" for number in range(5000)]
    for name in names:
        (furnished / name).write_bytes(b"")
    assert sorted(os.listdir(path)) == sorted([*names, *LINKS, "model.safetensors"])
    done = shell('ls -lA "$1" | grep -c "^[-d]"', path)
    assert done.stdout.split() == [str(len(names) + len(LINKS) + 1)] and done.stderr == ""


def test_a_write_is_seen_in_the_model(furnished, mounts):
    mount = mounts(furnished / "model.safetensors")
    path = of(mount.path)
    before = read_archive_view(path / "model.safetensors")
    data = random_bytes(len(before["odd"][2]), 1)
    (mount / "odd").write_bytes(data)
    assert read_archive_view(path / "model.safetensors") == {**before, "odd": (*before["odd"][:2], data)}
    check_directory(mount.path, furnished)  # no journal of the commit is seen


def test_an_edit_is_seen_in_the_model(furnished, mounts):
    mount = mounts(furnished / "model.safetensors")
    whole = of(mount.path) / "model.safetensors"
    before = whole.read_bytes()
    with open(whole, "rb") as opened:
        os.unlink(mount / "odd")
        assert "odd" not in read_archive_view(whole)
        assert opened.read() == before  # a file that is open stays as it was


def test_a_replaced_archive_is_seen_in_the_model(furnished, mounts):
    mount = mounts(furnished / "model.safetensors")
    path = of(mount.path)
    check_directory(mount.path, furnished)
    write_bytes_tensors(furnished / "new", {"t": b"replaced"})
    os.replace(furnished / "new", furnished / "model.safetensors")
    assert eventually(lambda: "was replaced" in mount.log())
    assert read_archive_view(path / "model.safetensors")["t"][2] == b"replaced"
    check_directory(mount.path, furnished)
    # Nothing keeps the old archive.
    assert eventually(lambda: not mount.deleted_files())


# ---- refusals ----

def test_every_change_of_a_read_only_mount_is_refused(furnished, mounts):
    path = of(mounts(furnished / "model.safetensors", "ro").path)
    known = {name: (furnished / name).stat() for name in os.listdir(furnished)}
    for action, *arguments in [(os.unlink, path / "config.json"), (os.unlink, path / "model.safetensors"),
                               (os.symlink, "x", path / "new"), (os.mkdir, path / "new"),
                               (os.mknod, path / "new"), (os.link, path / "config.json", path / "new"),
                               (os.rename, path / "config.json", path / "new"), (os.truncate, path / "config.json", 0),
                               (os.chmod, path / "config.json", 0o600), (os.utime, path / "config.json", (1, 1)),
                               (open, path / "config.json", "w"), (open, path / "config.json", "r+"),
                               (open, path / "1_Pooling/config.json", "a"), (open, path / "new.json", "w"),
                               (os.rmdir, path)]:
        assert errno_of(action, *arguments) == errno.EROFS, (action, arguments)
    assert known == {name: (furnished / name).stat() for name in os.listdir(furnished)}
    assert (path / "config.json").read_bytes() == FILES["config.json"]


def test_what_can_not_be_changed(furnished, mounts):
    path = of(mounts(furnished / "model.safetensors").path)
    known = {name: (furnished / name).stat() for name in os.listdir(furnished)}
    for action, *arguments in [(os.unlink, path / "model.safetensors"), (os.symlink, "x", path / "new"),
                               (os.link, path / "config.json", path / "new"),
                               (os.rename, path / "config.json", path / "new.safetensors"),
                               (os.rename, path / "model.safetensors", path / "new"), (os.rmdir, path)]:
        assert errno_of(action, *arguments) == errno.EPERM, (action, arguments)
    assert errno_of(open, path / "model.safetensors", "r+b") == errno.EROFS
    assert errno_of(os.readlink, path / "config.json") == errno.EINVAL
    assert os.listxattr(path / "config.json") == []
    for name in ("user.safetensors.archive", "security.selinux"):
        assert errno_of(os.getxattr, path / "config.json", name) == errno.ENODATA
    assert known == {name: (furnished / name).stat() for name in os.listdir(furnished)}


# ---- others ----

@pytest.mark.parametrize("options", ["threads=1", ""])
def test_a_mount_in_the_source_directory_is_left_out(furnished, mounts, options):
    for name in ("mnt", "empty"):
        (furnished / name).mkdir()
    root = mounts(furnished / "model.safetensors", options, path=furnished / "mnt").path
    assert "mnt" not in os.listdir(of(root)) and "empty" in os.listdir(of(root))
    assert not os.path.lexists(of(root) / "mnt")
    assert (of(root) / "config.json").read_bytes() == FILES["config.json"]


def test_tools_take_the_model_in_it(furnished, mounts):
    root = mounts(furnished / "model.safetensors").path
    done = shell('"$1" ls "$2" && "$1" verify "$2"', mounted.BUILD / "stfs", of(root) / "model.safetensors")
    assert done.returncode == 0 and done.stderr == ""
    assert set(os.listdir(root)) <= set(done.stdout.split())
