#!/usr/bin/env python3
"""What a weight sync costs with `stfs` beside the other receivers' method: NumPy, zstandard and xxhash in a thread pool over
shared mappings of the model (tests/mount/published_weights.py).

The data are like those of reinforcement learning: bf16 weights, and 2 % of each tensor's elements change their low byte from
version to version. Both ways apply the same versions to one model in the page cache, forth and back. Only `stfs` is atomic.
With durability=power, the other way syncs the files as well.

    tests/bench/sync_bench.py [--size 2G] [--rounds 5] [--directory DIR] [--json FILE]
"""
from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mount"))
import published_weights
from bench_archive import Content, PlannedTensor, write_archive
from bench_session import Session, parse_size, parser_for, wanted
from bench_table import Goal, Way
from mounts import STFS

TENSORS, SHARDS = 32, 4
MEASURES = ("apply", "publish")
THREADS = os.cpu_count() or 1
MOST_MEMORY_MIB = 64 + 8 * THREADS
# Each run of the other way is a process of its own, as ours is.
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
import sync_bench
sync_bench.publish_in_threads(*sys.argv[3:])
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
    """The next version of a tensor."""
    numbers = np.random.default_rng(number * 1000 + int(name[1:]))
    changed = content.copy()
    at = numbers.integers(0, len(content) // 2, len(content) // 100) * 2
    changed[at] ^= numbers.integers(1, 256, len(at), dtype=np.uint8)
    return changed


def write_next(model: Path, directory: Path) -> Path:
    """The model's next version."""
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


class Runs:
    """Processes, with what they took."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.memory_mib: dict[str, float] = {}
        self.written: dict[str, float] = {}

    def watch_memory(self, what: str, pid: int) -> None:
        """Without pages of files: a mapping of the model is no memory of its own. ru_maxrss has that of the parent."""
        with contextlib.suppress(OSError):
            while True:
                text = Path(f"/proc/{pid}/status").read_text()
                used = [int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon:")]
                if not used:
                    return
                self.memory_mib[what] = max(self.memory_mib.get(what, 0), used[0] / 1024)
                time.sleep(0.01)

    def gib_per_second(self, what: str, *command: object) -> float:
        os.sync()
        started = time.perf_counter()
        process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL)
        watch = threading.Thread(target=self.watch_memory, args=(what, process.pid))
        watch.start()
        _, status, usage = os.wait4(process.pid, 0)
        took = time.perf_counter() - started
        watch.join()
        assert status == 0, command
        self.written[what] = usage.ru_oublock * 512 / self.size_bytes
        return self.size_bytes / took / (1 << 30)


def publish_command(old: Path, new: Path, number: int, out: Path) -> list[object]:
    return [STFS, "diff", old, new, "--encoding", "xor", "--version", number, "--out", out]


def measure_apply(session: Session, size_bytes: int) -> None:
    """Version 1 leads to the next model and version 2 back, so that one model in the page cache is enough. Whoever applies one
    compares all checksums."""
    model, published = write_model(session.path("model"), size_bytes), session.path("published")
    after = write_next(model, session.path("after"))
    for number, (old, new) in enumerate(((model, after), (after, model)), 1):
        subprocess.run([str(word) for word in publish_command(old, new, number, published)], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(after)
    support = Path(__file__).resolve().parents[1] / "mount"
    state = model / ".weight_sync" / "state.json"
    state.parent.mkdir()
    runs = Runs(size_bytes)
    present = 0

    def apply(way: str, durability: str) -> float:
        nonlocal present
        state.write_text(json.dumps({"version": f"{present:06d}"}))
        version = published_weights.version_directory(published, present + 1)
        present = 1 - present
        if way == "stfs":
            return runs.gib_per_second(f"stfs apply, {durability}", STFS, "apply", "--durability", durability, model, version)
        return runs.gib_per_second(f"NumPy, {durability}", sys.executable, "-c", RECEIVE, support, model, version, durability)

    for durability, goal in (("process", 1.0), ("power", 0.5)):
        session.table.measure(f"a version of {size_bytes / (1 << 30):g} GiB, durability={durability}", "GiB/s of the model", {
            "NumPy, zstandard, xxhash" + (", fdatasync" if durability == "power" else ""): Way(lambda d=durability: apply("numpy", d)),
            "stfs apply": Way(lambda d=durability: apply("stfs", d), goals=(Goal(goal),)),
        })
    report(runs)


def measure_publish(session: Session, size_bytes: int) -> None:
    old = write_model(session.path("old"), size_bytes)
    new = write_next(old, session.path("new"))
    support, here = Path(__file__).resolve().parents[1] / "mount", Path(__file__).resolve().parent
    runs = Runs(size_bytes)

    def publish(way: str) -> float:
        out = session.path(f"out-{way}")
        shutil.rmtree(out, ignore_errors=True)
        if way == "stfs":
            return runs.gib_per_second("stfs diff", *publish_command(old, new, 1, out))
        return runs.gib_per_second("NumPy, publishing", sys.executable, "-c", PUBLISH, support, here, old, new, out)

    session.table.measure(f"publishing a version of {size_bytes / (1 << 30):g} GiB", "GiB/s of the model", {
        "NumPy, zstandard, xxhash": Way(lambda: publish("numpy")),
        "stfs diff --encoding xor": Way(lambda: publish("stfs"), goals=(Goal(1.0),)),
    })
    report(runs)


def report(runs: Runs) -> None:
    for what, memory in runs.memory_mib.items():
        limit = f", goal {MOST_MEMORY_MIB}" if what.startswith("stfs") else ""
        print(f"{what}: at most {memory:.0f} MiB of memory{limit}; wrote {runs.written[what]:.2f} x the model")


def main() -> int:
    parser = parser_for(__doc__, MEASURES)
    parser.add_argument("--size", default="2G", help="of the model (default 2G); two must fit the page cache")
    arguments = parser.parse_args()
    size_bytes = parse_size(arguments.size)
    measures = {"apply": measure_apply, "publish": measure_publish}
    with Session(arguments.rounds or 5, arguments.directory) as session:
        for name in MEASURES:
            if name in wanted(parser, arguments, MEASURES):
                session.run(name, lambda name=name: measures[name](session, size_bytes))
        return session.finish(arguments.json, {"size_bytes": size_bytes})


if __name__ == "__main__":
    sys.exit(main())
