#!/usr/bin/env python3
"""How fast a mount is, beside the plain file, the ceiling of FUSE and squashfuse.

Everything runs side by side: in each round every way once, one round to warm up and five that count;
medians, the ratio to the plain twin, and the spread. Data are random and every byte is read.

    tests/bench/read_bench.py [--size 2G] [--rounds 5] [--only read,random,...] [--json FILE]

Needs root to drop caches, for cold figures and for the readahead of the peers; without it those are
left out. STFS_BUILD_DIR names the build to measure, build/release by default. `write` gives the two rows on
durable overwrites; write_bench.py has them and more.
"""
from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench_archive import Content, PlannedTensor, write_archive, write_file
from bench_disk import file_system_of
from bench_session import Session, parse_size, parser_for, wanted
from bench_table import Goal, Way
from mounts import Server, fuse_ceiling, ours
from overwrites import measure_large, measure_small
from page_cache import cached_share, drop, drop_inodes
from readers import (microseconds_to_open, random_reads_per_second, read_sequentially, sum_mapped)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mount"))
from archive_file import write_raw  # noqa: E402
from mounted import eventually  # noqa: E402

MEASURES = ("read", "mapped", "random", "open", "list", "write")
READERS = {"read", "mapped", "random", "open"}
MANY = 100_000
PLAIN, OURS, OURS_RW, CEILING, SQUASH = ("plain file", "safetensorsfs, ro", "safetensorsfs, rw", "FUSE ceiling",
                                         "squashfuse_ll")
Goals = dict[str, tuple[Goal, ...]]


class LargeFile:
    """One large tensor at an odd offset, and every way to read it: {way: path}."""

    def __init__(self, session: Session, size_bytes: int) -> None:
        self.session = session
        self.size_bytes = size_bytes
        content = Content(size_bytes, 1)
        self.plain, self.archive = session.path("plain"), session.path("large.safetensors")
        write_file(self.plain, content)
        write_archive(self.archive, [PlannedTensor("before", Content(13, 0)), PlannedTensor("large", content)])
        self.servers: dict[str, Server] = {}
        self.backings = {PLAIN: self.plain, OURS: self.archive, OURS_RW: self.archive}
        self.paths = {PLAIN: self.plain}
        self._mount_ours()
        self._mount_ceiling()
        self._mount_squashfs()

    def _mount(self, way: str, server: Server, name: str) -> Server:
        self.servers[way] = self.session.serve(server)
        self.paths[way] = server.path / name
        return server

    def _mount_ours(self) -> None:
        server = self._mount(OURS, ours(self.archive, self.session.path("ours"), "ro"), "large")
        (server.path / "before").read_bytes()  # the driver raises it with the first open
        eventually(lambda: server.readahead() != 128, 1)
        self.readahead_kib = server.readahead()
        self.session.note(f"readahead of our mount: {self.readahead_kib} KiB; the ceiling's is set to the same, "
                          "squashfuse_ll's is left as it sets it")
        self._mount(OURS_RW, ours(self.archive, self.session.path("ours-rw")), "large")

    def _mount_ceiling(self) -> None:
        server = fuse_ceiling(self.session.path("ceiling"), self.size_bytes)
        if server is None:
            self.session.skip(CEILING, "it is not built")
            return
        self._mount(CEILING, server, "data").readahead(self.readahead_kib)

    def _mount_squashfs(self) -> None:
        if shutil.which("mksquashfs") is None or shutil.which("squashfuse_ll") is None:
            self.session.skip(SQUASH, "squashfuse_ll or mksquashfs is not installed")
            return
        image, tree = self.session.path("image.squashfs"), self.session.path("tree")
        tree.mkdir()
        (tree / "data").hardlink_to(self.plain)
        subprocess.run(["mksquashfs", tree, image, "-noD", "-noI", "-noF", "-no-xattrs", "-quiet", "-no-progress"],
                       check=True, stdout=subprocess.DEVNULL)
        self.backings[SQUASH] = image
        point = self.session.path("squash")
        self._mount(SQUASH, Server(["squashfuse_ll", "-f", image, point], point), "data")

    def ways(self, run: Callable[[Path], float], goals: Goals | None = None) -> dict[str, Way]:
        return {way: Way(lambda path=path: run(path), goals=(goals or {}).get(way, ()))
                for way, path in self.paths.items()}

    # -- how warm it is --

    def cool(self, way: str) -> None:
        """Nothing of what this way reads is cached. Pages that a server has mapped can't be evicted: all that map
        this file let go of it."""
        backing = self.backings[way]
        holders = [server for other, server in self.servers.items() if self.backings.get(other) == backing]
        for server in holders:
            server.stop()
        drop(backing)
        share = cached_share(backing)
        assert share < 0.01, f"{backing} is still cached: {share:.0%}"
        for server in holders:
            server.start()
        if way in (OURS, OURS_RW):
            (self.paths[way].parent / "before").read_bytes()
            eventually(lambda: self.servers[way].readahead() == self.readahead_kib, 0.5)
            drop(backing)
        self.session.memory.prepare(2 * self.size_bytes)

    def warm_backing(self, way: str) -> None:
        """The archive is in the page cache, what FUSE has read of it is not."""
        if way != PLAIN:
            drop(self.paths[way])
        if backing := self.backings.get(way):
            read_sequentially(backing)
            assert cached_share(backing) > 0.999, "the archive does not fit the page cache"
        self.session.memory.prepare(self.size_bytes)

    def warm(self, way: str) -> None:
        read_sequentially(self.paths[way])


