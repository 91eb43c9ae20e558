"""A weight sync with `stfs` beside the other receivers' method: NumPy, zstandard and xxhash in a thread pool over shared mappings
of the model (tests/mount/published_weights.py).

The data are like those of reinforcement learning: bf16 weights, and 2 % of each tensor's elements change their low byte from
version to version. Both ways apply the same versions to one model in the page cache, forth and back. Only `stfs` is atomic.
With durability=power, the other way also syncs the files."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from bench_archive import Content, PlannedTensor, write_archive
from bench_row import GIB, Goal, Plan, need, ours, row, twin, why_absent
from bench_session import Place
from mounts import STFS

NEEDS = ("blake3", "ml_dtypes", "safetensors", "xxhash", "zstandard")  # of published_weights
if not any(map(why_absent, NEEDS)):
    import published_weights

TENSORS, SHARDS = 32, 4
STFS_APPLY, STFS_DIFF, OTHERS = "stfs apply", "stfs diff --encoding xor", "NumPy, zstandard, xxhash"
MOUNT_TESTS, HERE = Path(__file__).resolve().parents[1] / "mount", Path(__file__).resolve().parent
# Each run of the other way is a separate process, as each run of ours is.
RECEIVE = """
import os, sys
sys.path.insert(0, sys.argv[1])
import published_weights
published_weights.receive(sys.argv[2], sys.argv[3])
if sys.argv[4] == "power":
    for name in os.listdir(sys.argv[2]):
        if name.endswith(".safetensors"):
            file = os.open(os.path.join(sys.argv[2], name), os.O_RDWR)
            os.fdatasync(file)
            os.close(file)
"""
PUBLISH = """
import sys
sys.path.insert(0, sys.argv[1])
sys.path.insert(0, sys.argv[2])
import rows_sync
rows_sync.publish_in_threads(*sys.argv[3:])
"""


def write_model(directory: Path, size_bytes: int) -> Path:
    directory.mkdir()
    each = size_bytes // TENSORS // 2 * 2
    weight_map = {}
    for shard in range(SHARDS):
        name = f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors"
        names = [f"t{at}" for at in range(shard * TENSORS // SHARDS, (shard + 1) * TENSORS // SHARDS)]
        write_archive(directory / name, [PlannedTensor(tensor, Content(each, int(tensor[1:])), "BF16", (each // 2,)) for tensor in names])
        weight_map |= dict.fromkeys(names, name)
    (directory / published_weights.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory


def step(content: np.ndarray, number: int, name: str) -> np.ndarray:
    """Returns the next version of a tensor."""
    numbers = np.random.default_rng(number * 1000 + int(name[1:]))
    changed = content.copy()
    at = numbers.integers(0, len(content) // 2, len(content) // 100) * 2
    changed[at] ^= numbers.integers(1, 256, len(at), dtype=np.uint8)
    return changed


def write_next(model: Path, directory: Path) -> Path:
    """Writes the model's next version, and returns its path."""
    shutil.copytree(model, directory)
    for name, content in published_weights.Mapped(directory).tensors.items():
        content[:] = step(content.copy(), 1, name)
    return directory


def publish_in_threads(old: str, new: str, out: str) -> None:
    before, after = (published_weights.Mapped(path).tensors for path in (old, new))

    def entry(name: str) -> tuple[bytes, str]:
        return (published_weights.compress(before[name] ^ after[name]), published_weights.checksum("xxh3-128", after[name]))
    Path(out).mkdir()
    with ThreadPoolExecutor() as threads:
        entries = dict(zip(before, threads.map(entry, before)))
    for shard in range(SHARDS):
        part = list(entries)[shard::SHARDS]
        path = Path(out) / f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors"
        published_weights.write_archive(path, {name: ("U8", [len(entries[name][0])], entries[name][0]) for name in part},
                                        {name: entries[name][1] for name in part})
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def _gib_per_second(size_bytes: int, *command: object) -> float:
    os.sync()
    started = time.perf_counter()
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    return size_bytes / (time.perf_counter() - started) / GIB


def publish_command(old: Path, new: Path, number: int, out: Path) -> list[object]:
    return [STFS, "diff", old, new, "--encoding", "xor", "--version", number, "--out", out]


class Versions:
    """A model, its next version, and the published diffs. Version 1 leads to the next model, and version 2 back, so that one model
    in the page cache is enough."""

    def __init__(self, place: Place) -> None:
        need(*NEEDS)
        self.size_bytes = place.sizes.large_bytes
        self.model, self.published = write_model(place.path("model"), self.size_bytes), place.path("published")
        self.after = write_next(self.model, place.path("after"))
        for number, (old, new) in enumerate(((self.model, self.after), (self.after, self.model)), 1):
            _gib_per_second(self.size_bytes, *publish_command(old, new, number, self.published))
        self.state = self.model / ".weight_sync" / "state.json"
        self.state.parent.mkdir()
        self.present = 0

    def apply(self, durability: str, is_ours: bool) -> float:
        """Applies the version that leads to the other model. Compares all checksums."""
        self.state.write_text(json.dumps({"version": f"{self.present:06d}"}))
        version = published_weights.version_directory(self.published, self.present + 1)
        self.present = 1 - self.present
        command = ((STFS, "apply", "--durability", durability, self.model, version) if is_ours else
                   (sys.executable, "-c", RECEIVE, MOUNT_TESTS, self.model, version, durability))
        return _gib_per_second(self.size_bytes, *command)


def _apply_row(durability: str, limit: float, others: str) -> None:
    @row(f"sync-{durability}", f"apply a published version, durability={durability}", "GiB/s of the model",
         goals=(Goal(STFS_APPLY, limit),))
    def apply(place: Place) -> Plan:
        versions = place.shared(Versions)
        return Plan({others: twin(lambda: versions.apply(durability, False)), STFS_APPLY: ours(lambda: versions.apply(durability, True))})


_apply_row("process", 1.0, OTHERS)
_apply_row("power", 0.5, f"{OTHERS}, fdatasync")


@row("sync-publish", "publish a version", "GiB/s of the model", goals=(Goal(STFS_DIFF, 1.0),))
def publish(place: Place) -> Plan:
    versions = place.shared(Versions)
    if versions.present:
        versions.apply("process", True)
    out = place.path("out")

    def speed(*command: object) -> float:
        shutil.rmtree(out, ignore_errors=True)
        return _gib_per_second(versions.size_bytes, *command)
    return Plan({OTHERS: twin(lambda: speed(sys.executable, "-c", PUBLISH, MOUNT_TESTS, HERE, versions.model, versions.after, out)),
                 STFS_DIFF: ours(lambda: speed(*publish_command(versions.model, versions.after, 1, out)))})
