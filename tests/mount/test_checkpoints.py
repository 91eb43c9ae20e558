# A whole checkpoint is saved through a mount, as a framework does it: only what differs is stored, all of it or nothing.
import errno
import os
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
import safetensors
from edited_mount import stfs
from mounted import errno_of, eventually
from safetensors.numpy import load_file, save_file
from sharded_model import ShardedModel

FORMAT = {"format": "pt"}


def values(count=12, seed=1):
    random = np.random.default_rng(seed)
    return {f"layer.{at}.weight": random.standard_normal((300, 256)).astype("f4") for at in range(count)}


def whole(mount):
    return mount.path / ".safetensors" / "archive.safetensors"


def is_same(got, due):
    return sorted(got) == sorted(due) and all(
        got[name].dtype == due[name].dtype and np.array_equal(got[name], due[name]) for name in due)


def stored(path):
    return {name: array for name, array in load_file(path).items() if not name.startswith("__safetensorsfs.free.")}


def check(mount, path, due):
    assert is_same(stored(path), due)
    assert is_same(load_file(whole(mount)), due)
    for name, array in due.items():
        assert (mount.path / name).read_bytes() == array.tobytes(), name


@pytest.fixture
def saved(tmp_path, mounts):
    path = tmp_path / "model.safetensors"
    save_file(values(), path, metadata=FORMAT)
    return mounts(path), path, values()


def test_save_file_stores_what_differs_in_place(saved):
    mount, path, due = saved
    before = os.stat(path)
    reader = open(mount.path / "layer.0.weight", "rb")
    for step in range(3):
        due["layer.3.weight"][step, 5] = step
        save_file(due, whole(mount), metadata=FORMAT)
        check(mount, path, due)
    assert os.stat(path).st_ino == before.st_ino and os.stat(path).st_size == before.st_size
    assert reader.read() == due["layer.0.weight"].tobytes()
    reader.close()
    assert "1 of 12 tensors differed" in mount.log()


def test_a_checkpoint_may_have_other_tensors_forms_and_metadata(saved):
    mount, path, due = saved
    reader = safetensors.safe_open(whole(mount), "np")
    before = {name: reader.get_tensor(name).copy() for name in reader.keys()}
    del due["layer.0.weight"]
    due["layer.1.weight"] = due["layer.1.weight"].astype("f2")
    due["layer.2.weight"][0, 0] = 7
    due["new"] = np.arange(5)
    save_file(due, whole(mount), metadata={"format": "np", "step": "1"})
    check(mount, path, due)
    assert safetensors.safe_open(path, "np").metadata() == {"format": "np", "step": "1"}
    # A reader still reads the model that it opened before.
    assert is_same({name: reader.get_tensor(name) for name in reader.keys()}, before)


def test_temporary_files_and_plain_copies_are_checkpoints(saved, tmp_path):
    mount, path, due = saved
    due["layer.5.weight"][:] = 1
    save_file(due, tmp_path / "other.safetensors", metadata=FORMAT)
    shutil.copyfile(tmp_path / "other.safetensors", whole(mount))
    check(mount, path, due)
    due["layer.6.weight"][:] = 2
    temporary = whole(mount).parent / "step-100.safetensors.tmp"
    save_file(due, temporary, metadata=FORMAT)
    assert not is_same(stored(path), due)
    os.replace(temporary, whole(mount))
    check(mount, path, due)
    due["layer.7.weight"][:] = 3
    save_file(due, mount.path / ".safetensors" / "pretrained" / "model.safetensors", metadata=FORMAT)
    check(mount, path, due)
    assert not [name for name in os.listdir(path.parent) if name.startswith(".")]


def test_what_is_cut_too_long_or_no_archive_changes_nothing(saved):
    mount, path, due = saved
    before = path.read_bytes()
    other = dict(due, **{"layer.0.weight": due["layer.0.weight"] + 1})
    save_file(other, path.parent / "other.safetensors", metadata=FORMAT)
    data = (path.parent / "other.safetensors").read_bytes()
    for bad in (data[:-1], data[:100], data + b"x", b"garbage" * 1000, b"\xff" * 8):
        with pytest.raises(OSError) as refused:
            with open(whole(mount), "wb", buffering=0) as file:
                file.write(bad)
        assert refused.value.errno == errno.EINVAL
        assert path.read_bytes() == before
    assert "its header gives" in mount.log()
    check(mount, path, due)


