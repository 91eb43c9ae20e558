"""Arrays of other libraries as the packed bytes of a tensor."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from ._printable import printable
from ._tensor import NAMES, TORCH_PAIR, Tensor

# The format letters of the buffer protocol, and the kind of each dtype. The number of bits completes the dtype's name.
_KINDS = {"?": "BOOL", "b": "I", "h": "I", "i": "I", "l": "I", "q": "I", "n": "I", "B": "U", "H": "U", "I": "U",
          "L": "U", "Q": "U", "N": "U", "e": "F", "f": "F", "d": "F", "Zf": "C", "F": "C"}


class Array(NamedTuple):
    """A tensor's dtype and shape, and its packed little-endian elements."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview
    is_exact: bool  # False: an unsigned integer may stand for a type that NumPy lacks


def _refuse(value: Any, why: str) -> TypeError:
    return TypeError(f"{type(value).__module__}.{type(value).__qualname__} {why}")


def _packed(view: memoryview) -> memoryview:
    if not view.nbytes:
        return memoryview(b"")
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())


def _of_tensor(tensor: Tensor) -> Array:
    if tensor.device != "cpu":
        raise TypeError(f"{printable(tensor.name)}: is on {tensor.device}: copy it to the memory of the CPU first")
    return Array(tensor.dtype, tensor.shape, _packed(memoryview(tensor)), True)


def _of_torch(value: Any) -> Array:
    import torch

    value = value.detach()
    if value.device.type != "cpu":
        raise TypeError(f"the tensor is on {value.device}: pass its cpu()")
    if value.layout != torch.strided:
        raise TypeError("the tensor is sparse: pass its to_dense()")
    name = str(value.dtype).removeprefix("torch.")
    dtype, shape = NAMES.get(name), tuple(value.shape)
    if name == TORCH_PAIR and shape:
        dtype, shape = "F4", (*shape[:-1], 2 * shape[-1])
    if dtype is None:
        raise TypeError(f"an archive has no dtype for {value.dtype}")
    packed = value.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return Array(dtype, shape, memoryview(packed.numpy()), True)


def _of_numpy(value: Any) -> Array:
    import numpy as np

    array = np.asarray(value)
    dtype = NAMES.get(array.dtype.name)
    if dtype is None:
        raise TypeError(f"an archive has no dtype for NumPy's {array.dtype}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # Bytes, because the buffer protocol does not know the types of ml_dtypes. The shape is the array's own:
    # ascontiguousarray() gives an array without dimensions one.
    packed = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return Array(dtype, array.shape, memoryview(packed.data), not dtype.startswith("U"))


def _of_buffer(value: Any, view: memoryview) -> Array:
    form = view.format
    if form[:1] in "@=<>!" and len(form) > 1:
        if form[0] in ">!" and view.itemsize > 1:
            raise _refuse(value, "has the most significant byte first: swap the bytes first")
        form = form[1:]
    kind = _KINDS.get(form)
    if kind is None:
        raise _refuse(value, f"has elements of the format {view.format!r}, which an archive has no dtype for")
    dtype = kind if kind == "BOOL" else f"{kind}{8 * view.itemsize}"
    return Array(dtype, tuple(view.shape or ()), _packed(view), kind != "U")


def array_of(value: Any) -> Array:
    """Returns the elements of an array, without a copy if they are packed.

    value  a Tensor, a NumPy array, a PyTorch tensor, an object with the buffer protocol, or one with __array__ or
           DLPack that NumPy takes
    """
    if sys.byteorder != "little":
        raise NotImplementedError("this machine stores the most significant byte first")
    if isinstance(value, Tensor):
        return _of_tensor(value)
    if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        return _of_torch(value)
    if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
        return _of_numpy(value)
    try:
        view = memoryview(value)
    except TypeError:
        view = None
    if view is not None:
        return _of_buffer(value, view)
    if hasattr(value, "__dlpack__"):
        import numpy as np

        return _of_numpy(np.from_dlpack(value))
    raise _refuse(value, "is no array: give a NumPy array, a PyTorch tensor, or an object with the buffer protocol")
