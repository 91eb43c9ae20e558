# An archive on a lower layer of overlayfs, such as a model in the image of a container. Opening it for writing
# copies all of it to the upper layer: that happens with the first write, and never before.
import errno
import mmap
import os
import shutil
import subprocess

import pytest
from archive_file import ArchiveFile, Expectation, random_bytes, save_with_reference
from mounted import BUILD, errno_of, eventually

T = "layers.0.weight"
OTHER = "odd"
pytestmark = [pytest.mark.needs_root, pytest.mark.sequential]


def command(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60)


def must(*words):
    done = command(*words)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done


class Layers:
    """`merged` shows the lower layer; what is written lands in `upper`."""

    def __init__(self, root, kind):
        self.root, self.mounted = root, []
        self.lower, self.upper, self.merged = root / "below/lower", root / "above/upper", root / "merged"
        if kind == "one":
            self.mount("tmpfs", root)
        for place in (root / "below", root / "above", self.merged):
            place.mkdir(parents=True)
        if kind == "two":
            self.mount("tmpfs", root / "below")
            self.mount("tmpfs", root / "above")
        for place in (self.lower, self.upper, root / "above/work"):
            place.mkdir()
        self.path = self.merged / "model.safetensors"
        self.below = save_with_reference(self.lower / "model.safetensors")
        self.original = (self.lower / "model.safetensors").read_bytes()
        self.archive = ArchiveFile(self.below)
        # Without xino the copy has another inode number if the layers are on two file systems.
        options = f"lowerdir={self.lower},upperdir={self.upper},workdir={root}/above/work,xino=off"
        done = command("mount", "-t", "overlay", "overlay", "-o", options, self.merged)
        if done.returncode != 0:
            self.end()
            pytest.skip(f"overlayfs can't be mounted here: {done.stderr.strip()}")
        self.mounted.append(self.merged)

    def mount(self, kind, at):
        at.mkdir(parents=True, exist_ok=True)
        must("mount", "-t", kind, "-o", "size=64m", kind, at)
        self.mounted.append(at)

    def copied(self):
        return sorted(path.name for path in self.upper.rglob("*"))

    def is_below_untouched(self):
        return (self.lower / "model.safetensors").read_bytes() == self.original

    def end(self):
        for path in reversed(self.mounted):
            command("umount", "-l", path)


@pytest.fixture(params=["one", "two"], ids=["layers-on-one-file-system", "layers-on-two"])
def layers(request, tmp_path_factory):
    # Outside of tmp_path: the mounts below that come down first.
    layers = Layers(tmp_path_factory.mktemp("layers"), request.param)
    yield layers
    layers.end()
    shutil.rmtree(layers.root, ignore_errors=True)


@pytest.fixture
def over(layers, mounts):
    mount = mounts(layers.path)
    mount.layers = layers
    return mount


def shown(mount, expected):
    return {name: (mount / name).read_bytes() == expected.tensor(name) for name in expected.layout}


def test_looking_and_reading_copy_nothing(over, layers):
    expected = Expectation(layers.archive)
    for name in os.listdir(over.path):
        os.stat(over / name)
    over.attribute(T, "dtype")
    assert all(shown(over, expected).values())
    for flags in (os.O_RDWR, os.O_WRONLY):
        os.close(os.open(over / T, flags))
    must(BUILD / "stfs", "ls", layers.path)
    must(BUILD / "stfs", "verify", layers.path)
    assert layers.copied() == []


