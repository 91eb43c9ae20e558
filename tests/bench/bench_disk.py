"""The file systems that a benchmark writes to: their type, whether they share blocks, and other ones on loop devices."""
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
    """Returns the type of the file system, as in /proc/self/mounts."""
    found = ("", "")
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            _, point, kind = line.split(" ")[:3]
            point = unescape_mount(point)
            if Path(path).resolve().is_relative_to(point) and len(point) >= len(found[0]):
                found = (point, kind)
    return found[1]


def has_reflink(directory: Path) -> bool:
    """Returns true if files in the directory can share blocks. It tries it, because the type does not say it."""
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
    """Returns the reason if there is no room for this many bytes, or None."""
    free = shutil.disk_usage(directory).free
    if free >= size_bytes + (1 << 30):
        return None
    return f"needs {size_bytes / (1 << 30):.1f} GiB in {directory}, {free / (1 << 30):.1f} GiB are free"


def why_no_loop(kind: str) -> str | None:
    return loop_disk.why_unavailable(kind)


@contextlib.contextmanager
def loop_file_system(directory: Path, kind: str, size_bytes: int) -> Iterator[Path]:
    """Makes a file system in an image in `directory`, with room for size_bytes, and removes it at the end.

    The loop device does direct I/O, so that nothing is cached twice. All its blocks are written once before: the image is
    sparse, and the first write to a block is slow.
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


# ---- a disk with a limited number of bytes per second ----

# A loop device has the speed of the machine below, often the speed of memory, and another speed each minute. With a limit it is a
# disk of one known speed.
_THROTTLE = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")


def why_no_limit() -> str | None:
    """Returns the reason if the speed of a disk can't be limited here, or None."""
    # The second version of control groups has no limit for all processes together.
    return None if os.access(_THROTTLE, os.W_OK) else f"there is no {_THROTTLE} to write to"


def _device_of(directory: Path) -> str:
    """Returns MAJOR:MINOR of the device that is mounted there."""
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as table:
        sources = {unescape_mount(point): source for source, point, _ in (line.split(" ", 2) for line in table)}
    device = os.stat(sources[str(directory)]).st_rdev
    return f"{os.major(device)}:{os.minor(device)}"


@contextlib.contextmanager
def limited(directory: Path, bytes_per_second: int) -> Iterator[None]:
    """Limits the writes of all processes to the disk that is mounted at `directory`."""
    device = _device_of(directory)
    _THROTTLE.write_text(f"{device} {bytes_per_second}")
    try:
        yield
    finally:
        _THROTTLE.write_text(f"{device} 0")
