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
    """A journal beside an archive may hold a newer commit than what the model shows.

    It is another user's, of a newer version of safetensorsfs, or damaged: the message says which, and who can settle it.
    The model shows the tensors as the archive has them. `warnings.simplefilter("error", stfs.NotShownWarning)` refuses such
    a model.
    """


def open(path: StrPath, *, io: str = "auto", strict: bool = False) -> Model:
    """Opens a model; reads its headers and nothing else.

    path    an archive, an index (`*.safetensors.index.json`), a directory that holds one index or else one archive, a
            mount of safetensorsfs, or the file of a tensor in a mount: a model of that tensor alone. A view of a tensor
            is refused; `open(file)["name"][0:10]` is a slice of it
    io      "auto" maps the archive, but reads where a map is no good (NFS, FUSE, ...); "mmap" and "pread" insist
    strict  refuses a model whose index and shards disagree

    Warns (NotShownWarning) of a journal beside an archive that may hold a newer commit and can't be read here.

    >>> with stfs.open("model.safetensors") as model:
    ...     total = sum(tensor.nbytes for tensor in model.values())
    """
    return Model(path, io=io, strict=strict)


class Model(Mapping[str, Tensor]):
    """All tensors of a model by their names, in the order in which they lie in their files.

    Use it as a context manager, or close() it; tensors that came from it live on. Any number of threads may use it.
    """

    def __init__(self, path: StrPath, *, io: str = "auto", strict: bool = False) -> None:
        if io not in _IO:
            raise ValueError(f"io={io!r}: one of {', '.join(map(repr, _IO))}")
        self._named = os.fspath(path)
        self._handle = _stfs.Model(self._named, _IO[io], strict)
        # The line of the program, not ours.
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
        """The tensor of that name, or the default."""
        return self[name] if name in self else default

    def keys(self) -> KeysView[str]:
        """The names, in the order in which the tensors lie in their files."""
        return super().keys()

    # As a mapping it would compare all tensors.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def metadata(self) -> dict[str, str]:
        """`__metadata__`, of all shards."""
        return self._handle.metadata()

    @property
    def path(self) -> str:
        """The absolute path of the archive or the index."""
        return self._handle.path()

    @property
    def generation(self) -> int:
        """Another number after each change of an archive: when one was last written to, in nanoseconds."""
        return self._handle.generation()

    def check_current(self) -> None:
        """Raises OSError where the files are no longer those that were opened.

        ESTALE: another file lies at the path, or the header is another one. EIO: it was cut short.
        """
        self._handle.check_current()

    def start_upload(self, names: str | Iterable[str] | None = None, *, device: str | Iterable[str] | None = None,
                     rules: str | None = None, dtype: str | None = None, verify: bool = False,
                     readers: int = 0) -> Upload:
        """Begins what upload() does, and returns at once."""
        if (device is None) == (rules is None):
            raise ValueError("where the tensors go: device= or rules=, and not both; nothing is a default")
        devices = device if device is None or isinstance(device, str) else ",".join(device)
        patterns = None if names is None else [names] if isinstance(names, str) else list(names)
        if patterns == []:
            raise ValueError("names=[] selects nothing; names=None selects all")
        return Upload(self._handle.start_upload(devices, rules, patterns, dtype, readers, verify))

    def upload(self, names: str | Iterable[str] | None = None, *, device: str | Iterable[str] | None = None,
               rules: str | None = None, dtype: str | None = None, verify: bool = False, readers: int = 0,
               progress: Progress | None = None) -> Resident:
        """Copies tensors into the memory of a device, and waits until they are there.

        names     of tensors, or patterns as of fnmatch(3), each with a slice at its end or without
                  ("*.q_proj.weight[:128]"); None: all
        device    "cpu", "cuda:0", "cuda:GPU-uuid"; several: a replica on each, read once. None is a default.
        rules     in place of device: lines "PATTERN DEVICE[,DEVICE...] [shard(DIMENSION,PART/PARTS)]", of which the
                  first that fits a name decides
        dtype     convert every floating tensor to it ("BF16" or "bf16", "F32", ...); others stay
        verify    compare a digest of each tensor's bytes on the device with the archive's
        readers   threads that read; 0: one for each core, 8 at most
        progress  as of Upload.wait()

        Raises what Upload.wait() raises; ValueError for a device or a rule that makes no sense, OSError (ENODEV) for a
        device that is not there, KeyError never: a pattern that fits nothing is OSError (ENOENT).

        >>> weights = model.upload("model.layers.*", device="cuda:0", dtype="BF16")
        """
        upload = self.start_upload(names, device=device, rules=rules, dtype=dtype, verify=verify, readers=readers)
        return upload.wait(progress)

    @property
    def closed(self) -> bool:
        return self._handle.is_closed

    def close(self) -> None:
        """Lets go of the files. Tensors, and what was made of them, keep theirs as long as they live."""
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
