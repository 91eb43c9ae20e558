# Programs have files of a mount open, or mapped, while others edit the structure of the archive itself: with stfs, through
# another mount, through the new files of the same one.
import errno
import json
import mmap
import os
import signal
import subprocess

import pytest
from edited_mount import FREE, STFS, content, save, stfs, u8, write_tensor
from mounted import errno_of, eventually, start_python, wait_ready
from sharded_model import ShardedModel

SIZES = {"a": 300_001, "b": 4096, "c": 70_001, "d": 4097}


def roomy(path):
    """An archive with room in its header, so that tools can edit it while it is open, and its expected content."""
    due = save(path, SIZES)
    stfs("set", path, "--metadata", "room=made")
    return due


class Opened:
    """Every tensor of a mount, opened and mapped."""

    def __init__(self, mount, due):
        self.due = {name: data for name, (_, _, data) in due.items()}
        self.files = {name: open(mount / name, "rb", buffering=0) for name in due}
        self.maps = {name: mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for name, file in self.files.items()}

    def differing(self):
        return [name for name, data in self.due.items()
                if os.pread(self.files[name].fileno(), len(data) + 1, 0) != data or self.maps[name][:] != data]

    def close(self):
        for opened in (*self.maps.values(), *self.files.values()):
            opened.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.safetensors"


@pytest.fixture
def open_all(mounts):
    """open_all(mount, due) -> the open files. They are closed at the end, before the mount."""
    opened = []
    yield lambda mount, due: opened.append(Opened(mount, due)) or opened[-1]
    for each in opened:
        each.close()


def is_shown(mount, due):
    """Whether new opens show the expected content."""
    try:
        return sorted(os.listdir(mount.path)) == sorted(due) and all(
            (mount / name).read_bytes() == data for name, (_, _, data) in due.items())
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("options", ["", "ro", "io=pread"])
def test_what_is_open_is_read_on_through_each_edit(path, mounts, open_all, tmp_path, options):
    due = roomy(path)
    (tmp_path / "raw").write_bytes(b"n" * 5000)
    mount = mounts(path, options)
    opened = open_all(mount, due)
    npy = (mount / ".safetensors/npy/c.npy").read_bytes()
    with open(mount / ".safetensors/npy/c.npy", "rb", buffering=0) as view, \
            open(mount / ".safetensors/slice/c[1:70001:3]", "rb", buffering=0) as part:
        edits = [("mv", path, "a", "renamed"), ("rm", path, "b"), ("set", path, "c", "--dtype", "I8"),
                 ("set", path, "--metadata", "key=value"), ("put", "--create", "--dtype", "U8", path, "new", tmp_path / "raw"),
                 ("put", "--create", "--dtype", "U8", path, "d", tmp_path / "raw"), ("mv", path, "renamed", "b")]
        for edit in edits:
            stfs(*edit)
            assert opened.differing() == [], edit
        due["b"] = due.pop("a")
        due["c"] = ("I8", *due["c"][1:])
        due["new"] = due["d"] = u8(b"n" * 5000)
        assert eventually(lambda: is_shown(mount, due))
        assert content(path) == due
        assert opened.differing() == []  # d and b as they were
        assert view.read() == npy
        assert part.read() == due["c"][2][1:70001:3]
    told = "can't be written, and give EIO if their bytes have moved" if options == "ro" else "edited by another program"
    assert told in mount.log()
    opened.close()
    assert mount.unmount() == 0
    stfs("verify", path)


def test_what_is_open_shows_later_patches(path, mounts, open_all, tmp_path):
    due = roomy(path)
    mount = mounts(path)
    opened = open_all(mount, due)
    stfs("mv", path, "a", "renamed")
    due["renamed"] = due.pop("a")
    assert eventually(lambda: is_shown(mount, due))
    for turn in range(5):
        fresh = {"c": os.urandom(SIZES["c"]), "a": os.urandom(SIZES["a"])}
        (mount / "c").write_bytes(fresh["c"])  # through the new file
        (tmp_path / "raw").write_bytes(fresh["a"])
        stfs("put", path, "renamed", tmp_path / "raw")  # by another process
        opened.due.update(fresh)
        assert eventually(lambda: opened.differing() == []), (turn, opened.differing())


