#!/usr/bin/env python3
"""What a mount of a delta costs beside a mount of its base alone.

open: the time to mount an archive of twice as many tensors as the delta, with and without the delta, in turn.
read: a tensor that the delta keeps, through both mounts, in turn: in order and at random places; writable, and read-only.

    tests/bench/delta_bench.py [--tensors 10000] [--size 1G] [--rounds 5] [--only open,read] [--json FILE]
"""
from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from bench_archive import Content, PlannedTensor, write_archive
from bench_session import Session, parse_size, parser_for, wanted
from bench_table import Found, Goal, Way
from mounts import STFS, ours
from page_cache import cached_share, drop
from readers import random_reads_per_second, read_sequentially, sum_mapped

MEASURES = ("open", "read")
SMALL_BYTES = 4096
PLAIN, DELTA = "base alone", "base and delta"
READ_GOAL = Goal(0.95)
OPEN_GOAL_MS = 50


def make_delta(session: Session, base: Path, variant: Path) -> Path:
    """The delta of two archives; the variant goes."""
    delta = session.path(f"{base.name}.delta")
    subprocess.run([STFS, "diff", "--brief", base, variant, "--out", delta], check=True, stdout=subprocess.DEVNULL)
    variant.unlink()
    return delta


def measure_open(session: Session, tensors: int) -> None:
    def names(seed: int) -> list[PlannedTensor]:
        """Each second tensor has other bytes with each seed."""
        return [PlannedTensor(f"model.layers.{at}.weight", Content(SMALL_BYTES, seed if at % 2 else 1), "BF16", (32, 64))
                for at in range(2 * tensors)]

    base, variant = session.path("many.safetensors"), session.path("other.safetensors")
    write_archive(base, names(1))
    write_archive(variant, names(2))
    delta = make_delta(session, base, variant)
    servers = {PLAIN: ours(base, session.path("plain")),
               DELTA: ours(base, session.path("delta"), f"delta={delta}")}

    def milliseconds(way: str) -> float:
        server = session.serve(servers[way])
        assert (server.path / f"model.layers.{2 * tensors - 1}.weight").stat().st_size == SMALL_BYTES
        took = server.seconds_to_mount * 1e3
        server.stop()
        return took

    ways = {way: Way(lambda way=way: milliseconds(way)) for way in servers}
    row = session.table.measure(f"mount of {2 * tensors:,} tensors", "ms", ways, higher_is_better=False)
    added = [mine - alone for mine, alone in zip(row.found[DELTA].values, row.found[PLAIN].values)]
    session.table.add("added by the delta", "ms", {f"delta of {tensors:,} tensors": Found(
        added, None, (Goal(OPEN_GOAL_MS, is_at_most=True),))}, higher_is_better=False)


def measure_read(session: Session, size_bytes: int, option: str) -> None:
    """option: "" or "ro"."""
    base, variant = session.path("large.safetensors"), session.path("patched.safetensors")
    large = Content(size_bytes, 1)
    write_archive(base, [PlannedTensor("before", Content(13, 0)), PlannedTensor("large", large)])
    write_archive(variant, [PlannedTensor("before", Content(13, 7)), PlannedTensor("large", large)])
    delta = make_delta(session, base, variant)
    mounts = {PLAIN: session.serve(ours(base, session.path("plain"), option)),
              DELTA: session.serve(ours(base, session.path("delta"), f"delta={delta}{option and ',' + option}"))}
    title = "read-only mounts" if option else "writable mounts"
    for server in mounts.values():
        (server.path / "before").read_bytes()  # the driver raises the readahead with the first open

    def bytes_per_second(path: Path, read) -> float:
        started = time.perf_counter()
        read(path)
        return size_bytes / (time.perf_counter() - started) / 1e9

    def from_archive(way: str) -> None:
        """The archive is in the page cache, what FUSE has read of it is not."""
        drop(mounts[way].path / "large")
        read_sequentially(base)
        assert cached_share(base) > 0.999, "the archive does not fit the page cache"
        session.memory.prepare(size_bytes)

    def ways(run) -> dict[str, Way]:
        return {way: Way(lambda path=server.path / "large": run(path), goals=(READ_GOAL,) if way == DELTA else ())
                for way, server in mounts.items()}

    table = session.table
    table.measure(f"{title}: an unchanged tensor, archive cached, FUSE not", "GB/s",
                  ways(lambda path: bytes_per_second(path, read_sequentially)), from_archive)
    table.measure("the same, FUSE cached", "GB/s", ways(lambda path: bytes_per_second(path, read_sequentially)),
                  lambda way: read_sequentially(mounts[way].path / "large"))
    table.measure("the same, mapped", "GB/s", ways(lambda path: bytes_per_second(path, sum_mapped)),
                  lambda way: read_sequentially(mounts[way].path / "large"))
    table.measure("the same, 4 KiB at random places", "reads/s", ways(lambda path: random_reads_per_second(path, 1)),
                  lambda way: read_sequentially(mounts[way].path / "large"))
    for server in mounts.values():
        server.stop()
    for path in (base, delta):
        path.unlink()


def main() -> int:
    parser = parser_for(__doc__, MEASURES)
    parser.add_argument("--tensors", type=int, default=10_000, help="of the delta (default 10000)")
    parser.add_argument("--size", default="1G", help="of the tensor that is read (default 1G)")
    arguments = parser.parse_args()
    chosen = wanted(parser, arguments, MEASURES)
    size_bytes = parse_size(arguments.size)
    with Session(arguments.rounds or 5, arguments.directory) as session:
        if "open" in chosen:
            session.run("open", lambda: measure_open(session, arguments.tensors))
        if "read" in chosen:
            for option in ("", "ro"):
                session.run("read", lambda option=option: measure_read(session, size_bytes, option))
        return session.finish(arguments.json, {"tensors": arguments.tensors, "size_bytes": size_bytes})


if __name__ == "__main__":
    sys.exit(main())
