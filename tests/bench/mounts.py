"""The FUSE servers that a benchmark compares. They run in the foreground, and are always unmounted at the end."""
from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mount"))
from mounted import BINARY, BUILD, mount_entry, unescape_mount, unmount_by_force  # noqa: E402

STFS = BUILD / "stfs"
THREADS = 16  # the driver's default; the ceiling has as many


class Server:
    """One FUSE server and its mount point. start() starts it, so that the session knows it before it runs."""

    def __init__(self, command: Sequence[object], path: Path) -> None:
        self.path = Path(path)
        self.path.mkdir(exist_ok=True)
        self.command = [str(word) for word in command]
        self.process: subprocess.Popen[bytes] | None = None
        self.seconds_to_mount = 0.0

    def start(self) -> Server:
        started = time.perf_counter()
        # The server has a separate session: ^C on the terminal goes to the benchmark, which then unmounts in order.
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, start_new_session=True)
        while mount_entry(self.path) is None and self.process.poll() is None:
            time.sleep(0.0005)
        if mount_entry(self.path) is None:
            raise RuntimeError(f"{self.command[0]} does not mount: {self.process.stderr.read().decode()}")
        os.stat(self.path)
        self.seconds_to_mount = time.perf_counter() - started
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    def _readahead_file(self) -> Path:
        device = os.stat(self.path).st_dev
        return Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")

    def readahead(self, kib: int | None = None) -> int | None:
        """Returns the readahead in KiB. If `kib` is given, sets it before, if that is allowed."""
        try:
            if kib is not None:
                self._readahead_file().write_text(str(kib))
            return int(self._readahead_file().read_text())
        except OSError:
            return None

    def stop(self) -> None:
        """Unmounts in order, else by force. Does nothing if no server runs."""
        if self.process is None:
            return
        for _ in range(100):  # the release of a closed file may be under way
            if mount_entry(self.path) is None or self._unmount():
                break
            time.sleep(0.05)
        unmount_by_force(self.path)
        try:
            self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        self.process = None

    def _unmount(self) -> bool:
        return any(subprocess.run(command, capture_output=True).returncode == 0
                   for command in (["umount", self.path], ["fusermount3", "-u", self.path]))


def fuse_ceiling(path: Path, size_bytes: int, access: str = "ro") -> Server | None:
    """Returns the fastest possible FUSE server, whose file is `data`, or None if it is not built."""
    program = BUILD / "tests" / "fuse_ceiling"
    words = [program, size_bytes, THREADS, path]
    return Server(words if access == "ro" else [*words, access], path) if program.exists() else None


def safetensorsfs(source: Path, path: Path, options: str = "") -> Server:
    """Returns our server for an archive, not started yet."""
    return Server([BINARY, source, path, "-f", *(["-o", options] if options else [])], path)


def run_stfs(*words: object) -> float:
    """Returns the milliseconds of a command, with its start. A note about filler in the archive is not shown."""
    started = time.perf_counter()
    done = subprocess.run([str(word) for word in (STFS, *words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    milliseconds = (time.perf_counter() - started) * 1000
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return milliseconds


@functools.cache
def has_option(name: str) -> bool:
    """Returns true if this build has a mount option of this name."""
    usage = subprocess.run([BINARY, "--help"], capture_output=True, text=True).stdout
    return re.search(rf"^\s+{re.escape(name)}\b", usage, re.M) is not None


@contextlib.contextmanager
def mounted(server: Server) -> Iterator[Server]:
    """A server that runs for the time of the `with`."""
    try:
        yield server.start()
    finally:
        server.stop()


def mounted_below(directory: Path) -> list[str]:
    """Returns the mount points below a directory, the last one first."""
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as table:
        points = [unescape_mount(line.split(" ")[1]) for line in table]
    return [point for point in reversed(points) if point.startswith(f"{directory}/")]


def unmount_below(directory: Path) -> None:
    """Unmounts everything below the directory by force, after all other clean-up."""
    for point in mounted_below(directory):
        unmount_by_force(point)
