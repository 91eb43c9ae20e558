#!/usr/bin/env python3
"""What one per cent of a tensor costs beside all of it, by where that hundredth lies.

The archive is in the page cache, what FUSE has read is not: every byte comes from the driver. Of each slice every
element is read, and one round is compared with NumPy. Each figure is a share of what reading the whole tensor took in
the same round; what an open and a read of one element take is shown beside them. The last way reads the same elements
as the worst one does out of the mapped archive with NumPy, without any file system between: the limit.

    tests/bench/slice_bench.py [--size 1G] [--rounds 5] [--json FILE]
"""
from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from bench_archive import Content, PlannedTensor, write_archive
from bench_session import Session, parse_size, parser_for
from bench_table import Found, Goal
from mounts import ours
from page_cache import cached_share, drop

GOAL_PERCENT = 2.0  # of reading it all, for one per cent of it
ROW = 6400  # elements: a hundredth of a row is whole cache lines
HUNDREDTHS = ("[{part}]",       # rows together
              "[::100]",        # each hundredth row
              "[:,0:64]",       # a part of each row
              "[...,7::100]",   # each hundredth element
              "[::-10,::10]")   # each tenth of each tenth row, backwards
WHOLE, ONE, LIMIT = "all of it, ms", "one element, ms", "[...,7::100] by NumPy, mapped, no FUSE"


def milliseconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def read(path: Path) -> np.ndarray:
    """As people do: into an array of its own."""
    return np.fromfile(path, np.float32)


def milliseconds_to_read(path: Path) -> float:
    drop(path)
    return milliseconds(lambda: read(path))


def measure(session: Session, size_bytes: int) -> None:
    rows = size_bytes // (4 * ROW)
    archive = session.path("model.safetensors")
    write_archive(archive, [PlannedTensor("large", Content(rows * ROW * 4, 1), "F32", (rows, ROW))])
    tensor = np.memmap(archive, np.float32, "r", offset=archive.stat().st_size - rows * ROW * 4, shape=(rows, ROW))
    mount = session.serve(ours(archive, session.path("mnt")))
    slices = mount.path / ".safetensors" / "slice"
    part = rows // 100
    names = [name.format(part=f"0:{part}") for name in HUNDREDTHS]

    assert cached_share(archive) > 0.999, "the archive does not fit the page cache"
    for name in names:
        expected = eval(f"tensor{name}", {"tensor": tensor})  # noqa: S307: NumPy's own reading of the same text
        assert np.array_equal(read(slices / f"large{name}").view(np.uint32), expected.reshape(-1).view(np.uint32)), name

    found: dict[str, Found] = {way: Found() for way in (WHOLE, ONE, LIMIT, *names)}
    gathered = np.empty((rows, ROW // 100), np.float32)
    for number in range(session.table.rounds + 1):
        session.memory.prepare(3 * size_bytes)
        took = {WHOLE: milliseconds_to_read(mount.path / "large"), ONE: milliseconds_to_read(slices / "large[7,7]")}
        took |= {name: milliseconds_to_read(slices / f"large{name}") for name in names}
        took[LIMIT] = milliseconds(lambda: np.copyto(gathered, tensor[:, 7::100]))
        if number > 0:
            for way, value in took.items():
                found[way].values.append(value)

    session.table.add("reading it all, and one element", "ms", {way: found[way] for way in (WHOLE, ONE)},
                      higher_is_better=False)
    shares = {}
    for way in (*names, LIMIT):
        percents = [100 * mine / all_of_it for mine, all_of_it in zip(found[way].values, found[WHOLE].values)]
        goals = (Goal(GOAL_PERCENT, is_at_most=True),) if way != LIMIT else ()
        milli = sorted(found[way].values)[len(percents) // 2]
        shares[way] = Found(percents, None, goals, f"{milli:.1f} ms")
    session.table.add("one per cent of a tensor", "% of reading it all", shares, higher_is_better=False)


def main() -> int:
    parser = parser_for(__doc__, ("slices",))
    parser.add_argument("--size", default="1G", help="of the tensor (default 1G)")
    arguments = parser.parse_args()
    size_bytes = parse_size(arguments.size)
    with Session(arguments.rounds or 5, arguments.directory) as session:
        session.run("slices", lambda: measure(session, size_bytes))
        return session.finish(arguments.json, {"size_bytes": size_bytes})


if __name__ == "__main__":
    sys.exit(main())
