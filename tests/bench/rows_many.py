"""Many small tensors are changed together, beside as many single changes.

The tensors are apart, as the norms between a model's layers are, so that they are not merged into one long write.
"""
from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench_archive import Content, PlannedTensor, write_archive, write_over
from bench_row import Plan, ours, row, twin
from bench_session import Place
from mounts import STFS, safetensorsfs

SMALL_BYTES, BETWEEN_BYTES = 4096, 61_000


class ManyPatches:
    """Three equal archives (plain, for stfs apply, mounted), and two deltas that are used in turn."""

    def __init__(self, place: Place) -> None:
        self.names = [f"layers.{number}.norm" for number in range(place.sizes.most // 1000)]
        plan = []
        for number, name in enumerate(self.names):
            plan += [PlannedTensor(name, Content(SMALL_BYTES, number)),
                     PlannedTensor(f"layers.{number}.weight", Content(BETWEEN_BYTES, number))]
        self.files = {way: place.path(f"many-{way}.safetensors") for way in ("plain", "apply", "mounted")}
        for file in self.files.values():
            self.offsets = write_archive(file, plan)
        self.deltas = [(place.path(f"delta-{variant}.safetensors"), variant) for variant in (10_000, 20_000)]
        for delta, variant in self.deltas:
            write_archive(delta, [PlannedTensor(name, content) for name, content in self.contents(variant)])
        self.server = place.serve(safetensorsfs(self.files["mounted"], place.path("many")))
        self.turn = self.steps = 0

    def contents(self, variant: int) -> list[tuple[str, Content]]:
        return [(name, Content(SMALL_BYTES, variant + number)) for number, name in enumerate(self.names)]

    def milliseconds(self, file: str, change: Callable[[Path, dict[str, bytes]], None]) -> float:
        """Runs a change of all tensors, and checks each of them in the archive. Returns the milliseconds of the change."""
        self.turn = 1 - self.turn
        delta, variant = self.deltas[self.turn]
        data = {name: b"".join(content.pieces()) for name, content in self.contents(variant)}
        started = time.perf_counter()
        change(delta, data)
        seconds = time.perf_counter() - started
        for name, content in self.contents(variant):
            content.check(self.files[file], self.offsets[name])
        return seconds * 1e3

    # -- the ways --

    def singly(self, _: Path, data: dict[str, bytes]) -> None:
        for name, content in data.items():
            write_over(self.server.path / name, content)

    def apply(self, delta: Path, _: dict[str, bytes]) -> None:
        subprocess.run([STFS, "apply", self.files["apply"], delta], check=True, stdout=subprocess.DEVNULL)

    def transaction(self, _: Path, data: dict[str, bytes]) -> None:
        self.steps += 1  # a name in committed/ is not used again
        views, step = self.server.path / ".safetensors", f"step-{self.steps}"
        (views / "transactions" / step).mkdir()
        for name, content in data.items():
            write_over(views / "transactions" / step / name, content)
        os.rename(views / "transactions" / step, views / "committed" / step)

    def plainly(self, _: Path, data: dict[str, bytes]) -> None:
        fd = os.open(self.files["plain"], os.O_WRONLY)
        try:
            for name, content in data.items():
                os.pwrite(fd, content, self.offsets[name])
            os.fsync(fd)
        finally:
            os.close(fd)


@row("many", "change many tensors of 4 KiB", "ms", lower=True)
def many(place: Place) -> Plan:
    patches = ManyPatches(place)
    return Plan({
        "plain file, pwrites and one fsync": twin(lambda: patches.milliseconds("plain", patches.plainly)),
        "mount, open + write + close of each": ours(lambda: patches.milliseconds("mounted", patches.singly)),
        "stfs apply, all or none": ours(lambda: patches.milliseconds("apply", patches.apply)),
        "mount, transaction, all or none": ours(lambda: patches.milliseconds("mounted", patches.transaction)),
    }, lambda _: os.sync())
