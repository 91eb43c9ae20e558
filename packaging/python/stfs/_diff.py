"""The differences of two models."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Union

from ._model import Model, open
from ._progress import Progress, shown

if TYPE_CHECKING:
    StrPath = Union[str, "os.PathLike[str]"]

_ONLY_IN_A, _ONLY_IN_B = 1, 2


class Form(NamedTuple):
    """A tensor's dtype and shape."""

    dtype: str
    shape: tuple[int, ...]


class Statistics(NamedTuple):
    """The elements of two tensors of one dtype and shape, as numbers."""

    different: int  # elements whose bits differ
    not_finite: int  # elements that are NaN or infinite in A or B; the fields below leave them out
    largest_difference: float  # the largest |a - b|
    largest_relative_difference: float  # the largest |a - b| / max(|a|, |b|)
    cosine: float | None  # of the angle between A and B; None if one has only zeros
    norm_a: float  # L2
    norm_b: float
    norm_difference: float  # of A - B


class Change(NamedTuple):
    """A tensor that both models have, and that differs."""

    a: Form
    b: Form
    #: None if dtype or shape differ, or with statistics=False.
    statistics: Statistics | None


@dataclass(frozen=True)
class Diff:
    """The differences between model A and model B. False if there is none."""

    compared: int  # number of tensors
    added: dict[str, Form] = field(default_factory=dict)  # tensors that only B has
    removed: dict[str, Form] = field(default_factory=dict)  # tensors that only A has
    changed: dict[str, Change] = field(default_factory=dict)
    #: {key: (value in A, value in B)}; None for a key that the model lacks.
    metadata: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.metadata)


def diff(a: StrPath | Model, b: StrPath | Model, names: str | Iterable[str] | None = None, *, statistics: bool = True,
         threads: int = 0, progress: Progress | None = None) -> Diff:
    """Compares two models tensor by tensor, as `stfs diff` does.

    a, b        paths as for open(), or open models
    names       names of tensors, or patterns as of fnmatch(3): compares only these, and no metadata; None: everything
    statistics  False: reads each tensor only up to its first difference
    threads     0: one for each core
    progress    True for a bar of tqdm, or a function: it is called now and then with the done and the total number of
                bytes of a pass; there may be two passes. An exception of it ends the comparison, as Ctrl-C does, and is
                passed on

    Raises OSError: ENOENT if a pattern matches no tensor, ESTALE if a file was changed during the comparison, EIO.

    >>> for name, change in stfs.diff("model.safetensors", "tuned.safetensors").changed.items():
    ...     print(name, change.statistics.largest_difference, change.statistics.cosine)
    """
    patterns = None if names is None else [names] if isinstance(names, str) else list(names)
    if patterns == []:
        raise ValueError("names=[] selects nothing; names=None selects all")
    if not isinstance(a, Model):
        with open(a) as a:
            return diff(a, b, patterns, statistics=statistics, threads=threads, progress=progress)
    if not isinstance(b, Model):
        with open(b) as b:
            return diff(a, b, patterns, statistics=statistics, threads=threads, progress=progress)
    with shown(progress, "comparing") as show:
        compared, rows, metadata = a._handle.diff(b._handle, patterns, threads, not statistics, show)
    result = Diff(compared, metadata={key: (value_a, value_b) for key, value_a, value_b in metadata})
    for name, kinds, dtype_a, shape_a, dtype_b, shape_b, numbers in rows:
        if kinds & _ONLY_IN_A:
            result.removed[name] = Form(dtype_a, shape_a)
        elif kinds & _ONLY_IN_B:
            result.added[name] = Form(dtype_b, shape_b)
        else:
            result.changed[name] = Change(Form(dtype_a, shape_a), Form(dtype_b, shape_b),
                                          None if numbers is None else Statistics(*numbers))
    return result
