# Images of file systems, attached to loop devices and mounted, without a process for each step: a replay mounts a hundred
# images a minute. A loop device detaches itself after its last user, so nothing is left behind.
import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mount"))
import mount_namespace  # noqa: E402

LOOP_CTL_GET_FREE = 0x4C82
LOOP_CONFIGURE = 0x4C0A
LO_FLAGS_AUTOCLEAR = 4
LO_FLAGS_DIRECT_IO = 16
MS_RDONLY = 1
MS_REMOUNT = 32
MNT_DETACH = 2
ENOUGH_BYTES = 2 << 30

SIZES = {"ext4": 64 << 20, "xfs": 300 << 20, "btrfs": 160 << 20}
# No discards: they would be writes that the recorder does not see.
OPTIONS = {"ext4": "", "xfs": "nouuid", "btrfs": "nodiscard"}
_MKFS = {"ext4": ["mkfs.ext4", "-q", "-F", "-E", "nodiscard"],
         "xfs": ["mkfs.xfs", "-q", "-f", "-K", "-m", "reflink=1"],
         "btrfs": ["mkfs.btrfs", "-q", "-f", "-K"]}

_libc = ctypes.CDLL(None, use_errno=True)


def why_unavailable(kind):
    """The reason why no file system of this kind can be mounted here, or None."""
    if os.geteuid() != 0:
        return "needs root for loop devices"
    if not os.path.exists("/dev/loop-control"):
        return "/dev/loop-control is missing (modprobe loop)"
    if shutil.which(_MKFS[kind][0]) is None:
        return f"there is no {_MKFS[kind][0]}"
    with open("/proc/filesystems", encoding="ascii") as known:
        if kind not in known.read().split() and subprocess.run(["modprobe", kind], capture_output=True).returncode:
            return f"the kernel has no {kind}"
    return None


def place_for_images():
    """A directory in memory if it has room for images; None means the directory of temporary files."""
    memory = Path("/dev/shm")
    is_roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ENOUGH_BYTES
    return memory if is_roomy else None


def make_image(path, kind, size_bytes=None, more=()):
    # mkfs asks each mount of the machine. Mounts of concurrent tests may not answer, or may end at that moment.
    for attempts_left in reversed(range(20)):
        with open(path, "wb") as image:
            image.truncate(size_bytes or SIZES[kind])
        try:
            subprocess.run([*_MKFS[kind], *more, str(path)], check=True, capture_output=True, timeout=30)
            break
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            if attempts_left == 0:
                raise
            time.sleep(0.2)
    subprocess.run(["fallocate", "--dig-holes", str(path)], check=False, capture_output=True)
    return path


def copy_sparse(source, target):
    """Copies only the data of an image, which is mostly holes."""
    with open(source, "rb") as read, open(target, "wb") as write:
        size_bytes = os.fstat(read.fileno()).st_size
        write.truncate(size_bytes)
        at = 0
        while at < size_bytes:
            try:
                at = os.lseek(read.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break
                raise
            end = os.lseek(read.fileno(), at, os.SEEK_HOLE)
            os.lseek(write.fileno(), at, os.SEEK_SET)
            while at < end:
                at += os.sendfile(write.fileno(), read.fileno(), at, min(end - at, 1 << 30))
    return target


def attach(path, is_direct=False):
    """(descriptor, device): a loop device over the file, which ends with the descriptor and its mounts."""
    flags = LO_FLAGS_AUTOCLEAR | (LO_FLAGS_DIRECT_IO if is_direct else 0)
    info = struct.pack("<5Q4I64s64s32s2Q", 0, 0, 0, 0, 0, 0, 0, 0, flags, b"", b"", b"", 0, 0)
    backing = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        while True:
            with open("/dev/loop-control", "rb") as control:
                number = fcntl.ioctl(control, LOOP_CTL_GET_FREE)
            device = f"/dev/loop{number}"
            if not os.path.exists(device):
                os.mknod(device, stat.S_IFBLK | 0o600, os.makedev(7, number))
            loop = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(loop, LOOP_CONFIGURE, struct.pack("<2I", backing, 0) + info + bytes(64))
                return loop, device
            except OSError as error:
                os.close(loop)
                if error.errno != errno.EBUSY:  # another process was faster
                    raise
    finally:
        os.close(backing)


def call_mount(source, target, kind, flags, options):
    if _libc.mount(os.fsencode(source), os.fsencode(target), kind.encode(), flags, options.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def call_umount(target):
    deadline = time.monotonic() + 10
    while _libc.umount2(os.fsencode(target), 0) != 0:
        number = ctypes.get_errno()
        if number == errno.EBUSY and time.monotonic() < deadline:
            time.sleep(0.005)
            continue
        _libc.umount2(os.fsencode(target), MNT_DETACH)
        raise OSError(number, os.strerror(number), str(target))


def wait_until_detached(device, image, target):
    """A file system lives as long as its last mount in any mount namespace. As long as it lives, it may write to its image,
    even if a test has put another file system there."""
    backing = Path("/sys/block", os.path.basename(device), "loop/backing_file")
    deadline = time.monotonic() + 20
    while True:
        try:
            is_attached = backing.read_text().rstrip("\n") == os.path.realpath(image)
        except OSError:  # there is no such device
            return
        if not is_attached:
            return
        if time.monotonic() > deadline:
            holders = ", ".join(mount_namespace.holders(target)) or "nobody that can be seen"
            raise RuntimeError(f"{device} is still in use, its file system is mounted elsewhere: {holders}")
        time.sleep(0.002)


@contextlib.contextmanager
def mounted_image(image, kind, target, is_direct=False, options=""):
    """The directory with the image's file system, mounted within `with`."""
    os.makedirs(target, exist_ok=True)
    loop, device = attach(image, is_direct)
    try:
        call_mount(device, target, kind, 0, ",".join(filter(None, [OPTIONS[kind], options])))
    finally:
        os.close(loop)
    try:
        yield target
    finally:
        call_umount(target)
        wait_until_detached(device, image, target)


def remount_read_only(target, kind):
    call_mount("none", target, kind, MS_REMOUNT | MS_RDONLY, "")
