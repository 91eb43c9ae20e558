"""The functions of safetensors.flax, by stfs: changing the import is enough.

    from stfs.flax import load_file, save_file
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Union

import jax
import numpy as np

from . import numpy as _numpy
from ._safe_open import load_bytes, safe_open

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._progress import Progress

    StrPath = Union[str, "os.PathLike[str]"]

__all__ = ["load", "load_file", "save", "save_file"]


def _on_cpu(tensors: dict[str, jax.Array]) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(array) for name, array in tensors.items()}


def save_file(tensors: dict[str, jax.Array], filename: StrPath, metadata: dict[str, str] | None = None, *,
              durability: str = "power", mode: int = 0o600, progress: Progress = None) -> None:
    """Saves JAX's arrays to an archive, as stfs.numpy.save_file() does."""
    _numpy.save_file(_on_cpu(tensors), filename, metadata, durability=durability, mode=mode, progress=progress)


def save(tensors: dict[str, jax.Array], metadata: dict[str, str] | None = None) -> bytes:
    """Returns the bytes of the archive that save_file() writes."""
    return _numpy.save(_on_cpu(tensors), metadata)


def load_file(filename: StrPath, *, backend: str = "mmap") -> dict[str, jax.Array]:
    """Returns the arrays of an archive by their names. They are copies."""
    with safe_open(filename, framework="flax", backend=backend) as archive:
        return archive.get_tensors()


def load(data: bytes) -> dict[str, jax.Array]:
    """Returns the arrays of an archive in memory."""
    return load_bytes(data, "flax")
