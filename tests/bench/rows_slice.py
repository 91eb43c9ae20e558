"""One per cent of a tensor through the view of slices, by the place of that hundredth, beside reading all of the tensor.

The archive is in the page cache, and the pages that FUSE has read are not: every byte comes from the driver. One round of each slice
is compared with NumPy. The reference library and NumPy read one of these slices from the archive itself."""
from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from bench_archive import Content, PlannedTensor, write_archive
from bench_row import Goal, Plan, limit, missing, ours, peer, row, twin, why_absent
from bench_session import Place
from mounts import safetensorsfs
from page_cache import cached_share, drop

ROW = 6400  # elements: a hundredth of a row is whole cache lines
SLICES = {"rows together": "[0:{part}]", "each hundredth row": "[::100]", "a part of each row": "[:,0:64]",
          "each hundredth element": "[...,7::100]", "each tenth of each tenth row": "[::-10,::10]"}
LIBRARY, MAPPED = "a part of each row, safetensors get_slice", "each hundredth element, NumPy, mapped"


def _milliseconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def _read(path: Path) -> np.ndarray:
    """Reads into a new array, as people do."""
    return np.fromfile(path, np.float32)


def _milliseconds_to_read(path: Path) -> float:
    drop(path)
    return _milliseconds(lambda: _read(path))


@row("slice", "one per cent of a tensor, by a view", "ms", lower=True,
     goals=tuple(Goal(about, 50) for about in SLICES))
def slices(place: Place) -> Plan:
    rows = place.sizes.large_bytes // (4 * ROW)
    archive = place.path("model.safetensors")
    write_archive(archive, [PlannedTensor("large", Content(rows * ROW * 4, 1), "F32", (rows, ROW))])
    tensor = np.memmap(archive, np.float32, "r", offset=archive.stat().st_size - rows * ROW * 4, shape=(rows, ROW))
    mount = place.serve(safetensorsfs(archive, place.path("mnt")))
    views = mount.path / ".safetensors" / "slice"
    assert cached_share(archive) > 0.999, "the archive does not fit the page cache"
    ways = {"all of the tensor": twin(lambda: _milliseconds_to_read(mount.path / "large")),
            "one element": ours(lambda: _milliseconds_to_read(views / "large[7,7]"))}
    for about, text in SLICES.items():
        text = text.format(part=rows // 100)
        expected = eval(f"tensor{text}", {"tensor": tensor})  # NumPy's meaning of the same text
        assert np.array_equal(_read(views / f"large{text}").view(np.uint32), expected.reshape(-1).view(np.uint32)), text
        ways[about] = ours(lambda path=views / f"large{text}": _milliseconds_to_read(path))

    def by_library() -> np.ndarray:
        from safetensors import safe_open
        with safe_open(archive, framework="np") as file:
            return file.get_slice("large")[:, 0:64]  # the library has no steps
    why = why_absent("safetensors")
    ways[LIBRARY] = missing("peer", why) if why else peer(lambda: _milliseconds(by_library))
    gathered = np.empty((rows, ROW // 100), np.float32)
    ways[MAPPED] = limit(lambda: _milliseconds(lambda: np.copyto(gathered, tensor[:, 7::100])))
    return Plan(ways, lambda _: place.session.memory.prepare(3 * place.sizes.large_bytes))
