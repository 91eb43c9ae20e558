#!/usr/bin/env python3
"""How fast a mount is, beside the plain file, the ceiling of FUSE and squashfuse (BENCH.md).

Everything runs side by side: in each round every way once, one round to warm up and five that count;
medians, the ratio to the plain twin, and the spread. Data are random and every byte is read.

    tests/bench/read_bench.py [--size 2G] [--rounds 5] [--only read,random,...] [--json FILE]

Needs root to drop caches, for cold figures and for the readahead of the peers; without it those are
left out. STFS_BUILD_DIR names the build to measure, build/release by default.
"""
import argparse
import ctypes
import json
import mmap
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mount"))
from archive_file import write_raw  # noqa: E402
from mounted import BINARY, BUILD, eventually, mount_entry, unmount_by_force  # noqa: E402

THREADS = 16  # the driver's default, given to the ceiling too
BLOCK_BYTES = 1 << 20
MANY = 100_000
libc = ctypes.CDLL(None, use_errno=True)


def parse_size(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(float(text[:-1]) * units[text[-1].upper()]) if text[-1].upper() in units else int(text)


# ---- the page cache ----

def drop(path):
    """Evicts one file's clean pages: what the next reader finds is the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def drop_all():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("1")


def cached_share(path):
    """The share of a plain file's pages in the page cache, by mincore."""
    size_bytes = os.stat(path).st_size
    fd = os.open(path, os.O_RDONLY)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    at = libc.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    os.close(fd)
    pages = -(-size_bytes // 4096)
    seen = np.zeros(pages, np.uint8)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    assert libc.mincore(at, size_bytes, seen.ctypes.data) == 0
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.munmap(at, size_bytes)
    return float((seen & 1).mean())


def touch_memory(size_bytes):
    """A virtual machine's memory is slow when it is used for the first time."""
    with mmap.mmap(-1, size_bytes) as memory:
        np.frombuffer(memory, np.uint8)[::4096] = 1


# ---- readers: a preallocated buffer, so that the reader costs next to nothing ----

BUFFER = mmap.mmap(-1, BLOCK_BYTES)
BUFFER[:] = bytes(BLOCK_BYTES)


def read_sequentially(path):
    fd, done = os.open(path, os.O_RDONLY), 0
    try:
        while count := os.preadv(fd, [BUFFER], done):
            done += count
    finally:
        os.close(fd)
    return done


def sum_mapped(path):
    data = np.memmap(path, np.uint8, "r")
    usable = data[:len(data) // 8 * 8].view(np.uint64) if data.offset % 8 == 0 else data
    return int(np.add.reduce(usable))


def read_randomly(path, offsets):
    fd, view = os.open(path, os.O_RDONLY), memoryview(BUFFER)[:4096]
    try:
        for offset in offsets:
            os.preadv(fd, [view], offset)
    finally:
        os.close(fd)


RANDOM_READER = """
import mmap, os, random, sys, time
path, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
fd, size = os.open(path, os.O_RDONLY), os.stat(path).st_size
randomly = random.Random(seed)
offsets = [randomly.randrange(size - 4096) for _ in range(count)]
buffer = memoryview(mmap.mmap(-1, 4096))
print("ready", flush=True)
sys.stdin.readline()
for offset in offsets:
    os.preadv(fd, [buffer], offset)
print("done", flush=True)
"""


def random_reads_per_second(path, readers, count=30_000):
    """4 KiB reads per second by that many processes; the offsets are drawn before the clock starts."""
    running = [subprocess.Popen([sys.executable, "-c", RANDOM_READER, path, str(count), str(seed)], text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE) for seed in range(readers)]
    for process in running:
        process.stdout.readline()
    started = time.perf_counter()
    for process in running:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in running:
        process.stdout.readline()
    seconds = time.perf_counter() - started
    for process in running:
        process.communicate()
    return readers * count / seconds


def timed(action, *arguments):
    started = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - started


# ---- mounts ----

class Server:
    """A FUSE server in the foreground, with the readahead of its mount set as asked."""

    def __init__(self, command, path):
        self.path = Path(path)
        self.path.mkdir(exist_ok=True)
        self.command = command
        self.start()

    def start(self):
        command = self.command
        started = time.perf_counter()
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while mount_entry(self.path) is None and self.process.poll() is None:
            time.sleep(0.0005)
        os.stat(self.path)
        self.seconds_to_mount = time.perf_counter() - started
        if mount_entry(self.path) is None:
            raise SystemExit(f"{command[0]} does not mount: {self.process.stderr.read().decode()}")

    def readahead_file(self):
        device = os.stat(self.path).st_dev
        return Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")

    def readahead(self, kib=None):
        """The readahead in KiB, set first where it is given and we may."""
        try:
            if kib is not None:
                self.readahead_file().write_text(str(kib))
            return int(self.readahead_file().read_text())
        except OSError:
            return None

    def resident_bytes(self):
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024
        return None

    def stop(self):
        for _ in range(50):
            if subprocess.run(["umount", self.path], capture_output=True).returncode == 0:
                break
            time.sleep(0.05)
        unmount_by_force(self.path)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def mount_ours(source, path, options=""):
    return Server([BINARY, source, path, "-f", *(["-o", options] if options else [])], path)


# ---- rounds ----

class Table:
    """Every measurement: name -> way -> the values of the counted rounds."""

    def __init__(self, rounds):
        self.rounds = rounds
        self.rows = []

    def measure(self, name, unit, ways, before=None, higher_is_better=True):
        """ways: {way: function returning a value}; the first is the twin that ratios refer to."""
        values = {way: [] for way in ways}
        for number in range(self.rounds + 1):
            for way, function in ways.items():
                if before:
                    before(way)
                value = function()
                if number > 0:  # the first warms up
                    values[way].append(value)
        twin = statistics.median(next(iter(values.values())))
        row = {"name": name, "unit": unit, "ways": {}}
        for way, found in values.items():
            median = statistics.median(found)
            row["ways"][way] = {"median": median, "low": min(found), "high": max(found), "values": found,
                                "ratio": median / twin if higher_is_better else twin / median}
        self.rows.append(row)
        self.show(row)

    def show(self, row):
        print(f"\n{row['name']} [{row['unit']}]")
        for way, found in row["ways"].items():
            print(f"  {way:<34}{found['median']:>12.4g}   ratio {found['ratio']:>6.2f}   "
                  f"spread {found['low']:.4g} .. {found['high']:.4g}")
        sys.stdout.flush()


class Bench:
    def __init__(self, arguments):
        self.size_bytes = parse_size(arguments.size)
        self.table = Table(arguments.rounds)
        self.directory = Path(tempfile.mkdtemp(prefix="stfs-bench-", dir=arguments.directory))
        self.servers = []
        self.is_root = os.geteuid() == 0
        self.notes = []

    def path(self, name):
        return self.directory / name

    def serve(self, server):
        self.servers.append(server)
        return server

    def close(self):
        for server in self.servers:
            server.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    # -- what is read --

    def make_data(self):
        """One large tensor at an odd offset, alone as a plain file and in an archive and a squashfs."""
        random_bytes = np.random.default_rng(1).bytes
        with open(self.path("plain"), "wb") as plain:
            for _ in range(0, self.size_bytes, 1 << 26):
                plain.write(random_bytes(min(1 << 26, self.size_bytes - plain.tell())))
        header = json.dumps({"before": {"dtype": "U8", "shape": [13], "data_offsets": [0, 13]},
                             "large": {"dtype": "U8", "shape": [self.size_bytes],
                                       "data_offsets": [13, 13 + self.size_bytes]}}).encode()
        header += b" " * (-len(header) % 8)
        self.archive = self.path("large.safetensors")
        with open(self.archive, "wb") as archive, open(self.path("plain"), "rb") as plain:
            archive.write(len(header).to_bytes(8, "little") + header + b"x" * 13)
            shutil.copyfileobj(plain, archive, 1 << 24)
        os.sync()

    def make_squashfs(self):
        if shutil.which("mksquashfs") is None or shutil.which("squashfuse_ll") is None:
            self.notes.append("squashfuse_ll or mksquashfs is not installed: left out")
            return None
        image, tree = self.path("image.squashfs"), self.path("tree")
        tree.mkdir()
        os.link(self.path("plain"), tree / "data")
        subprocess.run(["mksquashfs", tree, image, "-noD", "-noI", "-noF", "-no-xattrs", "-quiet", "-no-progress"],
                       check=True, stdout=subprocess.DEVNULL)
        return image

    def mount_readers(self):
        ours = self.serve(mount_ours(self.archive, self.path("ours"), "ro"))
        (ours.path / "before").read_bytes()  # the driver raises it with the first open
        eventually(lambda: ours.readahead() != 128, 1)
        self.readahead_kib = ours.readahead()
        self.notes.append(f"readahead of our mount: {self.readahead_kib} KiB; the ceiling's is set to the same, "
                          "squashfuse_ll's is left as it sets it")
        writable = self.serve(mount_ours(self.archive, self.path("ours-rw")))
        paths = {"plain file": self.path("plain"), "safetensorsfs, ro": ours.path / "large",
                 "safetensorsfs, rw": writable.path / "large"}
        ceiling = BUILD / "tests" / "fuse_ceiling"
        if ceiling.exists():
            server = self.serve(Server([ceiling, self.size_bytes, THREADS, self.path("ceiling")], self.path("ceiling")))
            server.readahead(self.readahead_kib)
            paths["FUSE ceiling"] = server.path / "data"
        else:
            self.notes.append("fuse_ceiling is not built: left out")
        image = self.make_squashfs()
        if image:
            server = self.serve(Server(["squashfuse_ll", "-f", image, self.path("squash")], self.path("squash")))
            paths["squashfuse_ll"] = server.path / "data"
            self.image = image
        return paths

    def backing(self, way):
        """The plain file that a way reads in the end, or None."""
        return {"plain file": self.path("plain"), "safetensorsfs, ro": self.archive,
                "safetensorsfs, rw": self.archive, "squashfuse_ll": getattr(self, "image", None)}.get(way)

    def server_of(self, path):
        return next((server for server in self.servers if server.path == path.parent), None)

    # -- the measures --

    def sequential(self, paths):
        size_bytes = self.size_bytes

        def rate(path):
            started = time.perf_counter()
            assert read_sequentially(path) == size_bytes
            return size_bytes / (time.perf_counter() - started) / 1e9

        def without_server(backing):
            drop(backing)
            share = cached_share(backing)
            assert share < 0.01, f"{backing} is still cached: {share:.0%}"

        def cold(way):
            # Pages that a server has mapped can't be evicted: all that map this file let go of it.
            backing = self.backing(way)
            holders = [self.server_of(paths[other]) for other in paths if self.backing(other) == backing]
            holders = [server for server in holders if server]
            for server in holders:
                server.stop()
            without_server(backing)
            for server in holders:
                server.start()
            if holders and "safetensorsfs" in way:
                (paths[way].parent / "before").read_bytes()
                eventually(lambda: self.server_of(paths[way]).readahead() == self.readahead_kib, 0.5)
                drop(backing)

        def first(way):
            backing = self.backing(way)
            if way != "plain file":
                drop(paths[way])
            if backing:
                read_sequentially(backing)
                assert cached_share(backing) > 0.999, "the archive does not fit the page cache"

        functions = {way: (lambda path=path: rate(path)) for way, path in paths.items()}
        if self.is_root:
            self.table.measure("sequential, cold", "GB/s", {way: function for way, function in functions.items()
                                                            if way != "FUSE ceiling"}, cold)
        else:
            self.notes.append("not root: nothing was measured cold")
        self.table.measure("sequential, archive cached, FUSE not", "GB/s", functions, first)
        self.table.measure("sequential, FUSE cached", "GB/s", functions, lambda way: read_sequentially(paths[way]))

    def mapped(self, paths):
        due = sum_mapped(paths["plain file"])

        def rate(way):
            started = time.perf_counter()
            total = sum_mapped(paths[way])
            seconds = time.perf_counter() - started
            assert total == due or way == "FUSE ceiling"
            return self.size_bytes / seconds / 1e9

        self.table.measure("mapped and summed, warm", "GB/s", {way: (lambda way=way: rate(way)) for way in paths},
                           lambda way: read_sequentially(paths[way]))

    def random(self, paths):
        for path in paths.values():
            read_sequentially(path)
        for readers in (1, 4):
            self.table.measure(f"random 4 KiB, warm, {readers} reader{'s' if readers > 1 else ''}", "reads/s",
                               {way: (lambda path=path: random_reads_per_second(path, readers))
                                for way, path in paths.items()})

    def opening(self, paths):
        view = memoryview(BUFFER)[:4096]

        def rate(path, count=20_000):
            path = os.fsencode(path)
            started = time.perf_counter()
            for _ in range(count):
                fd = os.open(path, os.O_RDONLY)
                os.preadv(fd, [view], 0)
                os.close(fd)
            return (time.perf_counter() - started) / count * 1e6

        self.table.measure("open + read 4 KiB + close, warm", "us", {way: (lambda path=path: rate(path))
                                                                    for way, path in paths.items()},
                           higher_is_better=False)

    def listing(self):
        """Listing MANY tensors beside a directory with as many files."""
        names = [f"model.layers.{number // 9}.mlp.experts.{number % 9}.weight_{number}" for number in range(MANY)]
        archive = write_raw(self.path("many.safetensors"), [(name, "U8", [4], b"abcd") for name in names])
        plain = self.path("many")
        plain.mkdir()
        for name in names:
            with open(plain / name, "wb") as file:
                file.write(b"abcd")

        def mount_seconds():
            server = mount_ours(archive, self.path("timed"))
            server.stop()
            return server.seconds_to_mount * 1000

        def reference_seconds():
            from safetensors import safe_open
            started = time.perf_counter()
            with safe_open(archive, framework="np") as file:
                assert len(file.keys()) == MANY
            return (time.perf_counter() - started) * 1000

        self.table.measure(f"mount an archive of {MANY} tensors", "ms",
                           {"reference library opens it": reference_seconds, "safetensorsfs mounts it": mount_seconds},
                           higher_is_better=False)

        server = self.serve(mount_ours(archive, self.path("many-mounted")))
        resident = server.resident_bytes()
        self.notes.append(f"daemon's anonymous memory with {MANY} tensors: {resident / MANY:.0f} bytes per tensor "
                          f"({resident >> 20} MiB in all)")

        def run(command, path):
            return timed(lambda: subprocess.run(f"{command} > /dev/null", shell=True, check=True,
                                                cwd=path)) * 1000

        # `ls -l > /dev/null` does all the work; `find -size` asks for each size.
        for title, command in (("ls", "ls -U"), ("ls -l", "ls -l"), ("find -size", "find . -size +1000")):
            self.table.measure(f"{title} of {MANY}, warm", "ms",
                               {"plain directory": lambda: run(command, plain),
                                "safetensorsfs": lambda: run(command, server.path)}, higher_is_better=False)

        def fresh(command):
            other = mount_ours(archive, self.path("fresh"))
            try:
                return run(command, other.path)
            finally:
                other.stop()

        self.table.measure(f"ls -l of {MANY}, first time after the mount", "ms",
                           {"plain directory": lambda: run("ls -l", plain), "safetensorsfs": lambda: fresh("ls -l")},
                           lambda way: self.is_root and _drop_inodes(), higher_is_better=False)

    def writing(self):
        """Durable overwrites beside dd conv=notrunc,fsync into the plain file."""
        size_bytes = min(self.size_bytes, 1 << 30)
        archive = write_raw(self.path("w.safetensors"), [("before", "U8", [13], b"x" * 13),
                                                         ("large", "U8", [size_bytes],
                                                          np.random.default_rng(2).bytes(size_bytes)),
                                                         ("small", "U8", [4096], b"s" * 4096)])
        plain = self.path("w.plain")
        shutil.copyfile(archive, plain)
        new = np.random.default_rng(3).bytes(1 << 24)
        source = self.path("w.new")
        with open(source, "wb") as file:
            for _ in range(0, size_bytes, len(new)):
                file.write(new[:size_bytes - file.tell()])
        read_sequentially(source)
        server = self.serve(mount_ours(archive, self.path("w")))
        begin = int(os.getxattr(server.path / "large", "user.safetensors.offset"))

        def dd(target, *words):
            return size_bytes / timed(lambda: subprocess.run(
                ["dd", f"if={source}", f"of={target}", "bs=1M", "status=none", *words], check=True)) / 1e9

        self.table.measure(f"overwrite {size_bytes >> 20} MiB, durable", "GB/s", {
            "plain file, dd notrunc,fsync": lambda: dd(plain, "conv=notrunc,fsync", f"seek={begin}", "oflag=seek_bytes"),
            "safetensorsfs, dd notrunc": lambda: dd(server.path / "large", "conv=notrunc"),
            "safetensorsfs, dd (truncating)": lambda: dd(server.path / "large"),
            "safetensorsfs, cp": lambda: size_bytes / timed(lambda: subprocess.run(
                ["cp", source, server.path / "large"], check=True)) / 1e9})

        def small(path, offset, sync=os.fsync):
            data = os.urandom(4096)
            started = time.perf_counter()
            for _ in range(20):
                fd = os.open(path, os.O_WRONLY)
                os.pwrite(fd, data, offset)
                sync(fd)
                os.close(fd)
            return (time.perf_counter() - started) / 20 * 1e3

        self.table.measure("overwrite 4 KiB + fsync", "ms", {
            "plain file, fsync": lambda: small(plain, begin),
            "plain file, fdatasync": lambda: small(plain, begin, os.fdatasync),
            "safetensorsfs, whole 4 KiB tensor": lambda: small(server.path / "small", 0),
            "safetensorsfs, patch in the large one": lambda: small(server.path / "large", 123_457)},
            higher_is_better=False)


def _drop_inodes():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("2")


MEASURES = ("read", "mapped", "random", "open", "list", "write")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="2G", help="of the large tensor (default 2G)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(MEASURES), help="of " + ",".join(MEASURES))
    parser.add_argument("--directory", default=None, help="where to put the data (default: the temporary directory)")
    parser.add_argument("--json", default=None, help="write the results there")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    if unknown := set(wanted) - set(MEASURES):
        parser.error(f"no such measure: {', '.join(sorted(unknown))}")
    bench = Bench(arguments)
    try:
        touch_memory(3 * bench.size_bytes + (1 << 30))
        if set(wanted) & {"read", "mapped", "random", "open"}:
            bench.make_data()
            paths = bench.mount_readers()
            for name, measure in (("read", bench.sequential), ("mapped", bench.mapped), ("random", bench.random),
                                  ("open", bench.opening)):
                if name in wanted:
                    measure(paths)
        if "list" in wanted:
            bench.listing()
        if "write" in wanted:
            bench.writing()
    finally:
        bench.close()
    print("\n" + "\n".join(f"note: {note}" for note in bench.notes))
    if arguments.json:
        result = {"size_bytes": bench.size_bytes, "rounds": arguments.rounds, "kernel": platform.release(),
                  "processors": os.cpu_count(), "load": os.getloadavg(), "notes": bench.notes, "rows": bench.table.rows}
        Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
