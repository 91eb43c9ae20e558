"""One tensor of a large archive changed by `stfs put`, beside the reference library, which writes the whole anew.

The library's way is the best that it offers: views of the mapped archive (no tensor is copied where the library takes
them so), the one replaced, save_file, fsync, rename into place. Both find of the archive in the page cache what the
memory holds after one read of it.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bench_archive import Content, PlannedTensor, SourceFiles, write_archive
from bench_disk import why_no_room
from bench_session import Session
from bench_table import Found, Goal, Way
from mounts import STFS
from page_cache import memory_bytes
from readers import read_sequentially

GIB, MIB = 1 << 30, 1 << 20
GOAL, GOAL_GIB = 50, 16  # so many times as fast, in an archive of that size
LAYER_BYTES = 64 * MIB  # 4096 by 8192, two bytes each

# In a process of its own, the first to die where memory runs out. Prints the seconds that it took.
_REWRITE = r"""
import json, os, struct, sys, time
import numpy as np
from safetensors.numpy import save_file
with open("/proc/self/oom_score_adj", "w") as file:
    file.write("1000")
archive, name, source = sys.argv[1:]
started = time.perf_counter()
with open(archive, "rb") as file:
    (size,) = struct.unpack("<Q", file.read(8))
    header = json.loads(file.read(size))
data = np.memmap(archive, np.uint8, "r")
tensors = {}
for key, entry in header.items():
    begin, end = (8 + size + place for place in entry["data_offsets"])
    tensors[key] = data[begin:end].view("<f2").reshape(entry["shape"])
tensors[name] = np.fromfile(source, "<f2").reshape(tensors[name].shape)
save_file(tensors, archive + ".new")
with open(archive + ".new", "rb") as file:
    os.fsync(file.fileno())
os.rename(archive + ".new", archive)
directory = os.open(os.path.dirname(archive), os.O_RDONLY)
os.fsync(directory)
print(time.perf_counter() - started)
"""


def library() -> str:
    import safetensors
    return f"safetensors {safetensors.__version__}"


def _copies_all() -> bool:
    """Whether save_file of this version copies every tensor into memory first."""
    import safetensors
    return not hasattr(safetensors, "TensorSpec")


def fitting_gib(directory: Path, asked_gib: int) -> tuple[int, str]:
    """The largest archive up to the one asked for that disk and memory hold twice and once; why it is smaller."""
    for gib in range(asked_gib, 0, -1):
        why, available = why_no_room(directory, 2 * gib * GIB + 4 * GIB), memory_bytes("MemAvailable")
        if why is None and _copies_all() and gib * GIB + 4 * GIB > available:
            why = f"{library()} copies all tensors, and {available / GIB:.0f} GiB of memory are available"
        if why is None:
            break
        smaller = why
    else:
        return 0, smaller
    return (gib, "") if gib == asked_gib else (gib, f"{gib} GiB in place of {asked_gib}: {smaller}")


class LargeArchive:
    """A model of many layers of 64 MiB and one embedding of a GiB (of a quarter where the archive is small)."""

    def __init__(self, session: Session, gib: int) -> None:
        self.session = session
        self.path = session.path("large.safetensors")
        large_bytes = GIB if gib >= 4 else GIB // 4
        layers = (gib * GIB - large_bytes) // LAYER_BYTES
        plan = [PlannedTensor("embed", Content(large_bytes, 1), "F16", (large_bytes // 2,))]
        plan += [PlannedTensor(f"layers.{number}.weight", Content(LAYER_BYTES, 2 + number), "F16", (LAYER_BYTES // 2,))
                 for number in range(layers)]
        self.contents = {tensor.name: tensor.content for tensor in plan}
        self.offsets = write_archive(self.path, plan)
        self.layer = f"layers.{layers // 2}.weight"

    def put(self, name: str, sources: SourceFiles) -> float:
        source, content = sources.next()
        started = time.perf_counter()
        subprocess.run([STFS, "put", self.path, name, "--raw", source], check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - started
        content.check(self.path, self.offsets[name])
        self.contents[name] = content
        return seconds

    def rewrite(self, name: str, sources: SourceFiles) -> float:
        source, content = sources.next()
        try:
            done = subprocess.run([sys.executable, "-c", _REWRITE, self.path, name, source], check=True,
                                  stdout=subprocess.PIPE, text=True)
        finally:
            Path(f"{self.path}.new").unlink(missing_ok=True)
        seconds = float(done.stdout)
        with open(self.path, "rb") as file:  # the library orders the tensors as it likes
            size_bytes = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size_bytes))
        self.contents[name] = content
        for tensor in {name, "embed", "layers.0.weight"}:
            self.contents[tensor].check(self.path, 8 + size_bytes + header[tensor]["data_offsets"][0])
        return seconds


def measure_one_tensor(session: Session, where: str, asked_gib: int) -> None:
    name = "one tensor of a large archive"
    gib, why = fitting_gib(session.directory, asked_gib)
    if gib == 0:
        session.skip(name, why)
        return
    if why:
        session.note(f"{name}: {why}")
    archive = LargeArchive(session, gib)
    large_bytes = archive.contents["embed"].size_bytes
    layer = SourceFiles(session.directory, "layer", LAYER_BYTES)
    large = SourceFiles(session.directory, "embed", large_bytes)

    def before(way: str) -> None:
        os.sync()
        session.memory.prepare(3 * (large_bytes if "embed" in way else LAYER_BYTES))

    puts = {f"stfs put, {LAYER_BYTES >> 20} MiB": Way(lambda: archive.put(archive.layer, layer)),
            f"stfs put, {large_bytes >> 20} MiB (embed)": Way(lambda: archive.put("embed", large))}
    try:
        found = session.table.find(puts, before)
        twin = f"rewrite by {library()}"
        # First: it may cost the archive its place in the page cache.
        session.memory.prepare(2 * gib * GIB)
        read_sequentially(archive.path)
        rewritten = Found([archive.rewrite(archive.layer, layer)], twin, note="one round, nothing warmed up")
        for label, one in found.items():
            one.twin = twin
            one.goals = (Goal(GOAL),) if gib >= GOAL_GIB and label.endswith(" MiB") else ()
        session.table.add(f"change one tensor of a {gib} GiB archive, {where}", "s", {twin: rewritten, **found},
                          higher_is_better=False)
    finally:
        archive.path.unlink(missing_ok=True)
        layer.remove()
        large.remove()
