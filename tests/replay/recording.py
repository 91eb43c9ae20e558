# Records a workload: a file system on the recorder's disk, a program that writes to it, and the log of the disk's writes.
#
# The behaviour of the loop device (Linux 6.18, as the log shows): over a FUSE file that is opened for direct I/O every
# bio of the file system arrives as one write of up to 1 MiB, in the order of submission; each REQ_OP_FLUSH arrives
# as an fsync; there is no FUA, the block layer sends a write and a flush instead. Discards are answered with
# EOPNOTSUPP.
import contextlib
import os
import struct
import subprocess
from pathlib import Path

import loop_disk
import programs
from mounted import eventually, mount_entry, unmount_by_force

_HEAD = struct.Struct("<cQI")


class Log:
    """Entries (offset, bytes) of writes, None for flushes, in the order in which they came."""

    def __init__(self, path):
        self.entries = []
        whole = memoryview(Path(path).read_bytes())
        at = 0
        while at + _HEAD.size <= len(whole):
            kind, offset, size_bytes = _HEAD.unpack_from(whole, at)
            at += _HEAD.size
            self.entries.append((offset, whole[at:at + size_bytes]) if kind == b"W" else None)
            at += size_bytes

    def __len__(self):
        return len(self.entries)

    def last_flush(self, position):
        """Number of entries that are on the disk at this position: up to the last flush before it."""
        while position > 0 and self.entries[position - 1] is not None:
            position -= 1
        return position


@contextlib.contextmanager
def _recorded_disk(image, directory):
    """Path of the disk whose writes go to directory/log."""
    mount_point = directory / "recorder"
    mount_point.mkdir(exist_ok=True)
    with open(directory / "recorder.log", "wb") as messages:
        process = subprocess.Popen([programs.RECORDER, image, directory / "log", directory / "position", mount_point],
                                   stdin=subprocess.DEVNULL, stdout=messages, stderr=messages)
    try:
        eventually(lambda: mount_entry(mount_point) or process.poll() is not None)
        if process.poll() is not None:
            raise RuntimeError((directory / "recorder.log").read_text())
        yield mount_point / "disk.img"
    finally:
        unmount_by_force(mount_point)
        try:
            process.wait(20)  # until the loop device has let go
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Recording:
    """The result of record(); all its paths are in a separate directory."""

    def __init__(self, kind, seed, base, log, story, begin):
        self.kind, self.seed = kind, seed
        self.base = base    # the image as it was when the log began
        self.log = log
        self.story = story
        self.begin = begin  # the log's position when the file system had been mounted


def record_on(image, kind, directory, act):
    """Mounts a copy of the image on a recorded disk and calls act(directory of the mount, position file).
    Returns (log, position at the beginning, what act returned)."""
    disk = loop_disk.copy_sparse(image, directory / "disk")
    position = directory / "position"
    with _recorded_disk(disk, directory) as recorded:
        with loop_disk.mounted_image(recorded, kind, directory / "recorded", is_direct=True) as mount:
            begin = int.from_bytes(position.read_bytes(), "little")
            result = act(Path(mount), position)
    log = Log(directory / "log")
    for name in ("disk", "log"):
        os.unlink(directory / name)
    return log, begin, result


def record_workload(kind, seed, commits, directory, lie=None, durability="power", keeps_journal=False):
    """A series of commits to a new archive on a new file system."""
    base = loop_disk.make_image(directory / "base", kind)
    with loop_disk.mounted_image(base, kind, directory / "made") as mount:
        programs.create_archive(Path(mount) / programs.ARCHIVE, seed)
    options = ["--seed", seed, "--commits", commits, "--durability", durability] + (["--lie", lie] if lie else [])
    options += ["--keep-journal"] if keeps_journal else []
    log, begin, story = record_on(base, kind, directory, lambda mount, position: programs.run_workload(
        mount / programs.ARCHIVE, *options, "--position", position))
    if not story.is_finished:
        raise RuntimeError(f"the workload failed: {story.failed or story.unopened or story.stderr}")
    return Recording(kind, seed, base, log, story, begin)
