"""The synthetic archives that benchmarks work on, and the random contents that they write and look for."""
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
    """Random bytes of any size without the memory for them: 64 MiB over and over, each MiB stamped with the variant
    and its number. Two variants differ in every MiB, so that a write that did not arrive is seen."""
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
        """Raises where the file does not hold this content at that place."""
        fd = os.open(path, os.O_RDONLY)
        try:
            for piece in self.pieces():
                if os.pread(fd, len(piece), offset) != piece:
                    raise AssertionError(f"{path}: what was written is not there, in the MiB at {offset}")
                offset += len(piece)
        finally:
            os.close(fd)


class SourceFiles:
    """Two contents of one size as files, taken in turn: what `dd if=` reads, out of the page cache."""

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
    """A tensor of bytes that an archive shall hold."""
    name: str
    content: Content
    dtype: str = "U8"
    shape: tuple[int, ...] | None = None  # as many bytes as the content where none is given

    def entry(self, begin: int) -> dict[str, object]:
        return {"dtype": self.dtype, "shape": self.shape or [self.content.size_bytes],
                "data_offsets": [begin, begin + self.content.size_bytes]}


def write_file(path: Path, content: Content) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        content.write_to(fd, 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def write_archive(path: Path, tensors: Sequence[PlannedTensor], align: int = 8) -> dict[str, int]:
    """Writes real bytes, no holes; {name: its first byte in the file}. The data begin at a multiple of `align`."""
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
    """An archive of one large tensor `large`, at a multiple of 4096 or not, and one of 4 KiB, `small`, behind it."""
    return write_archive(path, [PlannedTensor("before", Content(4096 if is_aligned else 13, 1)),
                                PlannedTensor("large", Content(size_bytes, 2)),
                                PlannedTensor("small", Content(4096, 3))], align=4096)
