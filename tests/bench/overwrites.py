"""Overwriting through a mount beside the same writes into the plain file: large ones by dd, 4 KiB by pwrite.

Each way has a file of its own, all alike and on one file system; each write is of other random bytes than the one
before, and is looked for in the file itself afterwards, outside the clock.
"""
from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_archive import Content, SourceFiles, write_large_tensor
from bench_disk import file_system_of, has_reflink
from bench_session import Session
from bench_table import Goal, Way
from mounts import Server, fuse_ceiling, ours
from page_cache import cached_share
from readers import read_sequentially

GOAL_LARGE, GOAL_LARGE_REFLINK, GOAL_LARGE_BTRFS, GOAL_SMALL = 0.45, 0.9, 0.55, 0.3
SMALL_BYTES = 4096


@dataclass(frozen=True)
class Target:
    """A place to write to, and the file in which the bytes must be found: the same one but for mounts, and none
    for a server that keeps nothing."""
    path: Path
    offset: int
    file: Path | None
    file_offset: int = 0


class Archives:
    """An archive with a large tensor, mounted with each durability asked for, and plain copies as twins."""

    def __init__(self, session: Session, directory: Path, size_bytes: int, is_aligned: bool) -> None:
        self.session = session
        self.directory = directory
        self.size_bytes = size_bytes
        self.is_aligned = is_aligned
        self.origin = directory / "plain.safetensors"
        self.offsets = write_large_tensor(self.origin, size_bytes, is_aligned)
        assert (self.offsets["large"] % 4096 == 0) == is_aligned
        self.files = [self.origin]
        self.servers: list[Server] = []

    def plain(self, tensor: str = "large") -> Target:
        return Target(self.origin, self.offsets[tensor], self.origin, self.offsets[tensor])

    def mounted(self, durability: str, tensor: str = "large") -> Target:
        """A tensor of the copy that is mounted with that durability; the mount is made the first time."""
        copy, point = self.directory / f"{durability}.safetensors", self.directory / f"mounted-{durability}"
        if copy not in self.files:
            self.files.append(copy)
            # Written, not copied: a copy may share its blocks, and the first write to those costs more.
            write_large_tensor(copy, self.size_bytes, self.is_aligned)
            self.servers.append(self.session.serve(ours(copy, point, f"durability={durability}")))
        return Target(point / tensor, 0, copy, self.offsets[tensor])

    def ceiling(self) -> Target | None:
        """Of a server that answers every write at once."""
        server = fuse_ceiling(self.session.path("ceiling"), self.size_bytes, "rw")
        if server is None:
            self.session.skip("FUSE ceiling", "it is not built")
            return None
        self.servers.append(self.session.serve(server))
        return Target(server.path / "data", 0, None)

    def close(self) -> None:
        for server in self.servers:
            server.stop()
            server.path.rmdir()
        for file in self.files:
            file.unlink(missing_ok=True)


# ---- large ones ----

