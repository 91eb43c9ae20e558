# Long random work against a model in memory, in the manner of fsx, and readers and writers at once.
# Each prints its seed; STFS_STRESS_SEED repeats a run and STFS_STRESS_STEPS makes it longer.
import mmap
import os
import random
import threading
import time

import numpy as np
from archive_file import ArchiveFile, Expectation, random_bytes, write_bytes_tensors
from mounted import PATIENCE, in_child, start_python, wait_ready

SIZES = {"tiny": 7, "page": 4096, "odd": 50_001, "block": 131_072, "big": 1_300_003, "one": 1, "empty": 0}
STEPS = int(os.environ.get("STFS_STRESS_STEPS", 1200))


def seed_of_this_run():
    seed = int(os.environ.get("STFS_STRESS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"STFS_STRESS_SEED={seed}")
    return seed


class Model:
    """The expected content of every tensor; each operation uses a new handle, as in fsx."""

    def __init__(self, mount, expected, seed):
        self.mount, self.expected, self.random = mount, expected, random.Random(seed)
        self.readers = {name: [os.open(mount / name, os.O_RDONLY), os.open(mount / name, os.O_RDONLY | os.O_DIRECT)]
                        for name in SIZES}
        self.history = []

    def close(self):
        for descriptors in self.readers.values():
            for fd in descriptors:
                os.close(fd)

    def data(self, size_bytes):
        return self.random.randbytes(size_bytes)

    def span(self, name):
        """A random range inside the tensor."""
        size_bytes = SIZES[name]
        begin = self.random.randrange(size_bytes)
        end = min(size_bytes, begin + 1 + int(self.random.expovariate(1 / 20_000)))
        return begin, end

    def step(self):
        name = self.random.choice(list(SIZES))
        actions = ["read", "read", "read_direct", "whole", "whole_read_write", "patch", "patch_read_write",
                   "mapped_read",
                   "mapped_write", "aborted_short", "aborted_long", "shrink_and_fill", "hole", "fsynced", "stat",
                   "two_writers", "read_write_reads", "direct_write"]
        action = self.random.choice(actions)
        if SIZES[name] == 0 and action not in ("read", "read_direct", "stat", "whole"):
            action = "read"
        self.history.append((action, name))
        try:
            getattr(self, action)(name)
        except OSError as error:
            raise AssertionError(f"{error}; the last steps: {self.history[-8:]}") from error

    def check(self, name, got, begin, end):
        due = self.expected.tensor(name)[begin:end]
        assert got == due, f"{name}[{begin}:{end}] differs; the last steps: {self.history[-8:]}"

    def read(self, name):
        if SIZES[name] == 0:
            assert os.pread(self.readers[name][0], 10, 0) == b""
            return
        begin, end = self.span(name)
        self.check(name, os.pread(self.readers[name][0], end - begin, begin), begin, end)

    def read_direct(self, name):
        size_bytes = SIZES[name]
        with mmap.mmap(-1, size_bytes + 4096) as buffer:
            done = 0
            while count := os.preadv(self.readers[name][1], [memoryview(buffer)[done:]], done):
                done += count
            self.check(name, buffer[:done], 0, size_bytes)

    def stat(self, name):
        assert os.stat(self.mount / name).st_size == SIZES[name], self.history[-8:]
        assert os.fstat(self.readers[name][0]).st_size == SIZES[name], self.history[-8:]

    def put(self, name, flags):
        data = self.data(SIZES[name])
        fd = os.open(self.mount / name, flags | os.O_TRUNC)
        at = 0
        while at < len(data):
            at += os.write(fd, data[at:at + self.random.choice([1 + at // 3, 4096, 100_000, len(data)])])
        os.close(fd)
        self.expected.change(name, data)

    def whole(self, name):
        self.put(name, os.O_WRONLY)

    def whole_read_write(self, name):
        self.put(name, os.O_RDWR)

    def patches(self, name, flags):
        fd = os.open(self.mount / name, flags)
        for _ in range(self.random.randrange(1, 5)):
            begin, end = self.span(name)
            data = self.data(end - begin)
            assert os.pwrite(fd, data, begin) == len(data)
            self.expected.change(name, data, begin)
        os.close(fd)

    def patch(self, name):
        self.patches(name, os.O_WRONLY)

    def patch_read_write(self, name):
        self.patches(name, os.O_RDWR)

    def direct_write(self, name):
        self.patches(name, os.O_WRONLY | os.O_DIRECT)

    def read_write_reads(self, name):
        fd = os.open(self.mount / name, os.O_RDWR)
        begin, end = self.span(name)
        data = self.data(end - begin)
        os.pwrite(fd, data, begin)
        self.expected.change(name, data, begin)
        begin, end = max(0, begin - 5000), min(SIZES[name], end + 5000)
        self.check(name, os.pread(fd, end - begin, begin), begin, end)
        os.close(fd)

    def mapped_read(self, name):
        begin, end = self.span(name)
        with mmap.mmap(self.readers[name][0], SIZES[name], mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
            self.check(name, mapped[begin:end], begin, end)

    def mapped_write(self, name):
        mapped = np.memmap(self.mount / name, np.uint8, "r+")
        for _ in range(self.random.randrange(1, 4)):
            begin, end = self.span(name)
            data = self.data(end - begin)
            mapped[begin:end] = np.frombuffer(data, np.uint8)
            self.expected.change(name, data, begin)
            if self.random.random() < 0.3:
                mapped.flush()
        del mapped

    def aborted_short(self, name):
        fd = os.open(self.mount / name, self.random.choice([os.O_WRONLY, os.O_RDWR]) | os.O_TRUNC)
        os.write(fd, self.data(self.random.randrange(SIZES[name])))
        try:
            os.close(fd)
        except OSError:
            return
        raise AssertionError(f"a short {name} was accepted")

    def aborted_long(self, name):
        fd = os.open(self.mount / name, self.random.choice([os.O_WRONLY, os.O_RDWR]))
        begin, end = self.span(name)
        os.pwrite(fd, self.data(end - begin), begin)
        try:
            os.pwrite(fd, b"long", SIZES[name])
        except OSError:
            try:
                os.close(fd)
            except OSError:
                return
        raise AssertionError(f"a long {name} was accepted")

    def shrink_and_fill(self, name):
        fd = os.open(self.mount / name, self.random.choice([os.O_WRONLY, os.O_RDWR]))
        to = self.random.randrange(SIZES[name])
        data = self.data(SIZES[name] - to)
        os.ftruncate(fd, to)
        os.pwrite(fd, data, to)
        os.close(fd)
        self.expected.change(name, data, to)

    def hole(self, name):
        fd = os.open(self.mount / name, self.random.choice([os.O_WRONLY, os.O_RDWR]) | os.O_TRUNC)
        os.pwrite(fd, b"!", SIZES[name] - 1)
        os.close(fd)
        self.expected.change(name, bytes(SIZES[name] - 1) + b"!")

    def fsynced(self, name):
        fd = os.open(self.mount / name, self.random.choice([os.O_WRONLY, os.O_RDWR]))
        begin, end = self.span(name)
        data = self.data(end - begin)
        os.pwrite(fd, data, begin)
        self.expected.change(name, data, begin)
        os.fsync(fd)
        assert self.mount.archive.tensor(name) == self.expected.tensor(name), self.history[-8:]
        os.close(fd)

    def two_writers(self, name):
        one, two = os.open(self.mount / name, os.O_WRONLY), os.open(self.mount / name, os.O_WRONLY)
        pieces = []
        for fd in (one, two):
            begin, end = self.span(name)
            pieces.append((self.data(end - begin), begin))
            os.pwrite(fd, *pieces[-1])
        os.close(one)
        os.close(two)
        for piece in pieces:
            self.expected.change(name, *piece)


def stress_mount(tmp_path, mounts, options=""):
    contents = {name: random_bytes(size_bytes, size_bytes) for name, size_bytes in SIZES.items()}
    mount = mounts(write_bytes_tensors(tmp_path / "stress.safetensors", contents), options)
    mount.archive = ArchiveFile(mount.source)
    return mount


def test_random_operations_agree_with_a_model(tmp_path, mounts):
    mount = stress_mount(tmp_path, mounts)
    seed = seed_of_this_run()
    deadline = time.monotonic() + 40

    def work():
        expected = Expectation(mount.archive)
        model = Model(mount, expected, seed)
        for number in range(STEPS):
            model.step()
            if number % 100 == 99:
                expected.check()
            if "STFS_STRESS_STEPS" not in os.environ and time.monotonic() > deadline:
                break
        model.close()
        expected.check()
        for name in SIZES:
            assert (mount / name).read_bytes() == expected.tensor(name)

    in_child(work, timeout=600)
    before = mount.archive.content()
    assert mount.unmount() == 0
    assert mount.archive.content() == before


def run_threads(functions):
    """Runs all at a time; the first exception of any is raised."""
    raised = []

    def guarded(function):
        try:
            function()
        except BaseException as error:  # an assertion in a thread must fail the test
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def test_threads_on_their_own_tensors_agree_with_a_model_each(tmp_path, mounts):
    """Many handles at a time; each thread owns one tensor, so that what it must hold is known."""
    contents = {f"t{number}": random_bytes(30_001 + 10_007 * number, number) for number in range(6)}
    mount = mounts(write_bytes_tensors(tmp_path / "threads.safetensors", contents))
    archive, seed = ArchiveFile(mount.source), seed_of_this_run()
    expected = Expectation(archive)

    def work(number):
        randomly, name = random.Random(seed + number), f"t{number}"
        current, path = bytearray(contents[name]), mount / name
        for _ in range(80):
            if randomly.random() < 0.5:
                begin = randomly.randrange(len(current))
                data = randomly.randbytes(min(len(current) - begin, randomly.randrange(1, 30_000)))
                with open(path, "r+b", buffering=0) as file:
                    file.seek(begin)
                    file.write(data)
                current[begin:begin + len(data)] = data
            else:
                current[:] = randomly.randbytes(len(current))
                path.write_bytes(current)
            assert path.read_bytes() == current, f"{name} reads otherwise than it was written"
        contents[name] = bytes(current)

    run_threads([lambda number=number: work(number) for number in range(6)])
    for name, data in contents.items():
        expected.change(name, data)
    expected.check()


TORN_READER = """
import mmap, os, sys
fd, size_bytes = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), int(sys.argv[2])
whole = [bytes([value]) * size_bytes for value in range(256)]
buffer, seen = mmap.mmap(-1, size_bytes), set()
print("ready", flush=True)
os.set_blocking(0, False)
while True:
    for _ in range(100):
        assert os.preadv(fd, [buffer], 0) == size_bytes
        if buffer[:] != whole[buffer[0]]:
            sys.exit(f"torn: the values {sorted(set(buffer[:]))} in one read")
        seen.add(buffer[0])
    try:
        if os.read(0, 1) == b"":
            break
    except BlockingIOError:
        pass
print(len(seen))
"""


def test_a_direct_read_sees_all_of_a_commit_or_nothing(tmp_path, mounts):
    """A reader of a tensor of at most 128 KiB by one O_DIRECT read never sees half of a commit."""
    size_bytes = 131_072
    path = write_bytes_tensors(tmp_path / "torn.safetensors",
                               {"pad": b"p" * 77, "t": b"\1" * size_bytes, "z": b"z" * 999})
    mount = mounts(path)
    readers = [start_python(TORN_READER, mount / "t", size_bytes) for _ in range(3)]
    try:
        for reader in readers:
            wait_ready(reader)
        deadline = time.monotonic() + 4
        for number in range(3000):
            with open(mount / "t", "wb" if number % 2 else "r+b", buffering=0) as file:
                file.write(bytes([1 + number % 250]) * size_bytes)
            if time.monotonic() > deadline:
                break
        for reader in readers:
            out, err = reader.communicate(timeout=30 * PATIENCE)
            assert reader.returncode == 0, err
            assert int(out) > 3, "the reader saw too few commits for the test to mean anything"
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()


def test_readers_in_the_page_cache_end_on_the_last_commit(tmp_path, mounts):
    size_bytes = 200_003
    mount = mounts(write_bytes_tensors(tmp_path / "t.safetensors", {"t": b"\0" * size_bytes}))
    stop = threading.Event()

    def read_on():
        while not stop.is_set():
            assert len((mount / "t").read_bytes()) == size_bytes

    def write_on():
        try:
            for number in range(100):
                data = bytes([number + 1]) * size_bytes
                (mount / "t").write_bytes(data)
                assert (mount / "t").read_bytes() == data, f"commit {number} is not what is read after it"
        finally:
            stop.set()

    run_threads([read_on, read_on, read_on, write_on])


def test_many_handles_open_at_a_time(tmp_path, mounts):
    mount = stress_mount(tmp_path, mounts)
    expected = Expectation(mount.archive)
    writers = [os.open(mount / "big", os.O_WRONLY) for _ in range(200)]
    for number, fd in enumerate(writers):
        os.pwrite(fd, b"w%03d" % number, number * 6000)
        expected.change("big", b"w%03d" % number, number * 6000)
    for fd in writers:
        os.close(fd)
    expected.check()
    readers = [os.open(mount / "big", os.O_RDONLY) for _ in range(500)]
    assert {os.pread(fd, 4, 6000) for fd in readers} == {b"w001"}
    for fd in readers:
        os.close(fd)


def test_mounting_and_unmounting_again_and_again_while_in_use(tmp_path, mounts):
    contents = {"t": random_bytes(100_000, 1)}
    path = write_bytes_tensors(tmp_path / "t.safetensors", contents)
    for number in range(10 if PATIENCE == 1 else 4):
        mount = mounts(path)
        data = bytes([number + 1]) * 100_000
        (mount / "t").write_bytes(data)
        assert (mount / "t").read_bytes() == data
        assert mount.unmount() == 0
        assert ArchiveFile(path).tensor("t") == data
