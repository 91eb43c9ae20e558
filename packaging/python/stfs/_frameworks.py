"""Tensors as arrays of the frameworks that safe_open() names, on their devices."""

from __future__ import annotations

import importlib
import operator
import re
from typing import TYPE_CHECKING, Any, Union

from . import _stfs
from ._printable import printable
from ._tensor import _EXTRA_TYPES

if TYPE_CHECKING:
    from ._tensor import Tensor

    Device = Union[str, int, None]

_TORCH = ("pt", "torch", "pytorch")
_NUMPY = ("np", "numpy")
_JAX = ("flax", "jax")
# Frameworks of the reference library that this module does not serve.
_NOT_SERVED = ("tf", "tensorflow", "mlx", "paddle")
# The kinds of devices that the reference library passes on to PyTorch.
_DEVICE = re.compile(r"cpu|mps|(cuda|npu|xpu|xla|mlu|hpu|musa)(:.*)?", re.DOTALL)


def framework_named(name: str) -> str:
    """Returns "torch", "numpy" or "jax", and imports it: ModuleNotFoundError if it is not installed."""
    if not isinstance(name, str):
        raise TypeError(f"the framework is a str, not {type(name).__name__}")
    for module, names in (("torch", _TORCH), ("numpy", _NUMPY), ("jax", _JAX)):
        if name in names:
            importlib.import_module(module)
            return module
    if name in _NOT_SERVED:
        raise _stfs.SafetensorError(f"framework {name}: stfs has arrays of PyTorch, NumPy and JAX: take \"np\", and make "
                                    "arrays of the framework out of them")
    raise _stfs.SafetensorError(f"framework {name!r} is invalid: take \"pt\", \"np\" or \"flax\"")


def checked_device(device: Device, framework: str) -> str | int:
    """Returns the device, "cpu" for None. Raises SafetensorError if no framework has it."""
    if device is None:
        return "cpu"
    if isinstance(device, str):
        match = _DEVICE.fullmatch(device)
        if match is None:
            raise _stfs.SafetensorError(f"device {device!r} is invalid")
        if match[2]:
            int(match[2][1:])  # ValueError
    elif not hasattr(device, "__index__") or operator.index(device) < 0:
        raise _stfs.SafetensorError(f"device {device!r} is invalid")
    if device != "cpu" and framework != "torch":
        raise _stfs.SafetensorError(f"device {device!r}: arrays for {framework} are on the CPU")
    return device


class Arrays:
    """Makes arrays of NumPy out of tensors, in memory of their own."""

    #: Whether the framework indexes its whole array to make a part of it.
    indexes = False

    def of(self, tensor: Tensor) -> Any:
        if tensor.bits < 8:
            raise _stfs.SafetensorError(f"{printable(tensor.name)}: NumPy has no type for {tensor.dtype}: stfs.open() has the packed bytes")
        if tensor.dtype in _EXTRA_TYPES:
            import ml_dtypes

            if not hasattr(ml_dtypes, _EXTRA_TYPES[tensor.dtype][0]):
                raise _stfs.SafetensorError(f"{printable(tensor.name)}: this version of ml_dtypes has no type for {tensor.dtype}")
        return tensor.copy().numpy()

    def part(self, tensor: Tensor, key: Any) -> Any:
        raise NotImplementedError


class JaxArrays(Arrays):
    """Makes arrays of JAX."""

    def of(self, tensor: Tensor) -> Any:
        import jax.numpy as jnp

        return jnp.asarray(super().of(tensor))


class TorchTensors(Arrays):
    """Makes tensors of PyTorch.

    must_copy  on the CPU they have memory of their own, instead of the archive's pages
    """

    def __init__(self, device: str | int, must_copy: bool) -> None:
        self._device = device
        self._must_copy = must_copy
        self.indexes = not must_copy

    def of(self, tensor: Tensor) -> Any:
        return self._on_device(self._made(tensor.copy() if self._must_copy else tensor))

    def part(self, tensor: Tensor, key: Any) -> Any:
        return self._on_device(self._made(tensor)[key])

    def _made(self, tensor: Tensor) -> Any:
        try:
            return tensor.torch()
        except TypeError as error:
            raise _stfs.SafetensorError(str(error)) from None

    def _on_device(self, made: Any) -> Any:
        return made if self._device == "cpu" else made.to(self._device)


def arrays_of(framework: str, device: str | int, must_copy: bool) -> Arrays:
    """Returns the maker of the arrays of a framework. must_copy is for PyTorch."""
    if framework == "torch":
        return TorchTensors(device, must_copy)
    return JaxArrays() if framework == "jax" else Arrays()
