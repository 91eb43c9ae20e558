#!/usr/bin/env python3
"""How fast `stfs upload` moves a model from the page cache to a device, beside what copying alone reaches and beside
the reference library.

On the CPU: our three ways in (the archive, its mount, plain reads of the mount's files) against as many threads that
copy the mapped archive into fresh memory, and against load_file. On a machine with a GPU the same to cuda:0, against
copies of page-locked memory alone (upload_ceiling.cc), and every loader that is installed (cuda_loaders.py). Every byte is verified once before the clock runs. Random data; the page cache is warm.

    tests/bench/upload_bench.py [--size 1G] [--small 20000] [--rounds 5] [--quick] [--directory DIR] [--json FILE]
"""
from __future__ import annotations

import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import numpy as np  # noqa: E402
from bench_session import Session, parse_size, parser_for, wanted  # noqa: E402
from bench_table import Goal, Way  # noqa: E402
from cuda_upload import measure_cuda  # noqa: E402
from mounts import ours  # noqa: E402
from upload_runs import upload_speed, verify  # noqa: E402
from warm_memory import gives_pages_back  # noqa: E402
from safetensors.numpy import load_file, save_file  # noqa: E402

MEASURES = ("cpu", "small", "cuda")
PIECE_BYTES = 2 << 20
THREADS = min(os.cpu_count() or 1, 8)
GIB = 1 << 30


def in_parallel(work: Callable[[int], None], count: int) -> None:
    """work(0) ... work(count - 1), by as many threads as an upload has."""
    numbers = iter(range(count))
    lock = threading.Lock()

    def run() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            work(number)

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def fresh_memory(size_bytes: int) -> np.ndarray:
    """What an arena is made of: anonymous, with huge pages where the kernel has them, not touched yet."""
    memory = mmap.mmap(-1, size_bytes)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def copy_mapped(path: Path) -> float:
    """GiB/s of threads that copy a mapped file; NumPy lets the others run meanwhile."""
    size_bytes = os.stat(path).st_size
    started = time.perf_counter()
    source, to = np.memmap(path, np.uint8, "r"), fresh_memory(size_bytes)

    def copy(number: int) -> None:
        piece = slice(number * PIECE_BYTES, (number + 1) * PIECE_BYTES)
        np.copyto(to[piece], source[piece])

    in_parallel(copy, -(-size_bytes // PIECE_BYTES))
    return size_bytes / (time.perf_counter() - started) / GIB


def read_files(mount: Path) -> float:
    """GiB/s of threads that read every tensor's file of a mount."""
    files = sorted((entry.path, entry.stat().st_size) for entry in os.scandir(mount))
    started = time.perf_counter()
    to = memoryview(fresh_memory(sum(size for _, size in files) + 1))
    pieces, begin = [], 0
    for path, size in files:
        pieces += [(path, at, begin + at, min(PIECE_BYTES, size - at)) for at in range(0, size, PIECE_BYTES)]
        begin += size

    def read(number: int) -> None:
        path, at, place, size = pieces[number]
        fd = os.open(path, os.O_RDONLY)
        try:
            assert os.preadv(fd, [to[place:place + size]], at) == size
        finally:
            os.close(fd)

    in_parallel(read, len(pieces))
    return begin / (time.perf_counter() - started) / GIB


def load_with_reference(path: Path) -> float:
    """GiB/s of the reference library's way to memory; every page of what it gives is looked at outside the clock."""
    started = time.perf_counter()
    tensors = load_file(path)
    seconds = time.perf_counter() - started
    assert all(array.reshape(-1).view(np.uint8)[::4096].any() for array in tensors.values() if array.nbytes > 1 << 20)
    return sum(array.nbytes for array in tensors.values()) / seconds / GIB


def write_model(path: Path, tensors: int, size_bytes: int) -> None:
    numbers = np.random.default_rng(1)
    each = size_bytes // tensors // 4
    save_file({f"layers.{at}.weight": numbers.random(each, np.float32) for at in range(tensors)}, path)
    copy_mapped(path)  # warm


def warm(session: Session, size_bytes: int) -> Callable[[str], None]:
    """Before each way: the memory that it will take."""
    return lambda _: session.memory.prepare(size_bytes + (64 << 20))


def ways_of_archive(path: Path, goal: Goal) -> dict[str, Way]:
    """The ceiling, and the upload of the archive itself."""
    return {
        "parallel copy of the mapped archive": Way(lambda: copy_mapped(path)),
        "stfs upload ARCHIVE": Way(lambda: upload_speed(path, "cpu"), goals=(goal, Goal(1.5, "safetensors load_file"))),
    }


def measure_cpu(session: Session, path: Path) -> None:
    server = session.serve(ours(path, session.directory / "mount"))
    for source in (path, server.path):
        verify(source, "cpu")
    size_bytes = os.stat(path).st_size
    session.table.measure("upload to the CPU, page cache warm", "GiB/s", before=warm(session, size_bytes), ways={
        **ways_of_archive(path, Goal(0.9)),
        "stfs upload MOUNT": Way(lambda: upload_speed(server.path, "cpu"), goals=(Goal(0.9),)),
        "parallel reads of the mount's files": Way(lambda: read_files(server.path)),
        "safetensors load_file": Way(lambda: load_with_reference(path)),
    })
    server.stop()


def measure_small(session: Session, path: Path) -> None:
    verify(path, "cpu")
    size_bytes = os.stat(path).st_size
    session.table.measure("upload of many small tensors to the CPU", "GiB/s", before=warm(session, size_bytes), ways={
        **ways_of_archive(path, Goal(0.8)),
        "safetensors load_file": Way(lambda: load_with_reference(path)),
    })


def main() -> int:
    parser = parser_for(__doc__, MEASURES)
    parser.add_argument("--size", type=parse_size, default=1 << 30, help="of the model (default 1G)")
    parser.add_argument("--small", type=int, default=20_000, metavar="N", help="tensors of 16 KiB (default 20000)")
    parser.add_argument("--quick", action="store_true", help="do not fill the page cache first, where memory is slow when new")
    arguments = parser.parse_args()
    measures = wanted(parser, arguments, MEASURES)
    with Session(arguments.rounds or 5, arguments.directory, arguments.quick) as session:
        if arguments.quick and gives_pages_back():
            session.note("--quick, and free pages go back to a host: the way that finds new memory is the slow one, whichever "
                         "it is; the ratios judge nothing")
        large, small = session.directory / "large.safetensors", session.directory / "small.safetensors"
        if measures & {"cpu", "cuda"}:
            write_model(large, 64, arguments.size)
        if "cpu" in measures:
            session.run("cpu", lambda: measure_cpu(session, large))
        if "small" in measures:
            write_model(small, arguments.small, arguments.small * (16 << 10))
            session.run("small", lambda: measure_small(session, small))
        if "cuda" in measures:
            session.run("cuda", lambda: measure_cuda(session, large))
        return session.finish(arguments.json, {"size_bytes": arguments.size, "threads": THREADS})


if __name__ == "__main__":
    sys.exit(main())
