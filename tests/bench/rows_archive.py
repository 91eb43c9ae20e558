"""Changes of a large archive with `stfs`, beside the reference library, which writes the whole archive. Also the daemon's memory
after all of the archive was read.

The library's fastest way is used: views of the mapped archive (the library does not copy such tensors, if it can avoid it),
one replaced tensor, save_file, fsync, and a rename. It runs once. Before, the archive was read once, so that the page cache
has as much of it as fits.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys

from bench_archive import Content, PlannedTensor, SourceFiles, write_archive
from bench_disk import why_no_room
from bench_row import GIB, MIB, Goal, Plan, Skip, Way, need, ours, row, twin
from bench_session import Place
from daemon_memory import own_mib, resident_mib
from mounts import mounted, run_stfs, safetensorsfs
from page_cache import memory_bytes
from readers import read_sequentially

LAYER_BYTES = 64 * MIB  # 4096 by 8192, two bytes each

# Runs in a separate process, which is killed first if memory runs out. Prints the seconds that it took.
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


def _copies_all() -> bool:
    """Returns true if save_file of this version copies every tensor into memory first."""
    import safetensors
    return not hasattr(safetensors, "TensorSpec")


def fitting_gib(place: Place) -> int:
    """Returns the largest size up to the wanted one that disk and memory allow."""
    wanted = place.sizes.archive_gib
    why = ""
    for gib in range(wanted, 0, -1):
        available = memory_bytes("MemAvailable")
        smaller = why_no_room(place.directory, 2 * gib * GIB + 4 * GIB)
        if smaller is None and _copies_all() and gib * GIB + 4 * GIB > available:
            smaller = f"the safetensors library copies all tensors, and {available / GIB:.0f} GiB of memory are available"
        if smaller is None:
            if why:
                place.session.note(f"archive: {gib} GiB instead of {wanted}: {why}")
            return gib
        why = smaller
    raise Skip(why)


class LargeArchive:
    """A model of many layers of 64 MiB and one embedding of 1 GiB, or of a quarter in a small archive. `twin` is the rewrite of all
    of it by the library, which runs once for all rows."""

    def __init__(self, place: Place) -> None:
        need("safetensors")
        import safetensors
        gib = fitting_gib(place)
        self.place = place
        self.path = place.path("large.safetensors")
        large_bytes = GIB if gib >= 4 else GIB // 4
        layers = (gib * GIB - large_bytes) // LAYER_BYTES
        plan = [PlannedTensor("embed", Content(large_bytes, 1), "F16", (large_bytes // 2,))]
        plan += [PlannedTensor(f"layers.{number}.weight", Content(LAYER_BYTES, 2 + number), "F16", (LAYER_BYTES // 2,))
                 for number in range(layers)]
        self.contents = {tensor.name: tensor.content for tensor in plan}
        write_archive(self.path, plan)
        self.layer = f"layers.{layers // 2}.weight"
        self.sources = {name: SourceFiles(place.directory, name, self.contents[name].size_bytes) for name in (self.layer, "embed")}
        place.session.memory.prepare(2 * gib * GIB)
        read_sequentially(self.path)
        seconds = self._rewrite(self.layer)
        run_stfs("set", self.path, "--metadata", "key=value")  # makes room in the header, as the first edit does
        self.twin = {f"rewrite by safetensors {safetensors.__version__}": twin(lambda: seconds * 1000, is_once=True)}

    def offset_of(self, name: str) -> int:
        with open(self.path, "rb") as file:
            size_bytes = int.from_bytes(file.read(8), "little")
            return 8 + size_bytes + json.loads(file.read(size_bytes))[name]["data_offsets"][0]

    def put(self, name: str) -> float:
        source, content = self.sources[name].next()
        milliseconds = run_stfs("put", self.path, name, "--raw", source)
        content.check(self.path, self.offset_of(name))
        self.contents[name] = content
        return milliseconds

    def _rewrite(self, name: str) -> float:
        source, content = self.sources[name].next()
        done = subprocess.run([sys.executable, "-c", _REWRITE, self.path, name, source], check=True, stdout=subprocess.PIPE,
                              text=True)
        self.contents[name] = content
        for tensor in {name, "embed", "layers.0.weight"}:
            self.contents[tensor].check(self.path, self.offset_of(tensor))
        return float(done.stdout)

    def ways(self, more: dict[str, Way]) -> dict[str, Way]:
        return {**self.twin, **more}


@row("put", "change one tensor of an archive of {archive}", "ms", goals=(Goal("stfs put, 64 MiB", 50),), lower=True)
def put(place: Place) -> Plan:
    archive = place.shared(LargeArchive)

    def before(way: str) -> None:
        os.sync()
        place.session.memory.prepare(3 * (archive.contents["embed"].size_bytes if "embed" in way else LAYER_BYTES))
    return Plan(archive.ways({"stfs put, 64 MiB": ours(lambda: archive.put(archive.layer)),
                              "stfs put, the largest (embed)": ours(lambda: archive.put("embed"))}), before)


@row("put-edits", "delete, rename, retype in an archive of {archive}", "ms", lower=True,
     goals=tuple(Goal(f"stfs {verb}", 1000) for verb in ("rm", "mv", "set --dtype")))
def edits(place: Place) -> Plan:
    archive, small = place.shared(LargeArchive), place.path("small")
    small.write_bytes(bytes(4096))
    state = {"name": 0, "type": 0, "value": 0}

    def turn(what: str) -> int:
        state[what] += 1
        return state[what] % 2

    def delete() -> float:
        run_stfs("put", "--create", "--dtype", "U8", archive.path, "short-lived", small)
        return run_stfs("rm", archive.path, "short-lived")

    def rename() -> float:
        return run_stfs("mv", archive.path, *(("layers.1.weight", "other") if turn("name") else ("other", "layers.1.weight")))

    def retype() -> float:
        return run_stfs("set", archive.path, "layers.2.weight", "--dtype", "I16" if turn("type") else "F16")

    def metadata() -> float:
        turn("value")
        return run_stfs("set", archive.path, "--metadata", f"key={state['value']}")
    return Plan(archive.ways({"stfs rm": ours(delete), "stfs mv": ours(rename), "stfs set --dtype": ours(retype),
                              "stfs set --metadata": ours(metadata)}))


@row("memory-read", "daemon's memory after reading an archive of {archive}", "MiB", lower=True,
     goals=(Goal("without the pages of the archive", 64, is_at_most=True),))
def memory_read(place: Place) -> Plan:
    archive = place.shared(LargeArchive)
    found: dict[str, float] = {}

    def own() -> float:
        nonlocal found
        with mounted(safetensorsfs(archive.path, place.path("mnt"))) as server:
            for path in server.path.iterdir():
                read_sequentially(path)
            found = resident_mib(server.pid)
            return own_mib(found)
    return Plan({"without the pages of the archive": ours(own, is_once=True),
                 "pages of the archive": ours(lambda: found["RssFile"], is_once=True)})
