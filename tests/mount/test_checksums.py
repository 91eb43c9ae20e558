# user.safetensors.checksum of a tensor that takes long to read: other requests do not wait for the checksum, and it ends with
# its reader.
import errno
import json
import os
import signal
import struct
import subprocess
import threading

import archive_file
import mounted
import pytest
from lease_client import STFS
from mounted import errno_of, eventually, start_python, wait_ready

# Sparse. So much is not hashed within a test.
LONG_BYTES = 256 << 30
ASK = ("import os, sys\n"
       "print('ready')\n"
       "os.getxattr(sys.argv[1], 'user.safetensors.checksum')\n"
       "print('done')\n")


def write_sparse(path):
    """An archive of `long`, all zeros, and `short`."""
    header = {"long": {"dtype": "U8", "shape": [LONG_BYTES], "data_offsets": [0, LONG_BYTES]},
              "short": {"dtype": "U8", "shape": [5000], "data_offsets": [LONG_BYTES, LONG_BYTES + 5000]}}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + LONG_BYTES + 5000)
    return path


@pytest.fixture
def sparse(tmp_path, mounts):
    return mounts(write_sparse(tmp_path / "sparse.safetensors"), "durability=process")


def bytes_read(mount):
    with open(f"/proc/{mount.pid}/io") as counters:
        return int(counters.readline().split()[1])


def start_to_hash(mount):
    """A process that asks for the checksum, which the daemon is computing."""
    before = bytes_read(mount)
    reader = start_python(ASK, mount / "long")
    wait_ready(reader)
    assert eventually(lambda: bytes_read(mount) > before + (16 << 20))
    return reader


def end(reader):
    reader.kill()
    reader.communicate(timeout=20 * mounted.PATIENCE)


def patch(path, data, at=0):
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, data, at)
    os.close(fd)


def test_commits_go_on_while_a_checksum_is_computed(sparse):
    reader = start_to_hash(sparse)
    for number in range(1, 4):
        (sparse / "short").write_bytes(bytes([number]) * 5000)
        patch(sparse / "long", bytes([number]) * 4096, 1 << 30)
        assert reader.poll() is None, "they have waited for the checksum"
        assert (sparse / "short").read_bytes() == bytes([number]) * 5000
    end(reader)


def test_a_checksum_ends_with_the_program_that_has_asked_for_it(sparse):
    reader = start_to_hash(sparse)
    end(reader)
    seen = []

    def is_over():
        seen.append(bytes_read(sparse))
        return len(seen) > 5 and len(set(seen[-5:])) == 1

    assert eventually(is_over), "it is still computed"


def test_a_checksum_ends_with_the_mount(sparse):
    reader = start_to_hash(sparse)
    sparse.process.send_signal(signal.SIGTERM)
    assert sparse.wait() == 0
    end(reader)


def test_the_checksum_of_what_changes_again_and_again_is_ebusy(sparse):
    stop = threading.Event()

    def change():
        number = 0
        while not stop.is_set():
            number += 1
            patch(sparse / "long", struct.pack("<Q", number) * 512, LONG_BYTES // 2)

    writer = threading.Thread(target=change)
    writer.start()
    try:
        assert errno_of(sparse.attribute, "long", "checksum") == errno.EBUSY
    finally:
        stop.set()
        writer.join()


def test_a_checksum_into_which_a_commit_comes_is_that_of_the_new_bytes(tmp_path, mounts):
    """Of 64 MiB, so that commits come into the middle of it."""
    size_bytes = 64 << 20
    data = bytearray(archive_file.random_bytes(size_bytes, 1))
    path = archive_file.write_bytes_tensors(tmp_path / "a.safetensors", {"t": bytes(data)})
    mount = mounts(path, "durability=process")
    for number in range(5):
        sums = []
        reader = threading.Thread(target=lambda: sums.append(mount.attribute("t", "checksum")))
        reader.start()
        for place in (number * 4096, size_bytes - (number + 1) * 4096):
            new = archive_file.random_bytes(4096, 10 + number)
            patch(mount / "t", new, place)
            data[place:place + 4096] = new
        reader.join()
        due = subprocess.run([STFS, "verify", "--json", path], check=True, capture_output=True).stdout
        assert mount.attribute("t", "checksum") == json.loads(due)["tensors"][0]["checksum"]
        assert len(sums) == 1