def test_an_archive_with_holes_of_deleted_tensors_is_copied(saved, tmp_path):
    """cp(1) skips the holes; it must not look like a checkpoint whose bytes do not come in order."""
    mount, path, due = saved
    holed = tmp_path / "holed.safetensors"
    save_file(due | {"large": np.ones(3_000_000, "f4")}, holed, metadata=FORMAT)
    stfs("rm", "--keep-space", holed, "large")
    with open(holed, "rb") as file:
        has_hole = os.lseek(file.fileno(), 0, os.SEEK_HOLE) < os.fstat(file.fileno()).st_size
    if not has_hole:
        pytest.skip(f"{tmp_path} keeps no holes")
    subprocess.run(["cp", holed, whole(mount)], check=True)
    check(mount, path, due)


def test_a_killed_saver_changes_nothing_and_the_next_one_saves(saved):
    mount, path, due = saved
    before = path.read_bytes()
    due["layer.1.weight"][:] = 5
    save_file(due, path.parent / "other.safetensors", metadata=FORMAT)
    write_half = """import sys, time
with open(sys.argv[1], "rb") as source, open(sys.argv[2], "wb", buffering=0) as target:
    target.write(source.read(1000000))
    print("half", flush=True)
    time.sleep(1000)"""
    saver = subprocess.Popen([sys.executable, "-c", write_half, path.parent / "other.safetensors", whole(mount)],
                             stdout=subprocess.PIPE)
    assert saver.stdout.readline() == b"half\n"
    assert errno_of(os.open, whole(mount), os.O_WRONLY) == errno.EBUSY
    saver.kill()
    saver.wait()
    saver.stdout.close()
    assert path.read_bytes() == before
    assert eventually(lambda: errno_of(shutil.copyfile, path.parent / "other.safetensors", whole(mount)) == 0)
    check(mount, path, due)


def test_shards_and_their_index_change_together(tmp_path, mounts):
    due = values(9)
    sharded = ShardedModel(tmp_path / "sharded", tensors=due)
    mount = mounts(sharded.index)
    due["layer.2.weight"][:] = 1
    due["layer.8.weight"][:] = 2
    save_file(due, whole(mount))
    assert is_same(load_file(whole(mount)), due)
    due["new"] = np.ones(3)
    del due["layer.0.weight"]
    save_file(due, whole(mount))
    again = mounts(sharded.index)
    assert is_same(load_file(whole(again)), due)


def test_readers_meanwhile_see_each_tensor_old_or_new(saved):
    mount, path, due = saved
    due["page"] = np.zeros(1024, "f4")  # a larger one takes several requests, between which a checkpoint may come
    save_file(due, whole(mount), metadata=FORMAT)
    stop, wrong = threading.Event(), []
    names = list(due)

    def read():
        while not stop.is_set():
            for name in names:
                array = np.frombuffer((mount.path / name).read_bytes(), "f4")
                if name == "page" and len(set(array.tolist())) != 1:
                    wrong.append(name)

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(8):
        due[names[0]][:] = step
        due["page"][:] = step
        save_file(due, whole(mount), metadata=FORMAT)
    stop.set()
    reader.join()
    assert not wrong
    check(mount, path, due)


@pytest.mark.parametrize("options", ["ro", "edit=off"])
def test_a_mount_without_edits_refuses_a_checkpoint(tmp_path, mounts, options):
    path = tmp_path / "model.safetensors"
    save_file(values(2), path)
    mount = mounts(path, options)
    with pytest.raises(OSError) as refused:
        open(whole(mount), "wb")
    assert refused.value.errno == errno.EROFS
    with pytest.raises(safetensors.SafetensorError):
        save_file(values(2), whole(mount))


def test_a_checkpoint_with_few_changes_writes_little(tmp_path, mounts):
    due = values(100)
    path = tmp_path / "model.safetensors"
    save_file(due, path, metadata=FORMAT)
    mount = mounts(path)
    due["layer.50.weight"][:] += 1

    def written():
        with open(f"/proc/{mount.process.pid}/io", encoding="ascii") as counts:
            return int(dict(line.split(": ") for line in counts)["wchar"])

    before = written()
    save_file(due, whole(mount), metadata=FORMAT)
    # One tensor of 100: beside the archive, in the journal, and in the archive.
    assert written() - before < 0.05 * os.stat(path).st_size
    check(mount, path, due)
