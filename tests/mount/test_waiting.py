# No user waits for another user's requests: programs work in a mount while many requests of other users wait.
import contextlib
import ctypes
import errno
import json
import os
import signal
import struct
import threading
import time
from pathlib import Path

import attacker as attack
import numpy as np
import pytest
from archive_file import ArchiveFile, random_bytes, save_with_reference
from mounted import errno_of, eventually
from test_checksums import write_sparse
from test_locks import held_by_another

WRITERS = 40  # a mount has 16 threads
SIZE = 16384


@pytest.fixture
def crowd(tmp_path, mounts):
    """A mount of many tensors, and its archive."""
    names = ["locked", "between", *(f"t{at}" for at in range(8))]
    path = save_with_reference(tmp_path / "crowd.safetensors", {name: np.zeros(SIZE, "u1") for name in names})
    mount = mounts(path)
    mount.archive = ArchiveFile(path)
    return mount


class Closing(threading.Thread):
    """Writes a whole tensor and closes it."""

    def __init__(self, path, data):
        super().__init__()
        self.path, self.data, self.errno = path, data, None

    def run(self):
        try:
            self.path.write_bytes(self.data)
            self.errno = 0
        except OSError as error:
            self.errno = error.errno


def is_in(thread, *numbers):
    """The thread is in one of these system calls, by their numbers on x86-64 and on arm64."""
    try:
        with open(f"/proc/self/task/{thread.native_id}/syscall") as file:
            return file.read().split()[0] in numbers
    except FileNotFoundError:  # it has not begun, or has ended
        return False


def timed(action):
    started = time.monotonic()
    action()
    return time.monotonic() - started


def test_forty_closes_that_wait_for_a_lock_delay_nobody_else(crowd):
    data = random_bytes(SIZE, 7)
    closing = [Closing(crowd / "locked", data) for _ in range(WRITERS)]
    with held_by_another(crowd.archive, "locked"):
        for thread in closing:
            thread.start()
        # Each has written and waits in its close.
        assert eventually(lambda: all(is_in(thread, "3", "57") for thread in closing))
        took = timed(lambda: os.stat(crowd / "locked"))
        took += timed(lambda: (crowd / "t5").read_bytes())
        took += timed(lambda: os.getxattr(crowd / "t6", "user.safetensors.generation"))
        took += timed(lambda: (crowd / "t7").write_bytes(data))
        took += timed(lambda: (crowd / "locked").read_bytes())
        assert all(thread.errno is None for thread in closing)
        assert took < 5  # the lock is waited for as long as ten seconds
    for thread in closing:
        thread.join()
    assert {thread.errno for thread in closing} == {0}
    assert (crowd / "locked").read_bytes() == data
    assert (crowd / "t7").read_bytes() == data


@contextlib.contextmanager
def hundreds_that_wait(path, archive):
    """More writers than one user's share of the threads for slow requests. They wait for the lock of another process: most of
    them in their close, and those that got no thread in a write."""
    closing = [Closing(path, random_bytes(SIZE, 7)) for _ in range(300)]
    with held_by_another(archive, "locked"):
        for thread in closing:
            thread.start()
        assert eventually(lambda: sum(is_in(thread, "3", "57") for thread in closing) >= 256)
        yield closing
    for thread in closing:
        thread.join()


@pytest.mark.once
def test_a_mount_ends_while_hundreds_of_closes_wait_for_a_lock(crowd):
    with hundreds_that_wait(crowd / "locked", crowd.archive) as closing:
        crowd.process.send_signal(signal.SIGTERM)
        assert crowd.wait() == 0
        for thread in closing:
            thread.join()
    assert 0 not in {thread.errno for thread in closing}
    assert "the mount ends" in crowd.log()


@pytest.mark.once
def test_what_is_always_refused_waits_for_nobody(tmp_path, mounts):
    names = ["locked", "other"]
    path = save_with_reference(tmp_path / "crowd.safetensors", {name: np.zeros(SIZE, "u1") for name in names})
    mount = mounts(tmp_path)
    with hundreds_that_wait(mount / "crowd" / "locked", ArchiveFile(path)) as closing:
        all_wait = all(thread.errno is None for thread in closing)
        for refused in (os.mkdir, os.unlink, os.rmdir, lambda name: os.rename(name, mount / "other")):
            with pytest.raises(OSError):
                refused(mount / "made")
        # Those that began first wait ten seconds. On a slow machine some have ended before.
        assert not all_wait or all(thread.errno is None for thread in closing)


