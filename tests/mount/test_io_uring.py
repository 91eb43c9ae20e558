# io_uring: a file in a slot of the ring closes without a FLUSH, and commits with its release.
import os

import pytest
from mounted import eventually, start_python
from written_tensor import T, check_shown

FIXED_SLOT = """
import ctypes, errno, mmap, os, struct, sys
SETUP, ENTER, REGISTER = 425, 426, 427  # the same on all architectures
libc = ctypes.CDLL(None, use_errno=True)


def call(*arguments):
    done = libc.syscall(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


params = ctypes.create_string_buffer(120)
try:
    ring = call(SETUP, 4, params)
except OSError as error:
    if error.errno in (errno.ENOSYS, errno.EPERM):
        print("skip: io_uring_setup:", error.strerror)
        sys.exit(0)
    raise
sq = struct.unpack_from("10I", params, 40)  # head, tail, mask, entries, flags, dropped, array
entries = struct.unpack_from("I", params, 0)[0]
cq_entries = struct.unpack_from("I", params, 4)[0]
cq = struct.unpack_from("10I", params, 80)  # head, tail, mask, entries, overflow, cqes
rings = mmap.mmap(ring, max(sq[6] + entries * 4, cq[5] + cq_entries * 16), offset=0)
cq_ring = mmap.mmap(ring, cq[5] + cq_entries * 16, offset=0x8000000)
sqes = mmap.mmap(ring, entries * 64, offset=0x10000000)


def submit(opcode, fd, flags, offset=0, address=0, length=0, slot=0):
    tail = struct.unpack_from("I", rings, sq[1])[0]
    at = tail & struct.unpack_from("I", rings, sq[2])[0]
    sqes[at * 64:at * 64 + 64] = struct.pack("=BBHiQQIIQHHI16x", opcode, flags, 0, fd, offset, address, length, 0, 7,
                                             0, 0, slot)
    struct.pack_into("I", rings, sq[6] + 4 * at, at)
    struct.pack_into("I", rings, sq[1], tail + 1)
    call(ENTER, ring, 1, 1, 1, None, 0)
    head = struct.unpack_from("I", cq_ring, cq[0])[0]
    mask = struct.unpack_from("I", cq_ring, cq[2])[0]
    _, result, _ = struct.unpack_from("=QiI", cq_ring, cq[5] + 16 * (head & mask))
    struct.pack_into("I", cq_ring, cq[0], head + 1)
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


fd = os.open(sys.argv[1], getattr(os, sys.argv[2]))
call(REGISTER, ring, 2, (ctypes.c_int * 1)(fd), 1)  # IORING_REGISTER_FILES
os.close(fd)
data = b"slot" * int(sys.argv[3])
buffer = ctypes.create_string_buffer(data, len(data))
done = 0
while done < len(data):
    done += submit(23, 0, 1, int(sys.argv[4]) + done, ctypes.addressof(buffer) + done, len(data) - done)  # WRITE
if sys.argv[5] == "close":
    print("written", flush=True)
    sys.stdin.readline()
    submit(19, 0, 0, slot=1)  # IORING_OP_CLOSE of slot 0
    print("closed", flush=True)
    sys.stdin.read()
else:
    print("exits", flush=True)
"""


def wait_for_slot(process, due):
    line = process.stdout.readline()
    if line.startswith("skip: "):
        pytest.skip(line[6:].strip())
    assert line == due + "\n", process.stderr.read()


@pytest.mark.parametrize("how", ["close", "exit"])
@pytest.mark.parametrize("flags", ["O_WRONLY", "O_RDWR"])
def test_a_fixed_file_of_an_io_uring_commits_with_its_release(mount, expected, flags, how):
    process = start_python(FIXED_SLOT, mount / T, flags, 25, 1000, how)
    try:
        wait_for_slot(process, {"close": "written", "exit": "exits"}[how])
        if how == "close":
            expected.check()
            process.stdin.write("close\n")
            process.stdin.flush()
        expected.change(T, b"slot" * 25, 1000)
        assert eventually(expected.matches)
    finally:
        process.communicate()
    check_shown(mount, expected)
    assert "dropped" not in mount.log()


def test_a_fixed_file_of_an_io_uring_that_cannot_be_committed_is_logged(mount, expected, tmp_path):
    process = start_python(FIXED_SLOT, mount / T, "O_WRONLY", 25, 1000, "close")
    try:
        wait_for_slot(process, "written")
        (tmp_path / "new").write_bytes(mount.archive.content())
        os.rename(tmp_path / "new", mount.archive.path)  # nothing can be committed to the old one
        process.communicate("close\n")
        assert eventually(lambda: "not committed" in mount.log() and "dropped" in mount.log()), mount.log()
    finally:
        process.kill()
        process.communicate()
    expected.check()
