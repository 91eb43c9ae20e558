#!/usr/bin/env python3
"""What a durable and atomic write costs, beside the same write into the plain file.

Everything runs side by side: in each round every way once, one round to warm up and five that count; medians with
the lowest and highest, the ratio to the native twin, and the goal. Data are random, and every write is looked for
in the archive afterwards. Twins lie on one file system.

    tests/bench/write_bench.py [--quick] [--only overwrite,small,...] [--archive-gib 16] [--json FILE]

  overwrite    1 GiB through the mount by dd and cp, at an odd offset and at a multiple of 4096
  small        4 KiB and fsync; and what each durability costs
  transaction  1000 tensors of 4 KiB together, beside as many single changes
  loops        overwrite on xfs and btrfs, which share blocks, on loop devices; as fast as those are, and at the speed
               of a good disk (disk_speed.py); needs root
  memory       what the daemon holds while 1 GiB and 4 GiB are overwritten
  archive      one tensor of a 16 GiB archive by `stfs put`, beside the rewrite by the reference library

Wants 40 GiB of disk and 24 GiB of memory, and takes what there is, in about fifteen minutes. Where a virtual machine
gives free memory back to its host, the page cache is filled before each large write (warm_memory.py).
STFS_BUILD_DIR names the build to measure, build/release by default.
Exit status: 0 all was measured or skipped with its reason, 1 something failed. A missed goal is a finding.
"""
from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from archive_rewrite import measure_one_tensor
from bench_disk import file_system_of, loop_file_system, why_no_loop, why_no_room
from bench_session import Session, parser_for, wanted
from daemon_memory import measure_memory
from disk_speed import limited, why_no_limit
from many_patches import measure_many
from overwrites import measure_large, measure_small

MEASURES = ("overwrite", "small", "transaction", "loops", "memory", "archive")
MIB, GIB = 1 << 20, 1 << 30
DISK_BYTES_PER_SECOND = 1_500_000_000


@dataclass(frozen=True)
class Scale:
    """How large everything is."""
    large_bytes: int
    small_count: int
    memory_bytes: tuple[int, ...]
    archive_gib: int
    rounds: int


FULL = Scale(GIB, 200, (GIB, 4 * GIB), 16, 5)
QUICK = Scale(64 * MIB, 50, (64 * MIB, 256 * MIB), 1, 2)


def overwrite(session: Session, where: str, scale: Scale) -> None:
    # Three archives, two sources, a journal.
    if why := why_no_room(session.directory, 6 * scale.large_bytes):
        session.skip("overwrite", why)
        return
    for is_aligned in (False, True):
        measure_large(session, session.directory, where, scale.large_bytes, is_aligned, is_complete=not is_aligned)


def overwrite_on_loops(session: Session, scale: Scale) -> None:
    # Two archives, a journal, and the blocks that take the place of shared ones.
    room_bytes = 5 * scale.large_bytes
    for kind in ("xfs", "btrfs"):
        if why := why_no_loop(kind) or why_no_room(session.directory, 9 * scale.large_bytes):
            session.skip(f"overwrite, {kind}", why)
            continue
        session.run(f"overwrite, {kind}", lambda: overwrite_on_loop(session, kind, room_bytes, scale))


def overwrite_on_loop(session: Session, kind: str, room_bytes: int, scale: Scale) -> None:
    with loop_file_system(session.directory, kind, room_bytes) as directory:
        def measure(where: str) -> None:
            for is_aligned in (False, True):
                measure_large(session, directory, where, scale.large_bytes, is_aligned, is_complete=False)

        measure(f"{kind} on a loop device")
        where = f"{kind} on a disk of {DISK_BYTES_PER_SECOND / 1e9} GB/s"
        if why := why_no_limit():
            session.skip(f"overwrite, {where}", why)
            return
        with limited(directory, DISK_BYTES_PER_SECOND):
            measure(where)


def memory(session: Session, scale: Scale) -> None:
    for size_bytes in scale.memory_bytes:
        if why := why_no_room(session.directory, 2 * size_bytes):
            session.skip(f"daemon's memory, {size_bytes >> 20} MiB", why)
            continue
        measure_memory(session, size_bytes)


def main() -> int:
    parser = parser_for(__doc__, MEASURES)
    parser.add_argument("--quick", action="store_true", help="small sizes and two rounds, to see that all works")
    parser.add_argument("--archive-gib", type=int, default=None, help="of the large archive (default 16)")
    arguments = parser.parse_args()
    names = wanted(parser, arguments, MEASURES)
    scale = QUICK if arguments.quick else FULL
    with Session(arguments.rounds or scale.rounds, arguments.directory, arguments.quick) as session:
        where = file_system_of(session.directory)
        measures = {"overwrite": lambda: overwrite(session, where, scale),
                    "small": lambda: measure_small(session, session.directory, where, min(scale.large_bytes, GIB // 4),
                                                   scale.small_count),
                    "transaction": lambda: measure_many(session, where),
                    "loops": lambda: overwrite_on_loops(session, scale),
                    "memory": lambda: memory(session, scale),
                    "archive": lambda: measure_one_tensor(session, where, arguments.archive_gib or scale.archive_gib)}
        for name in MEASURES:
            if name in names:
                session.run(name, measures[name])
        if arguments.quick:
            session.note("quick: the goals are for the full sizes, and two rounds say little")
        return session.finish(arguments.json, {"is_quick": arguments.quick, "file_system": where,
                                               "large_bytes": scale.large_bytes})


if __name__ == "__main__":
    sys.exit(main())
