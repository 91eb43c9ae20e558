"""One large tensor at an odd offset, read in each way beside the plain file, the ceiling of FUSE and other file systems."""
from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from bench_archive import Content, PlannedTensor, write_archive, write_file
from bench_row import Goal, Plan, Skip, Way, limit, missing, ours, row, twin
from bench_session import Place
from mounted import eventually
from mounts import Server, fuse_ceiling, has_option, safetensorsfs
from page_cache import cached_share, drop
from peers import BINDFS, SQUASHFUSE, FusePeers
from readers import microseconds_to_open, random_reads_per_second, read_sequentially, sum_mapped

PLAIN, RO, RW, CEILING, NO_CACHE = ("plain file", "safetensorsfs, ro", "safetensorsfs", "FUSE ceiling",
                                    "safetensorsfs, cache=none")
BEHIND = "safetensorsfs, drop_behind"
OURS = {RO: "ro", RW: ""}


def both(*goals: tuple) -> tuple[Goal, ...]:
    """The same goals for a read-only and a writable mount."""
    return tuple(Goal(way, *goal) for way in OURS for goal in goals)


class LargeFile:
    """The tensor, and each way to read it: `paths` has the files that are read, `backings` the files that a server reads."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.memory = place.session.memory
        self.size_bytes = place.sizes.large_bytes
        content, tree = Content(self.size_bytes, 1), place.path("tree")
        tree.mkdir()
        self.plain, self.archive = tree / "large", place.path("large.safetensors")
        write_file(self.plain, content)
        write_archive(self.archive, [PlannedTensor("before", Content(13, 0)), PlannedTensor("large", content)])
        self.servers: dict[str, Server] = {}
        self.backings = {PLAIN: self.plain}
        self.paths = {PLAIN: self.plain}
        self.readahead_kib: int | None = None
        for label, options in OURS.items():
            self.mount(label, options)
        self._mount_ceiling()
        self.peers = FusePeers(place, tree)
        for label, server in self.peers.servers.items():
            self._know(label, server, "large", self.peers.files.get(label, self.plain))

    def _know(self, label: str, server: Server, name: str, backing: Path | None) -> None:
        self.servers[label] = server
        self.paths[label] = server.path / name
        if backing:
            self.backings[label] = backing

    def mount(self, label: str, options: str) -> None:
        """Mounts the archive. Does nothing if that way is known."""
        if label in self.servers:
            return
        server = self.place.serve(safetensorsfs(self.archive, self.place.path(f"mounted-{len(self.servers)}"), options))
        self._know(label, server, "large", self.archive)
        self._open_first(server)
        self.readahead_kib = self.readahead_kib or server.readahead()

    def _open_first(self, server: Server) -> None:
        """The driver raises the readahead with the first open."""
        (server.path / "before").read_bytes()
        eventually(lambda: server.readahead() not in (128, None) and server.readahead() == (self.readahead_kib or
                                                                                           server.readahead()), 0.5)

    def _mount_ceiling(self) -> None:
        if server := fuse_ceiling(self.place.path("ceiling"), self.size_bytes):
            self.place.serve(server).readahead(self.readahead_kib)
            self._know(CEILING, server, "data", None)

    def ways(self, run: Callable[[Path], float], leave_out: tuple[str, ...] = ()) -> dict[str, Way]:
        found = {PLAIN: twin(lambda: run(self.plain))}
        found |= {label: ours(lambda path=self.paths[label]: run(path)) for label in OURS}
        ceiling = self.paths.get(CEILING)
        found[CEILING] = limit(lambda: run(ceiling)) if ceiling else missing("limit", "is not built")
        found |= self.peers.ways(run, "large")
        return {label: way for label, way in found.items() if label not in leave_out}

    def rate(self, path: Path) -> float:
        started = time.perf_counter()
        assert read_sequentially(path) == self.size_bytes
        return self.size_bytes / (time.perf_counter() - started) / 1e9

    # -- how warm it is --

    def cool(self, way: str) -> None:
        """Evicts everything that this way reads. Mapped pages can't be evicted, so all servers that read the same file are
        restarted."""
        backing = self.backings[way]
        holders = [server for label, server in self.servers.items() if self.backings.get(label) == backing]
        for server in holders:
            server.stop()
        drop(backing)
        share = cached_share(backing)
        assert share < 0.01, f"{backing} is still cached: {share:.0%}"
        for server in holders:
            server.start()
        if backing == self.archive:
            self._open_first(self.servers[way])
        drop(backing)
        self.memory.prepare(2 * self.size_bytes)

    def warm_backing(self, way: str) -> None:
        """The archive is in the page cache, and the pages that FUSE has read of it are not."""
        if way != PLAIN:
            drop(self.paths[way])
        if backing := self.backings.get(way):
            read_sequentially(backing)
            assert cached_share(backing) > 0.999, "the archive does not fit the page cache"
        self.memory.prepare(self.size_bytes)

    def warm(self, way: str) -> None:
        read_sequentially(self.paths[way])


@row("read-cold", "sequential read of a tensor, cold", "GB/s", goals=both((0.9,)))
def cold(place: Place) -> Plan:
    if not place.session.is_root:
        raise Skip("needs root to mount again what it has evicted")
    large = place.shared(LargeFile)
    return Plan(large.ways(large.rate, (CEILING,)), large.cool)  # the ceiling reads no disk


@row("read-first", "first sequential read, archive in the page cache", "GB/s",
     goals=both((0.9, CEILING), (2, SQUASHFUSE)))
def first(place: Place) -> Plan:
    large = place.shared(LargeFile)
    return Plan(large.ways(large.rate), large.warm_backing)


@row("read-again", "sequential read again", "GB/s",
     goals=(Goal(RO, 0.9), Goal(RO, 1, SQUASHFUSE), Goal(RW, 0.5), Goal(RW, 1, SQUASHFUSE)))
def again(place: Place) -> Plan:
    large = place.shared(LargeFile)
    return Plan(large.ways(large.rate), large.warm)


@row("read-no-cache", "first read with cache=none, 1 MiB reads, archive in the page cache", "GB/s", goals=(Goal(NO_CACHE, 0.35),))
def no_cache(place: Place) -> Plan:
    large = place.shared(LargeFile)
    ways = {PLAIN: twin(lambda: large.rate(large.plain))}
    if has_option("cache="):
        large.mount(NO_CACHE, "cache=none")
        ways[NO_CACHE] = ours(lambda: large.rate(large.paths[NO_CACHE]))
    else:
        ways[NO_CACHE] = missing("ours", "this build has no option cache=")
    return Plan(ways | {RW: ours(lambda: large.rate(large.paths[RW]))}, large.warm_backing)


def _is_random(name: str, readers: int) -> None:
    @row(name, f"4 KiB at random places, warm, {readers} reader{'s' if readers > 1 else ''}", "reads/s", goals=both((0.9,)))
    def random(place: Place) -> Plan:
        large = place.shared(LargeFile)
        count = 30_000 if place.sizes.rounds > 2 else 5000
        for path in large.paths.values():
            read_sequentially(path)
        return Plan(large.ways(lambda path: random_reads_per_second(path, readers, count)))


_is_random("random-1", 1)
_is_random("random-4", 4)


@row("mapped", "mapped and summed, warm", "GB/s", goals=both((0.85,)))
def mapped(place: Place) -> Plan:
    large = place.shared(LargeFile)
    due = sum_mapped(large.plain)

    def rate(path: Path) -> float:
        started = time.perf_counter()
        total = sum_mapped(path)
        seconds = time.perf_counter() - started
        assert total == due or path == large.paths.get(CEILING)
        return large.size_bytes / seconds / 1e9
    return Plan(large.ways(rate), large.warm)


@row("open", "open, read 4 KiB, close, warm", "us", goals=(Goal(RO, 0.8),), lower=True)
def opening(place: Place) -> Plan:
    large = place.shared(LargeFile)
    count = 20_000 if place.sizes.rounds > 2 else 2000
    return Plan(large.ways(lambda path: microseconds_to_open(path, count)))


@row("page-cache", "page cache that one full read uses", "of the tensor", goals=(Goal(BEHIND, 1.1, is_at_most=True),), lower=True)
def page_cache(place: Place) -> Plan:
    large = place.shared(LargeFile)

    def used(label: str) -> float:
        read_sequentially(large.paths[label])
        share = cached_share(large.backings[label])
        if label not in (PLAIN, BINDFS):
            with contextlib.suppress(OSError):  # a file without a page cache can't be mapped
                share += cached_share(large.paths[label])
        return share
    ways = {PLAIN: twin(lambda: used(PLAIN)), RW: ours(lambda: used(RW))}
    if has_option("drop_behind"):
        large.mount(BEHIND, "drop_behind")
        ways[BEHIND] = ours(lambda: used(BEHIND))
    else:
        ways[BEHIND] = missing("ours", "this build has no option drop_behind")
    return Plan(ways, large.cool)
