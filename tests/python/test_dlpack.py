# Tensors for consumers of DLPack: their memory, their types, and the return of the memory.
import ctypes
import gc
import threading

import numpy as np
import pytest

import stfs
from archive_file import random_array, random_bytes, save_with_reference, write_raw
from managed_tensor import TAKES_WRITABLE, Taken

READ_ONLY, IS_COPIED = 1, 2
# By DLPack 1.1: code and bits; then what goes out before 1.1, and to consumers without versions.
TYPES = {
    "BOOL": ((6, 8), (6, 8), (1, 8)), "U8": ((1, 8),) * 3, "I8": ((0, 8),) * 3, "I16": ((0, 16),) * 3,
    "U16": ((1, 16),) * 3, "F16": ((2, 16),) * 3, "BF16": ((4, 16),) * 3, "I32": ((0, 32),) * 3, "U32": ((1, 32),) * 3,
    "F32": ((2, 32),) * 3, "C64": ((5, 64),) * 3, "F64": ((2, 64),) * 3, "I64": ((0, 64),) * 3, "U64": ((1, 64),) * 3,
    "F8_E4M3": ((10, 8), (1, 8), (1, 8)), "F8_E4M3FNUZ": ((11, 8), (1, 8), (1, 8)), "F8_E5M2": ((12, 8), (1, 8), (1, 8)),
    "F8_E5M2FNUZ": ((13, 8), (1, 8), (1, 8)), "F8_E8M0": ((14, 8), (1, 8), (1, 8))}
SMALL_TYPES = {"F6_E2M3": (15, 6), "F6_E3M2": (16, 6), "F4": (17, 4)}


def maps_of(path):
    with open("/proc/self/maps") as maps:
        return sum(1 for line in maps if line.rstrip().endswith(str(path)))


@pytest.mark.parametrize("dtype", TYPES)
def test_types(model, tensors, dtype):
    tensor = model[f"dtype.{dtype}"]
    assert tensor.__dlpack_device__() == (1, 0)
    for version, type_due in zip(((1, 1), (1, 0), None), TYPES[dtype]):
        taken = Taken(tensor.__dlpack__(max_version=version))
        assert taken.type == (*type_due, 1) and taken.device == (1, 0)
        assert taken.shape == [5, 7] and taken.strides == [7, 1]
        assert taken.version == version and taken.bytes(tensor.nbytes) == tensors[f"dtype.{dtype}"].tobytes()
        taken.free()


@pytest.mark.parametrize("dtype", SMALL_TYPES)
def test_types_of_less_than_a_byte(tmp_path, dtype):
    size = 4 * 8 * SMALL_TYPES[dtype][1] // 8
    data = random_bytes(size, 1)
    with stfs.open(write_raw(tmp_path / "small.safetensors", [("t", dtype, [4, 8], data)])) as model:
        taken = Taken(model["t"].__dlpack__(max_version=(1, 3)))
        assert (taken.type, taken.shape, taken.strides) == ((*SMALL_TYPES[dtype], 1), [4, 8], [8, 1])
        assert taken.version == (1, 1) and taken.bytes(size) == data
        taken.free()
        for version in ((1, 0), None):
            taken = Taken(model["t"].__dlpack__(max_version=version))
            assert (taken.type, taken.shape, taken.strides) == ((1, 8, 1), [size], [1]) and taken.bytes(size) == data
            taken.free()
        assert np.from_dlpack(model["t"]).tobytes() == data


def test_numpy_shares_the_archives_pages_read_only(model, tensors):
    for name in ("layers.0.weight", "odd", "small", "scalar", "empty", "dtype.C64"):
        one, other = np.from_dlpack(model[name]), np.from_dlpack(model[name])
        assert one.tobytes() == tensors[name].tobytes() and one.dtype == tensors[name].dtype
        assert one.__array_interface__["data"][0] == other.__array_interface__["data"][0] or one.size == 0
        assert one.__array_interface__["data"][0] == model[name].address or one.size == 0
        assert not one.flags.writeable
        with pytest.raises(ValueError):
            one[...] = 0


def test_flags_and_copies(model, archive_path):
    tensor = model["layers.0.weight"]
    before = archive_path.read_bytes()
    shared = Taken(tensor.__dlpack__(max_version=(1, 0), copy=False))
    assert shared.flags == READ_ONLY and shared.data == tensor.address
    copied = np.from_dlpack(tensor, copy=True)
    assert copied.flags.writeable == TAKES_WRITABLE
    assert copied.ctypes.data != tensor.address and copied.ctypes.data % 256 == 0
    if TAKES_WRITABLE:
        copied[...] = 0
    copy = Taken(tensor.__dlpack__(max_version=(1, 0), copy=True))
    assert copy.flags == IS_COPIED and copy.bytes(tensor.nbytes) == tensor.tobytes()
    own = tensor.copy()
    assert not own.is_read_only and not own.is_mapped
    lent = Taken(own.__dlpack__(max_version=(1, 0)))
    assert lent.flags == 0 and lent.data == own.address
    for taken in (shared, copy, lent):
        taken.free()
    assert archive_path.read_bytes() == before


