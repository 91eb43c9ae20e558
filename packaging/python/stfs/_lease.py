"""Leases: tensors that another process, `stfs serve`, keeps in the memory of devices."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING, NamedTuple, Union

from . import _stfs
from ._on_devices import OnDevices
from ._tensor import Tensor

if TYPE_CHECKING:
    from types import TracebackType


class News(NamedTuple):
    """What has become of the server since it was last asked."""

    newer_generation: int  # that is there now, for refresh(); 0: no news of one
    why_stuck: str  # why a change of the archive has led to none; empty: no such news
    is_server_gone: bool  # what is mapped stays


class Lease(OnDevices):
    """One generation of what a server holds: its tensors by their names, in the order of their archives.

    Nothing of them was copied, and nothing can be written to them: that ends the process with SIGSEGV. They stay as
    they are, whatever becomes of the server and the archive, as long as one of them is held; so long the server
    counts the lease.

    >>> with stfs.attach("/tmp/model.sock") as lease:
    ...     weight = torch.from_dlpack(lease["lm_head.weight"])
    ...     if lease.news().newer_generation:
    ...         lease = lease.refresh()
    """

    def __init__(self, socket: str, handle: _stfs.Lease) -> None:
        super().__init__(handle.tensors(Tensor))
        self._socket = socket
        self._handle: _stfs.Lease | None = handle
        #: From 1 on, by one for each change of the archives that the server has uploaded.
        self.generation = handle.generation()
        #: What the server serves: absolute paths.
        self.sources = handle.sources()

    def fileno(self) -> int:
        """For select, poll and asyncio: readable when there is news.

        ValueError once news() has told that the server is gone, or after close().
        """
        descriptor = -1 if self._handle is None else self._handle.descriptor()
        if descriptor < 0:
            raise ValueError("the lease has no connection any more")
        return descriptor

    def news(self, timeout: float | None = 0) -> News:
        """What is new, each thing once.

        timeout  waits so many seconds for it; None: for ever. KeyboardInterrupt comes through.
        """
        if self._handle is None:
            raise ValueError("the lease is closed")
        if timeout != 0 and self._handle.descriptor() >= 0:
            poll = select.poll()
            poll.register(self._handle.descriptor(), select.POLLIN)
            poll.poll(None if timeout is None else timeout * 1000)
        return News(*self._handle.take_news())

    def refresh(self, timeout: float = 60.0) -> Lease:
        """A lease of the newest generation. This one stays as it is."""
        return attach(self._socket, timeout=timeout)

    def close(self) -> None:
        """Lets go of the tensors; those that somebody else holds, and the lease with them, stay."""
        self._handle = None
        self._on.clear()
        self._first.clear()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def attach(socket: Union[str, os.PathLike[str]], *, timeout: float = 60.0) -> Lease:
    """Maps what `stfs serve --socket SOCKET` keeps: in milliseconds, without a copy, read-only.

    timeout  how many seconds a server that is still uploading is waited for

    Raises OSError: FileNotFoundError and ConnectionRefusedError where nobody serves there, PermissionError where another
    user does, TimeoutError where it is still uploading.
    """
    path = os.path.abspath(os.fspath(socket))
    return Lease(path, _stfs.attach(path, timeout))