class LargeWrites:
    """dd and cp of a whole tensor, in GB/s."""

    def __init__(self, archives: Archives, sources: SourceFiles) -> None:
        self.archives = archives
        self.sources = sources

    def before(self, _: str) -> None:
        """Nothing is dirty, the source is in the page cache, and the pages that the write needs are there."""
        os.sync()
        for path in self.sources.paths:
            if cached_share(path) < 0.999:
                read_sequentially(path)
        self.archives.session.memory.prepare(5 * self.archives.size_bytes // 2)

    def rate(self, target: Target, command: Callable[[Path], Sequence[object]]) -> float:
        source, content = self.sources.next()
        words = [str(word) for word in command(source)]
        started = time.perf_counter()
        subprocess.run(words, check=True)
        seconds = time.perf_counter() - started
        if target.file:
            content.check(target.file, target.file_offset)
        return content.size_bytes / seconds / 1e9

    def dd(self, target: Target, conversions: str) -> Callable[[], float]:
        def command(source: Path) -> Sequence[object]:
            words = ["dd", f"if={source}", f"of={target.path}", "bs=1M", "status=none"]
            words += [f"seek={target.offset}", "oflag=seek_bytes"] if target.offset else []
            return words + ([f"conv={conversions}"] if conversions else [])
        return lambda: self.rate(target, command)

    def cp(self, target: Target) -> Callable[[], float]:
        return lambda: self.rate(target, lambda source: ["cp", source, target.path])


def measure_large(session: Session, directory: Path, where: str, size_bytes: int, is_aligned: bool,
                  is_complete: bool) -> None:
    """One row; the complete one has every way to write a tensor and both durabilities, the other what has a goal and
    how fast FUSE itself is."""
    archives = Archives(session, directory, size_bytes, is_aligned)
    sources = SourceFiles(session.directory, "source", size_bytes)
    is_btrfs = file_system_of(directory) == "btrfs"
    goal = Goal(GOAL_LARGE_BTRFS if is_btrfs else GOAL_LARGE_REFLINK if has_reflink(directory) else GOAL_LARGE)
    writes = LargeWrites(archives, sources)
    plain, power = archives.plain(), archives.mounted("power")
    ways = {"plain file, dd notrunc,fsync": Way(writes.dd(plain, "notrunc,fsync")),
            "safetensorsfs, dd notrunc,fsync": Way(writes.dd(power, "notrunc,fsync"), goals=(goal,))}
    if ceiling := archives.ceiling():
        ways["FUSE ceiling, which keeps nothing"] = Way(writes.dd(ceiling, "notrunc,fsync"))
    if is_complete:
        process, unsynced = archives.mounted("process"), "plain file, dd notrunc, no fsync"
        ways |= {"safetensorsfs, dd notrunc": Way(writes.dd(power, "notrunc")),
                 "safetensorsfs, dd (truncating)": Way(writes.dd(power, "")),
                 "safetensorsfs, cp": Way(writes.cp(power)),
                 unsynced: Way(writes.dd(plain, "notrunc")),
                 "durability=process, dd notrunc": Way(writes.dd(process, "notrunc"), twin=unsynced)}
    place = "a multiple of 4096" if is_aligned else "an odd offset"
    try:
        session.table.measure(f"overwrite {size_bytes >> 20} MiB at {place}, {where}", "GB/s", ways, writes.before)
    finally:
        archives.close()
        sources.remove()


# ---- small ones ----

class SmallWrites:
    """Many writes of 4 KiB at random places of a tensor, in microseconds each."""

    def __init__(self, size_bytes: int, count: int) -> None:
        self.count = count
        self.places = range(0, size_bytes - SMALL_BYTES, SMALL_BYTES)
        self.random = random.Random(4)

    def draw(self, is_whole: bool) -> list[tuple[int, bytes]]:
        """Where and what to write, drawn before the clock starts; a place occurs once, so that all can be checked."""
        places = [0] * self.count if is_whole else self.random.sample(self.places, self.count)
        return [(place, os.urandom(SMALL_BYTES)) for place in places]

    def microseconds(self, target: Target, write: Callable[[Target, list[tuple[int, bytes]]], None],
                     is_whole: bool = False) -> float:
        drawn = self.draw(is_whole)
        started = time.perf_counter()
        write(target, drawn)
        seconds = time.perf_counter() - started
        with open(target.file, "rb") as file:
            for place, data in dict(drawn).items():
                if os.pread(file.fileno(), SMALL_BYTES, target.file_offset + place) != data:
                    raise AssertionError(f"{target.file}: 4 KiB that were written are not there, at {place}")
        return seconds / self.count * 1e6


def _held(sync: Callable[[int], None] | None) -> Callable[[Target, list[tuple[int, bytes]]], None]:
    """One descriptor for all writes, with that sync behind each."""
    def write(target: Target, drawn: list[tuple[int, bytes]]) -> None:
        fd = os.open(target.path, os.O_WRONLY)
        try:
            for place, data in drawn:
                os.pwrite(fd, data, target.offset + place)
                if sync:
                    sync(fd)
        finally:
            os.close(fd)
    return write


def _opened(sync: Callable[[int], None] | None) -> Callable[[Target, list[tuple[int, bytes]]], None]:
    """A descriptor for each write, closed behind it."""
    write_one = _held(sync)

    def write(target: Target, drawn: list[tuple[int, bytes]]) -> None:
        for one in drawn:
            write_one(target, [one])
    return write


def measure_small(session: Session, directory: Path, where: str, size_bytes: int, count: int) -> None:
    """Two rows: the file held open, and opened for each write."""
    archives = Archives(session, directory, size_bytes, is_aligned=False)
    writes = SmallWrites(size_bytes, count)
    plain, power, process = archives.plain(), archives.mounted("power"), archives.mounted("process")
    whole = archives.mounted("power", "small")

    def way(target: Target, write: Callable[[Target, list[tuple[int, bytes]]], None], **more: object) -> Way:
        return Way(lambda: writes.microseconds(target, write, target == whole), **more)

    held, opened = "plain file, pwrite", "plain file, open + pwrite + close"
    try:
        session.table.measure(f"overwrite 4 KiB, file held open, {where}", "us", {
            "plain file, pwrite + fsync": way(plain, _held(os.fsync)),
            "safetensorsfs, pwrite + fsync": way(power, _held(os.fsync), goals=(Goal(GOAL_SMALL),)),
            "plain file, pwrite + fdatasync": way(plain, _held(os.fdatasync)),
            "safetensorsfs, a whole tensor of 4 KiB": way(whole, _held(os.fsync)),
            held: way(plain, _held(None)),
            "durability=process, pwrite + fsync": way(process, _held(os.fsync), twin=held),
        }, lambda _: os.sync(), higher_is_better=False)
        session.table.measure(f"overwrite 4 KiB, opened for each, {where}", "us", {
            "plain file, open + pwrite + fsync + close": way(plain, _opened(os.fsync)),
            "safetensorsfs, open + pwrite + close": way(power, _opened(None)),
            opened: way(plain, _opened(None)),
            "durability=process, open + pwrite + close": way(process, _opened(None), twin=opened),
        }, lambda _: os.sync(), higher_is_better=False)
    finally:
        archives.close()
