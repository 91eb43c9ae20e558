# Processes that die in the middle: a writer's unfinished work is dropped, and the mount works on.
import os
import signal
import subprocess
import time

import pytest
from archive_file import random_bytes
from mounted import PATIENCE, start_python, wait_ready

T = "layers.0.weight"

WRITER = """
import os, sys, time
flags = {"patch": os.O_WRONLY, "whole": os.O_WRONLY | os.O_TRUNC, "read-write": os.O_RDWR,
         "read-write whole": os.O_RDWR | os.O_TRUNC}[sys.argv[2]]
fd = os.open(sys.argv[1], flags)
os.write(fd, b"half" * int(sys.argv[3]))
print("ready")
time.sleep(60)
"""


def works_on(mount, expected):
    """Reads and writes of the tensor still do what they should."""
    assert (mount / T).read_bytes() == expected.tensor(T)
    data = random_bytes(expected.size(T), 5)
    (mount / T).write_bytes(data)
    expected.change(T, data)
    expected.check()
    assert (mount / T).read_bytes() == data


@pytest.mark.parametrize("deadly", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("kind", ["patch", "whole", "read-write", "read-write whole"])
def test_a_killed_writer_commits_nothing(mount, expected, deadly, kind):
    # New content has come as a whole, other writes in part.
    writer = start_python(WRITER, mount / T, kind, expected.size(T) // 4 if kind == "whole" else 10_000)
    wait_ready(writer)
    writer.send_signal(deadly)
    assert writer.wait(10 * PATIENCE) == -deadly
    writer.communicate()
    expected.check()
    works_on(mount, expected)


def test_killed_dd_leaves_old_or_new_and_nothing_else(mount, expected, tmp_path):
    data = random_bytes(expected.size(T), 9)
    (tmp_path / "new").write_bytes(data)
    for number in range(20):
        old = mount.archive.tensor(T)
        dd = subprocess.Popen(["dd", f"if={tmp_path / 'new'}", f"of={mount / T}", "bs=512",
                               "conv=notrunc" if number % 2 else "conv=fsync"], stderr=subprocess.DEVNULL)
        time.sleep(number * 0.0015)
        dd.kill()
        dd.wait()
        now = mount.archive.tensor(T)
        assert now in (old, data)
        if now == data:
            expected.change(T, data)
        expected.check()
    works_on(mount, expected)


READER = """
import mmap, os, sys
kind = sys.argv[2]
fd = os.open(sys.argv[1], os.O_RDONLY | (os.O_DIRECT if kind == "direct" else 0))
if kind == "mapped":
    mapped = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
    def read(): mapped.madvise(mmap.MADV_DONTNEED); mapped[::4096]
else:
    buffer = mmap.mmap(-1, 1 << 20)
    def read(): os.preadv(fd, [buffer], 0)
read()
print("ready")
while True: read()
"""


@pytest.mark.parametrize("kind", ["direct", "cached", "mapped"])
def test_killed_readers_leave_the_mount_working(mount, expected, kind):
    for _ in range(3):
        readers = [start_python(READER, mount / T, kind) for _ in range(4)]
        for reader in readers:
            wait_ready(reader)
        for reader in readers:
            reader.kill()
        for reader in readers:
            reader.communicate()
    works_on(mount, expected)


def test_a_killed_listing_leaves_the_mount_working(mount, expected):
    for _ in range(5):
        find = subprocess.Popen(["find", mount.path, "-size", "+1"], stdout=subprocess.DEVNULL)
        find.kill()
        find.wait()
    works_on(mount, expected)


def test_a_write_interrupted_by_a_harmless_signal_is_whole(mount, expected):
    code = ("import os, signal, sys\n"
            "signal.signal(signal.SIGALRM, lambda *_: None)\n"
            "signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)\n"
            "data = open(sys.argv[2], 'rb').read()\n"
            "for _ in range(20):\n"
            "    with open(sys.argv[1], 'wb') as file: file.write(data)\n"
            "signal.setitimer(signal.ITIMER_REAL, 0)\n"
            "print('ready')\n")
    data = random_bytes(expected.size(T), 11)
    source = mount.archive.path + ".new"
    with open(source, "wb") as file:
        file.write(data)
    writer = start_python(code, mount / T, source)
    out, err = writer.communicate(timeout=60 * PATIENCE)
    assert out == "ready\n", err
    expected.change(T, data)
    expected.check()
    assert (mount / T).read_bytes() == data
    assert os.path.exists(mount.archive.path)
