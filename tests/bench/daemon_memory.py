"""The memory of a process. The mapped pages of an archive (RssFile) are in the page cache, and the kernel can evict them. So the
figures are the anonymous and the shared memory."""
from __future__ import annotations

import threading
from pathlib import Path

SAMPLE_SECONDS = 0.01


def resident_mib(pid: int) -> dict[str, float]:
    """Returns VmHWM, RssAnon, RssFile, RssShmem and VmRSS of a process, in MiB."""
    result = {}
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name.startswith("Rss") or name in ("VmHWM", "VmRSS"):
            result[name] = int(rest.split()[0]) / 1024
    return result


def own_mib(found: dict[str, float]) -> float:
    """Returns the memory without the pages of mapped files."""
    return found["RssAnon"] + found["RssShmem"]


class Sampler:
    """The peak of a process's memory between enter and exit."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.peak_mib = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.peak_mib = max(self.peak_mib, own_mib(resident_mib(self.pid)))
            if self._ended.wait(SAMPLE_SECONDS):
                return
