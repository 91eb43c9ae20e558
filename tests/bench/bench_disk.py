"""The file systems that a benchmark writes to: which one, whether it shares blocks, and loop devices with others."""
from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from bench_archive import Content, write_file
from mounts import unescape_mount

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "replay"))
import loop_disk  # noqa: E402

_FICLONE = 0x40049409


def file_system_of(path: Path) -> str:
    """Its type, as /proc/self/mounts calls it."""
    found = ("", "")
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            _, point, kind = line.split(" ")[:3]
            point = unescape_mount(point)
            if Path(path).resolve().is_relative_to(point) and len(point) >= len(found[0]):
                found = (point, kind)
    return found[1]


def has_reflink(directory: Path) -> bool:
    """Files there can share blocks: tried, not guessed from the type."""
    names = [directory / "reflink.from", directory / "reflink.to"]
    try:
        names[0].write_bytes(bytes(4096))
        with open(names[0], "rb") as source, open(names[1], "wb") as target:
            fcntl.ioctl(target, _FICLONE, source.fileno())
        return True
    except OSError:
        return False
    finally:
        for name in names:
            name.unlink(missing_ok=True)


def why_no_room(directory: Path, size_bytes: int) -> str | None:
    """The reason for which so many bytes are not to be written there, or None."""
    free = shutil.disk_usage(directory).free
    if free >= size_bytes + (1 << 30):
        return None
    return f"needs {size_bytes / (1 << 30):.1f} GiB in {directory}, {free / (1 << 30):.1f} GiB are free"


def why_no_loop(kind: str) -> str | None:
    return loop_disk.why_unavailable(kind)


@contextlib.contextmanager
def loop_file_system(directory: Path, kind: str, size_bytes: int) -> Iterator[Path]:
    """A new file system in an image in `directory`, with room for size_bytes; gone at the end.

    The loop device does direct I/O, so that nothing is cached twice. Its blocks have been written once before:
    the file below is sparse, and a block's first write would be slow for whoever comes first.
    """
    image, point = directory / f"{kind}.image", directory / kind
    image_bytes = max(loop_disk.SIZES[kind], 384 << 20) + size_bytes * 5 // 4
    try:
        loop_disk.make_image(image, kind, image_bytes)
        with loop_disk.mounted_image(image, kind, str(point), is_direct=True):
            write_file(point / "fill", Content(size_bytes, 9))
            (point / "fill").unlink()
            os.sync()
            yield point
    finally:
        image.unlink(missing_ok=True)
