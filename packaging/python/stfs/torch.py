"""The functions of safetensors.torch, by stfs: changing the import is enough.

    from stfs.torch import load_file, save_file
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Union

import torch

from . import _stfs
from ._array import Array, array_of
from ._printable import printable
from ._safe_open import load_bytes, safe_open
from ._save import save_arrays, serialized

if TYPE_CHECKING:
    from ._frameworks import Device
    from ._progress import Progress

    StrPath = Union[str, "os.PathLike[str]"]

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]


def _storage(tensor: torch.Tensor) -> tuple[int, int]:
    """The address and the size of the memory of which a tensor is a view; (0, 0) if it has no memory."""
    if tensor.device.type == "meta" or tensor.layout != torch.strided:
        return 0, 0
    # PyTorch before 2.0 has only storage().
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else getattr(tensor, "storage")()
    return storage.data_ptr(), storage.nbytes()


def _end(tensor: torch.Tensor) -> int:
    """The address behind the last element of a tensor."""
    if not tensor.numel():
        return tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr() + (last + 1) * tensor.element_size()


def _overlapping(tensors: dict[str, torch.Tensor]) -> list[list[str]]:
    """The groups of names whose tensors show the same elements of one memory. As in the reference library, a tensor belongs
    to the group of the tensor before it in the memory."""
    memories: dict[tuple[torch.device, int, int], list[tuple[int, int, str]]] = {}
    for name, tensor in tensors.items():
        address, size_bytes = _storage(tensor)
        if address and size_bytes:
            memories.setdefault((tensor.device, address, size_bytes), []).append((tensor.data_ptr(), _end(tensor), name))
    groups: list[list[str]] = []
    for ranges in memories.values():
        end = 0
        for first, behind, name in sorted(ranges):
            if first < end:
                groups[-1].append(name)
            else:
                groups.append([name])
            end = behind
    return [group for group in groups if len(group) > 1]


def _twins(state: dict[str, torch.Tensor], preferred: Iterable[str] = ()) -> dict[str, str]:
    """{name: the name of a tensor that has all its elements}, for all tensors that a file need not hold.

    preferred  names of tensors that stay, if there is a choice
    """
    wanted = set(preferred)
    twins = {}
    for group in _overlapping(state):
        whole = sorted(name for name in group
                       if (state[name].data_ptr(), state[name].numel() * state[name].element_size()) == _storage(state[name]))
        if not whole:
            raise RuntimeError(f"the tensors {', '.join(map(printable, group))} share memory, and none of them is all of it: save copies "
                               "(clone()) of them")
        kept = next((name for name in whole if name in wanted), whole[0])
        twins.update({name: kept for name in sorted(group) if name != kept})
    return twins


def _arrays(tensors: dict[str, torch.Tensor]) -> dict[str, Array]:
    if not isinstance(tensors, dict):
        raise ValueError(f"the tensors are a dict of str to torch.Tensor, not {type(tensors).__name__}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{printable(name)}: is no torch.Tensor but {type(tensor).__name__}")
        if tensor.layout != torch.strided:
            raise ValueError(f"{printable(name)}: the tensor is sparse: save its to_dense()")
    shared = _overlapping(tensors)
    if shared:
        raise RuntimeError("tensors share memory, so a file would hold it several times: "
                           + "; ".join(", ".join(map(printable, group)) for group in shared) + ": save_model() saves it once")
    arrays = {}
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{printable(name)}: the tensor is not contiguous: save its contiguous()")
        try:
            arrays[name] = array_of(tensor.detach().cpu())
        except TypeError as error:
            raise _stfs.SafetensorError(f"{printable(name)}: {error}") from None
    return arrays


def save_file(tensors: dict[str, torch.Tensor], filename: StrPath, metadata: dict[str, str] | None = None, *,
              durability: str = "power", mode: int = 0o600, progress: Progress = None) -> None:
    """Saves tensors to an archive: all of it or nothing. The file has the bytes that safetensors.torch writes.

    tensors     {name: tensor}, on any device. Other threads must not write to them during the call
    metadata    {key: text}, or None
    durability  "power": the file is on stable storage when the call returns; "process": without a sync
    mode        of a new file, before the umask. A file that replaces another one gets no right that the other one lacks
    progress    True for a bar of tqdm, or a function of the done and the total number of bytes

    An exception of progress, and Ctrl-C, end the call: the path is then as before. Raises ValueError for a tensor that is sparse
    or not contiguous, RuntimeError for tensors that share memory, SaveError, a SafetensorError and an OSError, if the file
    cannot be written, and SafetensorError for a dtype that no archive has.
    """
    save_arrays(_arrays(tensors), filename, metadata, durability=durability, mode=mode, progress=progress)


def save(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Returns the bytes of the archive that save_file() writes."""
    return serialized(_arrays(tensors), metadata)


def load_file(filename: StrPath, device: Device = "cpu", *, backend: str = "mmap") -> dict[str, torch.Tensor]:
    """Returns the tensors of an archive by their names. The arguments are those of safe_open()."""
    with safe_open(filename, framework="pt", device=device, backend=backend) as archive:
        return archive.get_tensors()


def load(data: bytes) -> dict[str, torch.Tensor]:
    """Returns the tensors of an archive in memory."""
    return load_bytes(data, "pt")


def save_model(model: torch.nn.Module, filename: StrPath, metadata: dict[str, str] | None = None,
               force_contiguous: bool = True, *, durability: str = "power", mode: int = 0o600,
               progress: Progress = None) -> None:
    """Saves the tensors of a module. Tensors that share memory are saved once: the metadata has the names of the others.

    force_contiguous  saves tensors that are not contiguous; False: ValueError
    """
    state = model.state_dict()
    twins = _twins(state)
    pairs = dict(metadata or {})
    for name, kept in twins.items():
        pairs.setdefault(name, kept)
        del state[name]
    if force_contiguous:
        state = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(state, filename, pairs if twins else metadata, durability=durability, mode=mode, progress=progress)


def load_model(model: torch.nn.Module, filename: StrPath, strict: bool = True, device: Device = "cpu", *,
               backend: str = "mmap") -> tuple[set[str], list[str]]:
    """Loads the tensors of an archive into a module. Knows names that save_model() has left out.

    strict  RuntimeError if the archive lacks a tensor of the module, or has one that the module lacks

    Returns the names that the archive lacks, and the names that the module lacks.
    """
    tensors = load_file(filename, device, backend=backend)
    twins = _twins(model.state_dict(), tensors)
    result = model.load_state_dict(tensors, strict=False)
    missing, unexpected = set(result.missing_keys), list(result.unexpected_keys)
    for name in twins:
        if name in missing:
            missing.remove(name)
        else:
            unexpected.append(name)
    if strict and (missing or unexpected):
        raise RuntimeError(f"{printable(filename)}: does not fit {type(model).__name__}"
                           + "".join(f"; {what}: {', '.join(map(printable, sorted(names)))}" for what, names in
                                     (("the archive lacks", missing), ("the module lacks", unexpected)) if names))
    return missing, unexpected
