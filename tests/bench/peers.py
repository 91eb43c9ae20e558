"""Other programs that do the same work as a row. A peer that can't run here has a line in the table, with the reason."""
from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_row import GIB, Way, missing, peer, why_absent
from bench_session import Place
from mounts import Server

FUSE_PROGRAMS = SQUASHFUSE, FUSE_ZIP, RATARMOUNT, BINDFS = "squashfuse_ll", "fuse-zip", "ratarmount", "bindfs"


class FusePeers:
    """The files of a directory, served by the FUSE file systems that are installed, from an image that is not compressed.

    `servers` has the running ones, `files` the file that each of them reads (bindfs reads the directory), and `absent` the
    reasons of the others.
    """

    def __init__(self, place: Place, tree: Path) -> None:
        self.place = place
        self.tree = tree
        self.servers: dict[str, Server] = {}
        self.files: dict[str, Path] = {}
        self.absent: dict[str, str] = {}
        self._add(SQUASHFUSE, (SQUASHFUSE, "mksquashfs"), "squashfs", self._squashfs,
                  lambda program, image, point: [program, "-f", image, point])
        self._add(FUSE_ZIP, (FUSE_ZIP,), "zip", self._zip, lambda program, image, point: [program, "-r", "-f", image, point])
        self._add(RATARMOUNT, (RATARMOUNT,), "tar", self._tar, lambda program, image, point: [program, "-f", image, point])
        self._add(BINDFS, (BINDFS,), None, None, lambda program, _, point: [program, "-f", "-r", tree, point])

    def _add(self, label: str, programs: tuple[str, ...], suffix: str | None, make: Callable[[Path], None] | None,
             command: Callable[[str, Path, Path], list[object]]) -> None:
        if lacking := [name for name in programs if program(name) is None]:
            self.absent[label] = f"{lacking[0]}: not installed"
            return
        image, point = self.place.path(f"peer.{suffix}"), self.place.path(f"mounted-{label}")
        try:
            if make:
                make(image)
                self.files[label] = image
            self.servers[label] = self.place.serve(Server(command(program(programs[0]), image, point), point))
        except Exception as error:  # another program's failure is no failure of ours
            self.absent[label] = f"does not start: {str(error).strip().splitlines()[-1]}"

    def ways(self, run: Callable[[Path], float], name: str = "") -> dict[str, Way]:
        """Returns the ways of a row, each with the peer's path of the file `name`."""
        ways = {label: peer(lambda path=server.path / name: run(path)) for label, server in self.servers.items()}
        return ways | {label: missing("peer", why) for label, why in self.absent.items()}

    def _squashfs(self, image: Path) -> None:
        subprocess.run(["mksquashfs", self.tree, image, "-noD", "-noI", "-noF", "-no-xattrs", "-quiet", "-no-progress"],
                       check=True, stdout=subprocess.DEVNULL)

    def _zip(self, image: Path) -> None:
        with zipfile.ZipFile(image, "w", zipfile.ZIP_STORED) as file:
            for path in sorted(self.tree.iterdir()):
                file.write(path, path.name)

    def _tar(self, image: Path) -> None:
        with tarfile.open(image, "w") as file:
            for path in sorted(self.tree.iterdir()):
                file.add(path, path.name)


def program(name: str) -> str | None:
    """Returns the path of a program on PATH, or of a Python program beside this interpreter."""
    beside = Path(sys.executable).parent / name
    return shutil.which(name) or (str(beside) if beside.exists() else None)


# ---- libraries that load an archive ----

Loader = Callable[[Path, str], dict[str, Any]]


def load_file(path: Path, device: str) -> dict[str, Any]:
    return importlib.import_module("safetensors.torch").load_file(path, device=device)


def load_then_move(path: Path, device: str) -> dict[str, Any]:
    """Loads on the CPU first, as many people do."""
    tensors = importlib.import_module("safetensors.torch").load_file(path)
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def instanttensor(path: Path, device: str) -> dict[str, Any]:
    index = int(device.partition(":")[2])
    with importlib.import_module("instanttensor").safe_open(str(path), framework="pt", device=index) as file:
        return dict(file.tensors())


def fastsafetensors(path: Path, device: str) -> dict[str, Any]:
    module = importlib.import_module("fastsafetensors")
    with module.fastsafe_open([str(path)], device=device, nogds=True) as file:
        return {name: file.get_tensor(name).clone() if device == "cpu" else file.get_tensor(name) for name in file.keys()}


def model_streamer(path: Path, device: str) -> dict[str, Any]:
    with importlib.import_module("runai_model_streamer").SafetensorsStreamer() as streamer:
        streamer.stream_file(str(path))
        return {name: tensor.clone() if device == "cpu" else tensor.to(device) for name, tensor in streamer.get_tensors()}


# The name in the table, the module that is needed beside PyTorch, and the loader.
LOAD_FILE, LOAD_AND_MOVE = "PyTorch, safetensors load_file", "PyTorch, load_file, then .to()"
INSTANT, FAST, RUNAI = "InstantTensor", "fastsafetensors", "Run:ai Model Streamer"
LOADERS: dict[str, tuple[str, Loader]] = {
    LOAD_FILE: ("safetensors", load_file),
    LOAD_AND_MOVE: ("safetensors", load_then_move),
    INSTANT: ("instanttensor", instanttensor),
    FAST: ("fastsafetensors", fastsafetensors),
    RUNAI: ("runai_model_streamer", model_streamer),
}


def _why_unusable(module: str) -> str:
    for name in ("torch", module):
        if why := why_absent(name):
            return why
        try:
            importlib.import_module(name)
        except Exception as error:  # a library that does not find its GPU may raise anything
            return f"{name}: {error}"
    return ""


def _is_right(load: Loader, path: Path, device: str) -> bool:
    """Compares every byte on the CPU."""
    tensors = load(path, device)
    return all(tensors[name].cpu().equal(tensor) for name, tensor in load_file(path, "cpu").items())


def _gib_per_second(load: Loader, path: Path, device: str) -> float:
    """Returns GiB/s until the device has everything. Memory is freed outside the clock."""
    import torch
    is_cuda = device != "cpu"
    if is_cuda:
        torch.cuda.synchronize()
    started = time.perf_counter()
    tensors = load(path, device)
    if is_cuda:
        torch.cuda.synchronize()
    else:
        for tensor in tensors.values():  # a lazy map is not loaded before its pages are read
            tensor.view(torch.uint8).reshape(-1)[::4096].sum()
    seconds = time.perf_counter() - started
    moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    assert all(tensor.is_cuda == is_cuda for tensor in tensors.values())
    del tensors
    if is_cuda:
        torch.cuda.empty_cache()
    return moved / seconds / GIB


def loader_ways(path: Path, device: str, labels: tuple[str, ...]) -> dict[str, Way]:
    """Returns the loaders that work, after one check of every byte, and the reasons of the others."""
    ways = {}
    for label in labels:
        module, load = LOADERS[label]
        why = _why_unusable(module)
        if not why:
            try:
                why = "" if _is_right(load, path, device) else "its tensors are not the archive's"
            except Exception as error:  # another program's failure is no failure of ours
                why = f"fails: {type(error).__name__}: {error}"
        ways[label] = missing("peer", why) if why else peer(lambda load=load: _gib_per_second(load, path, device))
    return ways
