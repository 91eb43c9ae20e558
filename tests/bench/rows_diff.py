"""`stfs diff` of two equal models beside `cmp` of their files, both in the page cache.

The last way compares with a model of which every tensor differs, so that each byte is read for the statistics. Random bits are
the slow case, because they have many NaNs."""
from __future__ import annotations

import subprocess
import time
from pathlib import Path

from bench_archive import Content, PlannedTensor, write_archive
from bench_row import GIB, Goal, Plan, ours, row, twin
from bench_session import Place
from mounts import STFS
from page_cache import cached_share

TENSORS = 32


def _write_model(path: Path, size_bytes: int, variant: int) -> Path:
    each = size_bytes // TENSORS
    write_archive(path, [PlannedTensor(f"t{at}", Content(each, variant + at), "BF16", (each // 2,)) for at in range(TENSORS)])
    assert cached_share(path) > 0.999, "the archive does not fit the page cache"
    return path


@row("diff", "two equal models in the page cache", "GiB/s of each", goals=(Goal("stfs diff", 0.8),))
def diff(place: Place) -> Plan:
    size_bytes = place.sizes.large_bytes
    one, same, other = (_write_model(place.path(f"{name}.safetensors"), size_bytes, variant)
                        for name, variant in (("one", 1), ("same", 1), ("other", 1000)))

    def speed(code: int, *command: object) -> float:
        started = time.perf_counter()
        done = subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL)
        took = time.perf_counter() - started
        assert done.returncode == code, command
        return size_bytes / took / GIB
    return Plan({"cmp": twin(lambda: speed(0, "cmp", one, same)),
                 "stfs diff": ours(lambda: speed(0, STFS, "diff", one, same)),
                 "stfs diff --threads 1": ours(lambda: speed(0, STFS, "diff", "--threads", 1, one, same)),
                 "stfs diff, all tensors differ": ours(lambda: speed(1, STFS, "diff", one, other))})
