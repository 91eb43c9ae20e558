# Probes features of the kernel's FUSE with an empty directory that this file serves, without our program. Tests of features
# that not every kernel has use these probes to choose the expected outcome.
import errno
import fcntl
import os
import socket
import stat
import struct
import subprocess
import threading

from mounted import unmount_by_force

# linux/fuse.h
GETATTR, GETXATTR = 3, 22
INIT_EXT, PASSTHROUGH = 1 << 30, 1 << 37
BACKING_OPEN = 0x4010E501
IN_HEADER, OUT_HEADER = struct.Struct("=IIQQIIII"), struct.Struct("=IiQ")
INIT_IN, INIT_OUT = struct.Struct("=IIIII"), struct.Struct("=IIIIHHIIHHII24x")
ATTR_OUT = struct.Struct("=QII6Q10I")


class EmptyDirectory:
    """Mounted and served by a thread within `with`. It answers that every attribute is missing."""

    def __init__(self, path):
        self.path = path
        path.mkdir()
        here, there = socket.socketpair()
        with here, there:
            subprocess.run(["fusermount3", "--", str(path)], check=True, pass_fds=[there.fileno()],
                           env={**os.environ, "_FUSE_COMMFD": str(there.fileno())})
            self.device = socket.recv_fds(here, 1, 1)[1][0]
        self.answer_init()
        self.thread = threading.Thread(target=self.serve)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        unmount_by_force(self.path)
        self.thread.join()
        os.close(self.device)

    def reply(self, unique, data=b"", error=0):
        os.write(self.device, OUT_HEADER.pack(OUT_HEADER.size + len(data), -error, unique) + data)

    def answer_init(self):
        request = os.read(self.device, 1 << 17)
        unique = IN_HEADER.unpack_from(request)[2]
        # A kernel before 5.17 sends no second half of the flags.
        major, minor, readahead, low, high = INIT_IN.unpack_from(request[IN_HEADER.size:].ljust(INIT_IN.size, b"\0"))
        self.offered = low | (high << 32 if low & INIT_EXT else 0)
        flags = self.offered & (INIT_EXT | PASSTHROUGH)
        two_layers = 2
        self.reply(unique, INIT_OUT.pack(major, min(minor, 38), readahead, flags & 0xFFFFFFFF, 12, 9, 4096, 1, 1, 0,
                                         flags >> 32, two_layers if flags & PASSTHROUGH else 0))

    def serve(self):
        while True:
            try:
                request = os.read(self.device, 1 << 17)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                raise
            _, opcode, unique, *_ = IN_HEADER.unpack_from(request)
            if opcode == GETATTR:
                self.reply(unique, ATTR_OUT.pack(0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, stat.S_IFDIR | 0o755, 2,
                                                 os.getuid(), os.getgid(), 0, 4096, 0))
            else:
                self.reply(unique, error=errno.ENODATA if opcode == GETXATTR else errno.ENOSYS)

    def knows_passthrough(self):
        return self.offered & PASSTHROUGH != 0

    def takes_as_backing(self, path):
        """Whether the kernel would read this file in a daemon's place."""
        with open(path, "rb") as file:
            try:
                return fcntl.ioctl(self.device, BACKING_OPEN, bytearray(struct.pack("=iIQ", file.fileno(), 0, 0))) > 0
            except OSError:
                return False
