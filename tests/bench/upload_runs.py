"""`stfs upload` as a benchmark runs it: its own clock, which begins and ends with the moving of bytes."""
from __future__ import annotations

import json
import subprocess
from pathlib import Path

from mounts import BUILD, STFS

GIB = 1 << 30


def upload(source: Path, device: str, *more: str) -> dict:
    done = subprocess.run([STFS, "upload", source, "--device", device, "--json", *more], check=True, capture_output=True)
    return json.loads(done.stdout)


def upload_speed(source: Path, device: str) -> float:
    return upload(source, device)["bytes_per_second"] / GIB


def ceiling_speed(device: str) -> float:
    """GiB/s of copies of page-locked memory alone."""
    done = subprocess.run([BUILD / "tests" / "upload_ceiling", device], check=True, capture_output=True)
    return float(done.stdout) / GIB


def verify(source: Path, device: str) -> None:
    report = upload(source, device, "--verify")
    assert report["verified_bytes"] == report["read_bytes"] > 0
