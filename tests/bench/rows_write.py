"""Overwrites through a mount beside the same writes into the plain file: large ones with dd, and 4 KiB with pwrite.

Each way has a separate file. The files are equal and on one file system. Each write has new random bytes, which are checked
in the file afterwards, outside the clock.
"""
from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_archive import Content, SourceFiles, write_large_tensor
from bench_disk import file_system_of, has_reflink, limited, loop_file_system, why_no_limit, why_no_loop, why_no_room
from bench_row import GIB, Goal, Plan, Skip, limit, missing, ours, row, twin
from bench_session import Place
from mounts import fuse_ceiling, safetensorsfs
from page_cache import cached_share
from readers import read_sequentially

GOALS = {"xfs": 0.9, "btrfs": 0.55}
GOAL, GOAL_REFLINK = 0.45, 0.9
SMALL_BYTES = 4096
DISK_BYTES_PER_SECOND = 1_500_000_000
DURABLE, OURS = "plain file, dd notrunc,fsync", "safetensorsfs, dd notrunc,fsync"


@dataclass(frozen=True)
class Target:
    """A place to write to, and the file that then has the bytes. A mount's file is the archive. A server that keeps
    nothing has none."""
    path: Path
    offset: int
    file: Path | None
    file_offset: int = 0


class Archives:
    """An archive with a large tensor, mounted with each durability that is needed, and a plain copy as the twin."""

    def __init__(self, place: Place, directory: Path, size_bytes: int, is_aligned: bool) -> None:
        self.place = place
        self.directory = directory
        self.size_bytes = size_bytes
        self.is_aligned = is_aligned
        self.origin = directory / "plain.safetensors"
        self.offsets = write_large_tensor(self.origin, size_bytes, is_aligned)
        assert (self.offsets["large"] % 4096 == 0) == is_aligned
        self._mounted: set[str] = set()

    def plain(self, tensor: str = "large") -> Target:
        return Target(self.origin, self.offsets[tensor], self.origin, self.offsets[tensor])

    def mounted(self, durability: str, tensor: str = "large") -> Target:
        """Returns a tensor of the copy that is mounted with this durability. The first call mounts it."""
        copy, point = self.directory / f"{durability}.safetensors", self.place.path(f"mounted-{durability}")
        if durability not in self._mounted:
            self._mounted.add(durability)
            # The bytes are written, not copied: a copy may share its blocks, and the first write to shared blocks is slower.
            write_large_tensor(copy, self.size_bytes, self.is_aligned)
            self.place.serve(safetensorsfs(copy, point, f"durability={durability}"))
        return Target(point / tensor, 0, copy, self.offsets[tensor])

    def ceiling(self) -> Target | None:
        """Returns the file of a server that answers every write at once."""
        server = fuse_ceiling(self.place.path("ceiling"), self.size_bytes, "rw")
        return Target(self.place.serve(server).path / "data", 0, None) if server else None


# ---- large writes ----

