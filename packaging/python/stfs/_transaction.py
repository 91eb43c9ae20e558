"""Transactions: changes of a model that are committed as one."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from . import _stfs
from ._printable import printable

if TYPE_CHECKING:
    from types import TracebackType


class Changes:
    """The changes of a model: one commit for each change, or for all changes of an open transaction.

    Other threads wait for the end of a transaction before they change the model.
    """

    def __init__(self, handle: _stfs.Model, named: str, is_writable: bool) -> None:
        self._handle = handle
        self._named = named
        self.is_writable = is_writable
        self._turn = threading.RLock()
        self._edit: _stfs.Edit | None = None  # of the open transaction
        #: The changes of the open transaction, by name: the new dtype and shape, or None if no tensor has the name any more.
        self._forms: dict[str, tuple[str, tuple[int, ...]] | None] = {}

    @property
    def is_collecting(self) -> bool:
        """Whether the changes of this thread wait for the end of its transaction."""
        return self._edit is not None

    def form_of(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """The dtype and shape of the tensor of that name, after the changes so far. None: there is none."""
        if name in self._forms:
            return self._forms[name]
        if not self._handle.contains(name):
            return None
        tensor = self._handle.tensor(_stfs.Tensor, name)
        return tensor.dtype, tensor.shape

    def note(self, forms: dict[str, tuple[str, tuple[int, ...]] | None]) -> None:
        """Records the dtypes and shapes that a change of this thread has given to names."""
        if self._edit is not None:
            self._forms.update(forms)

    @contextmanager
    def change(self) -> Iterator[_stfs.Edit]:
        """Gives the edit for one change. Commits it unless a transaction is open."""
        with self._turn:
            if self._edit is not None:
                yield self._edit
                return
            edit = self._begin()
            try:
                yield edit
                edit.commit()
            finally:
                edit.close()

    def enter(self) -> None:
        self._turn.acquire()
        try:
            if self._edit is not None:
                raise RuntimeError(f"{printable(self._named)}: a transaction of this model is open already")
            self._edit = self._begin()
        except BaseException:
            self._turn.release()
            raise

    def leave(self, must_commit: bool) -> None:
        edit, self._edit = self._edit, None
        assert edit is not None, "enter() comes first"
        self._forms = {}
        try:
            if must_commit:
                edit.commit()
        finally:
            edit.close()
            self._turn.release()

    def _begin(self) -> _stfs.Edit:
        if not self.is_writable:
            raise OSError(errno.EROFS, f"{printable(self._named)}: is open for reading only: open it with "
                                       "stfs.open(path, 'r+') to change it")
        return self._handle.edit()


class Transaction:
    """The context manager of Model.transaction()."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    def __enter__(self) -> None:
        self._changes.enter()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._changes.leave(must_commit=kind is None)
