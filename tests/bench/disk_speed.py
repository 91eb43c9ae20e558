"""A disk that takes no more bytes in a second than it is told to.

A loop device over a file is as fast as the machine below lets it be: often as its memory, which no disk is, and
another one each minute. With a limit it is a disk of one known speed.
"""
from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from mounts import unescape_mount

_THROTTLE = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")


def why_no_limit() -> str | None:
    """The reason for which no disk's speed can be limited here, or None."""
    # The second version of control groups has no limit for all processes together.
    return None if os.access(_THROTTLE, os.W_OK) else f"there is no {_THROTTLE} to write to"


def _device_of(directory: Path) -> str:
    """MAJOR:MINOR of what is mounted there."""
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as table:
        sources = {unescape_mount(point): source for source, point, _ in (line.split(" ", 2) for line in table)}
    device = os.stat(sources[str(directory)]).st_rdev
    return f"{os.major(device)}:{os.minor(device)}"


@contextlib.contextmanager
def limited(directory: Path, bytes_per_second: int) -> Iterator[None]:
    """The disk of the file system that is mounted at `directory`, for writes of all processes."""
    device = _device_of(directory)
    _THROTTLE.write_text(f"{device} {bytes_per_second}")
    try:
        yield
    finally:
        _THROTTLE.write_text(f"{device} 0")
