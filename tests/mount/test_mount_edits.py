# Edits of the structure through a mount: each operation, checked with the reference library after each step.
import errno
import json
import os
import shutil
import subprocess
import tempfile

import ml_dtypes  # noqa: F401  NumPy then knows bfloat16
import numpy as np
import pytest
import safetensors
from edited_mount import FREE, RENAME_EXCHANGE, RENAME_NOREPLACE, EditedMount, content, renameat2, save, stfs, u8
from mounted import errno_of, eventually, run_python, shell
from sharded_model import ShardedModel

SIZES = {"large": 300_001, "b": 3, "layers.0.c": 70_000, "layers.0.d": 4096, "layers.1.c": 70_000}


@pytest.fixture
def edited(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    due = save(path, SIZES)
    return EditedMount(mounts(path, "reshape"), [path], due)


@pytest.fixture
def tree(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    due = save(path, SIZES)
    path.chmod(0o644)
    return EditedMount(mounts(path, "layout=tree"), [path], due)


def files_of(edited):
    return {name.replace(".", "/"): name for name in edited.due}


# ---- each operation ----

def test_names_change_and_go(edited):
    edited.check()
    edited.remove("large")  # the first one: the header has no room yet
    edited.check()
    edited.rename("b", "a.much.longer.name.than.before" * 3)
    edited.check()
    edited.rename("layers.0.c", "layers.1.c")  # over another one
    edited.check()
    assert renameat2(edited / "layers.0.d", edited / "layers.1.c", RENAME_NOREPLACE) == errno.EEXIST
    edited.check()
    assert renameat2(edited / "layers.0.d", edited / "new", RENAME_NOREPLACE) == 0
    edited.due["new"] = edited.due.pop("layers.0.d")
    edited.check()
    assert renameat2(edited / "new", edited / "layers.1.c", RENAME_EXCHANGE) == 0
    edited.due["new"], edited.due["layers.1.c"] = edited.due["layers.1.c"], edited.due["new"]
    edited.check()
    assert renameat2(edited / "new", edited / "gone", RENAME_EXCHANGE) == errno.ENOENT
    assert errno_of(os.rename, edited / "new", edited / "new") == 0
    assert errno_of(os.unlink, edited / "gone") == errno.ENOENT
    assert errno_of(os.mkdir, edited / "directory") == errno.EPERM
    assert errno_of(os.rename, edited / ".safetensors", edited / "x") == errno.EPERM
    for name in list(edited.due):
        edited.remove(name)
    edited.check()
    edited.write("first", b"again")
    edited.check()


def test_files_become_tensors_at_their_close(edited):
    for name, data in {"new": os.urandom(3_000_001), "empty": b"", "one": b"1", "layers.0": b"x" * 4096}.items():
        edited.write(name, data)
        edited.check()
    with open(edited / "open", "wb", buffering=0) as file:
        file.write(b"12345678")
        assert "open" not in edited.stored()
        os.setxattr(edited / "open", "user.safetensors.dtype", b"F32")
        os.setxattr(edited / "open", "user.safetensors.shape", b"[2, 1]")
        assert edited.form("open") == ("F32", "[2,1]")
    edited.due["open"] = ("F32", [2, 1], b"12345678")
    edited.check()
    with open(edited / "open", "wb", buffering=0) as file:  # a tensor gets another size
        os.setxattr(edited / "open", "user.safetensors.shape", b"[3]")
        file.write(b"123456789012")
    edited.due["open"] = ("F32", [3], b"123456789012")
    edited.check()
    file = open(edited / "open", "wb", buffering=0)
    file.write(b"1234")
    assert errno_of(file.close) == errno.EINVAL
    edited.check()
    assert errno_of(os.open, edited / "one", os.O_CREAT | os.O_EXCL | os.O_WRONLY) == errno.EEXIST
    fd = os.open(edited / "appended", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for piece in (b"abc", b"defg"):
        os.write(fd, piece)
    os.setxattr(fd, "user.safetensors.dtype", b"U8")
    os.setxattr(fd, "user.safetensors.shape", b"[7]")
    os.close(fd)
    edited.due["appended"] = u8(b"abcdefg")
    edited.check()
    fd = os.open(edited / "sparse", os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, b"end", 100_000)
    os.ftruncate(fd, 100_005)
    assert os.pread(fd, 10, 99_998) == b"\0\0end\0\0"
    os.close(fd)
    os.setxattr(edited / "sparse", "user.safetensors.dtype", b"U8")
    os.setxattr(edited / "sparse", "user.safetensors.shape", b"[100005]")
    edited.due["sparse"] = u8(bytes(100_000) + b"end\0\0")
    edited.check()


def test_attributes_give_bytes_another_meaning(edited):
    def set_(name, key, value):
        return errno_of(os.setxattr, edited / name, f"user.safetensors.{key}", value.encode())

    assert set_("layers.0.d", "dtype", "BF16") == 0
    edited.due["layers.0.d"] = ("BF16", [2048], edited.due["layers.0.d"][2])
    edited.check()
    assert set_("layers.0.d", "shape", "[2, 1024]") == 0
    edited.due["layers.0.d"] = ("BF16", [2, 1024], edited.due["layers.0.d"][2])
    edited.check()
    assert np.load(edited.npy("layers.0.d")).shape == (2, 1024)
    for key, value in (("dtype", "F33"), ("shape", "[3]"), ("shape", ""), ("dtype", ""), ("shape", "[-1]")):
        assert set_("layers.0.d", key, value) == errno.EINVAL, (key, value)
    assert set_("b", "dtype", "F64") == errno.EINVAL
    for key in ("checksum", "other"):
        assert set_("b", key, "x") == errno.EPERM, key
    for key in ("name", "offset", "archive", "generation"):  # programs copy them from other mounts
        assert set_("b", key, "x") == 0, key
    assert errno_of(os.removexattr, edited / "b", "user.safetensors.dtype") == errno.EPERM
    assert errno_of(os.setxattr, edited / "b", "user.other", b"x") == errno.EPERM
    edited.check()


def metadata_of(path):
    with safetensors.safe_open(path, "np") as archive:
        return archive.metadata() or {}


def test_metadata_are_set_and_removed_on_the_root(edited):
    root = edited.mount.path
    for key, value in {"k": "v", "größe": "ü" * 3000, "empty": "", "a b": "\n"}.items():
        os.setxattr(root, f"user.safetensors.metadata.{key}", value.encode())
        assert metadata_of(edited.archives[0])[key] == metadata_of(edited.view)[key] == value
        assert edited.mount.attribute(None, f"metadata.{key}") == value
        assert json.loads((edited / ".safetensors/metadata.json").read_text())[key] == value
    assert "user.safetensors.metadata.k" in os.listxattr(root)
    os.removexattr(root, "user.safetensors.metadata.k")
    assert "k" not in metadata_of(edited.archives[0]) and "user.safetensors.metadata.k" not in os.listxattr(root)
    assert errno_of(os.getxattr, root, "user.safetensors.metadata.k") == errno.ENODATA
    assert errno_of(os.removexattr, root, "user.safetensors.metadata.k") == errno.ENODATA
    assert errno_of(os.setxattr, root, "user.safetensors.metadata.bad", b"\xff") == errno.EINVAL
    edited.check()


def test_numpy_files_make_and_replace_tensors(edited, tmp_path):
    def put(name, array, command="cp"):
        np.save(tmp_path / "x.npy", array)
        done = subprocess.run([command, tmp_path / "x.npy", edited.npy(name)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        dtype = {"<f4": "F32", "<i2": "I16", "|u1": "U8"}[array.dtype.str]
        edited.due[name] = (dtype, list(array.shape), array.tobytes())

    put("new", np.arange(12, dtype="<f4").reshape(3, 4))
    edited.check()
    put("layers.0.c", np.arange(7, dtype="<i2"))  # another size
    edited.check()
    put("layers.0.c", np.arange(7, 14, dtype="<i2"))  # the same form
    edited.check()
    put("scalar", np.array(3.5, "<f4"))
    edited.check()
    np.save(edited.npy("saved"), np.ones((200, 300), "<f4"))
    edited.due["saved"] = ("F32", [200, 300], np.ones((200, 300), "<f4").tobytes())
    edited.check()
    made = np.lib.format.open_memmap(edited.npy("made"), mode="w+", dtype="<f4", shape=(300, 7))
    made[:] = np.arange(2100, dtype="<f4").reshape(300, 7)
    made.flush()
    del made
    edited.due["made"] = ("F32", [300, 7], np.arange(2100, dtype="<f4").tobytes())
    assert eventually(lambda: edited.stored() == edited.due)
    edited.check()
    np.save(edited.npy("mapped"), np.full((100, 70), 7, "<f4"))
    again = np.lib.format.open_memmap(edited.npy("mapped"), mode="r+")
    again[50] = 9
    del again
    due = np.full((100, 70), 7, "<f4")
    due[50] = 9
    edited.due["mapped"] = ("F32", [100, 70], due.tobytes())
    assert eventually(lambda: edited.stored() == edited.due)
    edited.check()
    for bad in (b"no NumPy file", b""):
        (tmp_path / "bad").write_bytes(bad)
        done = subprocess.run(["cp", tmp_path / "bad", edited.npy("bad")], capture_output=True, text=True)
        assert (done.returncode != 0) == bool(bad), bad
    assert errno_of(os.open, edited.npy("x").with_suffix(".txt"), os.O_CREAT | os.O_WRONLY) == errno.EINVAL
    assert errno_of(os.unlink, edited.npy("new")) == errno.EPERM
    edited.check()


# ---- programs ----

def test_a_form_that_is_set_beside_an_idle_writer_stays_when_it_closes(edited):
    name, data = "layers.0.d", (edited / "layers.0.d").read_bytes()
    for value, due in (("[64,64]", [64, 64]), ("[3]", [64, 64])):  # [3] needs other bytes, and none come
        idle = os.open(edited / name, os.O_RDWR)
        os.setxattr(edited / name, "user.safetensors.shape", value.encode())
        os.close(idle)
        edited.due[name] = ("U8", due, data)
        # The kernel sends the release after close(2) has returned; the notice to drop its cache follows the release.
        assert eventually(lambda: edited.form(name) == ("U8", "[64,64]"))
        assert eventually(lambda: content(edited.view) == edited.due)
        edited.check()


def test_editors_keep_the_form_of_what_they_replace(edited):
    os.setxattr(edited / "layers.0.d", "user.safetensors.dtype", b"F32")
    new = os.urandom(4096)
    fd, name = tempfile.mkstemp(dir=edited.mount.path)
    os.write(fd, new)
    os.close(fd)
    os.replace(name, edited / "layers.0.d")
    edited.due["layers.0.d"] = ("F32", [1024], new)
    edited.check()
    (edited / "short").write_bytes(b"too short")
    assert errno_of(os.rename, edited / "short", edited / "layers.0.d") == errno.ENODATA
    os.unlink(edited / "short")
    edited.check()
    edited.write("text", b"one two\n")
    for command in ("sed -i s/one/ONE/ text", "printf '1s/two/TWO/\\nw\\nq\\n' | ed -s text",
                    "vim -u NONE -es -c 's/ONE/one/' -c wq text < /dev/null", "perl -pi -e s/TWO/two/ text"):
        if shutil.which(command.split(" | ")[-1].split()[0]) is None:
            continue
        done = shell(command, cwd=edited.mount.path)
        assert done.returncode == 0, (command, done.stderr)
        text = (edited / "text").read_bytes()
        edited.due["text"] = u8(text)
        assert eventually(lambda: set(os.listdir(edited.mount.path)) == edited.due.keys()), (command, os.listdir(edited.mount.path))
        edited.check()
    assert text in (b"one two\n", b"one TWO\n", b"ONE two\n")


def test_whole_trees_are_copied_in_and_removed(tree, tmp_path):
    source = tmp_path / "source"
    for name, size in {"x/y/z": 10, "x/w": 70_000, "top": 5, "x/y/empty": 0}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(os.urandom(size))
    # The mount shows the archive's mode.
    for command in ("cp -r source/. {}", "rsync -r --inplace source/ {}", "rsync -r source/ {}", "tar -C source -cf - . | tar -C {} --no-same-permissions -xf -"):
        if shutil.which(command.split()[0]) is None:
            continue
        done = shell(command.format(tree.mount.path), cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)
        assert tree.stored() == tree.due  # files without a form are no tensors
        for file in source.rglob("*"):
            if file.is_file():
                assert (tree / file.relative_to(source)).read_bytes() == file.read_bytes()
        done = shell("rm -r x top", cwd=tree.mount.path)
        assert done.returncode == 0, done.stderr
        tree.check(files_of(tree))
    shell("rm -r *", cwd=tree.mount.path)
    tree.due.clear()
    tree.check(files_of(tree))


# ---- directories of layout=tree ----

def test_directories_are_made_moved_and_removed(tree):
    os.mkdir(tree / "new")
    assert os.listdir(tree / "new") == []
    assert errno_of(os.mkdir, tree / "new") == errno.EEXIST
    assert errno_of(os.mkdir, tree / "b") == errno.EEXIST
    assert errno_of(os.rmdir, tree / "layers") == errno.ENOTEMPTY
    assert errno_of(os.rmdir, tree / "b") == errno.ENOTDIR
    assert errno_of(os.unlink, tree / "layers") == errno.EISDIR
    os.rmdir(tree / "new")
    os.mkdir(tree / "new")
    os.rename(tree / "b", tree / "new" / "b")
    tree.due["new.b"] = tree.due.pop("b")
    tree.check(files_of(tree))
    os.rename(tree / "layers", tree / "new" / "model")
    for name in [name for name in tree.due if name.startswith("layers")]:
        tree.due["new.model" + name[6:]] = tree.due.pop(name)
    tree.check(files_of(tree))
    assert errno_of(os.rename, tree / "new", tree / "new" / "model" / "x") == errno.EINVAL
    os.mkdir(tree / "empty")
    os.rename(tree / "new" / "model" / "0", tree / "empty")  # over an empty one
    for name in [name for name in tree.due if name.startswith("new.model.0.")]:
        tree.due["empty" + name[len("new.model.0"):]] = tree.due.pop(name)
    tree.check(files_of(tree))
    assert errno_of(os.rename, tree / "new" / "model", tree / "empty") == errno.ENOTEMPTY
    assert errno_of(os.rename, tree / "large", tree / "empty") == errno.EISDIR
    assert errno_of(os.rename, tree / "empty", tree / "large") == errno.ENOTDIR
    tree.check(files_of(tree))
