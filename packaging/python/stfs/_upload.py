"""Uploads: copies of tensors in the memory of devices, made in the background."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from . import _stfs
from ._on_devices import OnDevices
from ._progress import Progress, shown
from ._tensor import Tensor

if TYPE_CHECKING:
    from types import TracebackType

# wait() sleeps between two polls: short pauses first, to notice a short upload at once. Ctrl-C waits for one pause.
_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.05


class Device(NamedTuple):
    """A device and its memory."""

    name: str  # its name for upload(): "cpu", "cuda:0"
    uuid: str  # of a GPU: "GPU-..."; "cuda:" and this text is another name for upload()
    description: str
    total_bytes: int
    free_bytes: int | None  # None if the query would take memory of the GPU
    problem: str  # the reason if this GPU does not answer, else empty


def devices() -> list[Device]:
    """Returns all devices. The CPU is always the first."""
    return [Device(*device) for device in _stfs.devices()[0]]


def why_no_cuda() -> str:
    """Returns one sentence with the reason if there is no GPU, else an empty text."""
    return _stfs.devices()[1]


@dataclass(frozen=True)
class UploadReport:
    """The result of an upload."""

    seconds: float  # the time of moving the bytes only
    read_bytes: int  # from archives
    cached_bytes: int  # the part of read_bytes that was in the page cache at the start
    overflows: int  # number of elements that were too large for the new dtype
    verified_bytes: int


class Resident(OnDevices):
    """Tensors in the memory of devices, by their names, in the order in which they were read.

    Each tensor keeps the memory of its device alive, which is one piece for the whole upload. For a tensor with
    copies on several devices this has the copy on the first device; `on()` has the others.
    """

    def __init__(self, tensors: list[Tensor], report: UploadReport, left_out: list[str]) -> None:
        super().__init__(tensors)
        self.report = report
        #: Names of the tensors that matched no rule.
        self.left_out = left_out


class Upload:
    """A running upload, with its own threads. It is cancelled when the object is deleted.

    >>> with model.start_upload(device="cuda:0") as upload:
    ...     prepare_something_else()
    ...     weights = upload.wait()
    """

    def __init__(self, handle: _stfs.Upload) -> None:
        self._handle = handle
        self._resident: Resident | None = None

    @property
    def done_bytes(self) -> int:
        return self._handle.poll()[0]

    @property
    def total_bytes(self) -> int:
        return self._handle.poll()[1]

    @property
    def is_done(self) -> bool:
        """Whether the upload has ended. wait() returns its result."""
        return self._handle.poll()[2]

    def cancel(self) -> None:
        """Cancels the upload and drops its tensors. wait() raises OSError (ECANCELED), if it is not done already."""
        self._handle.cancel()

    def wait(self, progress: Progress | None = None) -> Resident:
        """Waits for the end of the upload.

        progress  True for a bar of tqdm, or a function: it is called repeatedly with the done and the total number of
                  bytes, the last time at the end. An exception of it cancels the upload, as Ctrl-C does, and is passed on

        Raises OSError: ECANCELED, ESTALE if an archive has changed since the start, EBADMSG if a byte on the device
        differs from the archive, ENOMEM, EIO.
        """
        if self._resident is not None:
            return self._resident
        with shown(progress, "uploading") as show:
            return self._wait(show)

    def _wait(self, show: Callable[[int, int], object] | None) -> Resident:
        pause_s = _FIRST_PAUSE_S
        try:
            while not self.is_done:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                if show is not None:
                    show(*self._handle.poll()[:2])
        except BaseException:
            self.cancel()
            raise
        tensors, (duration_ns, *rest) = self._handle.wait(Tensor)
        self._resident = Resident(tensors, UploadReport(duration_ns / 1e9, *rest), self._handle.left_out())
        if show is not None:
            show(*self._handle.poll()[:2])
        return self._resident

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._resident is None:
            self.cancel()

    def __repr__(self) -> str:
        done, total, is_done = self._handle.poll()
        return f"<stfs.Upload {done} of {total} bytes{', done' if is_done else ''}>"
