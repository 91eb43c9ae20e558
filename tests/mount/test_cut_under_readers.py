# An archive is cut short, and grows again, while a mount of it is read in each of the ways in which it can be read.
# Each read gives the right bytes or EIO: no zeros, no signal, and the daemon lives on.
#
# test_change_underneath.py looks at an archive that stays cut, test_cut_under_tools.py at `stfs` and Python.
import errno
import mmap
import os
import signal

import mounted
import numpy as np
import pytest
from cut_archive import READERS, ROUNDS, cut_archive, read_direct, run_readers  # noqa: F401
from mounted import errno_of, eventually


def float32_of(data):
    return (np.frombuffer(data, "<u2").astype("<u4") << 16).tobytes()


def body_of_npy(content):
    assert content[:6] == b"\x93NUMPY"
    return content[10 + int.from_bytes(content[8:10], "little"):]


def body_of_archive(content):
    return content[8 + int.from_bytes(content[:8], "little"):]


def same(content):
    return content


# The file to read, its expected bytes, and a function that takes the bytes to compare from the file's content.
VIEWS = {
    "tensor": ("b", lambda data: data["b"], same),
    "npy": (".safetensors/npy/b.npy", lambda data: data["b"], body_of_npy),
    "float32": (".safetensors/float32/b.npy", lambda data: float32_of(data["b"]), body_of_npy),
    "slice of short runs": (".safetensors/slice/b[:, ::3]",
                            lambda data: np.frombuffer(data["b"], "<u2").reshape(1024, -1)[:, ::3].tobytes(), same),
    "slice of long runs": (".safetensors/slice/b[::2]",
                           lambda data: np.frombuffer(data["b"], "<u2").reshape(1024, -1)[::2].tobytes(), same),
    "slice that lies together": (".safetensors/slice/b[100:900]",
                                 lambda data: data["b"][100 * 4096:900 * 4096], same),
    "archive.safetensors": (".safetensors/archive.safetensors",
                            lambda data: b"".join(data[name] for name in "abc"), body_of_archive),
}


# ---- in a mount ----

@pytest.mark.parametrize("view, options", [*((view, "") for view in VIEWS), ("tensor", "io=pread")])
def test_what_is_read_of_a_mount_while_its_archive_is_cut_is_right_or_eio(cut_archive, mounts, view, options):
    mount = mounts(cut_archive.path, options)
    name, due, body = VIEWS[view]
    due_bytes = due(cut_archive.contents)
    size_bytes = os.stat(mount / name).st_size
    buffers = [mmap.mmap(-1, size_bytes + (2 << 20)) for _ in range(READERS)]
    run_readers(cut_archive, lambda number: body(read_direct(mount / name, buffers[number])), due_bytes)
    assert mount.process.poll() is None


def test_a_checksum_while_the_archive_is_cut_is_right_or_eio(cut_archive, mounts):
    mount = mounts(cut_archive.path)
    due = mount.attribute("b", "checksum")

    def read(number):
        # A new modification time discards the checksum of the older generation.
        os.utime(cut_archive.path)
        return mount.attribute("b", "checksum")

    run_readers(cut_archive, read, due, hashes=True)
    assert mount.process.poll() is None


def test_a_transaction_checks_its_tensors_while_the_archive_is_cut(cut_archive, mounts):
    mount = mounts(cut_archive.path)
    transactions = mount / ".safetensors" / "transactions"

    def stage(number):
        """Opening a tensor in a transaction reads all of it, so that the mount later knows whether others have changed it."""
        directory = transactions / f"t{number}"
        os.utime(cut_archive.path)
        os.mkdir(directory)
        try:
            os.close(os.open(directory / "b", os.O_WRONLY))
        finally:
            # The kernel sends the release after close(2) has returned; until then the file is open for writing.
            assert eventually(lambda: errno_of(os.unlink, directory / "b") != errno.EBUSY)
            os.rmdir(directory)
        return True

    run_readers(cut_archive, stage, True, hashes=True)
    assert mount.process.poll() is None


def test_a_mapping_of_a_mount_while_the_archive_is_cut_is_right_or_sigbus(cut_archive, mounts):
    mount = mounts(cut_archive.path)
    # The file is written before the first reader starts, so no reader finds half of it.
    due = mounted.Path(cut_archive.path + ".b")
    due.write_bytes(cut_archive.contents["b"])
    for _ in range(ROUNDS):
        reader = mounted.start_python(
            "import mmap, os, sys\n"
            "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
            "mapped = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)\n"
            "print('ready')\n"
            "got, due = mapped[:], open(sys.argv[2], 'rb').read()\n"
            "wrong = [at for at in range(len(due)) if got[at] != due[at]] if got != due else []\n"
            "sys.exit(f'{len(wrong)} of {len(due)} bytes are wrong, the first at {wrong[:1]}' if got != due else 0)\n",
            mount / "b", due)
        mounted.wait_ready(reader)
        cut_archive.cut_while(3, lambda: reader.poll() is not None)
        assert reader.wait() in (0, -signal.SIGBUS), reader.stderr.read()
        reader.stdout.close(), reader.stdin.close(), reader.stderr.close()
    assert mount.process.poll() is None
