"""Uploads: tensors into the memory of devices, beside whatever else the program does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Union

from . import _stfs
from ._on_devices import OnDevices
from ._tensor import Tensor

if TYPE_CHECKING:
    from types import TracebackType

    Progress = Callable[[int, int], Union[object, None]]

# How long wait() sleeps between two looks: what is over at once is noticed at once, Ctrl-C within the longest.
_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.05


class Device(NamedTuple):
    """A device, and how its memory is."""

    name: str  # how it is named to upload(): "cpu", "cuda:0"
    uuid: str  # of a GPU, "GPU-...": "cuda:" and this names it too
    description: str
    total_bytes: int
    free_bytes: int | None  # None where it can't be asked without taking memory of the GPU
    problem: str  # why nothing can be asked of this GPU; else empty


def devices() -> list[Device]:
    """The devices that are there: the CPU first, always."""
    return [Device(*device) for device in _stfs.devices()[0]]


def why_no_cuda() -> str:
    """One sentence for a person where there is no GPU; else empty."""
    return _stfs.devices()[1]


@dataclass(frozen=True)
class UploadReport:
    """What an upload did."""

    seconds: float  # of moving the bytes alone
    read_bytes: int  # from archives
    cached_bytes: int  # of them in the page cache when it began
    overflows: int  # elements that the new dtype could not hold
    verified_bytes: int


class Resident(OnDevices):
    """Tensors in the memory of devices, by their names, in the order in which they were read.

    Each keeps the memory of its device alive, which is one piece for all of an upload. Of a tensor with replicas this
    has the one on the first device; `on()` has the others.
    """

    def __init__(self, tensors: list[Tensor], report: UploadReport, left_out: list[str]) -> None:
        super().__init__(tensors)
        self.report = report
        #: Names that no rule had a device for.
        self.left_out = left_out


class Upload:
    """An upload under way, on threads of its own. Dropping it cancels it.

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
        """Whether wait() will not wait; how it ended only that tells."""
        return self._handle.poll()[2]

    def cancel(self) -> None:
        """The rest is not read, and nothing is kept: wait() raises OSError (ECANCELED), if it was not done already."""
        self._handle.cancel()

    def wait(self, progress: Progress | None = None) -> Resident:
        """Waits for the end; once.

        progress  is called with the bytes done and the bytes in all now and then, and at the end with all; what it
                  raises cancels the upload, as Ctrl-C does, and is passed on

        Raises OSError: ECANCELED, ESTALE where an archive has changed since the start, EBADMSG where a byte on the
        device differs from the archive's, ENOMEM, EIO.
        """
        if self._resident is not None:
            return self._resident
        pause_s = _FIRST_PAUSE_S
        try:
            while not self.is_done:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                if progress is not None:
                    progress(*self._handle.poll()[:2])
        except BaseException:
            self.cancel()
            raise
        tensors, (duration_ns, *rest) = self._handle.wait(Tensor)
        self._resident = Resident(tensors, UploadReport(duration_ns / 1e9, *rest), self._handle.left_out())
        if progress is not None:
            progress(*self._handle.poll()[:2])
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
