"""A mount of a delta beside a mount of its base alone."""
from __future__ import annotations

import subprocess
import time
from pathlib import Path

from bench_archive import Content, PlannedTensor, write_archive
from bench_row import Goal, Plan, ours, row, twin
from bench_session import Place
from mounts import STFS, Server, mounted, safetensorsfs
from page_cache import cached_share, drop
from readers import random_reads_per_second, read_sequentially, sum_mapped

SMALL_BYTES = 4096
BASE, DELTA, ADDED = "base alone", "base and delta", "added by the delta"


def make_delta(base: Path, variant: Path) -> Path:
    """Makes the delta of two archives, and removes the variant."""
    delta = base.with_name(f"{base.name}.delta")
    subprocess.run([STFS, "diff", "--brief", base, variant, "--out", delta], check=True, stdout=subprocess.DEVNULL)
    variant.unlink()
    return delta


@row("delta-mount", "mount of an archive, of which a delta has half of the tensors", "ms", lower=True,
     goals=(Goal(ADDED, 50, is_at_most=True),))
def delta_mount(place: Place) -> Plan:
    count = place.sizes.many // 5

    def names(seed: int) -> list[PlannedTensor]:
        """With another seed, each second tensor has other bytes."""
        return [PlannedTensor(f"model.layers.{at}.weight", Content(SMALL_BYTES, seed if at % 2 else 1), "BF16", (32, 64))
                for at in range(count)]
    base, variant = place.path("many.safetensors"), place.path("other.safetensors")
    write_archive(base, names(1))
    write_archive(variant, names(2))
    delta = make_delta(base, variant)
    last = {BASE: 0.0, DELTA: 0.0}

    def milliseconds(way: str, options: str) -> float:
        with mounted(safetensorsfs(base, place.path("mnt"), options)) as server:
            assert (server.path / f"model.layers.{count - 1}.weight").stat().st_size == SMALL_BYTES
            last[way] = server.seconds_to_mount * 1e3
        return last[way]
    return Plan({BASE: twin(lambda: milliseconds(BASE, "")), DELTA: ours(lambda: milliseconds(DELTA, f"delta={delta}")),
                 ADDED: ours(lambda: max(0.0, last[DELTA] - last[BASE]), of=None)})


class DeltaMounts:
    """An unchanged tensor of a base, through a mount of the base and a mount of a delta."""

    def __init__(self, place: Place) -> None:
        self.memory, self.size_bytes = place.session.memory, place.sizes.large_bytes
        self.base, variant = place.path("large.safetensors"), place.path("patched.safetensors")
        large = Content(self.size_bytes, 1)
        write_archive(self.base, [PlannedTensor("before", Content(13, 0)), PlannedTensor("large", large)])
        write_archive(variant, [PlannedTensor("before", Content(13, 7)), PlannedTensor("large", large)])
        delta = make_delta(self.base, variant)
        self.servers: dict[str, Server] = {
            BASE: place.serve(safetensorsfs(self.base, place.path("plain"))),
            DELTA: place.serve(safetensorsfs(self.base, place.path("delta"), f"delta={delta}"))}
        for server in self.servers.values():
            (server.path / "before").read_bytes()  # the driver raises the readahead with the first open

    def plan(self, run, before) -> Plan:
        paths = {way: server.path / "large" for way, server in self.servers.items()}
        return Plan({BASE: twin(lambda: run(paths[BASE])), DELTA: ours(lambda: run(paths[DELTA]))}, before)

    def rate(self, path: Path, read) -> float:
        started = time.perf_counter()
        read(path)
        return self.size_bytes / (time.perf_counter() - started) / 1e9

    def from_archive(self, way: str) -> None:
        """The archive is in the page cache, and the pages that FUSE has read are not."""
        drop(self.servers[way].path / "large")
        read_sequentially(self.base)
        assert cached_share(self.base) > 0.999, "the archive does not fit the page cache"
        self.memory.prepare(self.size_bytes)

    def warm(self, way: str) -> None:
        read_sequentially(self.servers[way].path / "large")


@row("delta-first", "an unchanged tensor through a delta: first read, archive in the page cache", "GB/s", goals=(Goal(DELTA, 0.95),))
def delta_first(place: Place) -> Plan:
    mounts = place.shared(DeltaMounts)
    return mounts.plan(lambda path: mounts.rate(path, read_sequentially), mounts.from_archive)


@row("delta-mapped", "an unchanged tensor through a delta: mapped, warm", "GB/s", goals=(Goal(DELTA, 0.95),))
def delta_mapped(place: Place) -> Plan:
    mounts = place.shared(DeltaMounts)
    return mounts.plan(lambda path: mounts.rate(path, sum_mapped), mounts.warm)


@row("delta-random", "an unchanged tensor through a delta: 4 KiB at random places, warm", "reads/s", goals=(Goal(DELTA, 0.95),))
def delta_random(place: Place) -> Plan:
    mounts = place.shared(DeltaMounts)
    return mounts.plan(lambda path: random_reads_per_second(path, 1), mounts.warm)
