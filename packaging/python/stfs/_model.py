"""A model: a mapping from names to tensors."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator, KeysView, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Union

from . import _stfs
from ._tensor import Tensor
from ._upload import Resident, Upload

if TYPE_CHECKING:
    from ._upload import Progress

    StrPath = Union[str, "os.PathLike[str]"]

_IO = {"auto": 0, "mmap": 1, "pread": 2}


class NotShownWarning(UserWarning):
    """A journal beside an archive may hold a newer commit than the model shows.

    The journal belongs to another user, has a newer version, or is damaged: the message gives the reason, and names
    who can settle it. The model shows the tensors of the archive. `warnings.simplefilter("error",
    stfs.NotShownWarning)` refuses such a model.
    """


def open(path: StrPath, *, io: str = "auto", strict: bool = False) -> Model:
    """Opens a model. Reads only its headers.

    path    an archive, an index (`*.safetensors.index.json`), a directory with one index, a directory with one archive
            and no index, a mount of safetensorsfs, or the file of a tensor in a mount (a model of this tensor only). A
            view of a tensor is refused; `open(file)["name"][0:10]` is a slice of it
    io      "auto" maps the archive, except on file systems where a map is not reliable (NFS, FUSE, ...); "mmap" always
            maps it, "pread" always reads it
    strict  refuses a model whose index and shards disagree

    Warns (NotShownWarning) if a journal beside an archive cannot be read and may hold a newer commit.

    >>> with stfs.open("model.safetensors") as model:
    ...     total = sum(tensor.nbytes for tensor in model.values())
    """
    return Model(path, io=io, strict=strict)


class Model(Mapping[str, Tensor]):
    """All tensors of a model by their names, in the order in which they lie in their files.

    Use it as a context manager, or close() it. Its tensors stay valid. Any number of threads may use it.
    """

    def __init__(self, path: StrPath, *, io: str = "auto", strict: bool = False) -> None:
        if io not in _IO:
            raise ValueError(f"io={io!r}: one of {', '.join(map(repr, _IO))}")
        self._named = os.fspath(path)
        self._handle = _stfs.Model(self._named, _IO[io], strict)
        # The warning names the line of the program.
        level = 3 if sys._getframe(1).f_code is open.__code__ else 2
        for why in self._handle.not_shown():
            warnings.warn(why, NotShownWarning, stacklevel=level)

    def __getitem__(self, name: str) -> Tensor:
        return self._handle.tensor(Tensor, self._handle.find(name))

    def __contains__(self, name: object) -> bool:
        return self._handle.contains(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._handle.names())

    def __len__(self) -> int:
        return self._handle.count()

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the tensor of that name, or the default."""
        return self[name] if name in self else default

    def keys(self) -> KeysView[str]:
        """The names, in the order in which the tensors lie in their files."""
        return super().keys()

    # As a mapping it would compare all tensors.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def metadata(self) -> dict[str, str]:
        """The `__metadata__` of all shards."""
        return self._handle.metadata()

    @property
    def path(self) -> str:
        """The absolute path of the archive or the index."""
        return self._handle.path()

    @property
    def generation(self) -> int:
        """The time of the last write to an archive, in nanoseconds. It differs after each change."""
        return self._handle.generation()

    def check_current(self) -> None:
        """Raises OSError if the files have changed since they were opened.

        ESTALE: the file was replaced, or its header has changed. EIO: the file was truncated.
        """
        self._handle.check_current()

    def start_upload(self, names: str | Iterable[str] | None = None, *, device: str | Iterable[str] | None = None,
                     rules: str | None = None, dtype: str | None = None, verify: bool = False,
                     readers: int = 0) -> Upload:
        """Starts an upload as upload() does, and returns at once."""
        if (device is None) == (rules is None):
            raise ValueError("give either device= or rules=; there is no default")
        devices = device if device is None or isinstance(device, str) else ",".join(device)
        patterns = None if names is None else [names] if isinstance(names, str) else list(names)
        if patterns == []:
            raise ValueError("names=[] selects nothing; names=None selects all")
        return Upload(self._handle.start_upload(devices, rules, patterns, dtype, readers, verify))

    def upload(self, names: str | Iterable[str] | None = None, *, device: str | Iterable[str] | None = None,
               rules: str | None = None, dtype: str | None = None, verify: bool = False, readers: int = 0,
               progress: Progress | None = None) -> Resident:
        """Copies tensors into the memory of a device, and waits for the end.

        names     names of tensors, or patterns as of fnmatch(3), with or without a slice at the end
                  ("*.q_proj.weight[:128]"); None: all tensors
        device    "cpu", "cuda:0", "cuda:GPU-uuid", or several of them: each gets a copy, read once. There is no default
        rules     instead of device: lines "PATTERN DEVICE[,DEVICE...] [shard(DIMENSION,PART/PARTS)]"; the first line
                  whose pattern matches a name decides
        dtype     the dtype to which every floating-point tensor is converted ("BF16" or "bf16", "F32", ...); other
                  tensors are not converted
        verify    compares a digest of each tensor's bytes on the device with the archive's
        readers   number of threads that read; 0: one for each core, at most 8
        progress  as of Upload.wait()

        Raises the errors of Upload.wait(), ValueError for a device or a rule that is not valid, OSError (ENODEV) for a
        device that does not exist, and OSError (ENOENT) for a pattern that matches no tensor.

        >>> weights = model.upload("model.layers.*", device="cuda:0", dtype="BF16")
        """
        upload = self.start_upload(names, device=device, rules=rules, dtype=dtype, verify=verify, readers=readers)
        return upload.wait(progress)

    @property
    def closed(self) -> bool:
        return self._handle.is_closed

    def close(self) -> None:
        """Closes the files. Tensors, and arrays made of them, keep their own files open."""
        self._handle.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return f"<stfs.Model {self._named!r}, closed>"
        return f"<stfs.Model {self._named!r}, {len(self)} tensors>"
