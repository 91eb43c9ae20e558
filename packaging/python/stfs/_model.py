"""A model: a mapping from names to tensors."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator, KeysView, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Union

from . import _stfs
from ._array import Array, array_of
from ._metadata import Metadata
from ._printable import printable
from ._tensor import _EXTRA_TYPES, Tensor
from ._transaction import Changes, Transaction
from ._upload import Resident, Upload

if TYPE_CHECKING:
    from ._progress import Progress

    StrPath = Union[str, "os.PathLike[str]"]

_IO = {"auto": 0, "mmap": 1, "pread": 2}


class NotShownWarning(UserWarning):
    """A journal beside an archive may hold a newer commit than the model shows.

    Another user or a newer version has written the journal, or it is damaged: the message gives the reason, and names the
    users that can settle it. The model shows the tensors of the archive. `warnings.simplefilter("error",
    stfs.NotShownWarning)` refuses such a model.
    """


def open(path: StrPath, mode: str = "r", *, io: str = "auto", strict: bool = False,
         delta: StrPath | Iterable[StrPath] | None = None) -> Model:
    """Opens a model. Reads only its headers.

    path    an archive, an index (`*.safetensors.index.json`), a directory with one index, a directory with one archive
            and no index, a mount of safetensorsfs, or the file of a tensor in a mount (a model of this tensor only). A
            view of a tensor is refused; `open(file)["name"][0:10]` is a slice of it
    mode    "r": for reading only. "r+": the model can be changed too; see Model
    io      "auto" maps the archive, except on file systems where a map is not reliable (NFS, FUSE, ...); "mmap" always
            maps it, "pread" always reads it
    strict  refuses a model whose index and shards disagree
    delta   a delta, or several, each on top of those before it: the model shows their changes on top of `path`. With
            "r+" all changes go to the last one, which is made if it does not exist, and `path` stays as it is. Checks that the base is the one that each delta was made for: in most cases by sizes and times
            of files, otherwise it reads the tensors that are kept. ValueError: it is another one

    Warns (NotShownWarning) if a journal beside an archive cannot be read and may hold a newer commit.

    >>> with stfs.open("model.safetensors") as model:
    ...     total = sum(tensor.nbytes for tensor in model.values())
    """
    return Model(path, mode, io=io, strict=strict, delta=delta)


class Model(Mapping[str, Tensor]):
    """All tensors of a model by their names, in the order in which they lie in their files.

    Use it as a context manager, or close() it. Its tensors stay valid. Any number of threads may use it.

    A model of mode "r+" changes its files, in place:

    >>> with stfs.open("model.safetensors", "r+") as model:
    ...     model["lm_head.weight"] = array     # its new elements, or a new tensor
    ...     model.replace("mask", other)        # of another dtype or shape
    ...     model.metadata["author"] = "me"
    ...     with model.transaction():           # all of these changes, or none
    ...         del model["lm_head.bias"]
    ...         model.rename("a", "b")

    Each change, or each transaction, is committed as one: the files have all of it on stable storage, or none of it.
    Other calls on the model wait for a commit. Tensor objects from before a change stay valid: they keep their bytes if the
    tensor is deleted, renamed or reshaped, and show the new bytes if it is replaced with the same dtype and shape. As long as
    such tensors exist, or other programs have the files open, deleted tensors keep their space; and an edit raises OSError
    (EBUSY) if it needs a longer header than the archive has room for. Take a copy() of a tensor to avoid that.
    """

    def __init__(self, path: StrPath, mode: str = "r", *, io: str = "auto", strict: bool = False,
                 delta: StrPath | Iterable[StrPath] | None = None) -> None:
        if io not in _IO:
            raise ValueError(f"io={io!r}: one of {', '.join(map(repr, _IO))}")
        if mode not in ("r", "r+"):
            raise ValueError(f"mode={mode!r}: 'r' or 'r+'")
        self._named = os.fspath(path)
        deltas = [] if delta is None else [delta] if isinstance(delta, (str, os.PathLike)) else list(delta)
        self._handle = _stfs.Model(self._named, _IO[io], strict, mode == "r+", deltas)
        self._changes = Changes(self._handle, str(self._named), mode == "r+")
        # The warning names the line in the caller's program.
        level = 3 if sys._getframe(1).f_code is open.__code__ else 2
        for why in self._handle.not_shown():
            warnings.warn(why, NotShownWarning, stacklevel=level)

    def __getitem__(self, name: str) -> Tensor:
        return self._handle.tensor(Tensor, name)

    def __setitem__(self, name: str, array: Any) -> None:
        """Gives a tensor new elements, or makes a new one, as put() does.

        Raises ValueError if the array has another dtype or shape than the tensor; replace() changes them.
        """
        self.put(name, array)

    def __delitem__(self, name: str) -> None:
        """Deletes a tensor. Raises KeyError if there is none."""
        with self._changes.change() as edit:
            edit.remove(name)
            self._changes.note({name: None})

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

    # The comparison of a Mapping would compare all tensors.
    __eq__ = object.__eq__

    def __hash__(self) -> int:
        return object.__hash__(self)

    @property
    def metadata(self) -> Metadata:
        """The `__metadata__` of all shards: a dict. With mode "r+", setting or deleting a key changes the files."""
        return Metadata(self._handle.metadata(), self._set_metadata)

    @property
    def mode(self) -> str:
        """ "r" or "r+"."""
        return "r+" if self._changes.is_writable else "r"

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

    def put(self, name: str, array: Any, *, dtype: str | None = None, shape: Iterable[int] | None = None) -> None:
        """Gives a tensor new elements, or makes a new one, in the last shard.

        array  a NumPy array (also of a type of ml_dtypes), a PyTorch tensor on the CPU, a Tensor, or an object with the
               buffer protocol. It need not be contiguous
        dtype  the dtype of the array's bytes, if the array does not have it: "BF16", "F4", ...
        shape  the shape, if it is not the array's own

        An array of the tensor's dtype and shape is written in place. Unsigned integers stand for BF16 and fp8 if the tensor
        has such a dtype. Raises ValueError for another dtype or shape than the tensor's: replace() changes them.

        In a transaction, the bytes of a writable array are copied at once. An array that is read-only is read when the
        transaction ends.
        """
        self._write(name, array, dtype, shape, may_change_form=False)

    def replace(self, name: str, array: Any, *, dtype: str | None = None, shape: Iterable[int] | None = None) -> None:
        """Replaces a tensor by an array of any dtype and shape, which changes the archive's structure.

        The arguments are those of put(). Raises KeyError if there is no tensor of that name.
        """
        self._write(name, array, dtype, shape, may_change_form=True)

    def rename(self, old: str | Mapping[str, str], new: str | None = None) -> None:
        """Renames a tensor, or all tensors of a mapping {old: new} at once: names may be exchanged.

        Raises KeyError for a name that is not there, and FileExistsError if two tensors would have one name.
        """
        if isinstance(old, Mapping) and new is None:
            pairs = list(old.items())
        elif not isinstance(old, Mapping) and new is not None:
            pairs = [(old, new)]
        else:
            raise TypeError("rename() takes the old and the new name, or a mapping")
        with self._changes.change() as edit:
            forms = {old: self._changes.form_of(old) for old, _ in pairs} if self._changes.is_collecting else {}
            edit.rename(pairs)
            self._changes.note({**dict.fromkeys(forms), **{new: forms[old] for old, new in pairs if old in forms}})

    def reinterpret(self, name: str, *, dtype: str | None = None, shape: Iterable[int] | None = None) -> None:
        """Gives the bytes of a tensor another dtype or shape. Their number must be the same; else OSError (EINVAL)."""
        with self._changes.change() as edit:
            known = self._changes.form_of(name)
            if known is None:
                raise KeyError(name)
            form = known[0] if dtype is None else _stfs.dtype_named(dtype), known[1] if shape is None else tuple(shape)
            edit.reinterpret(name, *form)
            self._changes.note({name: form})

    def transaction(self) -> Transaction:
        """Makes the changes inside a `with` block as one when the block ends, and none of them if it raises.

        Inside of the block the model shows its old state. All changes of this thread are a part of the transaction; changes
        of other threads wait for its end. Transactions do not nest.

        >>> with model.transaction():
        ...     model["a"] = array
        ...     del model["b"]
        """
        return Transaction(self._changes)

    def _write(self, name: str, array: Any, dtype: str | None, shape: Iterable[int] | None, *,
               may_change_form: bool) -> None:
        its = array_of(array)
        new_shape = its.shape if shape is None else tuple(shape)
        with self._changes.change() as edit:
            known = self._changes.form_of(name)
            if known is None and may_change_form:
                raise KeyError(name)
            new_dtype = _stfs.dtype_named(dtype) if dtype is not None else its.dtype
            if dtype is None and shape is None and not its.is_exact and known is not None:
                new_dtype = self._meant_dtype(its, *known)
            if known is not None and not may_change_form and known != (new_dtype, new_shape):
                raise ValueError(f"{printable(name)}: is {known[0]} {list(known[1])}, and the array is {new_dtype} {list(new_shape)}: "
                                 "replace() gives a tensor another dtype or shape")
            data = its.data if its.data.readonly or not self._changes.is_collecting else bytes(its.data)
            edit.put(name, new_dtype, new_shape, data)
            self._changes.note({name: (new_dtype, new_shape)})

    @staticmethod
    def _meant_dtype(array: Array, known_dtype: str, known_shape: tuple[int, ...]) -> str:
        """The dtype of the tensor that is replaced, if the array has its elements as unsigned integers of this size."""
        is_meant = known_dtype in _EXTRA_TYPES and known_shape == array.shape and \
            array.dtype == _EXTRA_TYPES[known_dtype][1].replace("uint", "U")
        return known_dtype if is_meant else array.dtype

    def _set_metadata(self, key: str, value: str | None) -> None:
        with self._changes.change() as edit:
            edit.set_metadata(key, value)

    def start_upload(self, names: str | Iterable[str] | None = None, *, device: str | Iterable[str] | None = None,
                     rules: str | None = None, dtype: str | None = None, cast: bool = False, verify: bool = False,
                     readers: int = 0) -> Upload:
        """Starts an upload as upload() does, and returns at once."""
        if (device is None) == (rules is None):
            raise ValueError("give either device= or rules=; there is no default")
        devices = device if device is None or isinstance(device, str) else ",".join(device)
        patterns = None if names is None else [names] if isinstance(names, str) else list(names)
        if patterns == []:
            raise ValueError("names=[] selects nothing; names=None selects all")
        return Upload(self._handle.start_upload(devices, rules, patterns, dtype, cast, readers, verify))

    def upload(self, names: str | Iterable[str] | None = None, *, device: str | Iterable[str] | None = None,
               rules: str | None = None, dtype: str | None = None, cast: bool = False, verify: bool = False, readers: int = 0,
               progress: Progress | None = None) -> Resident:
        """Copies tensors into the memory of a device, and waits for the end.

        names     names of tensors, or patterns as of fnmatch(3), with or without a slice at the end
                  ("*.q_proj.weight[:128]"); None: all tensors
        device    "cpu", "cuda:0", "cuda:GPU-uuid", or several of them: each gets a copy, read once. There is no default
        rules     instead of device: lines "PATTERN DEVICE[,DEVICE...] [shard(DIMENSION,PART/PARTS)]"; the first line
                  whose pattern matches a name decides
        dtype     the dtype to which every floating-point tensor is converted ("BF16" or "bf16", "F32", ...); other
                  tensors and scales are not converted
        cast      with dtype: converts FP8 tensors with scales beside them too, without the scales; else ValueError
        verify    compares a digest of each tensor's bytes on the device with the archive's
        readers   number of threads that read; 0: one for each core, at most 8
        progress  as of Upload.wait()

        Raises the errors of Upload.wait(), ValueError for a device or a rule that is not valid, OSError (ENODEV) for a
        device that does not exist, and OSError (ENOENT) for a pattern that matches no tensor.

        >>> weights = model.upload("model.layers.*", device="cuda:0", dtype="BF16")
        """
        upload = self.start_upload(names, device=device, rules=rules, dtype=dtype, cast=cast, verify=verify,
                                   readers=readers)
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
