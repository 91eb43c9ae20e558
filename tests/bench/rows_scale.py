"""Growth of time and memory with the number of tensors, and a sparse model of 2 TiB. Neither needs room on a disk.

The rows of growth have 1,000 to 1,000,000 tensors as ways, and the result has the exponent of growth between the two largest: 1 is
linear. A patch and an edit are one change each. A sparse model has headers as a real model's, in the page cache, and data that are
a hole."""
from __future__ import annotations

import contextlib
import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

from bench_archive import tiny_name, write_over, write_tiny_tensors
from bench_row import Plan, library_twin, ours, row
from bench_session import Place
from daemon_memory import own_mib, resident_mib
from mounts import Server, mounted, run_stfs, safetensorsfs
from rows_list import milliseconds

SHARDS, TENSORS = 163, 92_000
SHAPE = (3072, 4096)
TENSOR_BYTES = 2 * SHAPE[0] * SHAPE[1]  # BF16: 24 MiB, and 92,000 of them are 2.1 TiB


class Growing:
    """An archive of each size, which its rows share. Edits use each name once."""

    def __init__(self, place: Place) -> None:
        counts = [count for count in (1000, 10_000, 100_000, 1_000_000) if count <= place.sizes.most]
        self.archives = {count: place.path(f"{count}.safetensors") for count in counts}
        for count, path in self.archives.items():
            write_tiny_tensors(path, count)
        self._next = 0

    def name(self, count: int) -> str:
        self._next += 1
        return tiny_name(count - self._next)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _growth(name: str, title: str, unit: str, figure: Callable[[Growing, int, Server], float], is_once: bool = False) -> None:
    """Declares a row whose figure comes from a fresh mount of each size."""
    @row(f"scale-{name}", title, unit, lower=True, grows=True)
    def growth(place: Place) -> Plan:
        growing = place.shared(Growing)

        def measured(count: int) -> float:
            with mounted(safetensorsfs(growing.archives[count], place.path("mnt"))) as server:
                return figure(growing, count, server)
        return Plan({f"{count:,} tensors": ours(lambda count=count: measured(count), None, is_once) for count in growing.archives})


def _patch_ms(growing: Growing, count: int, server: Server) -> float:
    content = os.urandom(2)
    took = _seconds(lambda: write_over(server.path / tiny_name(count // 2), content))
    assert (server.path / tiny_name(count // 2)).read_bytes() == content
    return 1000 * took


def _edit_ms(growing: Growing, count: int, server: Server) -> float:
    """Renames to a name of the same length: a deletion would change the number of tensors, and a million names just fit."""
    path = server.path / growing.name(count)
    return 1000 * _seconds(lambda: os.rename(path, str(path).replace("attn.q", "attn.k")))


_growth("mount", "mount", "ms", lambda growing, count, server: 1000 * server.seconds_to_mount)
_growth("memory", "daemon's own memory after the mount", "MiB", lambda growing, count, server: own_mib(resident_mib(server.pid)))
_growth("list", "ls -U after the mount", "ms", lambda growing, count, server: milliseconds("ls -U", server.path))
_growth("find", "find -size after the mount", "ms", lambda growing, count, server: milliseconds("find . -size +1000", server.path),
        is_once=True)  # it takes long
_growth("patch", "one tensor is overwritten, first after the mount", "ms", _patch_ms)
_growth("edit", "one rename, first after the mount", "ms", _edit_ms)


@row("scale-tool", "stfs ls of the archive", "ms", lower=True, grows=True)
def tool(place: Place) -> Plan:
    growing = place.shared(Growing)
    return Plan({f"{count:,} tensors": ours(lambda path=path: run_stfs("ls", path), of=None) for count, path in growing.archives.items()})


# ---- 2 TiB ----

def _tensor_name(number: int) -> str:
    return f"model.layers.{number // 1536}.mlp.experts.{number % 256}.{('gate', 'up', 'down')[number % 3]}_proj" \
           f".weight_{number % 1536}"


def write_sparse_model(directory: Path) -> Path:
    """Writes the shards as sparse files. Returns the path of their index."""
    weight_map = {}
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        header, offset = {"__metadata__": {"format": "pt"}}, 0
        for number in range(TENSORS * shard // SHARDS, TENSORS * (shard + 1) // SHARDS):
            header[_tensor_name(number)] = {"dtype": "BF16", "shape": SHAPE, "data_offsets": [offset, offset + TENSOR_BYTES]}
            weight_map[_tensor_name(number)] = file
            offset += TENSOR_BYTES
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % 8)
        with open(directory / file, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.truncate(8 + len(text) + offset)
    assert len(weight_map) == TENSORS
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": TENSORS * TENSOR_BYTES}, "weight_map": weight_map}))
    return index


def _open_by_library(directory: Path) -> float:
    from safetensors import safe_open
    with contextlib.ExitStack() as files:
        return 1000 * _seconds(lambda: [files.enter_context(safe_open(path, framework="np")).keys()
                                        for path in sorted(directory.glob("*.safetensors"))])


@row("scale-2tib", "a sparse model of 2 TiB, 163 shards, 92,000 tensors", "ms", lower=True)
def two_tib(place: Place) -> Plan:
    directory = place.path("model")
    directory.mkdir()
    try:
        index = write_sparse_model(directory)
    except OSError as error:
        raise type(error)(f"the file system has no sparse files of {SHAPE}: {error}") from error
    server = place.serve(safetensorsfs(index, place.path("mnt")))
    last = server.path / _tensor_name(TENSORS - 1)
    assert last.stat().st_size == TENSOR_BYTES
    turn = 0

    def mounting() -> float:
        with mounted(safetensorsfs(index, place.path("again"), "ro")) as again:
            return 1000 * again.seconds_to_mount

    def patch() -> float:
        content = os.urandom(4096)
        took = _seconds(lambda: write_over(last, content))
        with open(last, "rb") as file:
            assert file.read(4096) == content
        return 1000 * took

    def edit() -> float:
        nonlocal turn
        turn = 1 - turn
        names = [server.path / _tensor_name(1), server.path / "renamed.weight"]
        return 1000 * _seconds(lambda: os.rename(names[1 - turn], names[turn]))
    return Plan({"safetensors library opens all shards": library_twin(lambda: _open_by_library(directory)),
                 "mount": ours(mounting), "ls -U": ours(lambda: milliseconds("ls -U", server.path), of=None),
                 "find -size": ours(lambda: milliseconds("find . -size +1000", server.path), of=None),
                 "4 KiB of a tensor": ours(patch, of=None), "rename of a tensor": ours(edit, of=None)})
