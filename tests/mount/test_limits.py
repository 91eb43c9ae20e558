# The limits of the format and of file names, through a mount: a request beyond a limit fails with a reason and changes nothing.
import errno
import json
import os

import pytest
from edited_mount import EditedMount, content, save, write_tensor
from mounted import errno_of, eventually

pytestmark = pytest.mark.sequential

LONG = "STFS_LONG" in os.environ
MOST_HEADER_BYTES = 100_000_000


def archive(header, data=b""):
    return len(header).to_bytes(8, "little") + header + data


def header_of(size_bytes, tensors=None):
    """A header of so many bytes that has no room: one key of its metadata takes them all."""
    entries = {"__metadata__": {"fill": ""}, **(tensors or {})}
    missing = size_bytes - len(json.dumps(entries))
    entries["__metadata__"]["fill"] = "x" * missing
    return json.dumps(entries).encode()


A = {"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}


def write(path, data):
    with open(path, "wb", buffering=0) as file:
        for begin in range(0, len(data), 1 << 20):
            file.write(data[begin:begin + (1 << 20)])


@pytest.mark.once
def test_no_edit_makes_a_header_over_the_limit(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    path.write_bytes(archive(header_of(MOST_HEADER_BYTES - 100, A), b"12345678"))
    mount = mounts(path)
    before = path.read_bytes()
    attempts = {
        "a new tensor": lambda: write_tensor(mount / ("n" * 200), b"new"),
        "a longer name": lambda: os.rename(mount / "a", mount / ("n" * 200)),
        "metadata": lambda: os.setxattr(mount.path, "user.safetensors.metadata.key", b"v" * 200),
        "a shape": lambda: os.setxattr(mount / "a", "user.safetensors.shape",
                                       f"[{','.join(['1'] * 100)},8]".encode()),
    }
    if not LONG:  # each reads and writes 100 MB
        attempts = {"a new tensor": attempts["a new tensor"]}
    for name, attempt in attempts.items():
        assert errno_of(attempt) in (errno.EINVAL, errno.EMSGSIZE, errno.EFBIG), name
        assert path.read_bytes() == before, name
        assert set(os.listdir(mount.path)) - {"n" * 200} == {"a"}, name  # what was written is a scratch file
        assert (mount / "a").read_bytes() == b"12345678", name
    assert "100000000" in mount.log()
    (mount / "a").write_bytes(b"87654321")
    os.setxattr(mount.path, "user.safetensors.metadata.fill", b"short")
    attempts["a new tensor"]()
    assert set(content(path)) == {"a", "n" * 200}


@pytest.mark.once
def test_no_checkpoint_has_a_header_over_the_limit(tmp_path, mounts):
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    due = save(zoo / "m.safetensors", {"a": 8})
    mount = mounts(zoo)
    view = mount / "m" / ".safetensors" / "archive.safetensors"
    over = archive(header_of(MOST_HEADER_BYTES + 1, A), b"12345678")
    for path in (view, mount / "m.safetensors"):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        assert errno_of(os.write, fd, over[:8]) == errno.EINVAL  # at the first write
        assert errno_of(os.close, fd) == errno.EINVAL
    assert content(zoo / "m.safetensors") == due and os.listdir(zoo) == ["m.safetensors"]
    if not LONG:
        return
    largest = archive(header_of(MOST_HEADER_BYTES, A), b"12345678")
    write(zoo / "new.safetensors", largest)
    assert eventually(lambda: os.path.exists(mount / "new" / "a"))
    assert (mount / "new" / "a").read_bytes() == b"12345678"
    assert (mount / "new.safetensors").read_bytes() == largest


def test_names_of_tensors(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    long = "l" * 300  # a file name can't have it: it is shown cut, with a hash
    due = save(path, {"a": 8, long: 9})
    edited = EditedMount(mounts(path), [path], due)
    file = next(name for name in os.listdir(edited.mount.path) if name.startswith("lll"))
    assert len(file) <= 255
    edited.check({"a": "a", file: long})
    os.rename(edited / file, edited / "short")
    edited.due["short"] = edited.due.pop(long)
    edited.check()
    longest = "é" * 127 + "x"
    os.rename(edited / "short", edited / longest)
    edited.due[longest] = edited.due.pop("short")
    edited.check()
    for act in (lambda: os.rename(edited / "a", edited / ("n" * 256)), lambda: write(edited / ("n" * 256), b"x")):
        assert errno_of(act) == errno.ENAMETOOLONG
    assert errno_of(lambda: os.setxattr(edited.mount.path, b"user.safetensors.metadata." + b"k" * 300, b"v")) == errno.ERANGE
    assert errno_of(lambda: os.setxattr(edited.mount.path, b"user.safetensors.metadata.\xff", b"v")) == errno.EINVAL
    assert errno_of(lambda: os.setxattr(edited.mount.path, b"user.safetensors.metadata.k", b"\xff")) == errno.EINVAL
    edited.check()


def test_names_of_models(tmp_path, mounts):
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    due = save(zoo / "m.safetensors", {"a": 8})
    data = (zoo / "m.safetensors").read_bytes()
    mount = mounts(zoo)
    names = ["n" * 243, "é" * 121, "50%", "a b", "tab\t"]
    for stem in names:
        write(zoo / f"{stem}.safetensors", data)
    assert eventually(lambda: sorted(os.listdir(mount.path)) == sorted([*names[:2], "50%25", "a b", "tab%09", "m"]))
    for stem in names:
        assert content(mount / f"{stem}.safetensors") == due, stem
    assert (mount / "50%25" / "a").read_bytes() == due["a"][2]
    assert errno_of(os.stat, mount / ("n" * 244 + ".safetensors")) == errno.ENAMETOOLONG
    with open(os.fsencode(zoo) + b"/\xff.safetensors", "wb") as file:
        file.write(data)
    assert eventually(lambda: len(os.listdir(mount.path)) == 7)
    again = mounts(zoo)
    assert sorted(os.listdir(os.fsencode(again.path))) == sorted(os.listdir(os.fsencode(mount.path)))
