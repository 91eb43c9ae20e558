# `kill -9` of the mount in the middle of an edit, at any moment: the next mount shows all of the edit or nothing of it, and
# the reference library reads the same.
import os
import random
import threading
import time

import numpy as np
import pytest
import safetensors
from edited_mount import content, save, stfs, write_tensor
from mounted import unmount_by_force
from safetensors.numpy import save_file

pytestmark = pytest.mark.once

LONG = "STFS_LONG" in os.environ
ROUNDS = 1500 if LONG else 30
SIZES = {"large": 600_001, "b": 3, "c": 70_001, "d": 4096, "e": 30_000}


def state(path):
    """({name: (dtype, shape, bytes)}, {key: value}) as the reference library reads the file; None if it does not."""
    try:
        with safetensors.safe_open(path, "np") as archive:
            metadata = {key: value for key, value in (archive.metadata() or {}).items() if not key.startswith("__")}
        return content(path), metadata
    except safetensors.SafetensorError:
        return None


class Attempt(threading.Thread):
    """An edit that a kill may end."""

    def __init__(self, act):
        super().__init__()
        self.act, self.is_done = act, False

    def run(self):
        try:
            self.act()
            self.is_done = True
        except (OSError, safetensors.SafetensorError):
            pass


def write(path, data):
    with open(path, "wb", buffering=0) as file:
        for begin in range(0, len(data), 200_000):
            file.write(data[begin:begin + 200_000])


class Edits:
    """Each makes (what a program does, the tensors after it, the metadata after it)."""

    def __init__(self, mount, rng, tensors, metadata, scratch):
        self.mount, self.rng, self.scratch = mount, rng, scratch
        self.tensors, self.metadata = dict(tensors), dict(metadata)
        self.name = rng.choice(sorted(tensors))

    def remove(self):
        del self.tensors[self.name]
        return lambda: os.unlink(self.mount / self.name)

    def rename(self):
        new = self.rng.choice(["short", "long" * 40, *self.tensors])
        self.tensors[new] = self.tensors.pop(self.name)
        return lambda: os.rename(self.mount / self.name, self.mount / new)

    def create(self):
        data = self.rng.randbytes(self.rng.choice([5, 9000, 600_000]))
        new = f"new{self.rng.randrange(4)}"
        if new in self.tensors:
            return self.remove()
        self.tensors[new] = ("U8", [len(data)], data)
        return lambda: write_tensor(self.mount / new, data)

    def numpy(self):
        array = np.frombuffer(self.rng.randbytes(4 * self.rng.choice([1, 3000, 100_000])), "<i4")
        self.tensors[self.name] = ("I32", [array.size], array.tobytes())
        np.save(self.scratch / "array.npy", array)
        data = (self.scratch / "array.npy").read_bytes()
        return lambda: write(self.mount / ".safetensors" / "npy" / f"{self.name}.npy", data)

    def reshape(self):
        dtype, shape, data = self.tensors[self.name]
        shape = [1, *shape]
        if len(shape) > 4:
            return self.remove()
        self.tensors[self.name] = (dtype, shape, data)
        return lambda: os.setxattr(self.mount / self.name, "user.safetensors.shape", str(shape).encode())

    def set_metadata(self):
        value = "v" * self.rng.choice([1, 50, 5000])
        self.metadata["key"] = value
        return lambda: os.setxattr(self.mount.path, "user.safetensors.metadata.key", value.encode())

    def checkpoint(self):
        arrays = {name: np.frombuffer(data, "u1") for name, (_, _, data) in self.tensors.items()}
        arrays[self.name] = np.frombuffer(self.rng.randbytes(50_000), "u1")
        arrays["more"] = np.frombuffer(self.rng.randbytes(200_000), "u1")
        self.metadata = {"step": str(self.rng.randrange(1000))}
        self.tensors = {name: ("U8", [array.size], array.tobytes()) for name, array in arrays.items()}
        save_file(arrays, self.scratch / "checkpoint", metadata=self.metadata)
        data = (self.scratch / "checkpoint").read_bytes()
        return lambda: write(self.mount / ".safetensors" / "archive.safetensors", data)


KINDS = ("remove", "rename", "create", "numpy", "reshape", "set_metadata", "checkpoint")


def test_a_killed_mount_has_made_an_edit_or_not(tmp_path, mounts):
    rng = random.Random(1)
    path, mount_point = tmp_path / "m.safetensors", tmp_path / "mnt"
    mount_point.mkdir()
    due = (save(path, SIZES), {})
    seconds = dict.fromkeys(KINDS, 0.01)
    done = undone = 0
    for number in range(10 * ROUNDS):
        if number >= ROUNDS and done and undone:
            break  # kills have come before the commit and behind it
        if len(due[0]) < 3:
            due = (save(path, SIZES, number), {})
        mount = mounts(path, "reshape", path=mount_point)
        kind = rng.choice(KINDS)
        edits = Edits(mount, rng, *due, tmp_path)
        attempt = Attempt(getattr(edits, kind)())
        after = (edits.tensors, edits.metadata)
        began = time.monotonic()
        attempt.start()
        attempt.join(rng.random() * 1.3 * seconds[kind])
        if not attempt.is_alive():
            seconds[kind] = max(seconds[kind] / 2, time.monotonic() - began)
        mount.kill()
        attempt.join()
        unmount_by_force(mount_point)
        seen = state(path)  # by a program that knows nothing of journals
        assert seen in (None, due, after), (number, kind)
        if rng.randrange(2):
            stfs("recover", path)
        again = mounts(path, path=mount_point)
        shown = content(again / ".safetensors" / "archive.safetensors")
        for scratch in set(os.listdir(again.path)) - shown.keys():
            os.unlink(again / scratch)  # what was written of a new tensor
        assert again.unmount() == 0
        found = state(path)
        assert shown == found[0], (number, kind)
        assert found in (due, after), (number, kind)
        assert found == after or (not attempt.is_done and seen != after), (number, kind)
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".m.")], (number, kind)
        if due != after:
            done, undone = done + (found == after), undone + (found == due)
        due = found
    stfs("verify", path)
    assert done and undone
