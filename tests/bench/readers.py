"""Readers that cost next to nothing themselves: into a buffer that is there before the clock starts."""
from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

BLOCK_BYTES = 1 << 20
BUFFER = mmap.mmap(-1, BLOCK_BYTES)
BUFFER[:] = bytes(BLOCK_BYTES)
SMALL_BUFFER = memoryview(BUFFER)[:4096]

# A process for each reader; the offsets are drawn before it says that it is ready.
_RANDOM_READER = """
import mmap, os, random, sys
path, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
fd, size = os.open(path, os.O_RDONLY), os.stat(path).st_size
randomly = random.Random(seed)
offsets = [randomly.randrange(size - 4096) for _ in range(count)]
buffer = memoryview(mmap.mmap(-1, 4096))
print("ready", flush=True)
sys.stdin.readline()
for offset in offsets:
    os.preadv(fd, [buffer], offset)
print("done", flush=True)
"""


def read_sequentially(path: Path) -> int:
    """Reads a file to its end; the bytes that it held."""
    fd, done = os.open(path, os.O_RDONLY), 0
    try:
        while count := os.preadv(fd, [BUFFER], done):
            done += count
    finally:
        os.close(fd)
    return done


def sum_mapped(path: Path) -> int:
    """The sum over a mapping, eight bytes at a time: every page is really read."""
    data = np.memmap(path, np.uint8, "r")
    return int(np.add.reduce(data[:len(data) // 8 * 8].view(np.uint64)))


def microseconds_to_open(path: Path, count: int) -> float:
    """Open, read 4 KiB, close: the mean of so many."""
    name = os.fsencode(path)
    started = time.perf_counter()
    for _ in range(count):
        fd = os.open(name, os.O_RDONLY)
        os.preadv(fd, [SMALL_BUFFER], 0)
        os.close(fd)
    return (time.perf_counter() - started) / count * 1e6


def random_reads_per_second(path: Path, readers: int, count: int = 30_000) -> float:
    """4 KiB reads per second by that many processes at a time."""
    running = [subprocess.Popen([sys.executable, "-c", _RANDOM_READER, path, str(count), str(seed)], text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE) for seed in range(readers)]
    for process in running:
        process.stdout.readline()
    started = time.perf_counter()
    for process in running:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in running:
        process.stdout.readline()
    seconds = time.perf_counter() - started
    for process in running:
        process.communicate()
    return readers * count / seconds
