# A server, a directory for the cache, and its table of blocks, for all tests of remote archives.
import contextlib
import os
import struct
import subprocess

import numpy as np
import pytest
import safetensors.numpy
from delta_variants import STFS
from hub_server import hub_served
from web_server import needs_libcurl, served

BLOCK = 256 << 10
DIGEST, OTHER_DIGEST = '"0123456789abcdef0123456789abcdef"', '"fedcba9876543210fedcba9876543210"'  # ETags
OLD = "Mon, 06 Jul 2026 10:00:00 GMT"
HEADER, ENTRY = 4096, 16


@pytest.fixture(autouse=True, scope="module")
def libcurl():
    needs_libcurl(STFS)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The directory of the shared files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "safetensorsfs" / "blocks"


@pytest.fixture
def server():
    with served() as server:
        yield server


def arrays(seed=1):
    rng = np.random.default_rng(seed)
    return {"embed": rng.integers(0, 256, 3_000_000, "u1"), "h.0.w": rng.normal(size=(300, 500)).astype("f4"),
            "h.1.w": rng.normal(size=(17, 3)).astype("f2")}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with hub_served() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        hub.add_model("org/model", {"model.safetensors": safetensors.numpy.save(arrays()), "config.json": b"{}"})
        yield hub


@pytest.fixture
def url(server):
    return server.add("/m.safetensors", safetensors.numpy.save(arrays()), DIGEST)


def stfs(*words, status=0, **more):
    result = subprocess.run([STFS, *map(str, words)], capture_output=True, **more)
    assert result.returncode == status, result.stderr
    return result.stdout if status == 0 else result.stderr.decode()


def cached_file(cache):
    (path,) = [path for path in cache.iterdir() if len(path.name) == 32]
    return path


class Table:
    """The table of a shared file: its entries can be read and changed."""

    def __init__(self, path, size):
        self.path, self.count = path, -(-size // BLOCK)
        self.data_at = HEADER + -(-self.count * ENTRY // 4096) * 4096

    def __getitem__(self, block):
        """(hash, the minute of the last use, whether it is pinned)"""
        with open(self.path, "rb") as file:
            file.seek(HEADER + block * ENTRY)
            return struct.unpack("<QII", file.read(ENTRY))

    def set_used_at(self, block, minute):
        with open(self.path, "r+b") as file:
            file.seek(HEADER + block * ENTRY + 8)
            file.write(struct.pack("<I", minute))

    def flip(self, block, at=100):
        with open(self.path, "r+b") as file:
            file.seek(self.data_at + block * BLOCK + at)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))

    def blocks(self):
        return [block for block in range(self.count) if self[block][0]]


@contextlib.contextmanager
def small_disk(place, size):
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", place], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"needs root: no mount of tmpfs: {made.stderr}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def make_old(cache, server, minute=1000):
    table = Table(cached_file(cache), server.pages["/m.safetensors"].size)
    for block in table.blocks():
        table.set_used_at(block, minute + block)
    return table
