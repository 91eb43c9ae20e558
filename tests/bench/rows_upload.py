"""`stfs upload` of a model in the page cache to a device, beside copies alone and the libraries that load an archive.

On the CPU: our ways (the archive, its mount, plain reads of the mount's files), beside as many threads that copy the mapped archive
into fresh memory. On a GPU: beside copies of page-locked memory alone (upload_ceiling.cc). Every byte is verified once before the
clock runs. The clock of an upload is its report's: it runs while bytes are moved."""
from __future__ import annotations

import json
import mmap
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from bench_row import GIB, Goal, Plan, Skip, Way, missing, need, ours, peer, row, twin
from bench_session import Place
from mounts import BUILD, STFS, safetensorsfs
from peers import FAST, INSTANT, LOAD_AND_MOVE, LOAD_FILE, RUNAI, loader_ways

PIECE_BYTES = 2 << 20
THREADS = min(os.cpu_count() or 1, 8)
CUDA, CEILING = "cuda:0", BUILD / "tests" / "upload_ceiling"
COPY, BUS, NUMPY = "parallel copy of the mapped archive", "page-locked copies alone", "NumPy, safetensors load_file"
ARCHIVE, MOUNT, READS = "stfs upload ARCHIVE", "stfs upload MOUNT", "parallel reads of the mount's files"


def _upload(source: Path, device: str, *more: str) -> dict[str, float]:
    done = subprocess.run([STFS, "upload", source, "--device", device, "--json", *more], check=True, capture_output=True)
    return json.loads(done.stdout)


def upload_way(source: Path, device: str) -> Way:
    """Verifies every byte once. Returns the way, in GiB/s."""
    report = _upload(source, device, "--verify")
    assert report["verified_bytes"] == report["read_bytes"] > 0
    return ours(lambda: _upload(source, device)["bytes_per_second"] / GIB)


def in_parallel(work: Callable[[int], None], count: int) -> None:
    """Runs work(0) ... work(count - 1) on as many threads as an upload has."""
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
    """Returns memory as for an arena: anonymous, with huge pages if the kernel has them, not touched yet."""
    memory = mmap.mmap(-1, size_bytes)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def copy_mapped(path: Path) -> float:
    """Returns GiB/s of threads that copy a mapped file. NumPy lets the other threads run during a copy."""
    size_bytes = os.stat(path).st_size
    started = time.perf_counter()
    source, to = np.memmap(path, np.uint8, "r"), fresh_memory(size_bytes)

    def copy(number: int) -> None:
        piece = slice(number * PIECE_BYTES, (number + 1) * PIECE_BYTES)
        np.copyto(to[piece], source[piece])

    in_parallel(copy, -(-size_bytes // PIECE_BYTES))
    return size_bytes / (time.perf_counter() - started) / GIB


def read_files(mount: Path) -> float:
    """Returns GiB/s of threads that read every tensor's file of a mount."""
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
    """Returns GiB/s of the reference library. Every page of its result is touched outside the clock."""
    from safetensors.numpy import load_file
    started = time.perf_counter()
    tensors = load_file(path)
    seconds = time.perf_counter() - started
    assert all(array.reshape(-1).view(np.uint8)[::4096].any() for array in tensors.values() if array.nbytes > 1 << 20)
    return sum(array.nbytes for array in tensors.values()) / seconds / GIB


class Model:
    """A model of the reference library."""

    def __init__(self, place: Place, tensors: int, size_bytes: int) -> None:
        need("safetensors")
        from safetensors.numpy import save_file
        self.place, self.path = place, place.path("model.safetensors")
        random, each = np.random.default_rng(1), size_bytes // tensors // 4
        save_file({f"layers.{at}.weight": random.random(each, np.float32) for at in range(tensors)}, self.path)
        copy_mapped(self.path)  # warms up

    def plan(self, ways: dict[str, Way]) -> Plan:
        size_bytes = self.path.stat().st_size
        return Plan(ways, lambda _: self.place.session.memory.prepare(size_bytes + (64 << 20)))


@row("upload-cpu", "upload to the CPU, page cache warm", "GiB/s",
     goals=(Goal(ARCHIVE, 0.9), Goal(ARCHIVE, 1.5, NUMPY), Goal(MOUNT, 0.9)))
def upload_cpu(place: Place) -> Plan:
    model = Model(place, 64, place.sizes.large_bytes)
    server = place.serve(safetensorsfs(model.path, place.path("mnt")))
    return model.plan({COPY: twin(lambda: copy_mapped(model.path)), ARCHIVE: upload_way(model.path, "cpu"),
                       MOUNT: upload_way(server.path, "cpu"), READS: ours(lambda: read_files(server.path)),
                       NUMPY: peer(lambda: load_with_reference(model.path)),
                       **loader_ways(model.path, "cpu", (LOAD_FILE, FAST, RUNAI))})


@row("upload-small", "upload of many tensors of 16 KiB to the CPU", "GiB/s", goals=(Goal(ARCHIVE, 0.8), Goal(ARCHIVE, 1.5, NUMPY)))
def upload_small(place: Place) -> Plan:
    count = place.sizes.many // 5
    model = Model(place, count, count * (16 << 10))
    return model.plan({COPY: twin(lambda: copy_mapped(model.path)), ARCHIVE: upload_way(model.path, "cpu"),
                       NUMPY: peer(lambda: load_with_reference(model.path))})


@row("upload-cuda", "upload to a GPU, page cache warm", "GiB/s",
     goals=(Goal(ARCHIVE, 0.9), Goal(ARCHIVE, 2, LOAD_FILE), Goal(ARCHIVE, 1 / 0.7, LOAD_AND_MOVE), Goal(ARCHIVE, 1, INSTANT),
            Goal(ARCHIVE, 3, FAST), Goal(ARCHIVE, 3, RUNAI)))
def upload_cuda(place: Place) -> Plan:
    devices = json.loads(subprocess.run([STFS, "devices", "--json"], check=True, capture_output=True).stdout)
    if devices["why_no_cuda"]:
        raise Skip(devices["why_no_cuda"])
    model = Model(place, 64, place.sizes.large_bytes)

    def copies_alone() -> float:
        return float(subprocess.run([CEILING, CUDA], check=True, capture_output=True).stdout) / GIB
    mount = missing("ours", "there is no /dev/fuse")
    if os.path.exists("/dev/fuse"):
        mount = upload_way(place.serve(safetensorsfs(model.path, place.path("mnt"))).path, CUDA)
    return Plan({BUS: twin(copies_alone), ARCHIVE: upload_way(model.path, CUDA), MOUNT: mount,
                 **loader_ways(model.path, CUDA, (LOAD_FILE, LOAD_AND_MOVE, INSTANT, FAST, RUNAI))})
