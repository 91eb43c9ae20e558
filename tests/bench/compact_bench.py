#!/usr/bin/env python3
"""`stfs compact` beside `cp` of the same file and a sync of the copy, in turn.

front: the first large tensor was deleted. The last one fills its space, and moves there.
layer: the same with a layer in the middle.
small: a tensor of 64 KiB in front was deleted. All others move, and some of them twice.

The speed is that of the whole file: its bytes by the seconds, for both. The archive is in the page cache.

    tests/bench/compact_bench.py [--size 4G] [--rounds 5] [--only front,layer,small] [--json FILE]
"""
from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from bench_archive import Content, PlannedTensor, write_archive
from bench_session import Session, parse_size, parser_for, wanted
from bench_table import Goal, Way
from mounts import STFS
from readers import read_sequentially

MEASURES = ("front", "layer", "small")
TENSORS = 32
SMALL_BYTES = 64 << 10
COPY, COMPACT = "cp and sync", "stfs compact"
GOAL = Goal(0.8)


def stfs(*words: object) -> None:
    subprocess.run([STFS, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def seconds_of(*commands: list[object]) -> float:
    started = time.perf_counter()
    for command in commands:
        subprocess.run([*map(str, command)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def write_model(path: Path, size_bytes: int) -> None:
    each = size_bytes // TENSORS // 4096 * 4096
    planned = [PlannedTensor("small", Content(SMALL_BYTES, 0))]
    write_archive(path, planned + [PlannedTensor(f"layers.{at}.weight", Content(each, at + 1)) for at in range(TENSORS)])
    stfs("set", path, "--metadata", "key=value")  # the header has room
    stfs("compact", path)


def measure(session: Session, what: str, size_bytes: int) -> None:
    path, copy, work = (session.path(f"{what}.{name}") for name in ("safetensors", "copy", "work.safetensors"))
    write_model(path, size_bytes)
    stfs("rm", path, {"front": "layers.0.weight", "layer": f"layers.{TENSORS // 2}.weight", "small": "small"}[what])
    whole = path.stat().st_size

    def prepare(way: str) -> None:
        copy.unlink(missing_ok=True)
        work.unlink(missing_ok=True)
        if way == COMPACT:
            subprocess.run(["cp", "--reflink=never", path, work], check=True)
        read_sequentially(path)
        os.sync()

    def copied() -> float:
        return whole / seconds_of(["cp", "--reflink=never", path, copy], ["sync", copy]) / 1e9

    def compacted() -> float:
        return whole / seconds_of([STFS, "compact", work]) / 1e9

    session.table.measure(f"{what}, {whole >> 20} MiB", "GB/s",
                          {COPY: Way(copied), COMPACT: Way(compacted, COPY, (GOAL,))}, prepare)
    for left in (path, copy, work):
        left.unlink(missing_ok=True)


def main() -> int:
    parser = parser_for(__doc__, MEASURES)
    parser.add_argument("--size", default="4G", help="of the archive (default 4G)")
    arguments = parser.parse_args()
    chosen = wanted(parser, arguments, MEASURES)
    size_bytes = parse_size(arguments.size)
    with Session(arguments.rounds or 5, arguments.directory) as session:
        for what in chosen:
            session.run(what, lambda what=what: measure(session, what, size_bytes))
        return session.finish(arguments.json, {"size_bytes": size_bytes})


if __name__ == "__main__":
    sys.exit(main())
