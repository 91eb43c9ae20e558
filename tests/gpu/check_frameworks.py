#!/usr/bin/env python3
"""Tensors on a GPU in PyTorch, CuPy and JAX, without a copy: uploaded by this process, and leased from `stfs serve`.

    STFS_BUILD_DIR=build/gpu PYTHON tests/gpu/check_frameworks.py [MODEL]

A line for each check; what is not installed is skipped by name. With a MODEL, it also times how long a new process takes
to attach to a server of it. Exit status: 0 nothing failed, 1 something did.
"""
import gc
import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

BUILD = Path(os.environ.get("STFS_BUILD_DIR", "build/gpu")).resolve()
sys.path.insert(0, str(BUILD / "python"))
DEVICE = os.environ.get("STFS_GPU_DEVICE", "cuda:0")  # cpu, to try this program itself
FAILED = []


def check(name, work, *modules):
    """Runs work(), or prints the module that is missing."""
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
    """Returns {name: tensor on the CPU} with every type that PyTorch and the format share."""
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
    """Returns the bytes on the CPU, so that NaNs are also compared."""
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

    def refused_by_jax(self):
        """JAX 0.11 uses DLPack before 1.0, which can't express that leased memory is read-only."""
        try:
            self.in_jax()
        except BufferError as error:
            assert "read-only" in str(error), error

    def check(self, how, is_read_only):
        check(f"{how}: PyTorch", self.in_pytorch, "torch")
        check(f"{how}: CuPy", self.in_cupy, "torch", "cupy")
        check(f"{how}: JAX", self.refused_by_jax if is_read_only else self.in_jax, "torch", "jax")


def keeps_the_current_device(model):
    """The caller's current device is the last GPU, and the upload is to DEVICE."""
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
    """Converts a tensor of many slots to bf16, with the same rounding as PyTorch."""
    import torch
    tensor = torch.from_dlpack(model.upload(["large"], device=DEVICE, dtype="BF16")["large"])
    assert bits(tensor).equal(bits(due["large"].to(torch.bfloat16))), "other values than PyTorch's"


def outlives(tensors, due):
    import torch
    kept = torch.from_dlpack(tensors["large"])
    del tensors
    gc.collect()
    torch.empty(1 << 28, device=DEVICE).fill_(7)  # would reuse freed memory
    if DEVICE != "cpu":
        torch.cuda.synchronize()
    assert kept.cpu().equal(due["large"]), "the arena has gone before its tensor"


class Server:
    """A running `stfs serve` that has uploaded its model."""
    def __init__(self, path, directory):
        self.socket = str(directory / "socket")
        self.process = subprocess.Popen([BUILD / "stfs", "serve", path, "--device", DEVICE, "--socket", self.socket],
                                        stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            print(line, end="")
            if line.startswith("serving "):
                return
        raise RuntimeError("stfs serve has ended")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def serve(path, directory, due):
    import stfs
    server = Server(path, directory)
    try:
        lease = stfs.attach(server.socket)
        Frameworks(lease, due).check("leased from stfs serve", is_read_only=True)
    finally:
        server.kill()
    check("leased, the server killed: PyTorch", Frameworks(lease, due).in_pytorch)


ATTACH = """
import sys, time
sys.path.insert(0, sys.argv[1])
import stfs
stfs.devices()
for _ in range(3):
    began = time.perf_counter()
    lease = stfs.attach(sys.argv[2])
    print(f"{(time.perf_counter() - began) * 1000:.1f}", end=" ")
"""


def attach(path, directory):
    """Measures three attaches. The first one includes the start of CUDA in the new process."""
    server = Server(path, directory)
    try:
        done = subprocess.run([sys.executable, "-c", ATTACH, str(BUILD / "python"), server.socket], check=True, text=True,
                              stdout=subprocess.PIPE)
        print(f"         a new process attached in {done.stdout}ms (goal: < 50)")
    finally:
        server.kill()


def main():
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        path = directory / "model.safetensors"
        due = write_model(path)
        import stfs
        with stfs.open(path) as model:
            Frameworks(model.upload(device=DEVICE, verify=True), due).check("uploaded", is_read_only=False)
            check("converted to bf16: PyTorch", lambda: converts(model, due))
            if DEVICE != "cpu":
                check("the current device stays", lambda: keeps_the_current_device(model))
            check("a tensor outlives its upload", lambda: outlives(model.upload(device=DEVICE), due))
        check("stfs serve", lambda: serve(path, directory, due))
        if len(sys.argv) > 1:
            check("a new process attaches", lambda: attach(sys.argv[1], directory))
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
