# A mounted archive that a test edits, and its expected content. The reference library checks the archive's file and
# archive.safetensors, `stfs verify` checks the archive, and the test compares the files of the mount.
import ctypes
import os
import random
import subprocess

import numpy as np
import safetensors
import safetensors.numpy
from mounted import BUILD

STFS = BUILD / "stfs"
FREE = "__safetensorsfs.free."
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)


def renameat2(old, new, flags):
    """The errno; 0 for a success."""
    if _libc.renameat2(-100, os.fsencode(str(old)), -100, os.fsencode(str(new)), flags) == 0:
        return 0
    return ctypes.get_errno()


def stfs(*words, code=0):
    done = subprocess.run([STFS, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def content(path):
    """{name: (dtype, shape, bytes)} as the reference library reads the file."""
    with open(path, "rb") as file:
        return {name: (entry["dtype"], list(entry["shape"]), bytes(entry["data"]))
                for name, entry in safetensors.deserialize(file.read()) if not name.startswith(FREE)}


def u8(data):
    return ("U8", [len(data)], bytes(data))


def write_tensor(path, data):
    """Makes a U8 tensor of a new file, or gives a tensor new bytes of any number."""
    with open(path, "wb", buffering=0) as file:
        os.setxattr(file.fileno(), "user.safetensors.dtype", b"U8")
        os.setxattr(file.fileno(), "user.safetensors.shape", f"[{len(data)}]".encode())
        for at in range(0, len(data), 1 << 20):
            file.write(data[at:at + (1 << 20)])


class EditedMount:
    def __init__(self, mount, archives, due):
        self.mount, self.archives, self.due = mount, archives, dict(due)

    def __truediv__(self, name):
        return self.mount / name

    @property
    def view(self):
        return self.mount / ".safetensors" / "archive.safetensors"

    def npy(self, name):
        return self.mount / ".safetensors" / "npy" / f"{name}.npy"

    def form(self, name):
        return self.mount.attribute(name, "dtype"), self.mount.attribute(name, "shape")

    def stored(self):
        found = {}
        for archive in self.archives:
            mine = content(archive)
            assert not found.keys() & mine.keys(), "a tensor lies in two shards"
            found.update(mine)
        return found

    def check(self, files=None):
        """files: {name of the file: name of the tensor}; by default the files have the tensors' names."""
        assert self.stored() == self.due
        self.check_shown(files)
        for archive in self.archives:
            stfs("verify", archive)

    def check_shown(self, files=None):
        assert content(self.view) == self.due
        files = {name: name for name in self.due} if files is None else files
        assert sorted(os.listdir(self.mount.path)) == sorted({file.split("/")[0] for file in files})
        for file, name in files.items():
            dtype, shape, data = self.due[name]
            assert (self.mount / file).read_bytes() == data, file
            assert self.form(file) == (dtype, str(shape).replace(" ", "")), file
            assert self.mount.attribute(file, "name") == name

    def remove(self, name):
        os.unlink(self.mount / name)
        del self.due[name]

    def rename(self, old, new):
        os.rename(self.mount / old, self.mount / new)
        self.due[new] = self.due.pop(old)

    def write(self, name, data):
        write_tensor(self.mount / name, data)
        self.due[name] = u8(data)


def save(path, sizes, seed=1, metadata=None):
    """U8 tensors of these sizes by the reference library; what content() must find."""
    rng = random.Random(seed)
    arrays = {name: np.frombuffer(rng.randbytes(size), "u1") for name, size in sizes.items()}
    safetensors.numpy.save_file(arrays, path, metadata=metadata)
    return {name: u8(array.tobytes()) for name, array in arrays.items()}
