"""File handles outlive the kernel's inodes: an NFS server keeps them, and opens files by them."""

import ctypes
import errno
import os
import subprocess
from pathlib import Path

import mounted
import pytest
from written_tensor import T

LIBC = ctypes.CDLL(None, use_errno=True)
HANDLE_BYTES = 128

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


class Handle(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint), ("type", ctypes.c_int), ("bytes", ctypes.c_ubyte * HANDLE_BYTES)]


def handle_of(path):
    handle, mount_id = Handle(size=HANDLE_BYTES), ctypes.c_int()
    if LIBC.name_to_handle_at(-100, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount_id), 0):
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return handle


def opened(mount, handle, flags=os.O_RDONLY):
    root = os.open(mount.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        file = LIBC.open_by_handle_at(root, ctypes.byref(handle), flags)
        if file < 0:
            raise OSError(ctypes.get_errno(), "open_by_handle_at")
        return file
    finally:
        os.close(root)


def forget_inodes(mount):
    """Makes the kernel forget the mount's inodes, and waits until the mount has got each FORGET that it will get."""
    subprocess.run(["sh", "-c", "echo 2 > /proc/sys/vm/drop_caches"], check=True)
    os.stat(mount.path)


PLACES = [T, ".safetensors/npy/" + T + ".npy", ".safetensors/archive.safetensors", ".safetensors/pretrained/model.safetensors",
          ".safetensors/header.json"]  # fmt: skip


@needs_root
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("options", ["ro", "rw"])
def test_a_file_is_opened_by_its_handle_after_the_kernel_forgot_it(place, options, mounts, archive):
    mount = mounts(archive.path, options)
    content = (mount / place).read_bytes()
    handle = handle_of(mount / place)
    for _ in range(3):
        forget_inodes(mount)
        file = opened(mount, handle)
        with open(file, "rb") as opened_file:
            assert opened_file.read() == content


@needs_root
def test_a_directory_is_opened_by_its_handle_and_finds_its_parent(mounts, archive):
    # The kernel finds the names of a directory in the listings above it. None lists `.safetensors`.
    mount = mounts(archive.path, "ro,layout=tree")
    place = mount / "layers/0"
    names = os.listdir(place)
    handle = handle_of(place)
    forget_inodes(mount)
    directory = opened(mount, handle, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert os.listdir(directory) == names
        assert os.readlink(f"/proc/self/fd/{directory}") == str(place)
        assert os.stat("..", dir_fd=directory).st_ino == os.stat(mount / "layers").st_ino
    finally:
        os.close(directory)


@needs_root
def test_a_model_in_a_directory_of_models_is_opened_by_its_handle(mounts, archive, tmp_path):
    models = tmp_path / "models"
    models.mkdir()
    for name in ("a", "b"):
        (models / f"{name}.safetensors").write_bytes(Path(archive.path).read_bytes())
    (models / "note.txt").write_text("a note")
    mount = mounts(models, "ro")
    for place in ("b", f"b/{T}", f"b/.safetensors/npy/{T}.npy", "note.txt"):
        is_directory = (mount / place).is_dir()
        content = os.listdir(mount / place) if is_directory else (mount / place).read_bytes()
        handle = handle_of(mount / place)
        forget_inodes(mount)
        file = opened(mount, handle)
        try:
            assert (os.listdir(file) if is_directory else os.pread(file, len(content) + 1, 0)) == content
        finally:
            os.close(file)


@needs_root
def test_a_handle_of_a_deleted_tensor_or_an_old_log_is_stale(mount):
    for place in (T, ".safetensors/log"):
        handle = handle_of(mount / place)
        if place == T:
            os.unlink(mount / T)


        def is_stale(handle=handle):
            forget_inodes(mount)
            return mounted.errno_of(lambda: os.close(opened(mount, handle))) == errno.ESTALE

        assert mounted.eventually(is_stale), place
    os.listdir(mount.path)  # the mount still answers
