# A checkpoint of which most bytes differ, as after training, becomes a new file in the archive's place: one write, no filler.
# Readers that have the old archive open still read the old archive.
import contextlib
import errno
import mmap
import os
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from mounted import eventually, unmount_by_force
from own_disk import full_but_for, own_disk
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

FORMAT = {"format": "pt"}


def values(seed, count=8, shape=(256, 512)):
    random = np.random.default_rng(seed)
    return {f"layer.{at}.weight": random.standard_normal(shape).astype("f4") for at in range(count)}


def whole(directory):
    return directory / ".safetensors" / "archive.safetensors"


def is_same(got, due):
    return sorted(got) == sorted(due) and all(
        got[name].dtype == due[name].dtype and np.array_equal(got[name], due[name]) for name in due)


def check(directory, path, due):
    """By the reference library, which would show fillers as tensors; and through the mount, at once."""
    assert sorted(os.listdir(directory)) == sorted(due)
    for name, array in due.items():
        assert (directory / name).read_bytes() == array.tobytes(), name
    assert is_same(load_file(whole(directory)), due)
    assert is_same(load_file(path), due)
    assert [name for name in os.listdir(path.parent) if name.startswith(".")] == []


def open_deleted(pid):
    """Deleted files that the process has open."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # the process closes some meanwhile
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return [target for target in found if ".safetensors (deleted)" in target]


@pytest.fixture
def saved(tmp_path, mounts):
    (tmp_path / "models").mkdir()
    path = tmp_path / "models" / "model.safetensors"
    save_file(values(1), path, metadata=FORMAT)
    return mounts(path), path


def test_new_weights_become_a_new_file_each_time(saved):
    mount, path = saved
    os.chmod(path, 0o640)
    os.setxattr(path, "user.note", b"kept")
    inodes = [os.stat(path).st_ino]
    for step in range(2, 5):
        due = values(step)
        save_file(due, whole(mount.path), metadata=dict(FORMAT, step=str(step)))
        check(mount.path, path, due)
        assert safe_open(path, "np").metadata() == dict(FORMAT, step=str(step))
        inodes.append(os.stat(path).st_ino)
        assert inodes[-1] != inodes[-2]
    assert os.stat(path).st_mode & 0o7777 == 0o640
    assert os.getxattr(path, "user.note") == b"kept"
    # The space of the old archives is free.
    assert eventually(lambda: not open_deleted(mount.process.pid))
    due["layer.3.weight"][0, 0] = 1
    save_file(due, whole(mount.path), metadata=dict(FORMAT, step="4"))
    check(mount.path, path, due)
    assert os.stat(path).st_ino == inodes[-1]
    assert "1 of 8 tensors differed" in mount.log()


def test_it_is_written_once(saved):
    mount, path = saved

    def written():
        with open(f"/proc/{mount.process.pid}/io", encoding="ascii") as counts:
            return int(dict(line.split(": ") for line in counts)["wchar"])

    before = written()
    save_file(values(2), whole(mount.path), metadata=FORMAT)
    # An eighth of the checkpoint is staged before the mount decides that most bytes differ.
    assert written() - before < 1.2 * os.stat(path).st_size


def test_other_names_and_shapes_leave_no_filler(saved):
    mount, path = saved
    due = values(2, count=5, shape=(300, 500))
    due["embedding"] = np.arange(1000)
    save_file(due, whole(mount.path), metadata=FORMAT)
    check(mount.path, path, due)


READER = """import mmap, sys
with open(sys.argv[1], "rb") as file, open(sys.argv[2], "rb") as shown:
    bytes, tensor = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), mmap.mmap(shown.fileno(), 0, prot=mmap.PROT_READ)
    print(bytes[:8].hex(), flush=True)
    sys.stdin.readline()
    sys.stdout.buffer.write(bytes[:] + tensor[:])"""


def test_another_process_goes_on_reading_the_old_file(saved):
    mount, path = saved
    before = path.read_bytes()
    tensor = values(1)["layer.5.weight"].tobytes()
    with subprocess.Popen([sys.executable, "-c", READER, path, mount.path / "layer.5.weight"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as reader:
        assert reader.stdout.readline().strip().decode() == before[:8].hex()
        save_file(values(2), whole(mount.path), metadata=FORMAT)
        check(mount.path, path, values(2))
        seen = reader.communicate(b"\n")[0]
    assert seen == before + tensor


def test_a_write_to_the_old_archive_that_is_on_its_way_keeps_the_save_in_place(saved):
    mount, path = saved
    inode = os.stat(path).st_ino
    with open(mount.path / "layer.0.weight", "r+b", buffering=0) as file:
        file.write(b"12345678")
        save_file(values(2), whole(mount.path), metadata=FORMAT)
        assert os.stat(path).st_ino == inode
    assert (mount.path / "layer.0.weight").read_bytes()[:8] == b"12345678"
    assert (mount.path / "layer.1.weight").read_bytes() == values(2)["layer.1.weight"].tobytes()


def test_a_file_of_the_old_archive_is_not_written(saved):
    mount, path = saved
    old = os.open(mount.path / "layer.0.weight", os.O_RDONLY)
    save_file(values(2), whole(mount.path), metadata=FORMAT)
    try:
        with pytest.raises(OSError) as refused, open(f"/proc/self/fd/{old}", "wb", buffering=0) as file:
            file.write(bytes(len(values(1)["layer.0.weight"].tobytes())))
        assert refused.value.errno == errno.ESTALE
    finally:
        os.close(old)
    check(mount.path, path, values(2))


def test_another_mount_shows_the_new_archive(saved, mounts):
    mount, path = saved
    other = mounts(path)
    reader = open(other.path / "layer.0.weight", "rb")
    save_file(values(2), whole(mount.path), metadata=FORMAT)
    due = values(2)["layer.0.weight"].tobytes()
    assert eventually(lambda: (other.path / "layer.0.weight").read_bytes() == due)
    assert reader.read() == values(1)["layer.0.weight"].tobytes()
    reader.close()
    save_file(values(3), whole(other.path), metadata=FORMAT)
    check(other.path, path, values(3))
    assert eventually(lambda: (mount.path / "layer.0.weight").read_bytes() == values(3)["layer.0.weight"].tobytes())
    check(mount.path, path, values(3))


def test_a_model_of_a_directory_is_replaced_among_the_others(tmp_path, mounts):
    models = tmp_path / "zoo"
    models.mkdir()
    for at, name in enumerate(("one", "two")):
        save_file(values(at), models / f"{name}.safetensors", metadata=FORMAT)
    mount = mounts(models)
    inode = os.stat(models / "one.safetensors").st_ino
    for step in (5, 6):
        save_file(values(step), whole(mount.path / "one"), metadata=FORMAT)
        check(mount.path / "one", models / "one.safetensors", values(step))
        assert os.stat(models / "one.safetensors").st_ino != inode
        inode = os.stat(models / "one.safetensors").st_ino
    check(mount.path / "two", models / "two.safetensors", values(1))


def test_a_save_into_pretrained_replaces_the_archive(saved):
    mount, path = saved
    inode = os.stat(path).st_ino
    save_file(values(2), mount.path / ".safetensors" / "pretrained" / "model.safetensors", metadata=FORMAT)
    check(mount.path, path, values(2))
    assert os.stat(path).st_ino != inode


def test_scratch_files_and_mappings_outlive_the_save(saved):
    mount, path = saved
    (mount.path / "notes.txt").write_text("kept")
    with open(mount.path / "layer.2.weight", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    save_file(values(2), whole(mount.path), metadata=FORMAT)
    assert (mount.path / "notes.txt").read_text() == "kept"
    assert mapped[:] == values(1)["layer.2.weight"].tobytes()
    mapped.close()
    os.unlink(mount.path / "notes.txt")
    check(mount.path, path, values(2))


def test_without_space_for_another_file_it_is_saved_in_place(tmp_path, mounts):
    before, due = values(1, 24), values(2, 24)
    for at in range(16, 24):
        due[f"layer.{at}.weight"] = before[f"layer.{at}.weight"]
    with own_disk("tmpfs", tmp_path / "disk") as disk:
        path = disk / "model.safetensors"
        save_file(before, path, metadata=FORMAT)
        size, inode = os.stat(path).st_size, os.stat(path).st_ino
        mount = mounts(path)
        with full_but_for(disk, size * 5 // 6):
            save_file(due, whole(mount.path), metadata=FORMAT)
        check(mount.path, path, due)
        assert os.stat(path).st_ino == inode
        assert "is saved in place" in mount.log() and "No space left on device" in mount.log()
        save_file(before, whole(mount.path), metadata=FORMAT)
        check(mount.path, path, before)
        assert os.stat(path).st_ino != inode
        assert mount.unmount() == 0


SAVER = """import sys
import numpy as np
from safetensors.numpy import load_file, save_file
for step in range(20):
    tensors = {f"w{at}": np.random.default_rng(step).standard_normal(100_000).astype("f4") for at in range(4)}
    save_file(tensors, sys.argv[1])
    assert all(np.array_equal(array, tensors[name]) for name, array in load_file(sys.argv[1]).items())
