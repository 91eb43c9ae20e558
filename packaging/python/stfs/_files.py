"""load_file() and save_file() for a framework that an argument, or the arrays, decide."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Union

from ._safe_open import safe_open

if TYPE_CHECKING:
    from ._frameworks import Device
    from ._progress import Progress

    StrPath = Union[str, "os.PathLike[str]"]


def load_file(filename: StrPath, device: Device = "cpu", *, framework: str = "pt", backend: str = "mmap") -> dict[str, Any]:
    """Returns the tensors of an archive by their names. The arguments are those of safe_open().

    >>> arrays = stfs.load_file("model.safetensors", framework="np")
    """
    with safe_open(filename, framework, device, backend=backend) as archive:
        return archive.get_tensors()


def save_file(tensors: dict[str, Any], filename: StrPath, metadata: dict[str, str] | None = None, *,
              durability: str = "power", mode: int = 0o600, progress: Progress = None) -> None:
    """Saves PyTorch tensors as stfs.torch.save_file() does, and all other arrays as stfs.numpy.save_file() does."""
    is_torch = "torch" in sys.modules and isinstance(tensors, dict) and \
        any(isinstance(tensor, sys.modules["torch"].Tensor) for tensor in tensors.values())
    module = importlib.import_module(".torch" if is_torch else ".numpy", __package__)
    module.save_file(tensors, filename, metadata, durability=durability, mode=mode, progress=progress)
