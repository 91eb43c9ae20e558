"""The daemon's memory: while a large tensor is overwritten, and after many edits. rows_archive.py has the memory after
large reads."""
from __future__ import annotations

import os
import time

from bench_archive import Content, tiny_name, write_large_tensor, write_tiny_tensors
from bench_row import Goal, Plan, ours, row
from bench_session import Place
from daemon_memory import Sampler, own_mib, resident_mib
from mounts import mounted, safetensorsfs

PEAK, AFTER, EDITED = "peak beyond the idle mount", "afterwards", "after the edits"
LONGEST_SECONDS = 60


@row("memory-overwrite", "daemon's memory while {large} are overwritten", "MiB",
     goals=(Goal(PEAK, 64, is_at_most=True), Goal(AFTER, 64, is_at_most=True)), lower=True)
def overwriting(place: Place) -> Plan:
    archive, size_bytes = place.path("memory.safetensors"), place.sizes.large_bytes
    offset = write_large_tensor(archive, size_bytes, is_aligned=False)["large"]
    after_mib = 0.0

    def peak() -> float:
        """Makes one durable overwrite through a fresh mount."""
        nonlocal after_mib
        with mounted(safetensorsfs(archive, place.path("mnt"))) as server:
            (server.path / "before").read_bytes()
            idle_mib = own_mib(resident_mib(server.pid))
            content = Content(size_bytes, 101 + int(time.monotonic() * 1000) % 1000)
            with Sampler(server.pid) as sampler:
                fd = os.open(server.path / "large", os.O_WRONLY)
                try:
                    content.write_to(fd, 0)
                    os.fsync(fd)
                finally:
                    os.close(fd)
            after_mib = own_mib(resident_mib(server.pid)) - idle_mib
            content.check(archive, offset)
            return max(0.0, sampler.peak_mib - idle_mib)
    return Plan({PEAK: ours(peak), AFTER: ours(lambda: max(0.0, after_mib))})


@row("memory-edits", "daemon's memory after edits of an archive of {many} tensors", "MiB",
     goals=(Goal(EDITED, 60, is_at_most=True),), lower=True)
def editing(place: Place) -> Plan:
    archive = place.path("edited.safetensors")
    write_tiny_tensors(archive, place.sizes.many)
    server = place.serve(safetensorsfs(archive, place.path("mnt")))
    idle_mib, first = own_mib(resident_mib(server.pid)), 0

    def memory() -> float:
        nonlocal first
        wanted, ends = place.sizes.many // 100 if place.sizes.many > 10_000 else 20, time.monotonic() + LONGEST_SECONDS
        for at in range(wanted):
            os.unlink(server.path / tiny_name(first + at))
            if time.monotonic() > ends:
                place.session.note(f"memory-edits: {at + 1} edits instead of {wanted} in {LONGEST_SECONDS} s")
                break
        first += at + 1
        return own_mib(resident_mib(server.pid))
    return Plan({"idle": ours(lambda: idle_mib, is_once=True), EDITED: ours(memory, is_once=True)})
