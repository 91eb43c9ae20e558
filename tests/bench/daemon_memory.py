"""What memory the daemon has of its own while a large tensor is overwritten.

Its share of the archive's pages (RssFile, the map) belongs to the page cache and is told apart: what counts is the
anonymous and the shared memory beyond that of the idle mount. Sampled every 10 ms; VmHWM, the kernel's own record of
the highest resident size, beside it, because no sample can miss that, although it counts the map too.
"""
from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from bench_archive import Content, write_large_tensor
from bench_session import Session
from bench_table import Found, Goal
from mounts import ours

GOAL_MIB = 64
SAMPLE_SECONDS = 0.01


def resident_mib(pid: int) -> dict[str, float]:
    """VmHWM, RssAnon, RssFile, RssShmem and VmRSS of a process, in MiB."""
    result = {}
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name.startswith("Rss") or name in ("VmHWM", "VmRSS"):
            result[name] = int(rest.split()[0]) / 1024
    return result


def own_mib(found: dict[str, float]) -> float:
    """Without the pages of mapped files."""
    return found["RssAnon"] + found["RssShmem"]


class Sampler:
    """The highest of what a process holds, between enter and exit."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.own = self.file = 0.0
        self.samples = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Sampler:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="ascii")  # VmHWM begins anew
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            found = resident_mib(self.pid)
            self.own = max(self.own, own_mib(found))
            self.file = max(self.file, found["RssFile"])
            self.samples += 1


def _overwrite(path: Path, content: Content) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        content.write_to(fd, 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def _one_round(session: Session, archive: Path, offset: int, content: Content) -> dict[str, float]:
    """A fresh mount, idle, then one durable overwrite; what its daemon held, in MiB."""
    server = session.serve(ours(archive, session.path("memory")))
    try:
        time.sleep(0.3)  # its threads start
        idle = resident_mib(server.pid)
        with Sampler(server.pid) as sampler:
            _overwrite(server.path / "large", content)
            time.sleep(5 * SAMPLE_SECONDS)
        after = resident_mib(server.pid)
        content.check(archive, offset)
        if sampler.samples < 10:
            session.note(f"daemon's memory: only {sampler.samples} samples for {content.size_bytes >> 20} MiB")
        return {"idle, of its own": own_mib(idle), "idle, pages of mapped files": idle["RssFile"],
                "peak beyond idle, of its own": sampler.own - own_mib(idle),
                "after, beyond idle, of its own": own_mib(after) - own_mib(idle),
                "peak, pages of mapped files": sampler.file,
                "peak of all (VmHWM) beyond idle": after["VmHWM"] - idle["VmRSS"]}
    finally:
        server.stop()
        session.servers.remove(server)


def measure_memory(session: Session, size_bytes: int) -> None:
    """A row of figures, each over all rounds; every round has a mount of its own, so none warms up."""
    archive = session.path("memory.safetensors")
    offset = write_large_tensor(archive, size_bytes, is_aligned=False)["large"]
    found: dict[str, Found] = {}
    try:
        for number in range(session.table.rounds):
            for name, value in _one_round(session, archive, offset, Content(size_bytes, 101 + number)).items():
                found.setdefault(name, Found()).values.append(value)
        goal = (Goal(GOAL_MIB, is_at_most=True),)
        for name in ("peak beyond idle, of its own", "after, beyond idle, of its own"):
            found[name].goals = goal
        session.table.add(f"daemon's resident memory, overwriting {size_bytes >> 20} MiB", "MiB", found)
    finally:
        archive.unlink(missing_ok=True)
