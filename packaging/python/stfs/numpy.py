"""The functions of safetensors.numpy, by stfs: changing the import is enough.

    from stfs.numpy import load_file, save_file
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from . import _stfs
from ._array import Array, array_of
from ._printable import printable
from ._safe_open import load_bytes, safe_open
from ._save import save_arrays, serialized

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._progress import Progress

    StrPath = Union[str, "os.PathLike[str]"]

__all__ = ["load", "load_file", "save", "save_file"]


def _arrays(tensor_dict: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
    if not isinstance(tensor_dict, Mapping):
        raise TypeError(f"the tensors are a mapping, not {type(tensor_dict).__name__}")
    arrays = {}
    for name, array in tensor_dict.items():
        if not isinstance(array, (np.ndarray, np.generic, _stfs.Tensor)):
            raise TypeError(f"{printable(name)}: is no NumPy array but {type(array).__name__}")
        try:
            arrays[name] = array_of(array)
        except TypeError as error:
            raise _stfs.SafetensorError(f"{printable(name)}: {error}") from None
    return arrays


def save_file(tensor_dict: Mapping[str, NDArray[Any]], filename: StrPath, metadata: dict[str, str] | None = None, *,
              durability: str = "power", mode: int = 0o600, progress: Progress = None) -> None:
    """Saves NumPy arrays to an archive: all of it or nothing. The file has the bytes that safetensors.numpy writes.

    tensor_dict  {name: array}. Arrays that are not contiguous are saved as they look
    metadata     {key: text}, or None
    durability   "power": the file is on stable storage when the call returns; "process": without a sync
    mode         of a new file, before the umask. A file that replaces another one gets no right that the other one lacks
    progress     True for a bar of tqdm, or a function of the done and the total number of bytes

    An exception of progress, and Ctrl-C, end the call: the path is then as before. Raises SaveError, a SafetensorError and
    an OSError, if the file cannot be written, and SafetensorError for a dtype that no archive has.
    """
    save_arrays(_arrays(tensor_dict), filename, metadata, durability=durability, mode=mode, progress=progress)


def save(tensor_dict: Mapping[str, NDArray[Any]], metadata: dict[str, str] | None = None) -> bytes:
    """Returns the bytes of the archive that save_file() writes."""
    return serialized(_arrays(tensor_dict), metadata)


def load_file(filename: StrPath, *, backend: str = "mmap") -> dict[str, NDArray[Any]]:
    """Returns the arrays of an archive by their names. They are copies: writing to them changes no file."""
    with safe_open(filename, framework="np", backend=backend) as archive:
        return archive.get_tensors()


def load(data: bytes) -> dict[str, NDArray[Any]]:
    """Returns the arrays of an archive in memory."""
    return load_bytes(data, "np")
