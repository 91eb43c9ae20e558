# Each edit of `stfs` on a mounted archive either works, and the mount shows it, or fails with a reason and changes nothing.
import errno
import os
import subprocess

import pytest
from edited_mount import STFS, content, save, stfs, u8
from mounted import errno_of, eventually

pytestmark = pytest.mark.sequential

SIZES = {"large": 300_001, "b": 3, "c": 70_001, "d": 4096}
NEW = b"n" * 100_000
# The effect of each edit on the tensors, and whether a mounted archive without room in its header refuses the edit.
EDITS = {
    "rm d": (lambda due: due.pop("d"), True),
    "mv d renamed.tensor": (lambda due: due.update({"renamed.tensor": due.pop("d")}), True),
    "put --create --dtype U8 ARCHIVE new RAW": (lambda due: due.update(new=u8(NEW)), True),
    "put --create --dtype U8 ARCHIVE d RAW": (lambda due: due.update(d=u8(NEW)), True),
    "put ARCHIVE d SAME": (lambda due: due.update(d=u8(b"s" * 4096)), False),
    "set d --dtype I8": (lambda due: due.update(d=("I8", *due["d"][1:])), False),
    "set --metadata key=value": (lambda due: None, True),
    "recover": (lambda due: None, False),
}


def words_of(edit, path):
    verb, *more = edit.split()
    if "ARCHIVE" not in more:
        more.insert(0, "ARCHIVE")
    places = {"ARCHIVE": path, "RAW": path.parent / "raw", "SAME": path.parent / "same"}
    return [verb, *(str(places.get(word, word)) for word in more)]


@pytest.fixture(params=["a tight header", "room in the header"])
def archive(request, tmp_path):
    """make(): an archive in a directory of its own, what it holds, and whether its header has no room."""
    made = []

    def make():
        directory = tmp_path / f"archive{len(made)}"
        directory.mkdir()
        made.append(directory)
        (directory / "raw").write_bytes(NEW)
        (directory / "same").write_bytes(b"s" * 4096)
        path = directory / "m.safetensors"
        due = save(path, SIZES)
        is_tight = request.param == "a tight header"
        if not is_tight:
            stfs("set", path, "--metadata", "room=made")
            stfs("rm", "--keep-space", path, "large")
            del due["large"]
        return path, due, is_tight

    return make


def view(mount):
    return mount / ".safetensors" / "archive.safetensors"


def shown(mount):
    """What the view holds; None while the mount has not yet noticed another header."""
    try:
        return content(view(mount))
    except OSError as error:
        assert error.errno == errno.EIO
        return None


@pytest.mark.parametrize("options", ["", "ro"], ids=["read-write", "read-only"])
def test_an_edit_works_and_is_shown_or_is_refused(archive, mounts, options):
    for edit, (change, is_refused_if_tight) in EDITS.items():
        path, due, is_tight = archive()
        mount = mounts(path, options)
        before = path.read_bytes()
        done = subprocess.run([STFS, *words_of(edit, path)], capture_output=True, text=True)
        if is_tight and is_refused_if_tight:
            assert done.returncode == 1, edit
            assert "has the archive open" in done.stderr and "through the one mount" in done.stderr
            assert path.read_bytes() == before, edit
        else:
            assert done.returncode == 0, (edit, done.stderr)
            change(due)
        assert content(path) == due, edit
        if path.read_bytes()[:1000] != before[:1000]:  # another header: the kernel forgets names of before
            assert eventually(lambda: "shows the new model" in mount.log()), edit
        assert eventually(lambda: shown(mount) == due), edit
        assert eventually(lambda: sorted(os.listdir(mount.path)) == sorted(due)), edit
        for name, (_, _, data) in due.items():
            assert (mount / name).read_bytes() == data, (edit, name)
        if not options:  # the mount can still write, and makes the edits that the tool could not make
            (mount / "b").write_bytes(b"abc")
            due["b"] = u8(b"abc")
            # The old model is still a reader of the archive until the kernel has forgotten it.
            assert eventually(lambda: errno_of(os.unlink, mount / "c") == 0), edit
            del due["c"]
            assert content(path) == content(view(mount)) == due, edit
        assert mount.unmount() == 0
        stfs("verify", path)


def test_compact_waits_for_the_end_of_mounts(archive, mounts):
    path, due, is_tight = archive()
    mount = mounts(path)
    if is_tight:
        assert "is compact" in stfs("compact", path)
        os.unlink(mount / "large")
        del due["large"]
    size_bytes = path.stat().st_size
    assert "has the archive open" in stfs("compact", path, code=1)
    assert content(path) == content(view(mount)) == due
    assert path.stat().st_size == size_bytes
    assert mount.unmount() == 0
    stfs("compact", path)
    assert content(path) == due and path.stat().st_size < size_bytes


def test_who_has_a_tensor_open_learns_of_an_edit_by_a_tool(archive, mounts):
    path, due, is_tight = archive()
    if is_tight:
        stfs("set", path, "--metadata", "room=made")
    mount = mounts(path)
    reader = open(mount / "c", "rb", buffering=0)
    writer = open(mount / "d", "wb", buffering=0)
    writer.write(b"w" * 4096)
    stfs("mv", path, "b", "renamed")
    due["renamed"] = due.pop("b")
    assert eventually(lambda: "renamed" in os.listdir(mount.path) and shown(mount) == due)
    assert reader.read() == due["c"][2]
    writer.close()
    due["d"] = u8(b"w" * 4096)
    reader.close()
    assert content(path) == content(view(mount)) == due
    # An edit through the mount keeps open files valid.
    with open(mount / "c", "rb", buffering=0) as reader, open(mount / "d", "wb", buffering=0) as writer:
        writer.write(b"v" * 4096)
        os.rename(mount / "renamed", mount / "again")
        assert reader.read() == due["c"][2]
    due["again"], due["d"] = due.pop("renamed"), u8(b"v" * 4096)
    assert content(path) == content(view(mount)) == due
