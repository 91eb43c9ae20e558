"""Makes the memory for a measurement ready before its clock starts.

A virtual machine's memory is slow when it is used for the first time. If the kernel reports free pages to its host, freed
memory is slow again two seconds later: measured, 2.4 s per GiB instead of 0.2. This affects only the ways that need new
pages (a journal does, a file that is overwritten in the page cache does not). On such a machine touching memory does not
help, because free pages do not stay. There the page cache is filled with the zeros of a sparse file. New pages then come
from the page cache, as on any machine that has run for a while.
"""
from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np

from page_cache import memory_bytes

_CHUNK_BYTES = 1 << 20
_REPORTING = Path("/sys/module/page_reporting/parameters/page_reporting_order")


def gives_pages_back() -> bool:
    """Returns true if free pages are given back to a host."""
    try:
        is_reporting = int(_REPORTING.read_text(encoding="ascii")) >= 0
    except (OSError, ValueError):
        return False
    return is_reporting and "hypervisor" in Path("/proc/cpuinfo").read_text(encoding="ascii")


def reclaim_bytes() -> int:
    """Returns the number of free bytes below which the kernel takes pages from the page cache: its high watermarks, with
    some room for their boost."""
    lines = Path("/proc/zoneinfo").read_text(encoding="ascii").splitlines()
    pages = sum(int(words[1]) for words in map(str.split, lines) if len(words) == 2 and words[0] == "high")
    return 4 * pages * mmap.PAGESIZE


class WarmMemory:
    """Owns the sparse file, which needs no room on the disk."""

    def __init__(self, path: Path, may_fill: bool) -> None:
        self.path = path
        self._may_fill = may_fill  # the first fill takes a minute
        self._fd = -1
        self._size_bytes = memory_bytes("MemTotal") * 3 // 2
        self._at = 0
        self._buffer = mmap.mmap(-1, _CHUNK_BYTES)

    def prepare(self, size_bytes: int) -> None:
        """Makes the next size_bytes of memory warm, for any process."""
        if not self._may_fill or not gives_pages_back():
            touch(size_bytes)
            return
        limit = reclaim_bytes()
        for _ in range(3):  # the kernel reclaims at the same time, so that the limit may never be reached
            surplus = memory_bytes("MemFree") - limit
            if surplus <= 0:
                return
            self._read(surplus)

    def _read(self, size_bytes: int) -> None:
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.truncate(self._fd, self._size_bytes)
        for _ in range(-(-size_bytes // _CHUNK_BYTES)):
            os.preadv(self._fd, [self._buffer], self._at)
            self._at = (self._at + _CHUNK_BYTES) % self._size_bytes

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self.path.unlink(missing_ok=True)
            self._fd = -1


def touch(size_bytes: int) -> None:
    """Takes this much memory once and frees it."""
    size_bytes = min(size_bytes, memory_bytes("MemAvailable") - (1 << 30))
    if size_bytes <= 0:
        return
    with mmap.mmap(-1, size_bytes) as memory:
        np.frombuffer(memory, np.uint8)[::mmap.PAGESIZE] = 1
