# Another user's FUSE file system that reports root as the owner of its symbolic links. It uses the kernel's protocol directly
# (fuse.h of Linux, version 7.31).
import contextlib
import errno
import os
import stat
import struct
import subprocess
import threading

import pytest

LOOKUP, FORGET, GETATTR, READLINK, STATFS, INIT, OPENDIR, READDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET = \
    1, 2, 3, 5, 17, 26, 27, 28, 29, 36, 42
ROOT = 1


class Server(threading.Thread):
    def __init__(self, device, links):
        super().__init__(daemon=True)
        self.device = device
        self.names = [os.fsencode(name) for name in links]
        self.targets = [os.fsencode(str(target)) for target in links.values()]

    def attributes(self, node):
        is_root = node == ROOT
        mode = stat.S_IFDIR | 0o755 if is_root else stat.S_IFLNK | 0o777
        size = 0 if is_root else len(self.targets[node - ROOT - 1])
        return struct.pack("=6Q10I", node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def entries(self, offset, most):
        text = b""
        for at, name in enumerate([b".", b"..", *self.names]):
            entry = struct.pack("=QQII", ROOT + max(at - 1, 0), at + 1, len(name), 0) + name
            entry += bytes(-len(entry) % 8)
            if at >= offset and len(text) + len(entry) <= most:
                text += entry
        return text

    def answer(self, code, node, body):
        if code == INIT:
            return struct.pack("=4I2HI I2H8I", 7, 31, 1 << 17, 0, 12, 9, 1 << 17, 1, 32, 0, *[0] * 8)
        if code == GETATTR:
            return struct.pack("=QII", 0, 0, 0) + self.attributes(node)
        if code == LOOKUP:
            name = body.rstrip(b"\0")
            if name not in self.names:
                return -errno.ENOENT
            found = ROOT + 1 + self.names.index(name)
            return struct.pack("=4Q2I", found, 0, 0, 0, 0, 0) + self.attributes(found)
        if code == READLINK:
            return self.targets[node - ROOT - 1]
        if code == STATFS:
            return struct.pack("=5Q4I6I", 0, 0, 0, 0, 0, 4096, 255, 4096, 0, *[0] * 6)
        if code == OPENDIR:
            return struct.pack("=QII", 0, 0, 0)
        if code == READDIR:
            _, offset, most = struct.unpack_from("=QQI", body)
            return self.entries(offset, most)
        return b"" if code == RELEASEDIR else -errno.ENOSYS

    def run(self):
        with contextlib.suppress(OSError):  # the end of the mount
            while True:
                request = os.read(self.device, 1 << 20)
                _, code, unique, node = struct.unpack_from("=IIQQ", request)
                if code in (FORGET, BATCH_FORGET, INTERRUPT):
                    continue
                said = self.answer(code, node, request[40:])
                data, failed = (b"", said) if isinstance(said, int) else (said, 0)
                os.write(self.device, struct.pack("=IiQ", 16 + len(data), failed, unique) + data)


@contextlib.contextmanager
def served_mount(path, user, make_server, kind="fuse"):
    """Mounts on a directory, as fusermount3 does for the user with allow_other. A thread of this process serves it.
    @param make_server  makes the Server for a descriptor of /dev/fuse."""
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"/dev/fuse: {error}")
    options = f"fd={device},rootmode=40000,user_id={user},group_id={user},allow_other"
    made = subprocess.run(["mount", "-i", "-n", "-t", kind, "-o", options, "none", path], pass_fds=[device],
                          capture_output=True, text=True)
    if made.returncode != 0:
        os.close(device)
        pytest.skip(f"no mount of fuse: {made.stderr}")
    server = make_server(device)
    server.start()
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)
        server.join()
        os.close(device)


def lying_mount(path, user, links):
    return served_mount(path, user, lambda device: Server(device, links))
