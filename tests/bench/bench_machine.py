"""The state of the machine, for the JSON: figures of two runs are comparable only if the machines are."""
from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from bench_disk import file_system_of, has_reflink
from mounts import BINARY
from page_cache import memory_bytes
from peers import FUSE_PROGRAMS, program

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("safetensors", "numpy", "torch", "fastsafetensors", "runai-model-streamer", "ratarmount")


def _busy_seconds() -> float:
    """Returns the seconds that all cores together have worked, with the seconds that a host took from them."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _waiting, hard, soft, stolen = map(int, fields)
    return (user + nice + system + hard + soft + stolen) / os.sysconf("SC_CLK_TCK")


def busy_cores(seconds: float = 0.3) -> float:
    """Returns the number of cores that other programs use, while this one sleeps and its servers have no work."""
    began, before = time.monotonic(), _busy_seconds()
    time.sleep(seconds)
    return (_busy_seconds() - before) / (time.monotonic() - began)


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", "-c", "safe.directory=*", "-C", ROOT, *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _frequency_mhz() -> float | None:
    found = re.findall(r"^cpu MHz\s*: ([\d.]+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
    return round(sum(map(float, found)) / len(found)) if found else None


def _processor() -> str:
    found = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
    return found[1] if found else platform.machine()


def _versions() -> dict[str, str]:
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def state(directory: Path) -> dict[str, Any]:
    """Returns the field `machine`."""
    is_virtual = "hypervisor" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return {"kernel": platform.release(), "processor": _processor(), "cores": os.cpu_count(), "is_virtual": is_virtual,
            "frequency_mhz": _frequency_mhz(), "load": list(os.getloadavg()), "busy_cores": round(busy_cores(), 2),
            "memory_bytes": memory_bytes("MemTotal"), "free_bytes": memory_bytes("MemFree"),
            "available_bytes": memory_bytes("MemAvailable"), "file_system": file_system_of(directory),
            "has_reflink": has_reflink(directory), "free_disk_bytes": shutil.disk_usage(directory).free,
            "commit": _git("rev-parse", "HEAD"), "is_changed": _git("status", "--porcelain", "--untracked-files=no") != "",
            "binary_time": time.strftime("%FT%TZ", time.gmtime(BINARY.stat().st_mtime)), "is_root": os.geteuid() == 0,
            "python": platform.python_version(), "libraries": _versions(),
            "programs": [name for name in FUSE_PROGRAMS if program(name)]}
