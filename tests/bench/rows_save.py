"""Saves of a whole checkpoint into a mount, beside the reference library into a plain file and a sync of it.

All ways call save_file() with the same tensors. If all tensors differ, the mount writes a new archive. An open transaction
prevents the new archive, so one way saves in place."""
from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from bench_row import Goal, Plan, need, ours, row, twin
from bench_session import Place
from mounts import Server, safetensorsfs

TENSORS = 100
PLAIN, MOUNT, IN_PLACE = "save_file and fsync", "save_file into a mount", "save_file into a mount, in place"


class Checkpoint:
    def __init__(self, place: Place) -> None:
        need("safetensors")
        from safetensors.numpy import save_file
        self._save = save_file
        self.plain = place.path("plain.safetensors")
        archive, random = place.path("model.safetensors"), np.random.default_rng(1)
        self.size_bytes = place.sizes.large_bytes
        self.tensors = {f"layers.{at}.weight": random.integers(0, 255, self.size_bytes // TENSORS, dtype=np.uint8)
                        for at in range(TENSORS)}
        save_file(self.tensors, archive)
        self.server: Server = place.serve(safetensorsfs(archive, place.path("mnt")))
        self.transaction = self.server.path / ".safetensors" / "transactions" / "open"

    def save_plainly(self) -> float:
        started = time.perf_counter()
        self._save(self.tensors, self.plain)
        fd = os.open(self.plain, os.O_RDWR)
        os.fsync(fd)
        os.close(fd)
        return self.size_bytes / (time.perf_counter() - started) / 1e9

    def save(self) -> float:
        started = time.perf_counter()
        self._save(self.tensors, self.server.path / ".safetensors" / "archive.safetensors")
        return self.size_bytes / (time.perf_counter() - started) / 1e9

    def save_in_place(self) -> float:
        self.transaction.mkdir()
        try:
            return self.save()
        finally:
            self.transaction.rmdir()

    def written(self) -> int:
        """Returns the bytes that the daemon has written since it began."""
        counts = dict(line.split(": ") for line in Path(f"/proc/{self.server.pid}/io").read_text().splitlines())
        return int(counts["wchar"])

    def written_share(self, save: object) -> float:
        """Returns the bytes that the daemon writes for a save, as a part of the checkpoint."""
        before = self.written()
        save()
        return (self.written() - before) / self.size_bytes

    def change_one(self, _: str) -> None:
        self.tensors["layers.50.weight"] += 1
        os.sync()

    def change_all(self, _: str) -> None:
        for tensor in self.tensors.values():
            tensor += 1
        os.sync()


@row("save-all", "save_file of a checkpoint, all tensors differ", "GB/s", goals=(Goal(MOUNT, 0.9),))
def save_all(place: Place) -> Plan:
    checkpoint = place.shared(Checkpoint)
    return Plan({PLAIN: twin(checkpoint.save_plainly), MOUNT: ours(checkpoint.save), IN_PLACE: ours(checkpoint.save_in_place)},
                checkpoint.change_all)


@row("save-one", "save_file of a checkpoint, 1 % differs", "GB/s", goals=(Goal(MOUNT, 5),))
def save_one(place: Place) -> Plan:
    checkpoint = place.shared(Checkpoint)
    return Plan({PLAIN: twin(checkpoint.save_plainly), MOUNT: ours(checkpoint.save)}, checkpoint.change_one)


@row("save-writes", "bytes that the mount writes for a save", "of the checkpoint", lower=True)
def save_writes(place: Place) -> Plan:
    checkpoint = place.shared(Checkpoint)
    one, whole, in_place = "1 % differs", "all differ", "all differ, in place"
    changes = {one: checkpoint.change_one, whole: checkpoint.change_all, in_place: checkpoint.change_all}
    return Plan({one: ours(lambda: checkpoint.written_share(checkpoint.save)),
                 whole: ours(lambda: checkpoint.written_share(checkpoint.save)),
                 in_place: ours(lambda: checkpoint.written_share(checkpoint.save_in_place))}, lambda way: changes[way](way))
