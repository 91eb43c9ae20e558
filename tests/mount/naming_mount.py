# Mounts a FUSE file system of a user as a mount of safetensorsfs that names any archive. The server runs in this process, in a
# thread, and answers what `stfs` asks a mount.
import contextlib
import errno
import os
import stat
import struct
import subprocess
import threading

import pytest

LOOKUP, FORGET, GETATTR, STATFS, GETXATTR, INIT, OPENDIR, READDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET = (
    1, 2, 3, 17, 22, 26, 27, 28, 29, 36, 42)  # fmt: skip
HEADER = struct.Struct("=IIQQ")
HEADER_BYTES = 40


class Server:
    def __init__(self, device, user, archive):
        self.device, self.user, self.archive = device, user, os.fsencode(archive)

    def attributes(self):
        return struct.pack("=6Q10I", 1, *[0] * 8, stat.S_IFDIR | 0o755, 2, self.user, self.user, 0, 4096, 0)

    def attribute(self, body):
        size, _ = struct.unpack_from("=II", body)
        if body[8:].rstrip(b"\0") != b"user.safetensors.archive":
            return -errno.ENODATA
        return struct.pack("=II", len(self.archive), 0) if size == 0 else self.archive

    def answer(self, code, body):
        answers = {
            INIT: lambda: struct.pack("=4I2H2I2H8I", 7, 31, 1 << 17, 0, 12, 9, 1 << 17, 1, 32, 0, *[0] * 8),
            GETATTR: lambda: struct.pack("=QII", 0, 0, 0) + self.attributes(),
            LOOKUP: lambda: -errno.ENOENT,
            STATFS: lambda: struct.pack("=5Q4I6I", *[0] * 5, 4096, 255, 4096, 0, *[0] * 6),
            OPENDIR: lambda: struct.pack("=QII", 0, 0, 0),
            READDIR: lambda: b"",
            RELEASEDIR: lambda: b"",
            GETXATTR: lambda: self.attribute(body),
        }
        return answers.get(code, lambda: -errno.ENOSYS)()

    def run(self):
        with contextlib.suppress(OSError):  # the end of the mount
            while True:
                request = os.read(self.device, 1 << 20)
                _, code, unique, _ = HEADER.unpack_from(request)
                if code in (FORGET, INTERRUPT, BATCH_FORGET):
                    continue
                said = self.answer(code, request[HEADER_BYTES:])
                data, failed = (b"", said) if isinstance(said, int) else (said, 0)
                os.write(self.device, struct.pack("=IiQ", 16 + len(data), failed, unique) + data)


@contextlib.contextmanager
def naming_mount(path, archive, user):
    """Mounts on a directory, as fusermount3 does for the user with allow_other."""
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"/dev/fuse: {error}")
    options = f"fd={device},rootmode=40000,user_id={user},group_id={user},allow_other"
    made = subprocess.run(["mount", "-i", "-n", "-t", "fuse.safetensorsfs", "-o", options, "none", path], pass_fds=[device],
                          capture_output=True, text=True)
    if made.returncode != 0:
        os.close(device)
        pytest.skip(f"no mount of fuse: {made.stderr}")
    server = threading.Thread(target=Server(device, user, archive).run)
    server.start()
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)
        server.join()
        os.close(device)
