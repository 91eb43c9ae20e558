# An archive that is cut short and grows again while programs read it: for test_cut_under_readers.py and
# test_cut_under_tools.py.
import errno
import os
import random
import subprocess
import threading
import time
import traceback

import archive_file
import mounted
import numpy as np
import pytest

LONG = bool(os.environ.get("STFS_LONG"))
ROUNDS = 100 if LONG else 10
TENSOR_BYTES = 4 << 20
READERS = 3


class CutArchive:
    """An archive of three tensors without zero bytes. Tests read one of them."""

    def __init__(self, path):
        self.path = str(path)
        self.contents = {name: archive_file.random_bytes(TENSOR_BYTES, seed) for seed, name in enumerate("abc")}
        archive_file.write_raw(path, [(name, "BF16", (1024, TENSOR_BYTES // 2048), data)
                                      for name, data in self.contents.items()])
        with open(path, "rb") as file:
            self.content = file.read()
        self.data_at = len(self.content) - 3 * TENSOR_BYTES
        self.random = random.Random(1)

    def cut(self):
        """Cuts the file at a random place in its data. @return the place."""
        to = self.random.randrange(self.data_at, len(self.content))
        os.truncate(self.path, to)
        return to

    def restore(self):
        """Writes the missing bytes in order, so a reader never finds a hole of zeros."""
        fd = os.open(self.path, os.O_WRONLY)
        try:
            at = os.fstat(fd).st_size
            while at < len(self.content):
                at += os.pwrite(fd, self.content[at:at + (1 << 20)], at)
        finally:
            os.close(fd)

    def cut_while(self, rounds, is_over):
        """Cuts and restores the file at least `rounds` times, and until is_over()."""
        done = 0
        while done < rounds or not is_over():
            # Most pauses are short, so cuts come in the middle of reads; slow reads, as with a sanitizer, end in a long pause.
            time.sleep(0.05 * mounted.SLOWER if done % 4 == 3 else self.random.uniform(0, 0.004))
            self.cut()
            time.sleep(self.random.uniform(0, 0.002))
            self.restore()
            done += 1
            assert done < 100_000, "the readers never end"


@pytest.fixture
def cut_archive(tmp_path):
    return CutArchive(tmp_path / "cut.safetensors")


def read_direct(path, buffer):
    """Reads a whole file without the kernel's cache, so that the daemon answers."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        done = 0
        while count := os.preadv(fd, [memoryview(buffer)[done:done + (1 << 20)]], done):
            done += count
        return bytes(memoryview(buffer)[:done])
    finally:
        os.close(fd)


def run_readers(archive, read, due, rounds=ROUNDS, readers=READERS, hashes=False):
    """Calls read() in several threads while the archive is cut: its errors are EIO, its results are `due`. A read that
    hashes the whole tensor may also fail with EBUSY, because the tensor changes repeatedly."""
    wrong, outcomes, is_over = [], {"right": 0, "EIO": 0}, threading.Event()

    def read_on(number):
        try:
            while not is_over.is_set():
                try:
                    got = read(number)
                except OSError as error:
                    if error.errno == errno.EIO:
                        outcomes["EIO"] += 1
                    elif not hashes or error.errno != errno.EBUSY:
                        raise
                    continue
                if got != due:
                    wrong.append(difference(got, due))
                outcomes["right"] += 1
        except BaseException as error:  # noqa: B036
            wrong.append(repr(error) + traceback.format_exc())

    threads = [threading.Thread(target=read_on, args=(number,)) for number in range(readers)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30 * mounted.PATIENCE
    # The test is only valid if both outcomes are seen.
    archive.cut_while(rounds, lambda: wrong or (outcomes["right"] and outcomes["EIO"]) or time.monotonic() > deadline)
    is_over.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]
    assert outcomes["right"] and outcomes["EIO"], outcomes
    return outcomes


def difference(got, due):
    if len(got) != len(due):
        return f"{len(got)} bytes came, {len(due)} were due"
    one, other = np.frombuffer(got, np.uint8), np.frombuffer(due, np.uint8)
    at = np.flatnonzero(one != other)
    return f"{len(at)} wrong bytes from {at[0]} to {at[-1]}, {np.count_nonzero(one[at] == 0)} of them zeros"




def run_verb(archive, command, judge, rounds=ROUNDS, is_needed=("done", "failed")):
    """Runs the command repeatedly while the archive is cut. Calls judge(result) for each run that ended with 0."""
    outcomes = {"done": 0, "failed": 0}
    deadline = time.monotonic() + 30 * mounted.PATIENCE
    while sum(outcomes.values()) < rounds or (not all(outcomes[kind] for kind in is_needed)
                                              and time.monotonic() < deadline):
        with subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            came = []
            reader = threading.Thread(target=lambda: came.append(process.communicate()))
            reader.start()
            # Half of them are cut in the middle, and each a little later than the one before.
            time.sleep(archive.random.uniform(0, 0.01))
            if archive.random.random() < 0.7:
                archive.cut()
            reader.join(60 * mounted.PATIENCE)
            archive.restore()
        out, err = came[0]
        assert process.returncode in (0, 1), (process.returncode, err.decode(errors="replace"))
        if process.returncode == 0:
            judge(out)
            outcomes["done"] += 1
        else:
            assert archive.path in err.decode(errors="replace") or b"cut" in err, err
            outcomes["failed"] += 1
    assert all(outcomes[kind] for kind in is_needed), outcomes


def is_same(due):
    def judge(out):
        assert out == due, difference(out, due)

    return judge
