"""Uploads to a GPU beside copies of page-locked memory alone and every loader that is installed (with goals)."""
from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench_session import Session
from bench_table import Found, Goal
from cuda_loaders import LOADERS, Loader, why_absent
from mounts import BINARY, STFS, ours
from upload_runs import GIB, ceiling_speed, upload_speed, verify

DEVICE = "cuda:0"
BUS = "page-locked copies alone"


def speed_of(load: Loader, path: Path) -> float:
    """GiB/s until the device has everything; the memory goes back outside the clock."""
    import torch
    torch.cuda.synchronize()
    started = time.perf_counter()
    tensors = load(path, DEVICE)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    assert all(tensor.is_cuda for tensor in tensors.values())
    del tensors
    torch.cuda.empty_cache()
    return moved / seconds / GIB


def is_right(load: Loader, path: Path) -> bool:
    """Every byte, compared on the CPU."""
    from safetensors.torch import load_file
    tensors = load(path, DEVICE)
    return all(tensors[name].cpu().equal(tensor) for name, tensor in load_file(path).items())


def loaders_that_work(session: Session, path: Path) -> dict[str, tuple[float, Loader]]:
    found = {}
    for name, module, goal, load in LOADERS:
        why = why_absent(module)
        if why is None:
            try:
                why = None if is_right(load, path) else "its tensors are not the archive's"
            except Exception as error:  # noqa: BLE001: their failure is no failure of ours
                why = f"{type(error).__name__}: {error}"
        if why is None:
            found[name] = (goal, load)
        else:
            session.skip(name, why)
    return found


def mounted(session: Session, path: Path) -> Path | None:
    """The archive's mount, where this machine can mount."""
    if not Path(BINARY).exists() or not os.path.exists("/dev/fuse"):
        session.skip("stfs upload MOUNT", "no safetensorsfs was built, or there is no /dev/fuse")
        return None
    return session.serve(ours(path, session.directory / "mount-cuda")).path


def measure_cuda(session: Session, path: Path) -> None:
    devices = json.loads(subprocess.run([STFS, "devices", "--json"], check=True, capture_output=True).stdout)
    if devices["why_no_cuda"]:
        session.skip("cuda", devices["why_no_cuda"])
        return
    loaders = loaders_that_work(session, path)
    ways: dict[str, Callable[[], float]] = {}
    mount = mounted(session, path)
    for label, source in (("stfs upload ARCHIVE", path), ("stfs upload MOUNT", mount)):
        if source is not None:
            verify(source, DEVICE)
    if mount is not None:
        ways["stfs upload MOUNT"] = lambda: upload_speed(mount, DEVICE)
    for name, (_, load) in loaders.items():
        ways[name] = lambda load=load: speed_of(load, path)
    goals = (Goal(0.9), *(Goal(goal, name) for name, (goal, _) in loaders.items()))
    found = {BUS: Found([], BUS), "stfs upload ARCHIVE": Found([], BUS, goals), **{name: Found([], BUS) for name in ways}}
    for number in range(session.table.rounds + 1):
        values = {BUS: ceiling_speed(DEVICE),
                  "stfs upload ARCHIVE": upload_speed(path, DEVICE),
                  **{name: run() for name, run in ways.items()}}
        if number == 0:
            continue  # warms up
        for name, value in values.items():
            found[name].values.append(value)
    session.table.add(f"upload to {DEVICE}, page cache warm", "GiB/s", found)