def test_devices(model):
    tensor = model["odd"]
    Taken(tensor.__dlpack__(dl_device=(1, 0), max_version=(1, 0))).free()
    with pytest.raises(BufferError, match=r"\(2, 0\)"):
        tensor.__dlpack__(dl_device=(2, 0))
    for wrong in ({"max_version": 1}, {"max_version": ("a", 0)}, {"dl_device": 1}, {"nonsense": 1}):
        with pytest.raises(TypeError):
            tensor.__dlpack__(**wrong)


def test_old_consumers_write_to_themselves(model, archive_path):
    """Without versions there is no read-only flag: pages are copied when they are written to."""
    before = archive_path.read_bytes()
    tensor = model["layers.0.weight"]
    mapped_before = maps_of(archive_path)
    one, other = Taken(tensor.__dlpack__()), Taken(tensor.__dlpack__())
    assert maps_of(archive_path) == mapped_before + 2, "they are maps of the archive and no copies"
    due = tensor.tobytes()
    assert one.bytes(tensor.nbytes) == due and len({one.data, other.data, tensor.address}) == 3
    ctypes.memset(one.data, 0, tensor.nbytes)
    assert one.bytes(tensor.nbytes) == bytes(tensor.nbytes)
    assert other.bytes(tensor.nbytes) == tensor.tobytes() == bytes(tensor) == due
    assert archive_path.read_bytes() == before
    one.free()
    other.free()
    assert maps_of(archive_path) == mapped_before
    # A small one, and one with gaps, are copied.
    for copied in (model["odd"], tensor[:, ::2]):
        taken = Taken(copied.__dlpack__())
        assert maps_of(archive_path) == mapped_before
        ctypes.memset(taken.data, 0, copied.nbytes)
        taken.free()
        with pytest.raises(BufferError, match="copy=False"):
            copied.__dlpack__(copy=False)
    assert archive_path.read_bytes() == before and tensor.tobytes() == due


def test_new_consumers_that_write_all_the_same_harm_nobody_else(model, archive_path):
    """PyTorch ignores the flag that says read-only. This must not end the process or change an archive."""
    before = archive_path.read_bytes()
    tensor = model["layers.0.weight"]
    taken = Taken(tensor.__dlpack__(max_version=(1, 0)))
    assert taken.flags == READ_ONLY and taken.data == tensor.address
    ctypes.memset(taken.data, 0, tensor.nbytes)
    assert taken.bytes(tensor.nbytes) == bytes(tensor) == bytes(tensor.nbytes)
    taken.free()
    assert tensor.tobytes() == tensor.copy().tobytes() != bytes(tensor.nbytes)
    with stfs.open(archive_path) as other:
        assert bytes(other["layers.0.weight"]) == tensor.tobytes()
    assert archive_path.read_bytes() == before


def test_what_is_not_mapped_is_read_once_for_all(archive_path, tensors):
    with stfs.open(archive_path, io="pread") as model:
        tensor = model["layers.0.weight"]
        assert not tensor.is_mapped and tensor.is_read_only
        one, other = np.from_dlpack(tensor), np.from_dlpack(tensor)
        assert one.ctypes.data == other.ctypes.data == tensor.address == np.asarray(tensor).ctypes.data
        assert not one.flags.writeable and one.tobytes() == tensors["layers.0.weight"].tobytes()
        old = Taken(tensor.__dlpack__())
        assert old.data != tensor.address and old.bytes(tensor.nbytes) == tensor.tobytes()
        old.free()


def test_a_capsule_that_nobody_takes_gives_its_memory_back(tmp_path):
    path = save_with_reference(tmp_path / "m.safetensors", {"t": random_array("f4", (1000, 100), 1)})
    model = stfs.open(path)
    tensor = model["t"]
    for version in (None, (1, 0)):
        capsules = [tensor.__dlpack__(max_version=version) for _ in range(50)]
        assert maps_of(path) == (52 if version is None else 2)
        del capsules
        gc.collect()
        assert maps_of(path) == 2
    model.close()
    assert maps_of(path) == 2
    del tensor
    gc.collect()
    assert maps_of(path) == 0


def test_a_consumer_frees_on_any_thread_after_everything_else_is_gone(tmp_path):
    data = random_array("f4", (1000, 100), 1)
    path = save_with_reference(tmp_path / "m.safetensors", {"t": data})
    with stfs.open(path) as model:
        taken = [Taken(model["t"].__dlpack__(max_version=version)) for version in (None, (1, 0))]
    del model
    path.unlink()
    gc.collect()
    for one in taken:
        assert one.bytes(data.nbytes) == data.tobytes()
        thread = threading.Thread(target=one.free)
        thread.start()
        thread.join()
    assert maps_of(path) == 0 and maps_of(f"{path} (deleted)") == 0
