# Compares the attributes and the bytes of a model's tensors with the reference library.
import ctypes
import hashlib

import ml_dtypes
import numpy as np
import pytest
import safetensors

import stfs
from archive_file import NUMPY_TYPES, ArchiveFile, random_bytes, write_raw


def test_every_tensor_is_that_of_the_reference_library(model, archive_path, tensors):
    due = ArchiveFile(archive_path).reference()
    layout = ArchiveFile(archive_path).layout()
    assert [layout[name][2] for name in model] == sorted(place[2] for place in layout.values())
    assert sorted(model) == sorted(model.keys()) == sorted(layout)
    assert len(model) == len(due) == len(tensors)
    for name, tensor in model.items():
        dtype, shape, data = due[name]
        assert (tensor.name, tensor.dtype, list(tensor.shape)) == (name, dtype, shape)
        assert (tensor.archive, tensor.offset, tensor.nbytes) == (str(archive_path), layout[name][2], len(data))
        assert (tensor.device, tensor.ndim, tensor.size) == ("cpu", len(shape), tensors[name].size)
        assert bytes(tensor) == tensor.tobytes() == tensor.copy().tobytes() == memoryview(tensor).tobytes() == data
        into = bytearray(len(data))
        assert tensor.read_into(into) == len(data) and into == data


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_numpy_has_each_dtype(model, tensors, dtype):
    name = f"dtype.{dtype}"
    array = model[name].numpy()
    assert array.dtype == NUMPY_TYPES[dtype] and array.shape == (5, 7)
    assert array.tobytes() == tensors[name].tobytes()
    assert not array.flags.writeable
    assert array.__array_interface__["data"][0] == model[name].address == np.asarray(model[name]).ctypes.data


def test_types_that_numpy_lacks_come_as_integers_without_ml_dtypes(model, tensors, monkeypatch):
    import builtins

    real = builtins.__import__

    def refuse(name, *rest, **kwargs):
        if name == "ml_dtypes":
            raise ImportError(name)
        return real(name, *rest, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert model["embed"].numpy().dtype == np.uint16
    assert model["dtype.F8_E4M3"].numpy().dtype == np.uint8
    monkeypatch.undo()
    assert model["embed"].numpy().dtype == ml_dtypes.bfloat16


def test_elements_of_less_than_a_byte_come_packed(tmp_path):
    data = {dtype: random_bytes(size, seed) for seed, (dtype, size) in
            enumerate({"F4": 6, "F6_E2M3": 9, "F6_E3M2": 9}.items())}
    path = write_raw(tmp_path / "small.safetensors", [(dtype, dtype, [3, 4], data[dtype]) for dtype in data])
    with stfs.open(path) as model:
        for dtype, due in data.items():
            tensor = model[dtype]
            assert (tensor.shape, tensor.bits, tensor.size, tensor.strides) == ((3, 4), int(dtype[1]), 12, None)
            assert tensor.tobytes() == due and bytes(tensor) == due
            array = tensor.numpy()
            assert array.dtype == np.uint8 and array.shape == (len(due),) and array.tobytes() == due
        halves = model["F4"][:, 2:]
        assert halves.shape == (3, 2) and halves.tobytes() == data["F4"][1::2] == bytes(halves)
        assert not halves.is_mapped


def test_metadata_and_repr(model, archive_path):
    with safetensors.safe_open(archive_path, "np") as reference:
        assert model.metadata == reference.metadata() == {"format": "pt", "title": "a sample"}
    assert repr(model) == f"<stfs.Model {str(archive_path)!r}, {len(model)} tensors>"
    assert repr(model["layers.0.bias"]) == "<stfs.Tensor 'layers.0.bias' F16 [4099]>"
    assert model.path == str(archive_path)
    assert stfs.__version__.count(".") == 2
    for thing in (stfs, stfs.open, stfs.Model, stfs.Tensor, stfs.Tensor.__getitem__, stfs.Tensor.__dlpack__,
                  stfs.Tensor.copy, stfs.FormatError):
        assert len(thing.__doc__) > 20


def test_a_model_is_a_mapping(model):
    assert "odd" in model and "even" not in model and 3 not in model
    assert model.get("even") is None and model.get("odd").shape == (12345,)
    assert {name for name in model} == set(model.keys()) and len(list(model.values())) == len(model)
    assert model == model and model != stfs.open(model.path) and len({model}) == 1


def test_names_may_hold_any_character(tmp_path):
    names = ["a/b", "", "ümlaut", "\U0001f600", 'quo"te', "new\nline", "nul\0nul", "%41", "x" * 5000]
    path = write_raw(tmp_path / "names.safetensors", [(name, "U8", [1], bytes([at + 1])) for at, name in enumerate(names)])
    with stfs.open(path) as model:
        assert list(model) == names
        for at, name in enumerate(names):
            assert model[name].tobytes() == bytes([at + 1]) and model[name].name == name


def test_the_buffer_protocol(model, tensors):
    view = memoryview(model["layers.0.weight"])
    assert (view.format, view.shape, view.strides, view.itemsize, view.readonly, view.c_contiguous) == (
        "f", (256, 301), (1204, 4), 4, True, True)
    assert view[255, 300] == tensors["layers.0.weight"][255, 300]
    assert memoryview(model["scalar"]).shape == () and memoryview(model["empty"]).nbytes == 0
    with pytest.raises(TypeError):
        view[0, 0] = 1.0
    strided = memoryview(model["odd"][::-3])
    assert strided.strides == (-3,) and strided.tobytes() == tensors["odd"][::-3].tobytes()
    with pytest.raises(BufferError, match="copy"):
        hashlib.sha256(model["odd"][::-3])
    writable = model["odd"].copy()
    memoryview(writable)[0] = 0
    assert not memoryview(writable).readonly and writable.tobytes()[0] == 0 != model["odd"].tobytes()[0]


class Buffer(ctypes.Structure):
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
                ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p),
                ("shape", ctypes.POINTER(ctypes.c_ssize_t)), ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
                ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)), ("internal", ctypes.c_void_p)]


