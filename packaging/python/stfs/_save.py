"""New archives: the same bytes as the reference library's, written atomically."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Union

from . import _stfs
from ._array import Array
from ._model import Model, open
from ._progress import Progress, shown

if TYPE_CHECKING:
    StrPath = Union[str, "os.PathLike[str]"]

_Tensors = list[tuple[str, str, tuple[int, ...], Any]]
# Room for later edits, as `stfs repack` leaves it.
_EDIT_ALIGNMENT = 4096
_EDIT_SLACK_BYTES = 64 * 1024


class SaveError(_stfs.SafetensorError, OSError):
    """The file could not be written. The path has its old content.

    A program catches it as SafetensorError, as it does with the package safetensors, or as OSError with its errno.
    """


def path_of(filename: StrPath) -> str:
    """The path as a str. Raises TypeError for bytes, as the reference library does."""
    path = os.fspath(filename)
    if not isinstance(path, str):
        raise TypeError(f"the file name is a str or a path, not {type(path).__name__}")
    return path


def _pairs(metadata: Mapping[str, str] | None) -> list[tuple[str, str]] | None:
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise TypeError(f"the metadata is a dict of str to str, not {type(metadata).__name__}")
    for text in (*metadata, *metadata.values()):
        if not isinstance(text, str):
            raise TypeError(f"keys and values of the metadata are str, not {type(text).__name__}")
        text.encode()  # UnicodeEncodeError
    return list(metadata.items())


def _listed(arrays: Mapping[str, Array]) -> _Tensors:
    for name in arrays:
        if not isinstance(name, str):
            raise TypeError(f"the names of tensors are str, not {type(name).__name__}")
        name.encode()  # UnicodeEncodeError
    return [(name, array.dtype, array.shape, array.data) for name, array in arrays.items()]


def serialized(arrays: Mapping[str, Array], metadata: Mapping[str, str] | None) -> bytes:
    """The bytes of an archive of these arrays."""
    return _stfs.serialize(_listed(arrays), _pairs(metadata))


def save_arrays(arrays: Mapping[str, Array], filename: StrPath, metadata: Mapping[str, str] | None, *,
                durability: str, mode: int, progress: Progress) -> None:
    """Writes an archive of these arrays, or leaves the path as it is."""
    if durability not in ("power", "process"):
        raise ValueError('durability is "power" or "process"')
    if not 0 < mode <= 0o777:
        raise ValueError(f"mode={mode!r}: the permission bits of a file, such as 0o644")
    path = path_of(filename)
    if "\0" in path:
        raise SaveError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    tensors, pairs = _listed(arrays), _pairs(metadata)
    options = (0, 0, mode, False, durability == "process")
    with shown(progress, "saving") as show:
        failure = _stfs.save(path, tensors, pairs, options, show)
    if failure is not None:
        raise SaveError(*failure)


def create(path: StrPath, *, metadata: Mapping[str, str] | None = None) -> Model:
    """Makes an archive without tensors, and opens it for changes. FileExistsError: the path exists.

    The header has room for later edits. The mode of the file is 0666 without the bits of the umask.

    >>> with stfs.create("new.safetensors") as model, model.transaction():
    ...     model["a"] = array
    """
    failure = _stfs.save(path, [], _pairs(metadata), (_EDIT_ALIGNMENT, _EDIT_SLACK_BYTES, 0o666, True, False), None)
    if failure is not None:
        raise OSError(*failure)
    return open(path, "r+")
