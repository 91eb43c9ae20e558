"""Makes the cached part of a file and the machine's memory known before a measurement, and checks it."""
from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def drop(path: Path) -> None:
    """Evicts one file's clean pages, so that the next read is from the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def drop_inodes() -> None:
    """Evicts the kernel's inodes and names. Needs root."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
        file.write("2")


def cached_share(path: Path) -> float:
    """Returns the share of a plain file's pages in the page cache, by mincore."""
    size_bytes = os.stat(path).st_size
    fd = os.open(path, os.O_RDONLY)
    at = _libc.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    os.close(fd)
    if at == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"mmap: {path}")
    seen = np.zeros(-(-size_bytes // mmap.PAGESIZE), np.uint8)
    try:
        if _libc.mincore(at, size_bytes, seen.ctypes.data) != 0:
            raise OSError(ctypes.get_errno(), f"mincore: {path}")
    finally:
        _libc.munmap(at, size_bytes)
    return float((seen & 1).mean())


def memory_bytes(name: str) -> int:
    """Returns a figure of /proc/meminfo: MemTotal, MemFree or MemAvailable."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
