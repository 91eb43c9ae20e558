# An archive is replaced 1,000 times under readers, a mapping and a writer: nothing is torn, no program hangs, nothing leaks.
# STFS_REPLACEMENTS sets the number.
import errno
import mmap
import os
import random
import shutil
import struct
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from mounted import PATIENCE, errno_of, eventually
from test_replacement import replace

REPLACEMENTS = int(os.environ.get("STFS_REPLACEMENTS", 1000))


def one_value(data):
    """The number that all of it repeats."""
    numbers = set(np.frombuffer(data, dtype=np.uint32))
    assert len(numbers) == 1, f"torn: {sorted(numbers)[:4]} in {len(data)} bytes"
    return int(numbers.pop())


class Saved:
    """An archive that says which save it is from, in each of its bytes and in the size of its tensors."""

    WRITTEN = 1 << 31  # by one of the mount's writers, not by a save

    def __init__(self, path):
        self.path = path

    @staticmethod
    def words(save):
        return 1000 + save % 5 * 3000

    def save(self, save):
        data = struct.pack("<I", save) * self.words(save)
        replace(self.path, {"weight": data, "even" if save % 2 == 0 else "odd": data})


@pytest.fixture(params=["disk", "tmpfs"])
def directory(request, tmp_path):
    """tmpfs replaces a file in some microseconds, so an opening meets many replacements."""
    if request.param == "disk":
        yield tmp_path
        return
    if not os.path.isdir("/dev/shm"):
        pytest.skip("there is no /dev/shm")
    made = Path(tempfile.mkdtemp(prefix="stfs-replaced-", dir="/dev/shm"))
    yield made
    shutil.rmtree(made)


def test_readers_and_writers_while_the_archive_is_replaced(directory, mounts):
    saved = Saved(directory / "m.safetensors")
    saved.save(0)
    mount = mounts(saved.path)
    assert eventually(lambda: "anon_inode:inotify" in mount.descriptors())  # else it would count as a leak
    descriptors = len(mount.descriptors())
    wrong, stop, counts = [], threading.Event(), {"reads": 0, "commits": 0, "refused": 0}

    def watched(work):
        def run():
            try:
                while not stop.is_set():
                    work()
            except Exception as error:  # noqa: BLE001: whatever it is, the test must fail
                wrong.append(repr(error))
                stop.set()
        return threading.Thread(target=run)

    def check(data):
        value = one_value(data)
        if value < Saved.WRITTEN:
            assert len(data) == 4 * Saved.words(value), "of one save the size, of another the bytes"
        return value

    def check_pages(data):
        """A commit of the mount may come between the copies of two pages."""
        values = {one_value(data[at:at + mmap.PAGESIZE]) for at in range(0, len(data), mmap.PAGESIZE)}
        saves = {value for value in values if value < Saved.WRITTEN}
        assert len(saves) <= 1 and all(len(data) == 4 * Saved.words(value) for value in saves), values

    newest = {"value": 0}

    def read():
        before = newest["value"]
        with open(mount / "weight", "rb") as file:
            value = check(file.read())
        counts["reads"] += 1
        if value < Saved.WRITTEN:
            assert value >= before, "an older save after a newer one"
            newest["value"] = max(newest["value"], value)

    def read_what_comes_and_goes():
        for name in ("even", "odd"):
            try:
                value = check((mount / name).read_bytes())
            except FileNotFoundError:
                continue
            assert value >= Saved.WRITTEN or value % 2 == (name == "odd"), "a tensor of the wrong save"
        assert set(os.listdir(mount.path)) <= {"weight", "even", "odd"}
        (mount / ".safetensors" / "stats.json").read_bytes()

    def hold():
        fd = os.open(mount / "weight", os.O_RDONLY)
        with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
            stop.wait(random.random() / 20)
            check_pages(mapped[:])
        os.close(fd)

    def write():
        fd = os.open(mount / "weight", os.O_WRONLY)
        try:
            value = Saved.WRITTEN + random.randrange(1000)
            os.write(fd, struct.pack("<I", value) * (os.fstat(fd).st_size // 4))
        finally:
            why = errno_of(os.close, fd)
        assert why in (0, errno.ESTALE), os.strerror(why)
        counts["refused" if why else "commits"] += 1

    threads = [watched(work) for work in (read, read, read_what_comes_and_goes, hold, write)]
    for thread in threads:
        thread.start()
    for save in range(1, REPLACEMENTS + 1):
        saved.save(save)
        if save % 20 == 0 and not stop.is_set():
            is_here = eventually(lambda: os.stat(mount / "weight").st_size == 4 * Saved.words(save), 30)
            if not is_here:
                wrong.append(f"save {save} is not shown")
        if stop.is_set():
            break
    stop.set()
    for thread in threads:
        thread.join(60 * PATIENCE)
        assert not thread.is_alive(), "a deadlock"
    print(counts)
    assert wrong == []
    assert counts["reads"] > 0 and counts["commits"] + counts["refused"] > 0
    # On tmpfs each write may meet a replacement.
    assert counts["commits"] > 0 or directory.parent == Path("/dev/shm")
    assert eventually(lambda: mount.deleted_files() == []), mount.deleted_files()
    # Where the last save was written to: its descriptor for writing, and the journal that stays between small commits.
    assert eventually(lambda: len(mount.descriptors()) <= descriptors + 2), "\n".join(mount.descriptors())
    check((mount / "weight").read_bytes())
    assert mount.unmount() == 0
    assert [name for name in os.listdir(directory) if ".stj." in name] == []