def test_the_first_write_copies_once(over, layers):
    expected = Expectation(layers.archive)
    reading = {name: os.open(over / name, os.O_RDONLY) for name in (T, OTHER)}
    maps = {name: mmap.mmap(fd, 0, prot=mmap.PROT_READ) for name, fd in reading.items()}
    before = {name: bytes(maps[name]) for name in maps}
    assert before == {name: expected.tensor(name) for name in maps}
    for round_ in range(3):
        data = random_bytes(expected.size(T), 40 + round_)
        (over / T).write_bytes(data)
        expected.change(T, data)
        for name, fd in reading.items():
            assert os.pread(fd, expected.size(name), 0) == expected.tensor(name), name
            assert bytes(maps[name]) == expected.tensor(name), name
        assert all(shown(over, expected).values())
        assert os.getxattr(over / T, "user.safetensors.checksum")
        assert layers.path.read_bytes() == bytes(expected.image)
    assert layers.copied() == ["model.safetensors"]
    assert layers.is_below_untouched()
    assert "replaced" not in over.log()
    for name, fd in reading.items():
        maps[name].close()
        os.close(fd)


def test_the_commit_after_the_copy_survives_a_killed_mount(over, layers, mounts):
    expected = Expectation(layers.archive)
    data = random_bytes(expected.size(T), 50)
    for _ in range(4):  # by then the mount keeps a journal beside the archive
        (over / T).write_bytes(data)
    expected.change(T, data)
    over.kill()
    again = mounts(layers.path)
    assert all(shown(again, expected).values())
    assert "not changed" not in again.log() and layers.is_below_untouched()


@pytest.mark.parametrize("options", ["", "ro"])
def test_what_others_write_after_their_copy_is_shown(layers, mounts, tmp_path, options):
    expected = Expectation(layers.archive)
    mount = mounts(layers.path, options)
    fd = os.open(mount / T, os.O_RDONLY)
    assert os.pread(fd, expected.size(T), 0) == expected.tensor(T)
    for seed in (60, 61):
        data = random_bytes(expected.size(T), seed)
        (tmp_path / "new").write_bytes(data)
        must(BUILD / "stfs", "put", layers.path, T, tmp_path / "new")
        expected.change(T, data)
        assert eventually(lambda: os.pread(fd, expected.size(T), 0) == expected.tensor(T))
        assert eventually(lambda: all(shown(mount, expected).values()))
    os.close(fd)
    if not options:
        data = random_bytes(expected.size(OTHER), 62)
        (mount / OTHER).write_bytes(data)
        expected.change(OTHER, data)
        assert all(shown(mount, expected).values())
    assert "replaced" not in mount.log()
    assert layers.is_below_untouched() and layers.path.read_bytes() == bytes(expected.image)


def test_put_copies_with_its_first_write_only(layers, tmp_path):
    expected = Expectation(layers.archive)
    (tmp_path / "short").write_bytes(b"x")
    assert command(BUILD / "stfs", "put", layers.path, T, tmp_path / "short").returncode == 1
    assert command(BUILD / "stfs", "put", layers.path, "no such tensor", tmp_path / "short").returncode == 1
    must(BUILD / "stfs", "recover", layers.path)
    assert layers.copied() == []
    data = random_bytes(expected.size(T), 70)
    (tmp_path / "new").write_bytes(data)
    expected.change(T, data)
    must(BUILD / "stfs", "put", layers.path, T, tmp_path / "new")
    assert layers.path.read_bytes() == bytes(expected.image) and layers.is_below_untouched()
    assert layers.copied() == ["model.safetensors"]


def test_a_replaced_archive_is_not_written_by_who_has_the_old_one_open(over, layers):
    fd = os.open(over / T, os.O_WRONLY)
    (layers.merged / "new").write_bytes(layers.original)
    os.rename(layers.merged / "new", layers.path)
    assert errno_of(os.write, fd, b"lost") == errno.ESTALE
    errno_of(os.close, fd)
    assert layers.path.read_bytes() == layers.original and layers.is_below_untouched()


def test_a_file_that_may_not_be_written_is_mounted_read_only(layers, mounts):
    must("mount", "--bind", layers.merged, layers.merged)
    layers.mounted.append(layers.merged)
    must("mount", "-o", "remount,bind,ro", layers.merged)
    mount = mounts(layers.path)
    assert "Read-only file system: mounted read-only" in mount.log()
    assert errno_of(os.open, mount / T, os.O_WRONLY) == errno.EROFS
    assert layers.copied() == []
