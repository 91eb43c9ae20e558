#!/usr/bin/env python3
"""What `stfs diff` of two equal models costs beside `cmp` of their files, both in the page cache.

The last way compares with a model whose every tensor differs, so that each byte is read for the statistics. Random bits are
the slow case there: they have many NaNs.

    tests/bench/diff_bench.py [--size 4G] [--rounds 5] [--directory DIR] [--json FILE]
"""
from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from bench_archive import Content, PlannedTensor, write_archive
from bench_session import Session, parse_size, parser_for
from bench_table import Goal, Way
from mounts import STFS
from page_cache import cached_share

TENSORS = 32
GOAL = Goal(0.8)  # of the speed of cmp


def write_model(path: Path, size_bytes: int, variant: int) -> Path:
    each = size_bytes // TENSORS
    write_archive(path, [PlannedTensor(f"t{at}", Content(each, variant + at), "BF16", (each // 2,)) for at in range(TENSORS)])
    return path


def gib_per_second(size_bytes: int, code: int, *command: object) -> float:
    started = time.perf_counter()
    done = subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL)
    took = time.perf_counter() - started
    assert done.returncode == code, command
    return size_bytes / took / (1 << 30)


def measure(session: Session, size_bytes: int) -> None:
    one, same = (write_model(session.path(f"{name}.safetensors"), size_bytes, 1) for name in ("one", "same"))
    other = write_model(session.path("other.safetensors"), size_bytes, 1000)
    for path in (one, same, other):
        assert cached_share(path) > 0.999, "the archives do not fit the page cache"
    session.table.measure(f"two models of {size_bytes / (1 << 30):g} GiB in the page cache", "GiB/s of each", {
        "cmp": Way(lambda: gib_per_second(size_bytes, 0, "cmp", one, same)),
        "stfs diff": Way(lambda: gib_per_second(size_bytes, 0, STFS, "diff", one, same), goals=(GOAL,)),
        "stfs diff --threads 1": Way(lambda: gib_per_second(size_bytes, 0, STFS, "diff", "--threads", 1, one, same)),
        "stfs diff, all tensors differ": Way(lambda: gib_per_second(size_bytes, 1, STFS, "diff", one, other)),
    })


def main() -> int:
    parser = parser_for(__doc__, ("diff",))
    parser.add_argument("--size", default="4G", help="of each model (default 4G); three must fit the page cache")
    arguments = parser.parse_args()
    size_bytes = parse_size(arguments.size)
    with Session(arguments.rounds or 5, arguments.directory) as session:
        session.run("diff", lambda: measure(session, size_bytes))
        return session.finish(arguments.json, {"size_bytes": size_bytes})


if __name__ == "__main__":
    sys.exit(main())