def test_an_open_writer_that_waits_in_fsync_can_be_looked_at(crowd, open_fd):
    result = []

    def sync():
        try:
            os.fsync(fd)
            result.append(0)
        except OSError as error:
            result.append(error.errno)

    with held_by_another(crowd.archive, "locked"):
        fd = open_fd(crowd / "locked", os.O_RDWR)
        os.pwrite(fd, b"x" * 100, 5000)
        thread = threading.Thread(target=sync)
        thread.start()
        assert eventually(lambda: is_in(thread, "74", "82"))
        assert timed(lambda: os.stat(crowd / "locked")) < 5
        assert not result
    thread.join()
    assert result == [0]


def test_a_refused_rename_and_a_touch_cost_what_the_kernel_knows(tmp_path, mounts):
    """100,000 tensors, one of them known: twenty refusals and a touch tell the kernel of one, not of all."""
    names = [f"n{at}" for at in range(100_000)]
    path = save_with_reference(tmp_path / "many.safetensors", {name: np.zeros(1, "u1") for name in names})
    mount = mounts(path)
    transactions = mount / ".safetensors" / "transactions"
    (transactions / "T").mkdir()
    # Emptied and not filled: refused at once.
    assert errno_of(lambda: (transactions / "T" / "n7").write_bytes(b"")) == errno.EINVAL
    known = mount / "n3"
    assert known.read_bytes() == b"\0"
    for _ in range(20):
        assert errno_of(os.rename, transactions / "T", mount / ".safetensors" / "committed" / "T") == errno.ENODATA
    # After 20 times 100,000 notifications the write would take seconds.
    assert timed(lambda: known.write_bytes(b"\2")) < 2
    generation = mount.generation("n3")
    os.utime(path)
    assert eventually(lambda: mount.generation("n3") != generation)
    assert timed(lambda: known.write_bytes(b"\3")) < 2
    assert known.read_bytes() == b"\3"


@contextlib.contextmanager
def halted(tid):
    """One thread of another process, while it does nothing; the others run on."""
    PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH, WAIT_FOR_THREADS = 0x4206, 0x4207, 17, 0x40000000
    trace = ctypes.CDLL(None, use_errno=True).ptrace
    trace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    if trace(PTRACE_SEIZE, tid, None, None) != 0:
        pytest.skip(f"the daemon may not be traced here: {os.strerror(ctypes.get_errno())}")
    assert trace(PTRACE_INTERRUPT, tid, None, None) == 0
    os.waitpid(tid, WAIT_FOR_THREADS)
    try:
        yield
    finally:
        assert trace(PTRACE_DETACH, tid, None, None) == 0


def test_a_reader_waits_for_no_notification_after_a_hundred_closes(tmp_path, mounts):
    """The kernel sends no readahead while 64 RELEASEs are unanswered, and a notification may wait for a page of it."""
    size = 1 << 20
    mount = mounts(save_with_reference(tmp_path / "m.safetensors", {"read": np.ones(size, "u1"), "written": np.ones(1, "u1")}))

    def invalidators():
        return [int(path.parent.name) for path in Path(f"/proc/{mount.pid}/task").glob("*/comm")
                if path.read_text() == "invalidator\n"]

    # The thread names itself, perhaps after the mount is there.
    assert eventually(invalidators)
    invalidator, = invalidators()
    content = []
    with open(mount / "read", "rb") as file:
        reader = threading.Thread(target=lambda: content.append(os.pread(file.fileno(), size, 0)))
        with halted(invalidator):
            for _ in range(100):
                os.close(os.open(mount / "written", os.O_WRONLY))
            reader.start()
            reader.join(20)
            has_waited = reader.is_alive()
        reader.join()
    assert content == [b"\1" * size] and not has_waited


