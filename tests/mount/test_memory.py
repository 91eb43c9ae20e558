# "A mount's own memory stays below 40 MiB, however large the tensor": the peak of the memory without the pages of the archive,
# while a large tensor is written in every way and the tensors of a large model are read.
import os
import re
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from archive_file import ArchiveFile, random_bytes, write_bytes_tensors
from mounted import eventually, is_sanitized, shell

MIB = 1 << 20
LARGE_BYTES = 96 * MIB + 5
TENSORS = 10_000


class OwnMemory:
    """The highest of a process's memory without the pages of files."""

    def __init__(self, pid):
        self.status = Path(f"/proc/{pid}/status")
        self.highest = 0
        self.looks = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self):
        while not self._ended.wait(0.003):
            pages = dict(re.findall(r"^(Rss\w+):\s+(\d+) kB", self.status.read_text(), re.M))
            self.highest = max(self.highest, (int(pages["RssAnon"]) + int(pages["RssShmem"])) * 1024)
            self.looks += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()


def read_in_pieces(path, piece_bytes=MIB):
    fd = os.open(path, os.O_RDONLY)
    try:
        return sum(map(len, iter(lambda: os.read(fd, piece_bytes), b"")))
    finally:
        os.close(fd)


@pytest.mark.once
@pytest.mark.skipif(is_sanitized(), reason="a sanitizer has memory of its own")
def test_the_memory_of_a_mount_is_small_however_large_the_tensor(tmp_path, mounts):
    data = random_bytes(LARGE_BYTES, 1)
    tensors = {f"model.layers.{number}.weight": b"%08d" % number for number in range(TENSORS)}
    archive = ArchiveFile(write_bytes_tensors(tmp_path / "m.safetensors", {"large": bytes(LARGE_BYTES), **tensors}))
    (tmp_path / "data").write_bytes(data)
    mount = mounts(archive.path)
    with OwnMemory(mount.pid) as memory:
        # In order, over the whole, in order from its end, here and there, and by four threads at a time.
        for way in ("conv=notrunc", "conv=notrunc,fsync", "oflag=direct conv=notrunc"):
            assert shell(f'dd if="$1" of="$2" bs=1M status=none {way}', tmp_path / "data", mount / "large").returncode == 0
        assert shell('cp "$1" "$2"', tmp_path / "data", mount / "large").returncode == 0
        fd = os.open(mount / "large", os.O_WRONLY)
        places = range(0, LARGE_BYTES - 4096, 40_961)
        for at in reversed(places):
            assert os.pwrite(fd, data[at:at + 4096], at) == 4096
        os.fsync(fd)
        with ThreadPoolExecutor(4) as pool:
            wrote = pool.map(lambda at: os.pwrite(fd, data[at:at + 2 * MIB], at), range(0, LARGE_BYTES - 2 * MIB, 3 * MIB))
            assert set(wrote) == {2 * MIB}
        os.close(fd)
        # The whole, in one piece and as views, by several readers; and every tensor there is.
        views = mount / ".safetensors"
        for path in (mount / "large", views / "archive.safetensors", views / "npy" / "large.npy",
                     views / "slice" / "large[::-1]"):
            with ThreadPoolExecutor(4) as pool:
                assert len(set(pool.map(read_in_pieces, [path] * 4))) == 1
        assert mount.attribute("large", "checksum").startswith("xxh128:")
        assert sum(read_in_pieces(mount / name) for name in tensors) == 8 * TENSORS
    assert archive.tensor("large") == data
    assert memory.looks > 100
    assert memory.highest < 40 * MIB, f"{memory.highest / MIB:.1f} MiB"


def write_keys(path, keys):
    """An archive with a tensor and so many keys of metadata, of 12 bytes each in the header."""
    pairs = ",".join(f'"{key:07x}":""' for key in range(keys))
    header = ('{"__metadata__":{"first":"1",' + pairs + ',"last":"2"},'
              '"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}').encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + b"abcd")
    return path


@pytest.mark.once
@pytest.mark.skipif(is_sanitized(), reason="a sanitizer has memory of its own")
def test_requests_for_metadata_take_no_memory_however_many_keys_there_are(tmp_path, mounts):
    mount = mounts(write_keys(tmp_path / "m.safetensors", 1_500_000))
    transaction = mount / ".safetensors/transactions/T"
    transaction.mkdir()
    with OwnMemory(mount.pid) as idle:
        assert eventually(lambda: idle.looks > 2)
    with OwnMemory(mount.pid) as memory:
        with ThreadPoolExecutor(12) as pool:
            lists = list(pool.map(os.listxattr, [mount.path, transaction] * 24))
            values = list(pool.map(lambda key: mount.attribute(None, f"metadata.{key}"), ["first", "last", "0000007"] * 12))
    assert memory.highest < idle.highest + 16 * MIB
    assert values == ["1", "2", ""] * 12
    # As many names as the kernel passes on.
    assert all(60_000 < sum(len(name) + 1 for name in names) <= 65_536 for names in lists)


def write_many_tensors(path, tensors):
    entries = (f'"model.layers.{number:06}.weight":{{"dtype":"U8","shape":[8],"data_offsets":[{8 * number},{8 * number + 8}]}}'
               for number in range(tensors))
    header = ("{" + ",".join(entries) + "}").encode() + b" " * 100_000  # with room for the names of fillers
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 8 * tensors)
    return path


@pytest.mark.once
@pytest.mark.skipif(is_sanitized(), reason="a sanitizer has memory of its own")
def test_edits_of_a_large_model_keep_no_tables(tmp_path, mounts):
    # The tables of this model take 40 MiB. Each edit makes new ones, and so does each step that closes a gap.
    mount = mounts(write_many_tensors(tmp_path / "m.safetensors", 100_000))
    with OwnMemory(mount.pid) as memory:
        for number in range(0, 100_000, 8_000):
            os.unlink(mount / f"model.layers.{number:06}.weight")
        assert eventually(lambda: "closed the gaps of deleted tensors" in mount.log())
    assert memory.highest < 300 * MIB, f"{memory.highest / MIB:.1f} MiB"
    with OwnMemory(mount.pid) as rest:
        def is_small():
            rest.highest, looks = 0, rest.looks
            return eventually(lambda: rest.looks > looks) and rest.highest < 120 * MIB
        assert eventually(is_small), f"{rest.highest / MIB:.1f} MiB"
