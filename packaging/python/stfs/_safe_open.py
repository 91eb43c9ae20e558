"""The reader of the reference library's interface."""

from __future__ import annotations

import errno
import operator
import os
from typing import TYPE_CHECKING, Any, Union

from . import _stfs
from ._frameworks import Arrays, arrays_of, checked_device, framework_named
from ._model import Model
from ._printable import printable
from ._save import path_of

if TYPE_CHECKING:
    from types import TracebackType

    from ._frameworks import Device
    from ._tensor import Item, Tensor

    StrPath = Union[str, "os.PathLike[str]"]

_BACKENDS = {"mmap": "auto", "pread": "pread"}


class SafeSlice:
    """A tensor of safe_open(), of which an index reads a part."""

    def __init__(self, tensor: Tensor, arrays: Arrays) -> None:
        self._tensor = tensor
        self._arrays = arrays

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """The dtype's name in the archive: "BF16", "F32", ..."""
        return self._tensor.dtype

    def __getitem__(self, key: Item | tuple[Item, ...]) -> Any:
        """Returns some of the elements as an array of the framework.

        With PyTorch and the backend "mmap" the key is any index of PyTorch, and the result is a view where PyTorch returns
        one. Otherwise the key has integers, slices and at most one `...`, as for NumPy. SafetensorError: a step is not
        positive, an index is out of range, or a slice begins or ends behind the last element.
        """
        # PyTorch would count the elements of F4 in pairs.
        if self._arrays.indexes and self._tensor.bits >= 8:
            return self._arrays.part(self._tensor, key)
        self._check(key if isinstance(key, tuple) else (key,))
        try:
            part = self._tensor[key]
        except (IndexError, TypeError, ValueError) as error:
            raise _stfs.SafetensorError(str(error)) from None
        return self._arrays.of(part)

    def _check(self, items: tuple[Any, ...]) -> None:
        # The dimension of each item. Items behind `...` count from the last dimension.
        before = next((at for at, item in enumerate(items) if item is Ellipsis), len(items))
        places = [*range(before), None, *range(len(self._tensor.shape) - (len(items) - before - 1), len(self._tensor.shape))]
        for item, place in zip(items, places):
            if not isinstance(item, slice):
                continue
            start, stop, step = (None if value is None else operator.index(value)  # TypeError
                                 for value in (item.start, item.stop, item.step))
            if step is not None and step <= 0:
                raise _stfs.SafetensorError(f"{printable(self._tensor.name)}: the step {step} of a slice is not positive")
            if place is None or not 0 <= place < len(self._tensor.shape):
                continue  # too many items, which the tensor refuses
            size = self._tensor.shape[place]
            for bound in (start, stop):
                # NumPy would cut the slice. A program that counts on its length would not notice.
                if bound is not None and not -size <= bound <= size:
                    raise _stfs.SafetensorError(f"{printable(self._tensor.name)}: {bound} is behind the {size} elements of dimension {place}")


class safe_open:
    """Opens an archive, and returns its tensors as arrays of a framework: the class of the reference library.

    filename   a str or a path of an archive. stfs.open() opens sharded models, directories and mounts
    framework  "pt" (PyTorch), "np" (NumPy) or "flax" (JAX)
    device     of PyTorch's tensors: "cpu", "cuda:0", or a number of a GPU
    backend    "mmap": PyTorch's tensors on the CPU consist of the archive's pages, copied where they are written to.
               "pread": all bytes are read into memory

    Raises SafetensorError (for a file that is not an archive, a missing tensor, an index that it refuses), OSError for files,
    and ModuleNotFoundError if the framework is not installed.

    >>> with stfs.safe_open("model.safetensors", framework="pt") as f:
    ...     for name in f.keys():
    ...         tensor = f.get_tensor(name)
    """

    def __init__(self, filename: StrPath, framework: str, device: Device = "cpu", *, backend: str = "mmap") -> None:
        path = path_of(filename)
        if not isinstance(backend, str):
            raise TypeError(f"the backend is a str, not {type(backend).__name__}")
        if backend not in _BACKENDS:
            raise _stfs.SafetensorError(f"backend {backend!r} is invalid: take \"mmap\" or \"pread\"")
        known = framework_named(framework)
        self._arrays = arrays_of(known, checked_device(device, known), backend == "pread")
        self._model = _open_archive(path, _BACKENDS[backend])

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        """Closes the file. Arrays that were made stay valid."""
        self._model.close()

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        return sorted(self._opened())

    def offset_keys(self) -> list[str]:
        """The names of the tensors, in the order of their data."""
        return list(self._opened())

    def metadata(self) -> dict[str, str] | None:
        """The `__metadata__` of the archive; None if there is none, or if it is empty."""
        return dict(self._opened().metadata) or None

    def get_tensor(self, name: str) -> Any:
        """Returns a tensor. SafetensorError: there is none of that name."""
        return self._arrays.of(self._tensor(name))

    def get_tensors(self) -> dict[str, Any]:
        """Returns all tensors by their names, in the order of their data."""
        return {name: self._arrays.of(tensor) for name, tensor in self._opened().items()}

    def get_slice(self, name: str) -> SafeSlice:
        """Returns an object whose indexing reads a part of the tensor. SafetensorError: there is no such tensor."""
        return SafeSlice(self._tensor(name), self._arrays)

    def _opened(self) -> Model:
        if self._model.closed:
            raise _stfs.SafetensorError("the file is closed")
        return self._model

    def _tensor(self, name: str) -> Tensor:
        if not isinstance(name, str):
            raise TypeError(f"the name of a tensor is a str, not {type(name).__name__}")
        try:
            return self._opened()[name]
        except KeyError as error:
            raise _stfs.SafetensorError(error.args[0]) from None


def _directory_error(path: str) -> IsADirectoryError:
    return IsADirectoryError(errno.EISDIR, f"{printable(path)}: is a directory: name an archive, or take stfs.open()")


def _open_archive(path: str, io: str) -> Model:
    """Opens one archive. The reference library knows no indexes and no directories."""
    if "\0" in path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    # The library looks at the path first: it enters no mount of another user, and a status by the path would.
    try:
        model = Model(path, io=io)
    except (ValueError, OSError) as error:
        if getattr(error, "errno", None) != errno.EXDEV and os.path.isdir(path):
            raise _directory_error(path) from None
        if isinstance(error, ValueError) and not isinstance(error, _stfs.FormatError):
            raise _stfs.SafetensorError(str(error)) from None
        raise
    if os.path.isdir(path):
        model.close()
        raise _directory_error(path)
    if model.path.endswith(".index.json"):
        model.close()
        raise _stfs.SafetensorError(f"{printable(path)}: is an index, not an archive: take stfs.open()")
    return model


def load_bytes(data: Any, framework: str) -> dict[str, Any]:
    """Returns the tensors of an archive in memory. They have memory of their own."""
    view = memoryview(data)  # TypeError
    descriptor = os.memfd_create("safetensors")
    try:
        rest = view.cast("B") if view.nbytes else memoryview(b"")
        while rest:
            rest = rest[os.write(descriptor, rest):]
        path = f"/proc/self/fd/{descriptor}"
        try:
            with safe_open(path, framework) as archive:
                return archive.get_tensors()
        except _stfs.FormatError as error:
            raise _stfs.FormatError(str(error).replace(path, "the data")) from None
    finally:
        os.close(descriptor)