FLOOD = 600
# Each thread asks for a checksum that takes minutes.
ASK = """
import threading
threading.stack_size(1 << 16)
def ask():
    try:
        os.getxattr(sys.argv[1], "user.safetensors.checksum")
    except OSError:
        pass
for _ in range(int(sys.argv[2])):
    threading.Thread(target=ask, daemon=True).start()
stay()
"""
# Each thread opens a tensor in a transaction, which notes the checksum of the tensor.
OPEN = """
import threading
threading.stack_size(1 << 16)
where, name = os.path.split(sys.argv[1])
transaction = f"{where}/.safetensors/transactions/M"
os.makedirs(transaction, exist_ok=True)
def ask():
    try:
        os.open(f"{transaction}/{name}", os.O_WRONLY)
    except OSError:
        pass
for _ in range(int(sys.argv[2])):
    threading.Thread(target=ask, daemon=True).start()
stay()
"""
# The work of another user during the wait. The program prints that it is ready after all of it.
WORK = """
where = sys.argv[1]
with open(f"{where}/short", "r+b") as file:
    file.write(b"alice" * 1000)
    os.fsync(file.fileno())
assert os.statvfs(where).f_bsize > 0
assert os.path.getsize(f"{where}/short") == 5000
assert not os.path.exists(f"{where}/missing")
with open(f"{where}/short", "rb") as file:
    assert file.read() == b"alice" * 1000
assert "note" in os.listdir(f"{where}/.safetensors/pretrained")
os.mkdir(f"{where}/.safetensors/transactions/T")
os.rmdir(f"{where}/.safetensors/transactions/T")
assert os.getxattr(f"{where}/short", "user.safetensors.checksum").startswith(b"xxh128:")
stay()
"""


def threads_that_ask(program):
    """How many threads of the program wait in getxattr() or openat()."""
    count = 0
    for task in Path(f"/proc/{program.pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            count += (task / "syscall").read_text().split()[0] in ("191", "8", "257", "56")
    return count


@pytest.fixture
def scene():
    yield from attack.scene_in("disk", 0)


@pytest.fixture
def users():
    return attack.Attacker(), attack.Attacker(attack.ALICE)


@pytest.fixture(params=[ASK, OPEN], ids=["attributes", "opens in a transaction"])
def flooded(request, scene, users, mounts):
    """A mount of root's, in which Mallory's threads wait for checksums."""
    path = write_sparse(os.path.join(scene.directory, "sparse.safetensors"))
    os.chmod(path, 0o666)
    with open(os.path.join(scene.directory, "note"), "w"):
        pass
    mount = mounts(path, "allow_other,durability=process", path=scene.mount_point())
    mount.ask = request.param
    mount.flood = users[0].does(mount.ask, mount / "long", FLOOD)
    assert eventually(lambda: threads_that_ask(mount.flood) == FLOOD)
    yield mount
    for user in users:  # before the mount ends
        user.stop()


@pytest.mark.needs_root
def test_hundreds_of_checksums_of_one_user_delay_no_other(flooded, users):
    mallory, alice = users
    alice.does(WORK, flooded.path)
    assert threads_that_ask(flooded.flood) == FLOOD
    # A program that waits behind all of these ends when it is killed.
    lone = mallory.does(flooded.ask, flooded / "long", 1)
    assert eventually(lambda: threads_that_ask(lone) == 1)
    lone.kill()
    lone.wait()
    assert threads_that_ask(flooded.flood) == FLOOD
    flooded.flood.kill()
    flooded.flood.wait()
    # The checksums are no longer computed, so the same user's next request begins.
    mallory.does(WORK, flooded.path)


@pytest.mark.needs_root
def test_a_mount_ends_while_hundreds_of_checksums_wait(flooded):
    flooded.process.send_signal(signal.SIGTERM)
    assert flooded.wait() == 0
    assert eventually(lambda: threads_that_ask(flooded.flood) == 0)


def test_a_slice_whose_elements_lie_far_apart_holds_up_nobody(tmp_path, mounts):
    """With one thread of the session. Each byte of the slice lies in a page of its own, which is read then."""
    rows, wanted = 1 << 21, 1 << 18
    path = tmp_path / "wide.safetensors"
    header = json.dumps({"s": {"dtype": "U8", "shape": [rows, 4096], "data_offsets": [0, rows * 4096]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + rows * 4096)
    mount = mounts(path, "threads=1")

    def is_stat_first(at):
        with open(mount / ".safetensors/slice/s[:,0]", "rb") as file:
            read = threading.Thread(target=lambda: os.pread(file.fileno(), wanted, at * wanted))
            read.start()
            assert eventually(lambda: not read.is_alive() or is_in(read, "17", "67"))
            os.statvfs(mount.path)
            os.listdir(mount.path)
            is_first = read.is_alive()
            read.join()
        return is_first

    # On a busy machine the read may end first, now and then.
    assert any(is_stat_first(at) for at in range(rows // wanted))
