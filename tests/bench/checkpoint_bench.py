#!/usr/bin/env python3
"""Saving a checkpoint: through a mount, beside the reference library. One tensor in a hundred has changed, then all have.

All ways call save_file() with the same tensors. The file that the reference writes is synced; the mount syncs what it stores.
Where all tensors differ the mount writes a new archive. An open transaction keeps it from that, so that one way saves in place.
The last lines are what the mount has written, as a part of the checkpoint: 0.02 for one tensor in a hundred, in the journal
and in the archive; of all tensors 2 in place, and 1.13 as a new archive, since an eighth is staged before.

    tests/bench/checkpoint_bench.py [--size 1G] [--rounds 5] [--json FILE]
"""
from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
from bench_session import Session, parse_size, parser_for
from bench_table import Goal, Way
from mounts import Server, ours
from safetensors.numpy import save_file

TENSORS = 100
PLAIN, MOUNT, IN_PLACE = "save_file and sync", "save_file into a mount", "the same, in place"


def written_bytes(server: Server) -> int:
    counts = dict(line.split(": ") for line in Path(f"/proc/{server.pid}/io").read_text().splitlines())
    return int(counts["wchar"])


def measure(session: Session, size_bytes: int) -> None:
    path, plain = session.path("model.safetensors"), session.path("plain.safetensors")
    random = np.random.default_rng(1)
    tensors = {f"layers.{at}.weight": random.integers(0, 255, size_bytes // TENSORS, dtype=np.uint8)
               for at in range(TENSORS)}
    save_file(tensors, path)
    server = ours(path, session.path("mount")).start()
    parts: dict[str, list[float]] = {MOUNT: [], IN_PLACE: []}
    transaction = server.path / ".safetensors" / "transactions" / "open"

    def change(_way: str) -> None:
        tensors["layers.50.weight"] += 1
        os.sync()

    def change_all(way: str) -> None:
        for tensor in tensors.values():
            tensor += 1
        if way == IN_PLACE:
            transaction.mkdir()
        os.sync()

    def saved_plainly() -> float:
        started = time.perf_counter()
        save_file(tensors, plain)
        descriptor = os.open(plain, os.O_RDWR)
        os.fsync(descriptor)
        os.close(descriptor)
        return size_bytes / (time.perf_counter() - started) / 1e9

    def saved_into_mount(way: str = MOUNT) -> float:
        before = written_bytes(server)
        started = time.perf_counter()
        save_file(tensors, server.path / ".safetensors" / "archive.safetensors")
        seconds = time.perf_counter() - started
        parts[way].append((written_bytes(server) - before) / size_bytes)
        return size_bytes / seconds / 1e9

    def saved_in_place() -> float:
        speed = saved_into_mount(IN_PLACE)
        transaction.rmdir()
        return speed

    try:
        session.table.measure(f"1 of {TENSORS} tensors differs, {size_bytes >> 20} MiB", "GB/s",
                              {PLAIN: Way(saved_plainly), MOUNT: Way(saved_into_mount, PLAIN, (Goal(1.0),))}, change)
        few = max(parts[MOUNT])
        parts[MOUNT].clear()
        session.table.measure(f"all tensors differ, {size_bytes >> 20} MiB", "GB/s",
                              {PLAIN: Way(saved_plainly), MOUNT: Way(saved_into_mount, PLAIN),
                               IN_PLACE: Way(saved_in_place, PLAIN)}, change_all)
    finally:
        server.stop()
    print(f"written by the mount: {few:.4f} of the checkpoint where one tensor differs")
    print(f"written by the mount: {max(parts[MOUNT]):.4f} where all differ, {max(parts[IN_PLACE]):.4f} in place")


def main() -> int:
    parser = parser_for(__doc__, ())
    parser.add_argument("--size", default="1G", help="of the checkpoint (default 1G)")
    arguments = parser.parse_args()
    size_bytes = parse_size(arguments.size)
    with Session(arguments.rounds or 5, arguments.directory) as session:
        session.run("checkpoint", lambda: measure(session, size_bytes))
        return session.finish(arguments.json, {"size_bytes": size_bytes})


if __name__ == "__main__":
    sys.exit(main())
