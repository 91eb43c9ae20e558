"""How other loaders bring an archive to a GPU, each as its own documentation says. Of those that are installed.

A loader here is a function of (path, device) that returns when all tensors are on the device, and gives them. PyTorch
allocates; what it keeps is given back outside the clock.
"""
from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

Loader = Callable[[Path, str], dict[str, Any]]


def load_file(path: Path, device: str) -> dict[str, Any]:
    return importlib.import_module("safetensors.torch").load_file(path, device=device)


def load_then_move(path: Path, device: str) -> dict[str, Any]:
    """What people write who load on the CPU first."""
    tensors = importlib.import_module("safetensors.torch").load_file(path)
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def instanttensor(path: Path, device: str) -> dict[str, Any]:
    index = int(device.partition(":")[2])
    with importlib.import_module("instanttensor").safe_open(str(path), framework="pt", device=index) as file:
        return dict(file.tensors())


def fastsafetensors(path: Path, device: str) -> dict[str, Any]:
    module = importlib.import_module("fastsafetensors")
    with module.fastsafe_open([str(path)], device=device, nogds=True) as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def model_streamer(path: Path, device: str) -> dict[str, Any]:
    with importlib.import_module("runai_model_streamer").SafetensorsStreamer() as streamer:
        streamer.stream_file(str(path))
        return {name: tensor.to(device) for name, tensor in streamer.get_tensors()}


# Name in the table, module that must be there, how many times as fast we want to be.
LOADERS: tuple[tuple[str, str, float, Loader], ...] = (
    ("safetensors load_file", "safetensors", 2.0, load_file),
    ("load_file, then .to()", "safetensors", 1 / 0.7, load_then_move),
    ("InstantTensor", "instanttensor", 1.0, instanttensor),
    ("fastsafetensors", "fastsafetensors", 3.0, fastsafetensors),
    ("Run:ai Model Streamer", "runai_model_streamer", 3.0, model_streamer),
)


def why_absent(module: str) -> str | None:
    """None where the loader can be used."""
    for name in ("torch", module):
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001: a library that does not find its GPU may raise anything
            return f"{name}: {error}"
    return None
