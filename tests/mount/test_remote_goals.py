# Limits of the bytes and of the memory that remote archives may take.
import json
import os
import random

import pytest
from mounted import eventually, is_sanitized
from remote_cache import cache, libcurl, server  # noqa: F401
from web_server import Page


def head_of(count, size):
    """The first bytes of an archive of U8 tensors of one size."""
    header = {f"model.layers.{number}.w": {"dtype": "U8", "shape": [size], "data_offsets": [number * size, (number + 1) * size]}
              for number in range(count)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def add(server, count, size):
    head = head_of(count, size)
    page = Page(len(head) + count * size, lambda offset, wanted: head[offset:offset + wanted].ljust(wanted, b"\0"), '"' + "a" * 32 + '"')
    server.pages["/big.safetensors"] = page
    return f"{server.address}/big.safetensors"


def memory_of(mount, kind="VmRSS"):
    """The memory of the mount's program, in bytes."""
    with open(f"/proc/{mount.process.pid}/status") as status:
        (line,) = [line for line in status if line.startswith(kind)]
    return int(line.split()[1]) << 10


def read_some(mount, count, numbers):
    for number in numbers.sample(range(count), 20):
        with open(mount / f"model.layers.{number}.w", "rb", buffering=0) as file:
            assert file.read(4096) == bytes(4096)


@pytest.mark.skipif(is_sanitized(), reason="a sanitizer has memory of its own")
def test_a_model_of_2_tib_takes_little_more_memory_than_on_this_disk(server, mounts, tmp_path):
    count, size = 100_000, 21 << 20
    head = head_of(count, size)
    path = tmp_path / "here.safetensors"
    try:
        with open(path, "wb") as file:
            file.write(head)
            file.truncate(len(head) + count * size)
    except OSError as failure:
        pytest.skip(f"no sparse file of 2 TiB here: {failure}")
    here = mounts(path, "ro")
    read_some(here, count, random.Random(1))
    there = mounts(add(server, count, size))
    read_some(there, count, random.Random(1))
    local = memory_of(here)
    # Bytes that are on their way are in memory, too: at most 16 parts of 8 MiB.
    assert memory_of(there, "VmHWM") - memory_of(here, "VmHWM") < (64 << 20) + 16 * (8 << 20)
    assert eventually(lambda: memory_of(there) - local < 64 << 20)
    print(f"{(memory_of(there) - local) >> 20} MiB more than {local >> 20} MiB")
    path.unlink()


def test_small_reads_at_random_places_cost_little_more_than_their_tensors(server, mounts):
    count, size, touched = 1000, 4 << 20, 40
    mount = mounts(add(server, count, size))
    del server.requests[:]
    server.sent_bytes = 0
    numbers = random.Random(2)
    for number in numbers.sample(range(count), touched):
        with open(mount / f"model.layers.{number}.w", "rb", buffering=0) as file:
            for _ in range(5):
                assert len(os.pread(file.fileno(), 4096, numbers.randrange(size - 4096))) == 4096
    print(f"{server.sent_bytes / (touched * size):.2f} times the bytes, {len(server.requests)} requests")
    assert server.sent_bytes <= 1.2 * touched * size
    assert len(server.requests) <= 3 * touched
