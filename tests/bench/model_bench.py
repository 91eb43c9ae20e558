#!/usr/bin/env python3
"""How long a model of many shards takes to mount, and what memory the daemon holds then.

The shards are sparse: headers as a real model's, data that take no room. Their headers are in the page cache, as
they have just been written; the first round is shown apart. Mounted means: the kernel's table has it, and the last
tensor's file was looked up.

    tests/bench/model_bench.py [--shards 163] [--tensors 92000] [--rounds 5] [--directory DIR] [-o OPTIONS]
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from daemon_memory import resident_mib  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("STFS_BUILD_DIR", ROOT / "build" / "release")) / "safetensorsfs"
TENSOR_BYTES = 7 << 20  # 92,000 of them are 630 GB


def tensor_name(number: int) -> str:
    return f"model.layers.{number // 1536}.mlp.experts.{number % 256}.{('gate', 'up', 'down')[number % 3]}_proj" \
           f".weight_{number % 1536}"


def write_model(directory: Path, shards: int, tensors: int) -> Path:
    """Shards of as many tensors each, as sparse files; the path of their index."""
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        header, offset = {"__metadata__": {"format": "pt"}}, 0
        for number in range(tensors * shard // shards, tensors * (shard + 1) // shards):
            name = tensor_name(number)
            header[name] = {"dtype": "BF16", "shape": [2048, TENSOR_BYTES // 4096],
                            "data_offsets": [offset, offset + TENSOR_BYTES]}
            weight_map[name] = file
            offset += TENSOR_BYTES
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % 8)
        with open(directory / file, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.truncate(8 + len(text) + offset)
    assert len(weight_map) == tensors
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": tensors * TENSOR_BYTES}, "weight_map": weight_map}))
    return index


def unmount(path: Path, daemon: subprocess.Popen) -> None:
    for _ in range(100):
        if subprocess.run(["fusermount3", "-u", path], capture_output=True).returncode == 0:
            break
        time.sleep(0.02)
    daemon.wait(timeout=20)


def one_round(index: Path, mount_point: Path, options: str, last: str) -> dict[str, float]:
    started = time.perf_counter()
    command = [BINARY, index, mount_point, "-f"] + (["-o", options] if options else [])
    daemon = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        while not (mount_point / last).exists():
            if daemon.poll() is not None:
                sys.exit(f"the mount failed: {daemon.stderr.read()}")
            time.sleep(0.001)
        mounted = time.perf_counter() - started
        memory = resident_mib(daemon.pid)
        found = {"mount, s": mounted, "daemon's own memory, MiB": memory["RssAnon"] + memory["RssShmem"]}
        started = time.perf_counter()
        size = (mount_point / ".safetensors" / "archive.safetensors").stat().st_size
        found["first look at archive.safetensors, s"] = time.perf_counter() - started
        assert size > 0
        found["then memory, MiB"] = resident_mib(daemon.pid)["RssAnon"]
        started = time.perf_counter()
        count = len(os.listdir(mount_point))
        found["ls, s"] = time.perf_counter() - started
        found["tensors"] = count
        return found
    finally:
        unmount(mount_point, daemon)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=163)
    parser.add_argument("--tensors", type=int, default=92_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="where the sparse files go (default: a temporary directory)")
    parser.add_argument("-o", dest="options", default="", help="mount options")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stfs-model-", dir=arguments.directory) as directory:
        model, mount_point = Path(directory) / "model", Path(directory) / "mnt"
        model.mkdir()
        mount_point.mkdir()
        index = write_model(model, arguments.shards, arguments.tensors)
        headers = sum(8 + struct.unpack("<Q", open(file, "rb").read(8))[0] for file in model.glob("*.safetensors"))
        print(f"{arguments.shards} shards, {arguments.tensors} tensors, headers of {headers / 1e6:.1f} MB, "
              f"index of {index.stat().st_size / 1e6:.1f} MB, {os.cpu_count()} cores")
        rounds = [one_round(index, mount_point, arguments.options, tensor_name(arguments.tensors - 1))
                  for _ in range(arguments.rounds + 1)]
        for name in rounds[0]:
            values = [found[name] for found in rounds[1:]]
            print(f"{name:40} median {statistics.median(values):10.3f}   {min(values):.3f} to {max(values):.3f}"
                  f"   first {rounds[0][name]:.3f}")


if __name__ == "__main__":
    main()
