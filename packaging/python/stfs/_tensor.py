"""A tensor: memory with a type and a shape, for consumers of DLPack and of the buffer protocol."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Union

from . import _stfs

if TYPE_CHECKING:
    from types import EllipsisType

    import numpy as np

    Item = Union[int, slice, EllipsisType]

# What ml_dtypes calls the types that NumPy lacks, and NumPy's own type of that size.
_EXTRA_TYPES = {
    "BF16": ("bfloat16", "uint16"),
    "F8_E4M3": ("float8_e4m3fn", "uint8"),
    "F8_E5M2": ("float8_e5m2", "uint8"),
    "F8_E8M0": ("float8_e8m0fnu", "uint8"),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", "uint8"),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", "uint8"),
}


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

    # By __getitem__ and __len__ Python would make an iterator of its own, which ends by IndexError alone.
    def __iter__(self):
        return (self[at] for at in range(len(self)))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.nbytes * 8 // self.bits

    def numpy(self) -> np.ndarray:
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

    def __repr__(self) -> str:
        where = "" if self.device == "cpu" else f", {self.device}"
        return f"<stfs.Tensor {self.name!r} {self.dtype} {list(self.shape)}{where}>"
