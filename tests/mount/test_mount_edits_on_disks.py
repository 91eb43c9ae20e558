# Edits through a mount on ext4, xfs, btrfs and tmpfs: of archives as the reference library writes them (a header without
# room, data that are not aligned), and on a full disk.
import errno
import os
import random

import numpy as np
import pytest
from edited_mount import EditedMount, save, u8
from mounted import errno_of, eventually
from own_disk import KINDS, full_but_for, own_disk
from safetensors.numpy import save_file

SIZES = {"large": 3_000_001, "b": 3, "c": 70_001, "d": 4096, "e": 4097}


@pytest.fixture(params=KINDS)
def disk(request, tmp_path):
    """An empty file system of each kind. Its mounts must end before it."""
    with own_disk(request.param, tmp_path / "disk") as path:
        yield path


@pytest.fixture
def edit(disk, mounts):
    """edit(NAME) -> an archive of that name, mounted."""
    made = []

    def make(name, sizes=None):
        path = disk / f"{name}.safetensors"
        due = save(path, SIZES if sizes is None else sizes)
        made.append(EditedMount(mounts(path, "reshape"), [path], due))
        return made[-1]

    yield make
    for edited in made:
        assert edited.mount.unmount() == 0
    assert not hidden(disk)


def hidden(disk):
    return [name for name in os.listdir(disk) if name.startswith(".")]


def change(edited, name):
    """The edit of that name."""
    rng = random.Random(name)
    if name == "rm":
        edited.remove("large")
    elif name == "mv":
        edited.rename("c", "a.name.that.is.much.longer.than.the.one.before" * 3)
    elif name == "create":
        edited.write("new", rng.randbytes(1_000_003))
    elif name == "npy":
        array = np.frombuffer(rng.randbytes(9 * 4), "<f4").reshape(3, 3)
        np.save(edited.npy("d"), array)
        edited.due["d"] = ("F32", [3, 3], array.tobytes())
    elif name == "dtype":
        os.setxattr(edited / "d", "user.safetensors.dtype", b"BF16")
        edited.due["d"] = ("BF16", [2048], edited.due["d"][2])
    elif name == "metadata":
        os.setxattr(edited.mount.path, "user.safetensors.metadata.key", b"v" * 3000)
        assert edited.mount.attribute(None, "metadata.key") == "v" * 3000
    elif name == "size":
        with open(edited / "e", "wb", buffering=0) as file:
            os.setxattr(edited / "e", "user.safetensors.shape", b"[500001]")
            file.write(data := rng.randbytes(500_001))
        edited.due["e"] = u8(data)
    elif name == "checkpoint":
        arrays = {"c": np.frombuffer(rng.randbytes(70_001), "u1"), "d": np.frombuffer(edited.due["d"][2], "u1"),
                  "fresh": np.frombuffer(rng.randbytes(600_000), "<f4")}
        save_file(arrays, edited.view, metadata={"step": "1"})
        edited.due = {"c": u8(arrays["c"]), "d": u8(arrays["d"]), "fresh": ("F32", [150_000], arrays["fresh"].tobytes())}
    else:
        data = rng.randbytes(70_001)
        (edited / "c").write_bytes(data)
        edited.due["c"] = u8(data)


# In an order in which each of them can follow those before it.
EDITS = ("rm", "create", "dtype", "npy", "metadata", "size", "bytes", "checkpoint", "mv")


def test_each_edit_of_a_tight_archive_and_all_after_each_other(edit):
    for name in EDITS:
        one = edit(name)
        change(one, name)
        one.check()
    together = edit("together")
    for name in EDITS:
        change(together, name)
        together.check()


def write(path, data):
    with open(path, "wb", buffering=0) as file:
        if path.name == "new":
            os.setxattr(path, "user.safetensors.dtype", b"U8")
            os.setxattr(path, "user.safetensors.shape", f"[{len(data)}]".encode())
        for begin in range(0, len(data), 1 << 20):
            file.write(data[begin:begin + (1 << 20)])


@pytest.mark.sequential
def test_a_full_disk_refuses_each_edit_and_changes_nothing(disk, edit, tmp_path, request):
    left_bytes = 0 if request.node.callspec.params["disk"] in ("xfs", "tmpfs") else 1 << 20
    edited = edit("m")
    other_size = random.Random(3).randbytes(6_000_001)
    changed = np.frombuffer(random.Random(4).randbytes(3_000_001), "u1")
    same_forms = {name: np.frombuffer(data, "u1") for name, (_, _, data) in edited.due.items()}
    save_file(same_forms | {"large": changed}, tmp_path / "changed.safetensors")
    save_file(same_forms | {"more": np.frombuffer(other_size, "u1")}, tmp_path / "more.safetensors")

    def write_other_size():
        with open(edited / "e", "wb", buffering=0) as file:
            os.setxattr(edited / "e", "user.safetensors.shape", b"[6000001]")
            file.write(other_size)

    attempts = {"a new tensor": lambda: write(edited / "new", other_size),
                "another size": write_other_size,
                "a NumPy file": lambda: np.save(edited.npy("npy"), np.frombuffer(other_size, "u1")),
                "other bytes": lambda: write(edited / "large", changed.tobytes()),
                "a checkpoint": lambda: write(edited.view, (tmp_path / "changed.safetensors").read_bytes()),
                "a larger checkpoint": lambda: write(edited.view, (tmp_path / "more.safetensors").read_bytes())}
    before = edited.archives[0].read_bytes()
    with full_but_for(disk, left_bytes):
        for name, attempt in attempts.items():
            assert errno_of(attempt) == errno.ENOSPC, name
            if name == "a new tensor" and os.path.exists(edited / "new"):
                os.unlink(edited / "new")  # a scratch file
            assert eventually(lambda: sorted(os.listdir(edited.mount.path)) == sorted(SIZES)), name
            assert edited.archives[0].read_bytes() == before, name
            edited.check()
    for attempt in attempts.values():
        attempt()
    edited.due = {name: u8(array.tobytes()) for name, array in same_forms.items()} | {"more": u8(other_size)}
    edited.check()
