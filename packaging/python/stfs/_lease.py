"""Leases: tensors that another process, `stfs serve`, keeps in the memory of devices."""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING, NamedTuple, Union

from . import _stfs
from ._on_devices import OnDevices
from ._tensor import Tensor

if TYPE_CHECKING:
    from types import TracebackType


class News(NamedTuple):
    """Changes of the server since the last call."""

    newer_generation: int  # the generation that renew() would map; 0: there is no newer one
    why_stuck: str  # the reason why a change of the archive has led to no generation, or empty
    is_server_gone: bool  # the mapped tensors stay valid


class Lease(OnDevices):
    """One generation of the tensors of a server, by their names, in the order of their archives.

    The tensors are not copied. A write to them ends the process with SIGSEGV. They stay valid and unchanged as long as
    the program holds one of them, even if the server ends or the archive changes. The server counts the lease
    until the last of them is closed.

    >>> with stfs.attach("/tmp/model.sock") as lease:
    ...     weights = {name: torch.from_dlpack(tensor) for name, tensor in lease.items()}
    ...     while lease.wait(timeout=60):
    ...         for name in lease.renew():
    ...             weights[name] = torch.from_dlpack(lease[name])
    """

    def __init__(self, socket: str, handle: _stfs.Lease) -> None:
        super().__init__(handle.tensors(Tensor))
        self._socket = socket
        self._handle: _stfs.Lease | None = handle
        self._describe(handle)

    def _describe(self, handle: _stfs.Lease) -> None:
        #: 1 for the first upload; grows by one with each change of the archives that the server has uploaded.
        self.generation = handle.generation()
        #: The version of the weight sync that this generation holds ("000042"), or None.
        self.version: str | None = handle.version() or None
        #: The absolute paths of the served archives.
        self.sources = handle.sources()

    def fileno(self) -> int:
        """For select, poll and asyncio: readable when there is news.

        Raises ValueError after news() has reported the end of the server, and after close().
        """
        descriptor = -1 if self._handle is None else self._handle.descriptor()
        if descriptor < 0:
            raise ValueError("the lease has no connection any more")
        return descriptor

    def news(self, timeout: float | None = 0) -> News:
        """Returns changes of the server, each change once.

        timeout  the seconds to wait for a change; None: without limit. KeyboardInterrupt ends the wait.
        """
        handle = self._open_handle()
        if timeout != 0 and handle.descriptor() >= 0:
            poll = select.poll()
            poll.register(handle.descriptor(), select.POLLIN)
            poll.poll(None if timeout is None else timeout * 1000)
        return News(*handle.take_news())

    def wait(self, timeout: float | None = None) -> int:
        """Waits for a generation newer than this one. Returns its number, or 0 if there is none within the time.

        timeout  the seconds to wait; None: without limit. KeyboardInterrupt ends the wait.

        Raises ConnectionResetError if the server has ended.
        """
        handle = self._open_handle()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            newer = handle.wait(0)
            left = None if deadline is None else deadline - time.monotonic()
            if newer or (left is not None and left <= 0):
                return newer
            poll = select.poll()
            poll.register(handle.descriptor(), select.POLLIN)
            poll.poll(None if left is None else max(1, left * 1000))

    def renew(self, timeout: float = 60.0) -> list[str]:
        """Takes the newest generation instead of this one. Returns the names of the tensors that have changed.

        Tensors that have not changed stay the same objects with the same memory, unless the server has moved them to
        free memory. What the program has made of tensors before (arrays, PyTorch's tensors) stays valid, with the bytes
        of before. If there is no newer generation, nothing changes and the list is empty.

        timeout  the seconds to wait for the server's answer

        Raises ConnectionResetError if the server has ended; the lease is then as before.
        """
        handle = self._open_handle()
        before = self.generation
        changed = set(handle.renew(timeout))
        if handle.generation() == before:
            return []
        tensors = handle.tensors(Tensor)
        names = list(dict.fromkeys(tensors[position].name for position in sorted(changed)))
        for position, tensor in enumerate(tensors):
            held = self._on.get(tensor.device, {}).get(tensor.name)
            if position not in changed and held is not None and held.address == tensor.address:
                tensors[position] = held
        self._take(tensors)
        self._describe(handle)
        return names

    def _open_handle(self) -> _stfs.Lease:
        if self._handle is None:
            raise ValueError("the lease is closed")
        return self._handle

    def refresh(self, timeout: float = 60.0) -> Lease:
        """Returns a lease of the newest generation beside this one, which does not change."""
        return attach(self._socket, timeout=timeout)

    def close(self) -> None:
        """Releases the tensors. Tensors that other objects hold stay valid and keep the lease."""
        self._handle = None
        self._on.clear()
        self._first.clear()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def attach(socket: Union[str, os.PathLike[str]], *, timeout: float = 60.0) -> Lease:
    """Maps the tensors of `stfs serve --socket SOCKET`: in milliseconds, without a copy, read-only.

    timeout  the seconds to wait for a server that is still uploading

    Raises FileNotFoundError or ConnectionRefusedError if no server uses the socket, PermissionError if the server
    belongs to another user, and TimeoutError if the server is still uploading.
    """
    path = os.path.abspath(os.fspath(socket))
    return Lease(path, _stfs.attach(path, timeout))