def test_another_mount_edits(path, mounts, open_all):
    due = roomy(path)
    reading, editing = mounts(path), mounts(path)
    opened = open_all(reading, due)
    os.rename(editing / "a", editing / "renamed")
    os.unlink(editing / "b")
    write_tensor(editing / "new", b"new" * 1000)
    due["renamed"], due["new"] = due.pop("a"), u8(b"new" * 1000)
    del due["b"]
    assert eventually(lambda: is_shown(reading, due))
    assert opened.differing() == []


def test_a_sharded_model_and_a_delta(tmp_path, mounts, open_all):
    model = ShardedModel(tmp_path / "sharded")
    for name in model.names:
        stfs("set", model.directory / name, "--metadata", "room=made")
    held = {name: entry for name, entry in model.reference().items() if not name.startswith(FREE)}
    mount = mounts(model.index)
    opened = open_all(mount, {name: held[name] for name in held if held[name][2]})
    first = sorted(opened.due)[0]
    stfs("mv", model.index, first, "renamed")
    assert eventually(lambda: "renamed" in os.listdir(mount.path))
    assert opened.differing() == []
    opened.close()
    assert mount.unmount() == 0

    delta = tmp_path / "delta.safetensors"
    variant = mounts(model.index, f"delta={delta}")
    held = {name: held[name] for name in sorted(held)[1:4]}
    for name, (_, _, data) in held.items():
        (variant / name).write_bytes(data[::-1])
        held[name] = (*held[name][:2], data[::-1])
    opened = open_all(variant, held)
    stfs("set", delta, "--metadata", "key=value")
    assert eventually(lambda: "edited by another program: the mount shows the new model" in variant.log())
    assert os.getxattr(variant.path, "user.safetensors.metadata.key") == b"value"
    assert opened.differing() == []


def test_a_program_that_moves_bytes_without_locks_is_noticed_by_what_is_open(path, mounts, open_all):
    due = roomy(path)
    mount = mounts(path)
    opened = open_all(mount, {name: due[name] for name in ("a", "d")})
    stfs("mv", path, "b", "renamed")
    assert eventually(lambda: "renamed" in os.listdir(mount.path))
    assert opened.differing() == []
    image = path.read_bytes()
    length = int.from_bytes(image[:8], "little")
    header = json.loads(image[8:8 + length])
    tensors = sorted((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"])
    at = 0
    for name in reversed(tensors):
        begin, end = header[name]["data_offsets"]
        header[name]["data_offsets"] = [at, at + end - begin]
        at += end - begin
    with open(path, "r+b") as file:
        file.seek(8)
        file.write(json.dumps(header, separators=(",", ":")).encode().ljust(length))
    for name in ("a", "d"):
        assert eventually(lambda: errno_of(os.pread, opened.files[name].fileno(), 10, 0) == errno.EIO), name


def test_an_editor_that_is_killed_takes_nothing_away(path, mounts, open_all):
    due = roomy(path)
    mount = mounts(path)
    opened = open_all(mount, due)
    script = ("import os, subprocess, sys\nos.setsid()\nprint('ready')\n"
              "for turn in range(100000):\n"
              "    names = ('b', 'other') if turn % 2 == 0 else ('other', 'b')\n"
              "    subprocess.run([sys.argv[1], 'mv', sys.argv[2], *names])\n")
    wrong = []
    for turn in range(6):
        editor = start_python(script, STFS, path)
        wait_ready(editor)
        for _ in range(10):
            wrong += opened.differing()
        os.killpg(editor.pid, signal.SIGKILL)
        editor.wait()
        wrong += opened.differing()
    assert not wrong
    found = content(path)
    assert found == due or found == {**{name: due[name] for name in "acd"}, "other": due["b"]}
    assert eventually(lambda: is_shown(mount, found))
    assert opened.differing() == []
    subprocess.run([STFS, "recover", path], check=True, capture_output=True)