"""


@pytest.mark.parametrize("directory, name", [(".safetensors", "archive.safetensors"),
                                             (".", ".safetensors/archive.safetensors")])
def test_a_program_in_a_directory_of_the_mount_saves_again_and_again(saved, directory, name):
    mount, path = saved
    subprocess.run([sys.executable, "-c", SAVER, name], cwd=mount.path / directory, check=True)
    due = {f"w{at}": np.random.default_rng(19).standard_normal(100_000).astype("f4") for at in range(4)}
    check(mount.path, path, due)


def test_readers_meanwhile_see_files_of_one_archive(saved):
    """A file is of one archive from its open to its close, however many requests its bytes take."""
    mount, path = saved
    stop, wrong, reads = threading.Event(), [], [0, 0]

    def uniform(value):
        return {f"layer.{at}.weight": np.full((256, 512), value, "f4") for at in range(8)}

    save_file(uniform(0), whole(mount.path))

    def read(number):
        while not stop.is_set():
            for name in uniform(0):
                array = np.frombuffer((mount.path / name).read_bytes(), "f4")
                if array.size != 256 * 512 or array.min() != array.max():
                    wrong.append(name)
            tensors = load_file(whole(mount.path))
            if len({float(array.flat[0]) for array in tensors.values()}) != 1:
                wrong.append("the whole model")
            reads[number] += 1

    readers = [threading.Thread(target=read, args=(number,)) for number in range(len(reads))]
    for reader in readers:
        reader.start()
    inodes = set()
    for step in range(1, 16):
        save_file(uniform(step), whole(mount.path))
        inodes.add(os.stat(path).st_ino)
        check(mount.path, path, uniform(step))
    assert eventually(lambda: min(reads) > 1)
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == [] and len(inodes) > 1
    assert eventually(lambda: not open_deleted(mount.process.pid))


@pytest.mark.once
def test_a_killed_mount_leaves_the_old_archive_or_the_new_one(tmp_path, mounts):
    """`kill -9` at any moment of a save; a plain reader finds a whole archive, and the next mount no file of ours."""
    rng = random.Random(1)
    (tmp_path / "models").mkdir()
    path, mount_point = tmp_path / "models" / "model.safetensors", tmp_path / "mnt"
    mount_point.mkdir()
    save_file(values(0), path)
    due, seconds, kept, saved_anew = 0, 0.1, 0, 0
    for step in range(1, 300):
        if step > 20 and kept and saved_anew:
            break
        mount = mounts(path, path=mount_point)
        saver = threading.Thread(target=lambda: save_quietly(values(step), whole(mount.path)))
        began = time.monotonic()
        saver.start()
        saver.join(rng.random() * 1.3 * seconds)
        if not saver.is_alive():
            seconds = max(seconds / 2, time.monotonic() - began)
        mount.kill()
        saver.join()
        unmount_by_force(mount_point)
        found = load_file(path)
        is_new = is_same(found, values(step))
        assert is_new or is_same(found, values(due)), step
        kept, saved_anew = kept + (not is_new), saved_anew + is_new
        due = step if is_new else due
        again = mounts(path, path=mount_point)
        check(again.path, path, values(due))
        assert again.unmount() == 0
    assert kept and saved_anew


def save_quietly(tensors, path):
    try:
        save_file(tensors, path)
    except (OSError, SafetensorError):
        pass
