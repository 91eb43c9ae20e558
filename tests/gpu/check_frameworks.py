#!/usr/bin/env python3
"""Tensors on a GPU in PyTorch, CuPy and JAX, without a copy: uploaded by this process, and leased from `stfs serve`.

    STFS_BUILD_DIR=build/gpu PYTHON tests/gpu/check_frameworks.py

A line for each check; what is not installed is skipped by name. Exit status: 0 nothing failed, 1 something did.
"""
import gc
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BUILD = Path(os.environ.get("STFS_BUILD_DIR", "build/gpu")).resolve()
sys.path.insert(0, str(BUILD / "python"))
DEVICE = os.environ.get("STFS_GPU_DEVICE", "cuda:0")  # cpu, to try this program itself
FAILED = []


def check(name, work, *modules):
    """Runs work(), or says what it lacks."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001: a library that does not find its GPU may raise anything
            print(f"skipped  {name}: {module}: {error}")
            return
    try:
        work()
    except Exception as error:  # noqa: BLE001: the others shall be tried
        FAILED.append(name)
        print(f"FAILED   {name}: {type(error).__name__}: {error}")
    else:
        print(f"ok       {name}")


def write_model(path):
    """{name: tensor on the CPU} of every type that PyTorch and the format share."""
    import torch
    from safetensors.torch import save_file
    torch.manual_seed(1)
    numbers = torch.randn(300, 257)
    names = "float32 float64 float16 bfloat16 float8_e4m3fn float8_e5m2 int8 uint8 int16 int32 int64 bool".split()
    tensors = {name: (numbers * 10).to(getattr(torch, name)) for name in names if hasattr(torch, name)}
    tensors["large"] = torch.randn(4096, 4096)
    save_file(tensors, path)
    return tensors


def bits(tensor):
    """As bytes on the CPU, so that NaNs are compared too."""
    import torch
    return tensor.cpu().contiguous().view(torch.uint8)


class Frameworks:
    def __init__(self, tensors, due):
        self.tensors = tensors
        self.due = due

    def in_pytorch(self):
        import torch
        for name, due in self.due.items():
            tensor = torch.from_dlpack(self.tensors[name])
            assert str(tensor.device) == DEVICE, f"{name} is on {tensor.device}"
            assert tensor.data_ptr() == self.tensors[name].address, f"{name} was copied"
            assert bits(tensor).equal(bits(due)), f"{name} has other bytes"

    def in_cupy(self):
        import cupy
        array = cupy.from_dlpack(self.tensors["large"])
        assert array.data.ptr == self.tensors["large"].address, "it was copied"
        assert (array.get() == self.due["large"].numpy()).all(), "other bytes"

    def in_jax(self):
        import jax
        import numpy
        array = jax.dlpack.from_dlpack(self.tensors["large"])
        assert (numpy.asarray(array) == self.due["large"].numpy()).all(), "other bytes"

    def check(self, how):
        check(f"{how}: PyTorch", self.in_pytorch, "torch")
        check(f"{how}: CuPy", self.in_cupy, "torch", "cupy")
        check(f"{how}: JAX", self.in_jax, "torch", "jax")


def keeps_the_current_device(model):
    """The caller's device is the last GPU; the upload goes to DEVICE."""
    import stfs
    import torch
    last = torch.cuda.device_count() - 1
    torch.cuda.set_device(last)
    torch.empty(1, device="cuda")
    model.upload(device=DEVICE, verify=True)
    stfs.devices()
    assert torch.cuda.current_device() == last, f"the current device is {torch.cuda.current_device()}"
    assert torch.empty(1, device="cuda").device.index == last, "new tensors lie on another device"
    torch.cuda.set_device(0)


def converts(model, due):
    """bf16 of a tensor of many slots, as PyTorch rounds it."""
    import torch
    tensor = torch.from_dlpack(model.upload(["large"], device=DEVICE, dtype="BF16")["large"])
    assert bits(tensor).equal(bits(due["large"].to(torch.bfloat16))), "other values than PyTorch's"


def outlives(tensors, due):
    import torch
    kept = torch.from_dlpack(tensors["large"])
    del tensors
    gc.collect()
    torch.empty(1 << 28, device=DEVICE).fill_(7)  # would take the place of what was freed
    if DEVICE != "cpu":
        torch.cuda.synchronize()
    assert kept.cpu().equal(due["large"]), "the arena has gone before its tensor"


def serve(path, directory, due):
    import stfs
    socket = directory / "socket"
    server = subprocess.Popen([BUILD / "stfs", "serve", path, "--device", DEVICE, "--socket", socket])
    try:
        while not socket.exists() and server.poll() is None:
            time.sleep(0.05)
        began = time.perf_counter()
        lease = stfs.attach(str(socket))
        milliseconds = (time.perf_counter() - began) * 1000
        Frameworks(lease, due).check("leased from stfs serve")
        again = time.perf_counter()
        stfs.attach(str(socket))
        print(f"         attached in {milliseconds:.1f} ms, a second time in {(time.perf_counter() - again) * 1000:.1f} ms "
              "(goal: < 50)")
        server.send_signal(signal.SIGKILL)
        server.wait()
        check("leased, the server killed: PyTorch", Frameworks(lease, due).in_pytorch)
    finally:
        server.kill()
        server.wait()


def main():
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        path = directory / "model.safetensors"
        due = write_model(path)
        import stfs
        with stfs.open(path) as model:
            Frameworks(model.upload(device=DEVICE, verify=True), due).check("uploaded")
            check("converted to bf16: PyTorch", lambda: converts(model, due))
            if DEVICE != "cpu":
                check("the current device stays", lambda: keeps_the_current_device(model))
            check("a tensor outlives its upload", lambda: outlives(model.upload(device=DEVICE), due))
        check("stfs serve", lambda: serve(path, directory, due))
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