WRITABLE, FORMAT, ND, STRIDES, C_CONTIGUOUS, F_CONTIGUOUS, ANY_CONTIGUOUS = 1, 4, 8, 0x18, 0x38, 0x58, 0x98


@pytest.mark.parametrize("flags, packed, strided", [
    (0, True, False), (FORMAT, True, False), (ND, True, False), (ND | FORMAT, True, False), (STRIDES, True, True),
    (STRIDES | FORMAT, True, True), (C_CONTIGUOUS, True, False), (F_CONTIGUOUS, False, False),
    (ANY_CONTIGUOUS, True, False), (WRITABLE, False, False), (WRITABLE | STRIDES, False, False)])
def test_the_buffer_protocol_gives_what_is_asked_for(model, flags, packed, strided):
    weight = model["layers.0.weight"]
    for tensor, is_given in ((weight, packed), (weight[::2, 3:], strided)):
        buffer = Buffer()
        try:
            ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(tensor), ctypes.byref(buffer), flags)
        except BufferError:
            assert not is_given
            continue
        assert is_given and buffer.buf == tensor.address and buffer.len == tensor.nbytes and buffer.itemsize == 4
        assert buffer.format == (b"f" if flags & FORMAT else None) and buffer.readonly
        # Without a shape: so many bytes.
        assert bool(buffer.shape) == bool(flags & ND) and buffer.ndim == (2 if flags & ND else 1)
        assert bool(buffer.strides) == (flags & STRIDES == STRIDES)
        if buffer.shape:
            assert tuple(buffer.shape[:2]) == tensor.shape
        if buffer.strides:
            assert tuple(buffer.strides[:2]) == tensor.strides
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))


def test_a_file_takes_a_tensor_as_it_is(model, tensors, tmp_path):
    with open(tmp_path / "out", "wb") as file:
        file.write(model["embed"])
    assert (tmp_path / "out").read_bytes() == tensors["embed"].tobytes()


def test_reading_into_parts(model, tensors):
    due = tensors["odd"].tobytes()
    part = bytearray(100)
    assert model["odd"].read_into(part, 5000) == 100 and part == due[5000:5100]
    assert model["odd"].read_into(part, offset=12300) == 45 and part[:45] == due[12300:] and part[45:] == due[5045:5100]
    assert model["odd"].read_into(part, offset=20000) == 0
    with pytest.raises(TypeError):
        model["odd"].read_into(b"not writable")


def test_where_a_tensor_lies_at_an_odd_address(tmp_path):
    data = random_bytes(400_004, 9)
    path = write_raw(tmp_path / "odd.safetensors", [("one", "U8", [1], b"x"), ("floats", "F32", [100_001], data)])
    with stfs.open(path) as model:
        tensor = model["floats"]
        assert tensor.address % 4 != 0 and tensor.numpy().tobytes() == data
        lent = np.from_dlpack(tensor)
        assert lent.flags.aligned and lent.tobytes() == data and lent.ctypes.data != tensor.address
        with pytest.raises(BufferError, match="odd address"):
            np.from_dlpack(tensor, copy=False)
