"""One edit through a mount, of archives with more and more tensors, beside a rename in a directory of as many files."""
from __future__ import annotations

import os
import time
from collections.abc import Callable

from bench_archive import tiny_name, write_tiny_tensors
from bench_row import Goal, Plan, ours, row, twin
from bench_session import Place
from mounts import safetensorsfs

PLAIN = "plain directory: rename, fsync of the directory"
VERBS = ("rename", "delete", "retype")


class Edits:
    """The edits of a mounted archive. Each name is deleted once."""

    def __init__(self, place: Place, count: int) -> None:
        archive = place.path("edited.safetensors")
        write_tiny_tensors(archive, count)
        self.point = place.serve(safetensorsfs(archive, place.path("mnt"))).path
        self.deleted, self.turns = 2, {"name": 0, "type": 0}

    def _turn(self, what: str) -> int:
        self.turns[what] = 1 - self.turns[what]
        return self.turns[what]

    def rename(self) -> None:
        names = [self.point / tiny_name(0), self.point / "model.0.attn.k.weight"]
        turn = self._turn("name")
        os.rename(names[1 - turn], names[turn])

    def delete(self) -> None:
        self.deleted += 1
        os.unlink(self.point / tiny_name(self.deleted))

    def retype(self) -> None:
        os.setxattr(self.point / tiny_name(1), "user.safetensors.dtype", b"F16" if self._turn("type") else b"BF16")

    def milliseconds(self, edit: Callable[[], None], times: int) -> float:
        """Returns the milliseconds of one edit, the mean of some."""
        started = time.perf_counter()
        for _ in range(times):
            edit()
        return (time.perf_counter() - started) / times * 1000


def _edit_row(count: int, limit_ms: float) -> None:
    @row(f"edit-{count}", f"one edit through the mount, of {count:,} tensors", "ms", lower=True,
         goals=tuple(Goal(verb, limit_ms, is_at_most=True) for verb in VERBS))
    def edit(place: Place) -> Plan:
        edits, times = Edits(place, count), max(1, place.sizes.writes // (10 if count < 100_000 else 50))
        directory = place.path("files")
        directory.mkdir()
        for at in range(count):
            (directory / tiny_name(at)).touch()
        fd = os.open(directory, os.O_RDONLY)
        place.at_end(lambda: os.close(fd))
        turn = 0

        def rename_plainly() -> None:
            nonlocal turn
            turn = 1 - turn
            os.rename(directory / (tiny_name(0) if turn else "renamed"), directory / ("renamed" if turn else tiny_name(0)))
            os.fsync(fd)
        ways = {PLAIN: twin(lambda: edits.milliseconds(rename_plainly, times))}
        return Plan(ways | {verb: ours(lambda verb=verb: edits.milliseconds(getattr(edits, verb), times)) for verb in VERBS},
                    lambda _: os.sync())


for _count, _limit_ms in ((1000, 3), (10_000, 5), (100_000, 25)):
    _edit_row(_count, _limit_ms)