class LargeWrites:
    """Writes a whole tensor with dd or cp, and returns GB/s."""

    def __init__(self, archives: Archives, sources: SourceFiles) -> None:
        self.archives = archives
        self.sources = sources

    def before(self, _: str) -> None:
        """Nothing is dirty, the source is in the page cache, and memory for the write is ready."""
        os.sync()
        for path in self.sources.paths:
            if cached_share(path) < 0.999:
                read_sequentially(path)
        self.archives.place.session.memory.prepare(5 * self.archives.size_bytes // 2)

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


def overwrite_plan(place: Place, directory: Path, is_aligned: bool = False, is_complete: bool = False) -> Plan:
    """A complete plan has every way to write a tensor and both durabilities."""
    size_bytes = place.sizes.large_bytes
    archives = Archives(place, directory, size_bytes, is_aligned)
    writes = LargeWrites(archives, SourceFiles(place.directory, "source", size_bytes))
    goal = GOALS.get(file_system_of(directory), GOAL_REFLINK if has_reflink(directory) else GOAL)
    plain, power, ceiling = archives.plain(), archives.mounted("power"), archives.ceiling()
    ways = {DURABLE: twin(writes.dd(plain, "notrunc,fsync")), OURS: ours(writes.dd(power, "notrunc,fsync")),
            "FUSE ceiling, which keeps nothing": limit(writes.dd(ceiling, "notrunc,fsync")) if ceiling
            else missing("limit", "is not built")}
    if is_complete:
        process, unsynced = archives.mounted("process"), "plain file, dd notrunc, no fsync"
        ways |= {"safetensorsfs, dd (truncating)": ours(writes.dd(power, "")),
                 "safetensorsfs, cp": ours(writes.cp(power)),
                 unsynced: twin(writes.dd(plain, "notrunc"), of=None),
                 "durability=process, dd notrunc": ours(writes.dd(process, "notrunc"), of=unsynced)}
    return Plan(ways, writes.before, (Goal(OURS, goal),))


def _need_room(place: Place) -> None:
    if why := why_no_room(place.directory, 4 * place.sizes.large_bytes):  # three archives and a journal
        raise Skip(why)


@row("overwrite", "overwrite {large} at an odd offset", "GB/s", goals=(Goal(OURS, GOAL),))
def overwrite(place: Place) -> Plan:
    _need_room(place)
    return overwrite_plan(place, place.directory, is_complete=True)


@row("overwrite-aligned", "overwrite {large} at a multiple of 4096", "GB/s", goals=(Goal(OURS, GOAL),))
def overwrite_aligned(place: Place) -> Plan:
    _need_room(place)
    return overwrite_plan(place, place.directory, is_aligned=True)


def _on_loop(kind: str) -> None:
    @row(f"overwrite-{kind}", "overwrite {large} on " + kind + ", a loop device", "GB/s",
         goals=(Goal(OURS, GOALS[kind]),))
    def overwrite_on_loop(place: Place) -> Plan:
        room_bytes = 5 * place.sizes.large_bytes  # two archives, a journal, and new blocks in place of shared ones
        if why := why_no_loop(kind) or why_no_room(place.directory, 2 * room_bytes):
            raise Skip(why)
        directory = place.enter(loop_file_system(place.directory, kind, room_bytes))
        if why := why_no_limit():
            place.session.note(f"overwrite-{kind}: the loop device has the speed of the machine, because {why}")
        else:
            place.session.note(f"overwrite-{kind}: the loop device has at most {DISK_BYTES_PER_SECOND / 1e9} GB/s")
            place.enter(limited(directory, DISK_BYTES_PER_SECOND))
        return overwrite_plan(place, directory)


_on_loop("xfs")
_on_loop("btrfs")


# ---- small writes ----

Write = Callable[[Target, list[tuple[int, bytes]]], None]


class SmallWrites:
    """Many writes of 4 KiB at random places of a tensor, in microseconds each."""

    def __init__(self, size_bytes: int, count: int) -> None:
        self.count = count
        self.places = range(0, size_bytes - SMALL_BYTES, SMALL_BYTES)
        self.random = random.Random(4)

    def draw(self, is_whole: bool) -> list[tuple[int, bytes]]:
        """Returns places and bytes, which are drawn before the clock starts. Each place occurs once, so that all can be
        checked."""
        places = [0] * self.count if is_whole else self.random.sample(self.places, self.count)
        return [(place, os.urandom(SMALL_BYTES)) for place in places]

    def microseconds(self, target: Target, write: Write, is_whole: bool = False) -> float:
        drawn = self.draw(is_whole)
        started = time.perf_counter()
        write(target, drawn)
        seconds = time.perf_counter() - started
        with open(target.file, "rb") as file:
            for place, data in dict(drawn).items():
                if os.pread(file.fileno(), SMALL_BYTES, target.file_offset + place) != data:
                    raise AssertionError(f"{target.file}: 4 KiB that were written are not there, at {place}")
        return seconds / self.count * 1e6


def _held(sync: Callable[[int], None] | None) -> Write:
    """Returns a function that opens one file descriptor for all writes, and calls `sync` after each of them."""
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


def _opened(sync: Callable[[int], None] | None) -> Write:
    """Returns a function that opens and closes a file descriptor for each write."""
    write_one = _held(sync)

    def write(target: Target, drawn: list[tuple[int, bytes]]) -> None:
        for one in drawn:
            write_one(target, [one])
    return write


class SmallTargets:
    """The archives of both rows."""

    def __init__(self, place: Place) -> None:
        size_bytes = min(place.sizes.large_bytes, GIB // 4)
        archives = Archives(place, place.directory, size_bytes, is_aligned=False)
        self.writes = SmallWrites(size_bytes, place.sizes.writes)
        self.plain, self.power, self.process = archives.plain(), archives.mounted("power"), archives.mounted("process")
        self.whole = archives.mounted("power", "small")

    def run(self, target: Target, write: Write) -> Callable[[], float]:
        return lambda: self.writes.microseconds(target, write, target == self.whole)


@row("small", "overwrite 4 KiB, file held open", "us", goals=(Goal("safetensorsfs, pwrite + fsync", 0.3),), lower=True)
def small(place: Place) -> Plan:
    targets, held = place.shared(SmallTargets), "plain file, pwrite"
    return Plan({
        "plain file, pwrite + fsync": twin(targets.run(targets.plain, _held(os.fsync))),
        "safetensorsfs, pwrite + fsync": ours(targets.run(targets.power, _held(os.fsync))),
        "safetensorsfs, a whole tensor of 4 KiB": ours(targets.run(targets.whole, _held(os.fsync))),
        held: twin(targets.run(targets.plain, _held(None)), of=None),
        "durability=process, pwrite + fsync": ours(targets.run(targets.process, _held(os.fsync)), of=held),
    }, lambda _: os.sync())


@row("small-opened", "overwrite 4 KiB, opened for each write", "us", lower=True)
def small_opened(place: Place) -> Plan:
    targets, opened = place.shared(SmallTargets), "plain file, open + pwrite + close"
    return Plan({
        "plain file, open + pwrite + fsync + close": twin(targets.run(targets.plain, _opened(os.fsync))),
        "safetensorsfs, open + pwrite + close": ours(targets.run(targets.power, _opened(None))),
        opened: twin(targets.run(targets.plain, _opened(None)), of=None),
        "durability=process, open + pwrite + close": ours(targets.run(targets.process, _opened(None)), of=opened),
    }, lambda _: os.sync())


BESIDE = "4 KiB beside a commit of another tensor"


@row("small-beside", "4 KiB, alone and beside {large}", "us", goals=(Goal(BESIDE, 1 / 3, of="4 KiB alone"),), lower=True)
def small_beside(place: Place) -> Plan:
    size_bytes, separate = place.sizes.large_bytes, place.path("separate")
    _need_room(place)
    archives = Archives(place, place.directory, size_bytes, is_aligned=False)
    separate.write_bytes(bytes(SMALL_BYTES))  # a sync of the plain archive would also sync its large tensor
    small_target, plain = archives.mounted("power", "small"), Target(separate, 0, separate)
    writes = SmallWrites(SMALL_BYTES + 1, 1)

    def median_us(target: Target, goes_on: Callable[[], bool], sync: Callable[[int], None] | None) -> float:
        values = []
        while not values or goes_on():
            values.append(writes.microseconds(target, _opened(sync), is_whole=True))
        return sorted(values)[len(values) // 2]

    def alone() -> float:
        turns = iter(range(place.sizes.writes))
        return median_us(small_target, lambda: next(turns, None) is not None, None)

    def beside(target: Target, large: Target, sync: Callable[[int], None] | None) -> float:
        """Writes 4 KiB again and again while another thread makes the large write durable."""
        is_written = threading.Event()

        def write_large() -> None:
            fd = os.open(large.path, os.O_WRONLY)
            try:
                Content(size_bytes, int(time.monotonic() * 1000)).write_to(fd, large.offset)
                is_written.set()
                os.fsync(fd)
            finally:
                is_written.set()
                os.close(fd)
        thread = threading.Thread(target=write_large)
        thread.start()
        is_written.wait()
        try:
            return median_us(target, thread.is_alive, sync)
        finally:
            thread.join()

    return Plan({"plain file, 4 KiB + fsync beside another file's fsync": twin(lambda: beside(plain, archives.plain(), os.fsync)),
                 "4 KiB alone": ours(alone, of=None),
                 BESIDE: ours(lambda: beside(small_target, archives.mounted("power"), None))}, lambda _: os.sync())