# ---- the measures ----

def measure_sequential(large: LargeFile) -> None:
    def rate(path: Path) -> float:
        started = time.perf_counter()
        assert read_sequentially(path) == large.size_bytes
        return large.size_bytes / (time.perf_counter() - started) / 1e9

    table = large.session.table
    if large.session.is_root:
        ways = large.ways(rate, {OURS: (Goal(0.9),), OURS_RW: (Goal(0.9),)})
        ways.pop(CEILING, None)  # reads no disk
        table.measure("sequential, cold", "GB/s", ways, large.cool)
    else:
        large.session.skip("sequential, cold", "needs root")
    first = (Goal(0.9, CEILING), Goal(2, SQUASH))
    table.measure("sequential, archive cached, FUSE not", "GB/s", large.ways(rate, {OURS: first, OURS_RW: first}),
                  large.warm_backing)
    table.measure("sequential, FUSE cached", "GB/s",
                  large.ways(rate, {OURS: (Goal(0.9), Goal(1, SQUASH)), OURS_RW: (Goal(0.5), Goal(1, SQUASH))}),
                  large.warm)


def measure_mapped(large: LargeFile) -> None:
    due = sum_mapped(large.plain)

    def rate(path: Path) -> float:
        started = time.perf_counter()
        total = sum_mapped(path)
        seconds = time.perf_counter() - started
        assert total == due or path == large.paths.get(CEILING)
        return large.size_bytes / seconds / 1e9

    large.session.table.measure("mapped and summed, warm", "GB/s",
                                large.ways(rate, {OURS: (Goal(0.85),), OURS_RW: (Goal(0.85),)}), large.warm)


def measure_random(large: LargeFile) -> None:
    for path in large.paths.values():
        read_sequentially(path)
    for readers in (1, 4):
        large.session.table.measure(
            f"random 4 KiB, warm, {readers} reader{'s' if readers > 1 else ''}", "reads/s",
            large.ways(lambda path: random_reads_per_second(path, readers),
                       {OURS: (Goal(0.9),), OURS_RW: (Goal(0.9),)}))


def measure_opening(large: LargeFile) -> None:
    large.session.table.measure("open + read 4 KiB + close, warm", "us",
                                large.ways(lambda path: microseconds_to_open(path, 20_000), {OURS: (Goal(0.8),)}),
                                higher_is_better=False)


