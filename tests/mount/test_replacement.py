# The mounted archive is replaced: the tree follows, open files keep their content, nothing is torn, nothing leaks.
import errno
import json
import mmap
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from archive_file import random_bytes, sample_tensors, write_bytes_tensors
from mounted import PATIENCE, errno_of, eventually
from sharded_model import ShardedModel


def exists(path):
    return os.path.lexists(path)


def replace(path, tensors):
    write_bytes_tensors(f"{path}.new", tensors)
    os.replace(f"{path}.new", path)


def is_said(mount, message):
    """Waits for a line of the log. By then the kernel has dropped its cache, so every path shows the new state."""
    return eventually(lambda: message in mount.log())


def names_of(path):
    return sorted(os.listdir(path))


@pytest.fixture(params=["", "layout=tree"])
def mount(request, tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    write_bytes_tensors(path, {"layer.a": b"old a", "layer.b": b"old b", "gone": b"old"})
    mount = mounts(path, options=request.param)
    mount.separator = "/" if request.param else "."
    return mount


def in_tree(mount, name):
    return mount / name.replace(".", mount.separator)


# ---- by rename ----

def test_the_tree_shows_the_new_archive(mount):
    assert in_tree(mount, "layer.a").read_bytes() == b"old a"
    assert not exists(in_tree(mount, "layer.new")) and not exists(mount / "added")  # remembered by the kernel
    names_of(mount.path)
    generation = mount.generation(in_tree(mount, "layer.a"))
    replace(mount.source, {"layer.a": b"new, and longer", "layer.new": b"!", "added": b"more"})
    assert is_said(mount, "was replaced")
    assert exists(mount / "added")
    assert in_tree(mount, "layer.a").read_bytes() == b"new, and longer"
    assert in_tree(mount, "layer.new").read_bytes() == b"!"
    assert not exists(mount / "gone") and not exists(in_tree(mount, "layer.b"))
    top = ["added", "layer"] if mount.separator == "/" else ["added", "layer.a", "layer.new"]
    assert names_of(mount.path) == top
    assert mount.generation(in_tree(mount, "layer.a")) > generation
    assert (mount / ".safetensors" / "npy" / "added.npy").read_bytes().endswith(b"more")
    assert b"more" in (mount / ".safetensors" / "archive.safetensors").read_bytes()
    assert os.getxattr(mount.path, "user.safetensors.tensors") == b"3"
    assert json.loads((mount / ".safetensors" / "stats.json").read_text())["replacements"] == 1


def test_who_has_the_old_one_open_keeps_it(mount):
    path = in_tree(mount, "layer.a")
    fd = os.open(path, os.O_RDONLY)
    mapped = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
    unread = os.open(mount / "gone", os.O_RDONLY)
    replace(mount.source, {"layer.a": b"new a"})
    assert eventually(lambda: path.read_bytes() == b"new a")
    assert os.pread(fd, 100, 0) == mapped[:] == b"old a"
    assert os.pread(unread, 100, 0) == b"old"
    mapped.close()
    for descriptor in (fd, unread):
        os.close(descriptor)


def test_a_write_goes_to_the_new_archive_and_one_that_was_begun_fails(mount):
    begun = os.open(in_tree(mount, "layer.a"), os.O_WRONLY)
    os.write(begun, b"lost!")
    replace(mount.source, {"layer.a": b"new a"})
    assert eventually(lambda: in_tree(mount, "layer.a").read_bytes() == b"new a")
    assert errno_of(os.close, begun) == errno.ESTALE
    in_tree(mount, "layer.a").write_bytes(b"mine!")
    assert in_tree(mount, "layer.a").read_bytes() == b"mine!"
    assert open(mount.source, "rb").read().endswith(b"mine!")


def test_a_working_directory_in_the_views_keeps_its_path(mount):
    views = str(mount / ".safetensors")
    with subprocess.Popen([sys.executable, "-c", "import os, sys\nfor line in sys.stdin: print(os.getcwd(), flush=True)"],
                          cwd=views, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        for at in range(3):
            replace(mount.source, {"layer.a": b"new", f"added.{at}": b"more"})
            assert eventually(lambda at=at: exists(in_tree(mount, f"added.{at}")))
            program.stdin.write("\n")
            program.stdin.flush()
            assert program.stdout.readline() == f"{views}\n"
    assert program.returncode == 0


def test_what_ends_is_let_go_of(mount):
    fd = os.open(in_tree(mount, "layer.a"), os.O_RDONLY)
    replace(mount.source, {"layer.a": b"new a"})
    assert eventually(lambda: in_tree(mount, "layer.a").read_bytes() == b"new a")
    assert mount.deleted_files() != []
    os.close(fd)
    assert eventually(lambda: mount.deleted_files() == []), mount.deleted_files()


def test_journals_of_the_old_archive_go_with_it(mount):
    for turn in range(5):  # a series of small commits keeps one
        in_tree(mount, "layer.a").write_bytes(b"%05d" % turn)
    replace(mount.source, {"layer.a": b"new a"})
    assert eventually(lambda: in_tree(mount, "layer.a").read_bytes() == b"new a")
    directory = os.path.dirname(mount.source)
    assert eventually(lambda: [name for name in os.listdir(directory) if ".stj." in name] == [])
    in_tree(mount, "layer.a").write_bytes(b"again")
    assert mount.unmount() == 0
    assert open(mount.source, "rb").read().endswith(b"again")


# ---- by a file that is no archive ----

def test_an_invalid_archive_is_eio_with_its_reason_until_it_is_mended(mount):
    fd = os.open(in_tree(mount, "layer.a"), os.O_RDONLY)
    assert (mount / "gone").read_bytes() == b"old"
    with open(f"{mount.source}.new", "w") as file:
        file.write("no archive at all")
    os.replace(f"{mount.source}.new", mount.source)
    assert is_said(mount, "its tensors give EIO")
    for name in ("gone", "layer.a", "layer.b"):
        assert errno_of(in_tree(mount, name).read_bytes) == errno.EIO
    assert errno_of((mount / ".safetensors" / "archive.safetensors").read_bytes) == errno.EIO
    assert errno_of((mount / ".safetensors" / "slice" / "gone[0]").read_bytes) == errno.EIO
    assert os.pread(fd, 100, 0) == b"old a"
    os.close(fd)
    assert mount.source in json.loads((mount / ".safetensors" / "stats.json").read_text())["problem"]
    assert f"{mount.source}: not a safetensors file" in mount.log()
    replace(mount.source, {"layer.a": b"mended"})
    assert is_said(mount, "was replaced")
    assert in_tree(mount, "layer.a").read_bytes() == b"mended"
    assert json.loads((mount / ".safetensors" / "stats.json").read_text())["problem"] == ""


def test_an_archive_that_comes_back_is_served_again(mount):
    os.rename(mount.source, f"{mount.source}.kept")
    with open(mount.source, "w") as file:
        file.write("no archive at all")
    assert eventually(lambda: errno_of((mount / "gone").read_bytes) == errno.EIO)
    os.rename(f"{mount.source}.kept", mount.source)
    assert eventually(lambda: errno_of((mount / "gone").read_bytes) == 0)
    assert (mount / "gone").read_bytes() == b"old"


def test_an_archive_written_over_in_place_is_shown_when_it_is_whole(mount, tmp_path):
    write_bytes_tensors(tmp_path / "other", {"other": b"x" * 50_000})
    whole = (tmp_path / "other").read_bytes()
    with open(mount.source, "r+b") as file:  # as `cp` does
        file.truncate()
        for at in range(0, len(whole), 10_000):
            file.write(whole[at:at + 10_000])
            file.flush()
    assert eventually(lambda: exists(mount / "other"))
    assert eventually(lambda: (mount / "other").read_bytes() == b"x" * 50_000)
    (mount / "other").write_bytes(b"y" * 50_000)
    assert open(mount.source, "rb").read().endswith(b"y" * 50_000)


def test_an_archive_that_is_slowly_written_over_costs_little(mount, tmp_path):
    write_bytes_tensors(tmp_path / "other", {"other": b"x" * 3_000_000})
    whole = (tmp_path / "other").read_bytes()

    def seconds_used():
        with open(f"/proc/{mount.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = seconds_used()
    with open(mount.source, "r+b") as file:
        file.truncate()
        for at in range(0, len(whole), 10_000):
            file.write(whole[at:at + 10_000])
            file.flush()
            time.sleep(0.002)
    assert is_said(mount, "was replaced")
    assert (mount / "other").read_bytes() == b"x" * 3_000_000
    assert seconds_used() - before < 0.5 * PATIENCE
    assert mount.log().count("its tensors give EIO") == 1


def test_deleted_and_made_again(mount):
    os.unlink(mount.source)
    assert eventually(lambda: "deleted" in mount.log())
    assert (mount / "gone").read_bytes() == b"old"
    replace(mount.source, {"again": b"here"})
    assert eventually(lambda: exists(mount / "again"))
    assert (mount / "again").read_bytes() == b"here"


def test_a_read_only_mount_follows_and_stays_read_only(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    write_bytes_tensors(path, {"a": b"old"})
    mount = mounts(path, options="ro")
    assert (mount / "a").read_bytes() == b"old"
    replace(path, {"a": b"newer"})
    assert eventually(lambda: (mount / "a").read_bytes() == b"newer")
    assert errno_of((mount / "a").write_bytes, b"12345") == errno.EROFS


# ---- models of several files ----

def test_a_model_saved_anew_shard_by_shard_is_shown(tmp_path, mounts):
    model = ShardedModel(tmp_path / "model")
    mount = mounts(model.directory)
    assert (mount / "odd").read_bytes() == model.stored("odd")
    tensors = {name: np.roll(array.reshape(-1).view(np.uint8), 1).view(array.dtype).reshape(array.shape)
               for name, array in sample_tensors().items()}
    tensors["added"] = np.arange(7, dtype=np.int32)
    new = ShardedModel(tmp_path / "new", shards=4, tensors=tensors)
    for name in [*new.names, new.index.name]:
        os.replace(new.directory / name, model.directory / name)
    new.directory = model.directory
    assert eventually(lambda: exists(mount / "added"))
    expected = new.reference()
    for name, (_, _, data) in expected.items():
        path = mount / name
        assert eventually(lambda: errno_of(path.read_bytes) == 0 and path.read_bytes() == data), name
    assert names_of(mount.path) == sorted(expected)
    data = random_bytes(len(expected["odd"][2]), 5)
    (mount / "odd").write_bytes(data)
    assert new.stored("odd") == data


def test_a_shard_that_was_missing_is_served_when_it_comes(tmp_path, mounts):
    model = ShardedModel(tmp_path / "model")
    shard = model.shard_of("odd")
    os.rename(shard, tmp_path / "kept")
    mount = mounts(model.directory)
    assert errno_of((mount / "odd").read_bytes) == errno.EIO
    os.rename(tmp_path / "kept", shard)
    assert eventually(lambda: errno_of((mount / "odd").read_bytes) == 0)
    assert (mount / "odd").read_bytes() == model.stored("odd")


def test_an_index_that_becomes_invalid_is_eio_until_it_is_mended(tmp_path, mounts):
    model = ShardedModel(tmp_path / "model")
    mount = mounts(model.index)
    text = model.index.read_text()
    model.index.write_text("{")
    assert eventually(lambda: errno_of((mount / "odd").read_bytes) == errno.EIO)
    assert is_said(mount, str(model.index))
    model.index.write_text(text)
    assert eventually(lambda: errno_of((mount / "odd").read_bytes) == 0)


def test_each_archive_of_a_directory_follows_its_own_file(tmp_path, mounts):
    directory = tmp_path / "models"
    directory.mkdir()
    for name in ("one", "two"):
        write_bytes_tensors(directory / f"{name}.safetensors", {"t": name.encode()})
    (directory / "bad.safetensors").write_text("no archive at all")
    mount = mounts(directory)
    assert (mount / "one" / "t").read_bytes() == b"one"
    assert errno_of(os.listdir, mount / "bad") == errno.EIO
    fd = os.open(mount / "two" / "t", os.O_RDONLY)
    replace(directory / "two.safetensors", {"t": b"other", "u": b"more"})
    assert eventually(lambda: exists(mount / "two" / "u"))
    assert (mount / "one" / "t").read_bytes() == b"one"
    assert (mount / "two" / "t").read_bytes() == b"other"
    assert os.pread(fd, 10, 0) == b"two"
    os.close(fd)
    replace(directory / "bad.safetensors", {"t": b"mended"})
    assert eventually(lambda: errno_of(os.listdir, mount / "bad") == 0)
    assert (mount / "bad" / "t").read_bytes() == b"mended"
    assert names_of(mount.path) == ["bad", "one", "two"]


# ---- where inotify does not see it ----

def test_a_change_on_a_store_that_tells_nobody_is_shown(tmp_path, mounts):
    """A mount on a file of another mount, which changes there without an event."""
    path = tmp_path / "m.safetensors"
    write_bytes_tensors(path, {"weight": b"old bytes"})
    store = mounts(path)
    mount = mounts(store / ".safetensors" / "archive.safetensors")
    assert "io=pread" in mount.log()
    assert (mount / "weight").read_bytes() == b"old bytes"
    (store / "weight").write_bytes(b"new bytes")
    assert eventually(lambda: (mount / "weight").read_bytes() == b"new bytes")
    replace(path, {"other": b"another model"})
    assert eventually(lambda: exists(mount / "other"))
    assert (mount / "other").read_bytes() == b"another model"
    assert mount.unmount() == 0
