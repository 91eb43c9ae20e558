"""Many small tensors beside a directory of as many files: listing, mounting, and the reading of the header."""
from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from bench_archive import tiny_name, write_tiny_tensors
from bench_row import Goal, Plan, Skip, Way, library_twin, ours, row, twin
from bench_session import Place
from daemon_memory import own_mib, resident_mib
from mounts import BUILD, mounted, safetensorsfs
from page_cache import drop_inodes
from peers import FusePeers

PLAIN, OURS, LIBRARY = "plain directory", "safetensorsfs", "safetensors library opens it"
HEADER_BENCH = BUILD / "tests" / "header_bench"
MEMORY = "daemon's own memory"


class ManyFiles:
    """An archive of many tensors, a directory with as many files, and that directory in other file systems."""

    def __init__(self, place: Place) -> None:
        self.count = place.sizes.many
        self.archive, self.plain = place.path("many.safetensors"), place.path("many")
        write_tiny_tensors(self.archive, self.count)
        self.plain.mkdir()
        for number in range(self.count):
            with open(self.plain / tiny_name(number), "wb") as file:
                file.truncate(2)  # as in the archive; a block for each file would take long to free
        self.server = place.serve(safetensorsfs(self.archive, place.path("many-mounted")))
        self.peers = FusePeers(place, self.plain)

    def ways(self, command: str) -> dict[str, Way]:
        return {PLAIN: twin(lambda: milliseconds(command, self.plain)),
                OURS: ours(lambda: milliseconds(command, self.server.path)),
                **self.peers.ways(lambda path: milliseconds(command, path))}


def milliseconds(command: str, directory: Path) -> float:
    started = time.perf_counter()
    subprocess.run(f"{command} > /dev/null", shell=True, check=True, cwd=directory)
    return (time.perf_counter() - started) * 1000


# `ls -l` asks for each file's attributes, and `find -size` for each size.
@row("find-size", "find -size of {many} tensors, warm", "ms", goals=(Goal(OURS, 0.9),), lower=True)
def find_size(place: Place) -> Plan:
    return Plan(place.shared(ManyFiles).ways("find . -size +1000"))


@row("ls-l", "ls -l of {many} tensors, warm", "ms", goals=(Goal(OURS, 0.4),), lower=True)
def ls_long(place: Place) -> Plan:
    return Plan(place.shared(ManyFiles).ways("ls -l"))


@row("ls", "ls -U of {many} tensors, warm", "ms", lower=True)
def ls_names(place: Place) -> Plan:
    return Plan(place.shared(ManyFiles).ways("ls -U"))


@row("ls-l-first", "ls -l of {many} tensors, first after the mount", "ms", lower=True)
def ls_first(place: Place) -> Plan:
    many = place.shared(ManyFiles)

    def after_mount() -> float:
        with mounted(safetensorsfs(many.archive, place.path("fresh"))) as server:
            return milliseconds("ls -l", server.path)
    return Plan({PLAIN: twin(lambda: milliseconds("ls -l", many.plain)), OURS: ours(after_mount)},
                lambda _: place.session.is_root and drop_inodes())


# ---- the largest header ----

class LargestHeader:
    def __init__(self, place: Place) -> None:
        self.path, self.count = place.path("most.safetensors"), place.sizes.most
        write_tiny_tensors(self.path, self.count)
        self.path.read_bytes()  # into the page cache

    def milliseconds_to_open(self) -> float:
        """Runs in a fresh process, because freed memory of an earlier round would help."""
        code = "import sys, time, safetensors\nbegan = time.perf_counter()\n" \
               "with safetensors.safe_open(sys.argv[1], framework='np'):\n    print(time.perf_counter() - began)"
        return 1000 * float(subprocess.run([sys.executable, "-c", code, self.path], check=True, capture_output=True).stdout)


@row("mount", "mount of {most} tensors", "ms", goals=(Goal(OURS, 1),), lower=True)
def mount(place: Place) -> Plan:
    most = place.shared(LargestHeader)

    def mounting() -> float:
        with mounted(safetensorsfs(most.path, place.path("mnt"))) as server:
            return server.seconds_to_mount * 1000
    return Plan({LIBRARY: library_twin(most.milliseconds_to_open), OURS: ours(mounting)})


@row("mount-memory", "memory after the mount of {most} tensors", "bytes per tensor",
     goals=(Goal(MEMORY, 256, is_at_most=True),), lower=True)
def mount_memory(place: Place) -> Plan:
    most = place.shared(LargestHeader)

    def memory() -> float:
        with mounted(safetensorsfs(most.path, place.path("mnt"))) as server:
            return own_mib(resident_mib(server.pid)) * (1 << 20) / most.count
    return Plan({MEMORY: ours(memory)})


@row("parse", "our reader of headers alone, {most} tensors", "ms", goals=(Goal("our parser", 1),), lower=True)
def parse(place: Place) -> Plan:
    most = place.shared(LargestHeader)
    if not HEADER_BENCH.exists():
        raise Skip("header_bench is not built")

    def parsing() -> float:
        done = subprocess.run([HEADER_BENCH, most.path, "1"], check=True, capture_output=True)
        return json.loads(done.stdout)["median_s"] * 1000
    return Plan({LIBRARY: library_twin(most.milliseconds_to_open), "our parser": ours(parsing)})