class ManyFiles:
    """An archive of MANY tensors beside a directory with as many files."""

    def __init__(self, session: Session) -> None:
        self.session = session
        names = [f"model.layers.{number // 9}.mlp.experts.{number % 9}.weight_{number}" for number in range(MANY)]
        self.archive = write_raw(session.path("many.safetensors"), [(name, "U8", [4], b"abcd") for name in names])
        self.plain = session.path("many")
        self.plain.mkdir()
        for name in names:
            (self.plain / name).write_bytes(b"abcd")

    def milliseconds_to_mount(self) -> float:
        server = self.session.serve(ours(self.archive, self.session.path("timed")))
        server.stop()
        self.session.servers.remove(server)
        return server.seconds_to_mount * 1000

    def milliseconds_to_open(self) -> float:
        from safetensors import safe_open
        started = time.perf_counter()
        with safe_open(self.archive, framework="np") as file:
            assert len(file.keys()) == MANY
        return (time.perf_counter() - started) * 1000

    def milliseconds_after_mount(self, command: str) -> float:
        server = self.session.serve(ours(self.archive, self.session.path("fresh")))
        try:
            return milliseconds(command, server.path)
        finally:
            server.stop()
            self.session.servers.remove(server)


def milliseconds(command: str, directory: Path) -> float:
    started = time.perf_counter()
    subprocess.run(f"{command} > /dev/null", shell=True, check=True, cwd=directory)
    return (time.perf_counter() - started) * 1000


def anonymous_bytes(server: Server) -> int:
    lines = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def measure_listing(session: Session) -> None:
    many, table = ManyFiles(session), session.table
    table.measure(f"mount an archive of {MANY} tensors", "ms", {
        "reference library opens it": Way(many.milliseconds_to_open),
        "safetensorsfs mounts it": Way(many.milliseconds_to_mount, goals=(Goal(1),))}, higher_is_better=False)

    server = session.serve(ours(many.archive, session.path("many-mounted")))
    resident = anonymous_bytes(server)
    session.note(f"daemon's anonymous memory with {MANY} tensors: {resident / MANY:.0f} bytes per tensor "
                 f"({resident >> 20} MiB in all)")

    # `ls -l > /dev/null` does all the work; `find -size` asks for each size.
    for title, command, goals in (("ls", "ls -U", ()), ("ls -l", "ls -l", (Goal(0.4),)),
                                  ("find -size", "find . -size +1000", (Goal(0.9),))):
        table.measure(f"{title} of {MANY}, warm", "ms", {
            "plain directory": Way(lambda: milliseconds(command, many.plain)),
            "safetensorsfs": Way(lambda: milliseconds(command, server.path), goals=goals)}, higher_is_better=False)
    table.measure(f"ls -l of {MANY}, first time after the mount", "ms", {
        "plain directory": Way(lambda: milliseconds("ls -l", many.plain)),
        "safetensorsfs": Way(lambda: many.milliseconds_after_mount("ls -l"))},
        lambda _: session.is_root and drop_inodes(), higher_is_better=False)


def measure_writing(session: Session, size_bytes: int) -> None:
    size_bytes = min(size_bytes, 1 << 30)
    where = file_system_of(session.directory)
    measure_large(session, session.directory, where, size_bytes, is_aligned=False, is_complete=True)
    measure_small(session, session.directory, where, min(size_bytes, 1 << 28), 200)


def main() -> int:
    parser = parser_for(__doc__, MEASURES)
    parser.add_argument("--size", default="2G", help="of the large tensor (default 2G)")
    arguments = parser.parse_args()
    names = wanted(parser, arguments, MEASURES)
    size_bytes = parse_size(arguments.size)
    with Session(arguments.rounds or 5, arguments.directory) as session:
        session.memory.prepare(3 * size_bytes + (1 << 30))
        if names & READERS:
            large = LargeFile(session, size_bytes)
            for name, measure in (("read", measure_sequential), ("mapped", measure_mapped),
                                  ("random", measure_random), ("open", measure_opening)):
                if name in names:
                    session.run(name, lambda: measure(large))
        if "list" in names:
            session.run("list", lambda: measure_listing(session))
        if "write" in names:
            session.run("write", lambda: measure_writing(session, size_bytes))
        return session.finish(arguments.json, {"size_bytes": size_bytes})


if __name__ == "__main__":
    sys.exit(main())
