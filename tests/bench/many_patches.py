"""A thousand small tensors changed together, beside as many single changes.

They lie apart, as the norms between a model's layers do, so that nothing merges them into one long write.
"""
from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench_archive import Content, PlannedTensor, write_archive
from bench_session import Session
from bench_table import Way
from mounts import STFS, ours

TENSORS = 1000
SMALL_BYTES, BETWEEN_BYTES = 4096, 61_000


class ManyPatches:
    """Three equal archives (plain, for stfs apply, mounted), and two deltas taken in turn."""

    def __init__(self, session: Session) -> None:
        self.directory = session.directory
        self.names = [f"layers.{number}.norm" for number in range(TENSORS)]
        plan = []
        for number, name in enumerate(self.names):
            plan += [PlannedTensor(name, Content(SMALL_BYTES, number)),
                     PlannedTensor(f"layers.{number}.weight", Content(BETWEEN_BYTES, number))]
        self.files = {way: session.path(f"many-{way}.safetensors") for way in ("plain", "apply", "mounted")}
        for file in self.files.values():
            self.offsets = write_archive(file, plan)
        self.deltas = [(session.path(f"delta-{variant}.safetensors"), variant) for variant in (10_000, 20_000)]
        for delta, variant in self.deltas:
            write_archive(delta, [PlannedTensor(name, content) for name, content in self.contents(variant)])
        self.server = session.serve(ours(self.files["mounted"], session.path("many")))
        self.turn = self.steps = 0

    def contents(self, variant: int) -> list[tuple[str, Content]]:
        return [(name, Content(SMALL_BYTES, variant + number)) for number, name in enumerate(self.names)]

    def milliseconds(self, file: str, change: Callable[[Path, dict[str, bytes]], None]) -> float:
        """Runs a change of all tensors, and looks for each in the archive."""
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
            _write(self.server.path / name, content)

    def apply(self, delta: Path, _: dict[str, bytes]) -> None:
        subprocess.run([STFS, "apply", self.files["apply"], delta], check=True, stdout=subprocess.DEVNULL)

    def transaction(self, _: Path, data: dict[str, bytes]) -> None:
        self.steps += 1  # a name in committed/ is taken for good
        views, step = self.server.path / ".safetensors", f"step-{self.steps}"
        (views / "transactions" / step).mkdir()
        for name, content in data.items():
            _write(views / "transactions" / step / name, content)
        os.rename(views / "transactions" / step, views / "committed" / step)

    def plainly(self, _: Path, data: dict[str, bytes]) -> None:
        fd = os.open(self.files["plain"], os.O_WRONLY)
        try:
            for name, content in data.items():
                os.pwrite(fd, content, self.offsets[name])
            os.fsync(fd)
        finally:
            os.close(fd)


def _write(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(fd, content, 0)
    finally:
        os.close(fd)


def measure_many(session: Session, where: str) -> None:
    patches = ManyPatches(session)
    try:
        session.table.measure(f"change {TENSORS} tensors of 4 KiB, {where}", "ms", {
            f"mount, {TENSORS} times open + write + close": Way(
                lambda: patches.milliseconds("mounted", patches.singly)),
            "stfs apply, all or none": Way(lambda: patches.milliseconds("apply", patches.apply)),
            "mount, transaction, all or none": Way(lambda: patches.milliseconds("mounted", patches.transaction)),
            "plain file, pwrites and one fsync": Way(lambda: patches.milliseconds("plain", patches.plainly)),
        }, lambda _: os.sync(), higher_is_better=False)
    finally:
        patches.server.stop()
        for file in [*patches.files.values(), *(delta for delta, _ in patches.deltas)]:
            file.unlink(missing_ok=True)
        patches.server.path.rmdir()
