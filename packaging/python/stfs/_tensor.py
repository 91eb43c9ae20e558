"""A tensor: memory with a type and a shape, for whoever speaks DLPack or the buffer protocol."""

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
    """One tensor, or a slice of one. Comes from a Model; keeps its memory alive.

    Takes part in DLPack (`torch.from_dlpack(tensor)`, `jax.dlpack.from_dlpack`, `np.from_dlpack`) and in the buffer
    protocol (`memoryview(tensor)`, `np.asarray(tensor)`, `file.write(tensor)`), and copies nothing for them. What
    they get is read-only; `copy()` may be written to.

    The buffer protocol has no names for BF16 and fp8, which come as unsigned integers of their size, and for elements
    of less than a byte, which come packed, in one dimension. `dtype` and `shape` tell the truth.
    """

    def __getitem__(self, key: Item | tuple[Item, ...]) -> Tensor:
        """Some of its elements, by NumPy's basic indexing; shares the memory.

        >>> model["lm_head.weight"][0:10, :, -1].shape
        """
        items = key if isinstance(key, tuple) else (key,)
        if not items:
            return self.slice("...")
        text = ",".join(map(_item_text, items))
        try:
            return self.slice(text)
        except ValueError as error:
            # What Python says where an index is not there.
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
        """The tensor as a NumPy array: its memory where it can be, read-only.

        Types that NumPy lacks come as those of ml_dtypes where that is installed, else as unsigned integers.
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
