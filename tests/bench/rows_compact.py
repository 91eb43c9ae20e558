"""`stfs compact` beside `cp` of the same file and a sync of the copy. The archive is in the page cache. The speed is that of the
whole file: its bytes by the seconds, for both."""
from __future__ import annotations

import os
import subprocess
import time

from bench_archive import Content, PlannedTensor, write_archive
from bench_row import Goal, Plan, ours, row, twin
from bench_session import Place
from mounts import run_stfs
from readers import read_sequentially

TENSORS = 32
COPY, COMPACT = "cp and sync", "stfs compact"


def _seconds_of(*commands: list[object]) -> float:
    started = time.perf_counter()
    for command in commands:
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def _compact_row(name: str, title: str, deleted: str) -> None:
    @row(name, title, "GB/s", goals=(Goal(COMPACT, 0.8),))
    def compact(place: Place) -> Plan:
        path, copy, work = (place.path(name) for name in ("model.safetensors", "copy", "work.safetensors"))
        each = place.sizes.large_bytes // TENSORS // 4096 * 4096
        planned = [PlannedTensor("small", Content(64 << 10, 0))]
        write_archive(path, planned + [PlannedTensor(f"layers.{at}.weight", Content(each, at + 1)) for at in range(TENSORS)])
        run_stfs("set", path, "--metadata", "key=value")  # makes room in the header
        run_stfs("compact", path)
        run_stfs("rm", "--keep-space", path, deleted)
        whole = path.stat().st_size

        def before(way: str) -> None:
            copy.unlink(missing_ok=True)
            work.unlink(missing_ok=True)
            if way == COMPACT:
                _seconds_of(["cp", "--reflink=never", path, work])
            read_sequentially(path)
            os.sync()
        return Plan({COPY: twin(lambda: whole / _seconds_of(["cp", "--reflink=never", path, copy], ["sync", copy]) / 1e9),
                     COMPACT: ours(lambda: whole / (run_stfs("compact", work) / 1000) / 1e9)}, before)


_compact_row("compact-front", "compact after the first large tensor was deleted, whose space the last one fills", "layers.0.weight")
_compact_row("compact-layer", "compact after a layer in the middle was deleted", f"layers.{TENSORS // 2}.weight")
_compact_row("compact-small", "compact after 64 KiB in front were deleted: all tensors move", "small")
