# Edits through mounts of sharded models, through two mounts of one archive, where they are forbidden, and by killed processes.
import errno
import json
import os

import pytest
from edited_mount import EditedMount, save, stfs, u8, write_tensor
from mounted import errno_of, eventually, start_python, wait_ready
from sharded_model import ShardedModel

SIZES = {"a": 300_001, "b": 3, "c": 70_000}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.safetensors"


def test_a_sharded_model_and_its_index_change_together(tmp_path, mounts):
    model = ShardedModel(tmp_path / "sharded")
    edited = EditedMount(mounts(model.index), [model.directory / name for name in model.names], model.reference())

    def check():
        edited.check()
        weight_map = json.loads(model.index.read_text())["weight_map"]
        assert weight_map.keys() == edited.due.keys()
        stfs("verify", model.index)

    check()
    for name in model.weight_map:
        edited.remove(name)
        if len(edited.due) == len(model.weight_map) - 3:
            break
    check()
    edited.write("new", os.urandom(100_000))
    check()
    first, other = model.tensors_of(model.names[0])[-1], model.tensors_of(model.names[1])[-1]
    edited.rename(first, "renamed")
    check()
    edited.rename("renamed", other)  # over a tensor of another shard
    check()


@pytest.mark.parametrize("options, due", [("ro", errno.EROFS), ("edit=off", errno.EPERM)])
def test_mounts_that_forbid_edits_refuse_each_of_them(path, mounts, options, due):
    held = save(path, SIZES)
    edited = EditedMount(mounts(path, options), [path], held)
    image = path.read_bytes()
    assert errno_of(os.unlink, edited / "a") == due
    assert errno_of(os.rename, edited / "a", edited / "b") == due
    assert errno_of(os.open, edited / "new", os.O_CREAT | os.O_WRONLY) == due
    assert errno_of(os.setxattr, edited / "a", "user.safetensors.dtype", b"I8") == due
    assert errno_of(os.setxattr, edited.mount.path, "user.safetensors.metadata.k", b"v") == due
    assert errno_of(os.open, edited.npy("new"), os.O_CREAT | os.O_WRONLY) in (due, errno.EROFS, errno.EPERM)
    assert path.read_bytes() == image
    edited.check()


def shows_its_edits(edited):
    """Whether the mount shows what is due. archive.safetensors gives EIO until the mount has opened the model anew."""
    try:
        edited.check()
    except OSError as error:
        assert error.errno == errno.EIO
        return False
    return True


def test_another_mount_and_a_tool_see_the_same_edits(path, mounts):
    due = save(path, SIZES)
    stfs("set", path, "--metadata", "room=made")  # nothing can be moved out of the header's way once two have it open
    one, other = (EditedMount(mounts(path), [path], due) for _ in range(2))
    one.remove("a")
    other.due = one.due
    assert eventually(lambda: set(os.listdir(other.mount.path)) == one.due.keys())
    assert eventually(lambda: shows_its_edits(other))
    stfs("mv", path, "c", "renamed")
    one.due["renamed"] = one.due.pop("c")
    for mount in (one, other):
        assert eventually(lambda: set(os.listdir(mount.mount.path)) == one.due.keys())
        assert eventually(lambda: shows_its_edits(mount))


def test_what_a_killed_writer_and_a_killed_mount_leave_is_no_tensor(path, mounts, tmp_path):
    due = save(path, SIZES)
    edited = EditedMount(mounts(path), [path], due)
    writer = start_python("import sys, time\nf = open(sys.argv[1], 'wb', buffering=0)\nf.write(b'x' * 100000)\n"
                          "print('ready')\ntime.sleep(99)", edited / "new")
    wait_ready(writer)
    assert "new" in os.listdir(edited.mount.path) or os.path.exists(edited / "new")
    writer.kill()
    writer.wait()
    assert (edited / "new").read_bytes() == b"x" * 100_000
    assert edited.stored() == edited.due
    os.unlink(edited / "new")
    edited.check()
    edited.write("whole", os.urandom(50_000))
    file = open(edited / "half", "wb", buffering=0)
    file.write(b"x" * 50_000)
    edited.mount.kill()
    errno_of(file.close)
    again = EditedMount(mounts(path), [path], edited.due)
    assert (again / "half").read_bytes() == b"x" * 50_000
    os.unlink(again / "half")
    again.check()
    again.mount.unmount()
    assert sorted(file for file in os.listdir(tmp_path) if "safetensors" in file) == ["m.safetensors"]


def test_odd_names(path, mounts):
    due = save(path, SIZES)
    edited = EditedMount(mounts(path), [path], due)
    files = {name: name for name in SIZES}
    for file, name in {"a%2Fb": "a/b", "%25": "%", "n" * 255: "n" * 255, "größe": "größe", " ": " "}.items():
        write_tensor(edited / file, b"1234")
        edited.due[name] = u8(b"1234")
        files[file] = name
        edited.check(files)
    for file in ("a%2fb%", "%zz", "__metadata__", "__safetensorsfs.free.0"):
        assert errno_of(write_tensor, edited / file, b"1") in (0, errno.EINVAL), file  # a scratch file
        os.unlink(edited / file)
        assert errno_of(os.rename, edited / "a", edited / file) != 0, file
    assert errno_of(os.open, edited / ("n" * 256), os.O_CREAT | os.O_WRONLY) == errno.ENAMETOOLONG
    assert errno_of(os.rename, os.fsencode(edited / "a"), os.fsencode(edited.mount.path) + b"/\xff") == errno.EILSEQ
    edited.check(files)
