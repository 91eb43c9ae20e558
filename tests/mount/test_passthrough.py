# -o passthrough: the kernel reads archive.safetensors from the archive without the daemon. The tests stop the daemon to prove
# it: reads still work.
import ctypes
import json
import mmap
import os
import re
import signal
import subprocess

import pytest
from archive_file import random_bytes, write_bytes_tensors
from kernel_fuse import EmptyDirectory
from mounted import BINARY, MountFailed, eventually

pytestmark = pytest.mark.library

MIB = 1 << 20
KEEPS_AWAY = ": this program serves the reads of archive.safetensors"


def whole(mount):
    return mount / ".safetensors" / "archive.safetensors"


def write_aligned(path, seed=1, size=3 * MIB, padding=0):
    """An archive whose data begin at a page, or `padding` bytes after one."""
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    header = header.ljust(4096 - 8 + padding)
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + random_bytes(size, seed))


def has_libfuse_with_passthrough():
    """Whether the libfuse that the program loads has passthrough."""
    libraries = subprocess.run(["ldd", BINARY], capture_output=True, text=True, check=True).stdout
    return hasattr(ctypes.CDLL(re.search(r"libfuse3\S* => (\S+)", libraries)[1]), "fuse_passthrough_open")


@pytest.fixture
def obstacle(tmp_path):
    """Why this machine can't pass a file of tmp_path through, as a mount has to say it; None where it can."""
    if not has_libfuse_with_passthrough():
        return "this program was built with libfuse older than 3.17" + KEEPS_AWAY
    if os.geteuid() != 0:
        return "the kernel allows it for root only" + KEEPS_AWAY
    file = tmp_path / "file"
    file.write_bytes(bytes(4096))
    with EmptyDirectory(tmp_path / "other") as other:
        if not other.knows_passthrough():
            return "needs Linux 6.9 or newer"
        if not other.takes_as_backing(file):
            return "the kernel refuses the archive's file: this program serves the reads"
    return None


@pytest.fixture
def passing(tmp_path, mounts, obstacle):
    """A mount of an aligned archive; skips where the kernel, libfuse or the user can't."""
    if obstacle:
        pytest.skip(obstacle)
    path = tmp_path / "aligned.safetensors"
    write_aligned(path)
    mount = mounts(path, "ro,passthrough")
    mount.source_path = path
    return mount


class Halted:
    """Stops the daemon within `with`."""

    def __init__(self, mount):
        self.pid = mount.pid

    def __enter__(self):
        os.kill(self.pid, signal.SIGSTOP)
        assert eventually(lambda: open(f"/proc/{self.pid}/stat").read().rsplit(")", 1)[1].split()[0] == "T")

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGCONT)


def test_the_kernel_reads_the_archive_while_the_daemon_stands_still(passing):
    due = passing.source_path.read_bytes()
    with open(whole(passing), "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        with Halted(passing):
            assert os.pread(file.fileno(), len(due), 0) == due
            assert mapped[:] == due
        mapped.close()
    assert json.loads((passing / ".safetensors" / "stats.json").read_text())["bytes_read"] == 0


def test_many_opens_at_a_time_and_one_after_the_other(passing):
    due = passing.source_path.read_bytes()
    for _ in range(20):
        files = [open(whole(passing), "rb") for _ in range(20)]
        assert all(os.pread(file.fileno(), 4096, 4000) == due[4000:8096] for file in files)
        for file in files:
            file.close()
    assert (passing / "a").read_bytes() == due[4096:]


def test_what_another_writes_into_the_archive_shows_at_once(passing):
    with open(whole(passing), "rb") as file, open(passing.source_path, "r+b") as archive:
        os.pwrite(archive.fileno(), b"other", 10_000)
        assert os.pread(file.fileno(), 5, 10_000) == b"other"


def test_a_replaced_archive_is_the_new_one_and_the_old_ones_space_comes_back(passing, tmp_path):
    old = open(whole(passing), "rb")
    before = os.pread(old.fileno(), 5 * MIB, 0)
    inode = os.stat(passing.source_path).st_ino
    new = tmp_path / "new"
    write_aligned(new, seed=2)
    os.replace(new, passing.source_path)
    assert eventually(lambda: whole(passing).read_bytes() == passing.source_path.read_bytes())
    assert os.pread(old.fileno(), 5 * MIB, 0) == before
    old.close()
    assert eventually(lambda: not passing.deleted_files())
    assert os.stat(passing.source_path).st_ino != inode


def test_the_files_space_comes_back(tmp_path, mounts, passing):
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a tmpfs")
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(place)], check=True)
    try:
        path = place / "m.safetensors"
        write_aligned(path, size=20 * MIB)
        mount = mounts(path, "ro,passthrough")
        with open(whole(mount), "rb") as file:
            file.read(4096)
        free = os.statvfs(place).f_bfree
        write_aligned(place / "new", size=20 * MIB, seed=3)
        os.replace(place / "new", path)
        assert eventually(lambda: os.statvfs(place).f_bfree == free)
        mount.unmount()
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("kind", ["unaligned", "sharded", "read"])
def test_what_is_not_the_archive_byte_for_byte_comes_from_the_daemon(passing, tmp_path, mounts, kind):
    path = tmp_path / "other.safetensors"
    if kind == "sharded":
        (tmp_path / "model").mkdir()
        write_aligned(tmp_path / "model" / "s1.safetensors")
        path = tmp_path / "model" / "model.safetensors.index.json"
        path.write_text(json.dumps({"weight_map": {"a": "s1.safetensors"}}))
    else:
        write_aligned(path, padding=0 if kind == "read" else 24)
    mount = mounts(path, "ro,passthrough" + (",io=pread" if kind == "read" else ""))
    tensor = (mount / "a").read_bytes()
    assert whole(mount).read_bytes()[-len(tensor):] == tensor
    assert json.loads((mount / ".safetensors" / "stats.json").read_text())["bytes_read"] > len(tensor)


def test_a_mount_that_may_write_refuses_it(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    write_bytes_tensors(path, {"a": bytes(100)})
    with pytest.raises(MountFailed, match="passthrough: needs a read-only mount .*-o ro,passthrough"):
        mounts(path, "passthrough")


def test_where_it_does_not_go_the_mount_says_so_and_serves(tmp_path, mounts, obstacle):
    path = tmp_path / "m.safetensors"
    write_aligned(path)
    mount = mounts(path, "ro,passthrough")
    assert whole(mount).read_bytes() == path.read_bytes()
    served = json.loads((mount / ".safetensors" / "stats.json").read_text())["bytes_read"]
    assert (served == 0) == (obstacle is None)
    assert (mount / "a").read_bytes() == path.read_bytes()[4096:]
    assert re.findall("passthrough: (.*)", mount.log()) == ([] if obstacle is None else [obstacle])
