"""A tensor: memory with a type and a shape, for consumers of DLPack and of the buffer protocol."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Union

from . import _stfs
from ._printable import printable

if TYPE_CHECKING:
    from types import EllipsisType

    from jax import Array as JaxArray
    from numpy.typing import NDArray
    from torch import Tensor as TorchTensor
    from torch import dtype as TorchType

    Item = Union[int, slice, EllipsisType]

# Types that NumPy lacks: the name in ml_dtypes, and NumPy's unsigned integer of the same size.
_EXTRA_TYPES = {
    "BF16": ("bfloat16", "uint16"),
    "F8_E4M3": ("float8_e4m3fn", "uint8"),
    "F8_E5M2": ("float8_e5m2", "uint8"),
    "F8_E8M0": ("float8_e8m0fnu", "uint8"),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", "uint8"),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", "uint8"),
}
# The names of all types in NumPy with ml_dtypes, and in PyTorch, whose elements have whole bytes.
NAMES = {"bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8", "uint16": "U16",
         "uint32": "U32", "uint64": "U64", "float16": "F16", "float32": "F32", "float64": "F64", "complex64": "C64",
         **{theirs: own for own, (theirs, _) in _EXTRA_TYPES.items()}}
_TORCH_NAMES = {own: theirs for theirs, own in NAMES.items()}
#: PyTorch's type for F4. One element of it has two of the archive's.
TORCH_PAIR = "float4_e2m1fn_x2"


def _bound(value: Any) -> str:
    return "" if value is None else str(operator.index(value))


def _item_text(item: Any) -> str:
    if item is Ellipsis:
        return "..."
    if isinstance(item, slice):
        step = "" if item.step is None else f":{_bound(item.step)}"
        return f"{_bound(item.start)}:{_bound(item.stop)}{step}"
    if isinstance(item, bool):
        raise TypeError("a tensor is indexed by integers, slices and ..., not by bool")
    try:
        return str(operator.index(item))
    except TypeError:
        kind = type(item).__name__
        raise TypeError(f"a tensor is indexed by integers, slices and ..., not by {kind}") from None


class Tensor(_stfs.Tensor):
    """One tensor, or a slice of a tensor. Comes from a Model and keeps its memory alive.

    Supports DLPack (`torch.from_dlpack(tensor)`, `jax.dlpack.from_dlpack`, `np.from_dlpack`) and the buffer protocol
    (`memoryview(tensor)`, `np.asarray(tensor)`, `file.write(tensor)`) without a copy. Their memory is read-only; the
    memory of `copy()` is writable.

    The buffer protocol has no names for BF16 and fp8: they appear as unsigned integers of their size. Elements smaller
    than a byte appear packed, in one dimension. `dtype` and `shape` have the true values.
    """

    def __getitem__(self, key: Item | tuple[Item, ...]) -> Tensor:
        """Returns some of its elements, by NumPy's basic indexing. Shares the memory.

        >>> model["lm_head.weight"][0:10, :, -1].shape
        """
        items = key if isinstance(key, tuple) else (key,)
        if not items:
            return self.slice("...")
        text = ",".join(map(_item_text, items))
        try:
            return self.slice(text)
        except ValueError as error:
            # Python's error for an index out of range.
            raise IndexError(str(error)) from None

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    # Without this, Python would make an iterator from __getitem__, which ends only with an IndexError.
    def __iter__(self) -> Iterator[Tensor]:
        return (self[at] for at in range(len(self)))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.nbytes * 8 // self.bits

    def numpy(self) -> NDArray[Any]:
        """Returns the tensor as a read-only NumPy array that shares its memory.

        Types that NumPy lacks become types of ml_dtypes if this package is installed, else unsigned integers.
        """
        import numpy as np

        array = np.asarray(memoryview(self))
        if self.dtype not in _EXTRA_TYPES:
            return array
        theirs, own = _EXTRA_TYPES[self.dtype]
        try:
            import ml_dtypes
        except ImportError:
            return array.view(own)
        return array.view(getattr(ml_dtypes, theirs, own))

    def torch(self) -> TorchTensor:
        """Returns the tensor as a PyTorch tensor that shares its memory, on its device.

        torch.from_dlpack() does the same, and gives types that PyTorch's DLPack lacks as uint8; this gives them their type.
        F4 is copied. A write to the memory changes no archive; tensors of one model may show it (see `Tensor.copy()`). TypeError:
        this version of PyTorch has no such type.
        """
        import torch
        import torch.utils.dlpack

        name = TORCH_PAIR if self.dtype == "F4" else _TORCH_NAMES.get(self.dtype, "")
        dtype = getattr(torch, name, None)
        if dtype is None:
            raise TypeError(f"{printable(self.name)}: PyTorch {torch.__version__} has no type for {self.dtype}")
        if self.dtype == "F4":
            return self._pairs(dtype)
        if not self.size:
            return torch.empty(self.shape, dtype=dtype, device=self.device)
        made: TorchTensor = torch.utils.dlpack.from_dlpack(self)
        return made if made.dtype == dtype else made.view(dtype)

    def _pairs(self, dtype: TorchType) -> TorchTensor:
        import torch

        if not self.shape or self.shape[-1] % 2:
            raise TypeError(f"{printable(self.name)}: PyTorch has F4 in pairs, and the last dimension of {list(self.shape)} is odd")
        shape = (*self.shape[:-1], self.shape[-1] // 2)
        if not self.size:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(bytearray(self.tobytes()), dtype=torch.uint8).view(dtype).reshape(shape)

    def jax(self) -> JaxArray:
        """Returns the tensor as an array of JAX, which copies it.

        JAX takes its arrays for constants, but the pages of an archive may change: `jax.dlpack.from_dlpack(tensor)` shares them.
        Without `jax_enable_x64` JAX keeps only 32 bits of I64, U64 and F64.
        """
        import jax.numpy as jnp

        return jnp.array(self.copy().numpy())

    def __repr__(self) -> str:
        where = "" if self.device == "cpu" else f", {self.device}"
        return f"<stfs.Tensor {self.name!r} {self.dtype} {list(self.shape)}{where}>"
