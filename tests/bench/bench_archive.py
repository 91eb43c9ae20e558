"""The synthetic archives of the benchmarks, and the random contents that they write and check."""
from __future__ import annotations

import functools
import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PIECE_BYTES = 1 << 20
_BLOCK_PIECES = 64


@functools.cache
def _block() -> bytes:
    return np.random.default_rng(7).bytes(_BLOCK_PIECES * PIECE_BYTES)


@dataclass(frozen=True)
class Content:
    """Random bytes of any size that need little memory: 64 MiB are repeated, and each MiB has a stamp with the variant
    and its number. Two variants differ in every MiB, so that a missing write is noticed."""
    size_bytes: int
    variant: int

    def pieces(self) -> Iterator[bytes]:
        for number in range(-(-self.size_bytes // PIECE_BYTES)):
            begin = (number + self.variant) % _BLOCK_PIECES * PIECE_BYTES
            size_bytes = min(PIECE_BYTES, self.size_bytes - number * PIECE_BYTES)
            stamp = struct.pack("<QQ", self.variant, number)[:size_bytes]
            yield stamp + _block()[begin + len(stamp):begin + size_bytes]

    def write_to(self, fd: int, offset: int) -> None:
        for piece in self.pieces():
            done = 0
            while done < len(piece):
                done += os.pwrite(fd, memoryview(piece)[done:], offset + done)
            offset += len(piece)

    def check(self, path: Path, offset: int) -> None:
        """Raises an error if the file does not have this content at this place."""
        fd = os.open(path, os.O_RDONLY)
        try:
            for piece in self.pieces():
                if os.pread(fd, len(piece), offset) != piece:
                    raise AssertionError(f"{path}: what was written is not there, in the MiB at {offset}")
                offset += len(piece)
        finally:
            os.close(fd)


class SourceFiles:
    """Two contents of one size in files, used in turn. `dd if=` reads them from the page cache."""

    def __init__(self, directory: Path, name: str, size_bytes: int) -> None:
        self.contents = [Content(size_bytes, variant) for variant in (101, 102)]
        self.paths = [directory / f"{name}.{content.variant}" for content in self.contents]
        for path, content in zip(self.paths, self.contents):
            write_file(path, content)
        self._turn = 0

    def next(self) -> tuple[Path, Content]:
        self._turn = 1 - self._turn
        return self.paths[self._turn], self.contents[self._turn]

    def remove(self) -> None:
        for path in self.paths:
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor of a planned archive, with its bytes."""
    name: str
    content: Content
    dtype: str = "U8"
    shape: tuple[int, ...] | None = None  # if None, as many elements as the content has bytes

    def entry(self, begin: int) -> dict[str, object]:
        return {"dtype": self.dtype, "shape": self.shape or [self.content.size_bytes],
                "data_offsets": [begin, begin + self.content.size_bytes]}


def write_over(path: Path, content: bytes) -> None:
    """Overwrites the begin of a file that is there."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(fd, content, 0)
    finally:
        os.close(fd)


def write_file(path: Path, content: Content) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        content.write_to(fd, 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def write_archive(path: Path, tensors: Sequence[PlannedTensor], align: int = 8) -> dict[str, int]:
    """Writes real bytes without holes, beginning at a multiple of `align`. Returns {name: its first byte in the file}."""
    header, data_bytes = {}, 0
    for tensor in tensors:
        header[tensor.name] = tensor.entry(data_bytes)
        data_bytes += tensor.content.size_bytes
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % align)
    offsets, offset = {}, 8 + len(text)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.pwrite(fd, struct.pack("<Q", len(text)) + text, 0)
        for tensor in tensors:
            tensor.content.write_to(fd, offset)
            offsets[tensor.name] = offset
            offset += tensor.content.size_bytes
        os.fsync(fd)
    finally:
        os.close(fd)
    return offsets


def write_large_tensor(path: Path, size_bytes: int, is_aligned: bool) -> dict[str, int]:
    """Writes an archive of a large tensor `large`, at a multiple of 4096 or not, and behind it `small`, of 4 KiB."""
    return write_archive(path, [PlannedTensor("before", Content(4096 if is_aligned else 13, 1)),
                                PlannedTensor("large", Content(size_bytes, 2)),
                                PlannedTensor("small", Content(4096, 3))], align=4096)


def write_tiny_tensors(path: Path, count: int, each_bytes: int = 2) -> None:
    """Writes an archive of many small tensors with names as in a large model. Their data are a hole, which takes no room. A
    million tensors just fit the format's limit of the header."""
    parts = (f'"model.{at}.attn.q.weight":{{"dtype":"BF16","shape":[1,{each_bytes // 2}],'
             f'"data_offsets":[{each_bytes * at},{each_bytes * (at + 1)}]}}' for at in range(count))
    header = ("{" + ",".join(parts) + "}").encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + each_bytes * count)


def tiny_name(at: int) -> str:
    return f"model.{at}.attn.q.weight"
