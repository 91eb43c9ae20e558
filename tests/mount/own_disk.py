# A separate file system for a test: ext4, xfs and btrfs on loop devices, and tmpfs.
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "replay"))
import loop_disk  # noqa: E402

KINDS = ("ext4", "xfs", "btrfs", "tmpfs")
DISK_BYTES = 400 << 20
MEMORY_BYTES = 64 << 20


@contextlib.contextmanager
def own_disk(kind, place):
    """An empty file system of that kind, mounted at `place`. Returns the path of its root; skips if it can't be made."""
    if kind == "tmpfs":
        if os.geteuid() != 0:
            pytest.skip("mounting a tmpfs needs root")
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={MEMORY_BYTES}", "tmpfs", place], check=True)
        try:
            yield place
        finally:
            subprocess.run(["umount", place], check=True)
        return
    if reason := loop_disk.why_unavailable(kind):
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="stfs-disk-", dir=loop_disk.place_for_images()) as images:
        image = loop_disk.make_image(Path(images) / "image", kind, DISK_BYTES)
        with loop_disk.mounted_image(image, kind, place) as path:
            yield Path(path)


@contextlib.contextmanager
def full_but_for(disk, left_bytes):
    """Fills the disk but for about so many bytes; 0 fills it wholly, with the space that ext4 reserves for root."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        for piece in (1 << 20, 4096):
            try:
                while True:
                    file.write(b"x" * piece)
                    os.fsync(file.fileno())
            except OSError:
                pass
        file.truncate(max(0, os.fstat(file.fileno()).st_size - left_bytes))
    os.sync()
    try:
        yield
    finally:
        filler.unlink()
        os.sync()
