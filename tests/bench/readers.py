"""Readers with almost no cost of their work: they read into a buffer that exists before the clock starts."""
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

LONGEST_SECONDS = 2.0  # of a series of small reads or opens

# There is a process for each reader. It draws the offsets before it reports that it is ready, and prints the number of its reads.
_RANDOM_READER = """
import mmap, os, random, sys, time
path, count, seed, longest = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
fd, size = os.open(path, os.O_RDONLY), os.stat(path).st_size
randomly = random.Random(seed)
offsets = [randomly.randrange(size - 4096) for _ in range(count)]
buffer = memoryview(mmap.mmap(-1, 4096))
print("ready", flush=True)
sys.stdin.readline()
ends = time.monotonic() + longest
for at, offset in enumerate(offsets, 1):
    os.preadv(fd, [buffer], offset)
    if at % 64 == 0 and time.monotonic() > ends:
        break
print(at, flush=True)
"""


def read_sequentially(path: Path) -> int:
    """Reads a file to its end. Returns the number of bytes."""
    fd, done = os.open(path, os.O_RDONLY), 0
    try:
        while count := os.preadv(fd, [BUFFER], done):
            done += count
    finally:
        os.close(fd)
    return done


def sum_mapped(path: Path) -> int:
    """Returns the sum over a mapping, eight bytes at a time, so that every page is really read."""
    data = np.memmap(path, np.uint8, "r")
    return int(np.add.reduce(data[:len(data) // 8 * 8].view(np.uint64)))


def microseconds_to_open(path: Path, count: int) -> float:
    """Returns the mean time to open, read 4 KiB and close, of `count` times or as many as two seconds allow."""
    name = os.fsencode(path)
    started = time.perf_counter()
    for done in range(1, count + 1):
        fd = os.open(name, os.O_RDONLY)
        os.preadv(fd, [SMALL_BUFFER], 0)
        os.close(fd)
        if time.perf_counter() - started > LONGEST_SECONDS:
            break
    return (time.perf_counter() - started) / done * 1e6


def random_reads_per_second(path: Path, readers: int, count: int = 30_000) -> float:
    """Returns the number of 4 KiB reads per second by this many processes at a time."""
    running = [subprocess.Popen([sys.executable, "-c", _RANDOM_READER, path, str(count), str(seed),
                                str(LONGEST_SECONDS)], text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE) for seed in range(readers)]
    for process in running:
        process.stdout.readline()
    started = time.perf_counter()
    for process in running:
        process.stdin.write("\n")
        process.stdin.flush()
    done = sum(int(process.stdout.readline()) for process in running)
    seconds = time.perf_counter() - started
    for process in running:
        process.communicate()
    return done / seconds
