"""`stfs serve`: from a commit to a lease of the new generation, beside a full upload of the same model; and attaching to a served
model, beside loading the same archive with the reference library.

A full upload is a fresh server's, from its start to its first lease, with the archive in the page cache."""
from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
from bench_archive import Content, PlannedTensor, write_archive
from bench_row import Goal, Plan, Skip, library_twin, ours, row, twin
from bench_session import Place
from mounts import BUILD, STFS

TENSORS = 300
CHANGED = TENSORS // 100
UPLOAD, LEASE, ATTACH, LOAD = "full upload, until its first lease", "from commit to new lease", "attach", "safetensors load_file"
LARGEST_SHARE, MORE_MS = 0.02, 20  # of a full upload, and beyond it

# Each runs in a fresh process, and prints its seconds.
_ATTACH = """
import sys, time
sys.path.insert(0, sys.argv[1])
import stfs
began = time.perf_counter()
lease = stfs.attach(sys.argv[2])
print(time.perf_counter() - began)
"""
_LOAD = """
import sys, time
from safetensors.numpy import load_file
began = time.perf_counter()
tensors = load_file(sys.argv[2])
print(time.perf_counter() - began)
"""


def _milliseconds(code: str, *arguments: object) -> float:
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, check=True)
    return 1000 * float(done.stdout)


class Served:
    """A served model. Versions change 1 % of its tensors, and 2 % of their elements, as reinforcement learning does."""

    def __init__(self, place: Place) -> None:
        sys.path.insert(0, str(BUILD / "python"))
        try:
            import published_weights
            import stfs
        except ImportError as error:
            raise Skip(f"{error.name}: not installed, or not built") from None
        self.place, self._stfs, self._publish = place, stfs, published_weights.publish
        self.archive = place.path("model") / "m.safetensors"
        self.archive.parent.mkdir()
        each = place.sizes.large_bytes // TENSORS // 8 * 8
        self.size_bytes = each * TENSORS
        write_archive(self.archive, [PlannedTensor(f"model.layers.{at}.weight", Content(each, at)) for at in range(TENSORS)])
        (self.archive.parent / ".weight_sync").mkdir()
        (self.archive.parent / ".weight_sync" / "state.json").write_text('{"version": "000000"}')
        self.upload_milliseconds()
        self.socket = place.path("s")
        self._start(self.socket)
        self.lease = stfs.attach(self.socket)
        self.version = 0
        self._random = np.random.default_rng(2)

    def _start(self, socket: object) -> subprocess.Popen:
        """Starts a server, and waits until it serves."""
        server = self.place.run_until_end([STFS, "serve", self.archive, "--device", "cpu", "--socket", socket, "--json"],
                                          stdout=subprocess.PIPE, text=True)
        server.stdout.readline()
        return server

    def upload_milliseconds(self) -> float:
        self.place.session.memory.prepare(self.size_bytes)
        socket = self.place.path("upload-socket")
        began = time.perf_counter()
        server = self._start(socket)
        self._stfs.attach(socket).close()
        seconds = time.perf_counter() - began
        server.terminate()
        server.wait()
        socket.unlink(missing_ok=True)
        return 1000 * seconds

    def commit_milliseconds(self) -> float:
        """Publishes a version and applies it. Returns the milliseconds from the end of `stfs apply` to the new lease."""
        self.version += 1
        names = [f"model.layers.{(self.version * CHANGED + at) % TENSORS}.weight" for at in range(CHANGED)]
        old = {name: np.frombuffer(self.lease[name].tobytes(), "u1") for name in names}
        new = {}
        for name, content in old.items():
            array = content.view("u2").copy()
            array[self._random.integers(0, len(array), len(array) // 50)] ^= 1
            new[name] = array.view("u1")
        made = self._publish(self.place.path("published"), self.version, old, new)
        self.place.session.memory.prepare(8 * self.size_bytes * CHANGED // TENSORS)
        subprocess.run([STFS, "apply", self.archive, made], check=True, stdout=subprocess.DEVNULL)
        committed = time.perf_counter()
        assert self.lease.wait(timeout=60) == self.version + 1
        changed = self.lease.renew()
        seconds = time.perf_counter() - committed
        assert sorted(changed) == sorted(names)
        assert all(self.lease[name].tobytes() == content.tobytes() for name, content in new.items())
        return 1000 * seconds


@row("serve-commit", "a version of 1 % of a served model", "ms", lower=True)
def commit(place: Place) -> Plan:
    served = place.shared(Served)
    most_ms = LARGEST_SHARE * served.upload_milliseconds() + MORE_MS
    return Plan({UPLOAD: twin(served.upload_milliseconds), LEASE: ours(served.commit_milliseconds)},
                goals=(Goal(LEASE, most_ms, is_at_most=True),))


@row("serve-attach", "attach to a served model, in a fresh process", "ms", lower=True)
def attach(place: Place) -> Plan:
    served = place.shared(Served)
    return Plan({LOAD: library_twin(lambda: _milliseconds(_LOAD, "", served.archive)),
                 ATTACH: ours(lambda: _milliseconds(_ATTACH, BUILD / "python", served.socket))})
