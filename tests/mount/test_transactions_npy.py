# NumPy files in a transaction's directory: `cp file.npy T/.safetensors/npy/NAME.npy` stages a tensor with the file's
# dtype and shape. Each rule has its line in tests/fs/transaction_npy_test.cc.
import errno
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors
from edited_mount import EditedMount, save, stfs, u8
from mounted import errno_of, eventually, shell
from sharded_model import ShardedModel

SIZES = {"large": 300_001, "b": 16, "layers.0.c": 70_000, "layers.0.d": 4096, "layers.1.c": 5000}


def begin(mount):
    directory = mount / ".safetensors" / "transactions" / "T"
    directory.mkdir()
    return directory


def commit(mount):
    os.rename(mount / ".safetensors" / "transactions" / "T", mount / ".safetensors" / "committed" / "T")


def npy(directory, name):
    return directory / ".safetensors" / "npy" / f"{name}.npy"


def copy(array, tmp_path, target):
    np.save(tmp_path / "array.npy", array)
    return shell('cp "$1" "$2"', tmp_path / "array.npy", target)


def stage(directory, tmp_path, name, array):
    done = copy(array, tmp_path, npy(directory, name))
    assert done.returncode == 0, done.stderr


@pytest.fixture
def edited(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    due = save(path, SIZES)
    return EditedMount(mounts(path, "reshape"), [path], due)


@pytest.mark.parametrize("kind", ["flat", "tree", "shards", "delta"])
def test_a_commit_has_numpy_files_patches_removals_and_renamings(tmp_path, mounts, kind):
    if kind == "shards":
        model = ShardedModel(tmp_path / "sharded")
        source, due = model.index, dict(model.reference())
        archives = [model.directory / name for name in model.names]
    else:
        source = tmp_path / "m.safetensors"
        due = save(source, SIZES)
        archives = [source]
    before = [archive.read_bytes() for archive in archives]
    options = "reshape," + {"tree": "layout=tree", "delta": f"delta={tmp_path / 'delta.safetensors'}"}.get(kind, "")
    edited = EditedMount(mounts(source, options), archives, due)
    replaced, patched, removed, moved = sorted(due)[:4]
    directory = begin(edited)
    assert os.listdir(directory) == []
    stage(directory, tmp_path, "new.w", np.arange(60_000, dtype="f4").reshape(300, 200))
    stage(directory, tmp_path, replaced, np.arange(6, dtype="i2").reshape(2, 3))
    data = os.urandom(len(due[patched][2]))
    (directory / patched).write_bytes(data)
    os.unlink(directory / removed)
    os.rename(directory / moved, directory / "moved")
    stage(directory, tmp_path, "moved", np.array(True))
    assert sorted(os.listdir(directory)) == sorted(["new.w", replaced, patched, "moved"])
    assert np.array_equal(np.load(npy(directory, "new.w")), np.arange(60_000, dtype="f4").reshape(300, 200))
    assert np.load(npy(directory, replaced), mmap_mode="r").shape == (2, 3)
    assert (directory / replaced).read_bytes() == np.arange(6, dtype="i2").tobytes()
    assert os.getxattr(directory / "moved", "user.safetensors.dtype") == b"BOOL"
    assert [archive.read_bytes() for archive in archives] == before
    assert shell('mv "$1" "$2"', directory, edited / ".safetensors/committed").returncode == 0
    due["new.w"] = ("F32", [300, 200], np.arange(60_000, dtype="f4").tobytes())
    due[replaced] = ("I16", [2, 3], np.arange(6, dtype="i2").tobytes())
    due[patched] = (*due[patched][:2], data)
    del due[removed], due[moved]
    due["moved"] = ("BOOL", [], b"\1")
    edited.due = due
    files = {name.replace(".", "/"): name for name in due} if kind == "tree" else None
    if kind == "delta":
        edited.check_shown()
        assert [archive.read_bytes() for archive in archives] == before
    else:
        edited.check(files)
        with safetensors.safe_open(archives[-1], "np") as archive:  # where new tensors go
            assert np.array_equal(archive.get_tensor("new.w"), np.arange(60_000, dtype="f4").reshape(300, 200))
    stfs("verify", source)


def test_rm_rolls_back_numpy_files(edited, tmp_path):
    before = edited.archives[0].read_bytes()
    directory = begin(edited)
    stage(directory, tmp_path, "new", np.zeros(100_000))
    stage(directory, tmp_path, "b", np.zeros((2, 2)))
    done = shell('rm -r "$1"', directory)
    assert done.returncode == 0, done.stderr
    assert os.listdir(edited / ".safetensors/transactions") == []
    assert errno_of(os.stat, npy(directory, "new")) == errno.ENOENT
    edited.check()
    edited.mount.unmount()
    assert edited.archives[0].read_bytes() == before
    assert not [name for name in os.listdir(tmp_path) if name.startswith("m.safetensors.")]


@pytest.mark.parametrize("name", ["new", "b"])
def test_what_is_no_tensor_is_refused_at_its_close_and_by_the_commit(edited, tmp_path, name):
    directory = begin(edited)
    good = np.arange(4, dtype="f8")
    np.save(tmp_path / "good.npy", good)
    image = (tmp_path / "good.npy").read_bytes()
    for data, why in ((image[:-1], "has 31 bytes of data, its header gives 32"), (b"text", "does not begin like one"),
                      (image[:9], "is truncated")):
        (tmp_path / "bad.npy").write_bytes(data)
        done = shell('cp "$1" "$2"', tmp_path / "bad.npy", npy(directory, name))
        assert done.returncode != 0 and "Invalid argument" in done.stderr
        assert why in edited.mount.log()
    for array, why in ((np.asfortranarray(np.zeros((2, 2))), "Fortran order"), (np.zeros(2, ">f4"), "big-endian"),
                       (np.zeros(2, "c16"), "no dtype is meant by"), (np.zeros(2, "V2"), "no dtype is meant by |V2 alone")):
        done = copy(array, tmp_path, npy(directory, name))
        assert done.returncode != 0 and "Invalid argument" in done.stderr
        assert why in edited.mount.log()
    assert errno_of(commit, edited) == errno.ENODATA
    assert "transaction T: not committed" in edited.mount.log()
    edited.check()
    stage(directory, tmp_path, name, good)
    commit(edited)
    edited.due[name] = ("F64", [4], good.tobytes())
    edited.check()


def test_a_killed_writer_stages_nothing_and_the_commit_says_so(edited, tmp_path):
    directory = begin(edited)
    np.save(tmp_path / "array.npy", np.arange(1000))
    writer = subprocess.Popen([sys.executable, "-c", """
import os, sys, time
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
os.write(fd, open(sys.argv[2], "rb").read())
print("written", flush=True)
time.sleep(1000)
""", npy(directory, "new"), tmp_path / "array.npy"], stdout=subprocess.PIPE)
    writer.stdout.readline()
    assert errno_of(commit, edited) == errno.EBUSY
    writer.kill()
    writer.wait()
    assert eventually(lambda: "was killed by a signal before it closed" in edited.mount.log())
    assert eventually(lambda: os.listdir(directory) == ["new"])
    assert errno_of(commit, edited) == errno.EIO
    edited.check()
    os.unlink(directory / "new")
    commit(edited)
    edited.check()


def test_numpy_maps_and_changes_a_file_of_a_transaction(edited):
    directory = begin(edited)
    made = np.lib.format.open_memmap(npy(directory, "mapped"), mode="w+", dtype="i4", shape=(100, 50))
    made[:] = np.arange(5000).reshape(100, 50)
    made.flush()
    del made
    changed = np.load(npy(directory, "b"), mmap_mode="r+")
    changed[:4] = 7
    changed.flush()
    del changed
    assert eventually(lambda: sorted(os.listdir(directory)) == ["b", "mapped"])
    commit(edited)
    edited.due["mapped"] = ("I32", [100, 50], np.arange(5000, dtype="i4").tobytes())
    edited.due["b"] = u8(b"\7" * 4 + edited.due["b"][2][4:])
    edited.check()


def test_a_shell_uses_its_own_file_and_the_numpy_file_in_turn(edited, tmp_path):
    directory = begin(edited)
    for step in range(5):
        stage(directory, tmp_path, "new", np.full((step + 1, 2), step, "i4"))
        assert (directory / "new").read_bytes() == np.full((step + 1, 2), step, "i4").tobytes()
        done = shell('printf 12345678 | dd of="$1" conv=notrunc status=none', directory / "new")
        assert done.returncode == 0, done.stderr
        assert np.load(npy(directory, "new")).tobytes()[:8] == b"12345678"
        os.rename(directory / "new", directory / "other")
        assert not npy(directory, "new").exists() and npy(directory, "other").exists()
        os.rename(directory / "other", directory / "new")
    commit(edited)
    edited.due["new"] = ("I32", [5, 2], b"12345678" + np.full(8, 4, "i4").tobytes())
    edited.check()


def test_a_new_dtype_is_set_before_the_close_and_edit_off_refuses(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    due = save(path, SIZES)
    mount = mounts(path)
    edited = EditedMount(mount, [path], due)
    directory = begin(edited)
    np.save(tmp_path / "array.npy", np.arange(8, dtype="u2"))
    with open(npy(directory, "half"), "wb", buffering=0) as file:
        os.setxattr(npy(directory, "half"), "user.safetensors.dtype", b"BF16")
        file.write((tmp_path / "array.npy").read_bytes())
    commit(edited)
    edited.due["half"] = ("BF16", [8], np.arange(8, dtype="u2").tobytes())
    edited.check()
    mount.unmount()
    edited = EditedMount(mounts(path, "edit=off"), [path], edited.due)
    directory = begin(edited)
    done = copy(np.zeros(2), tmp_path, npy(directory, "new"))
    assert done.returncode != 0 and "Operation not permitted" in done.stderr
    assert np.load(npy(directory, "half")).tolist() == list(range(8))
    edited.check()
