# Another user's FUSE file system that says it is a mount of safetensorsfs, and names any archive as its own.
import errno
import os
import struct

import lying_mount

GETXATTR = 22


class Server(lying_mount.Server):
    def __init__(self, device, archive):
        super().__init__(device, {})
        self.archive = os.fsencode(archive)

    def answer(self, code, node, body):
        if code != GETXATTR:
            return super().answer(code, node, body)
        size, _ = struct.unpack_from("=II", body)
        if body[8:].rstrip(b"\0") != b"user.safetensors.archive":
            return -errno.ENODATA
        return struct.pack("=II", len(self.archive), 0) if size == 0 else self.archive


def naming_mount(path, archive, user):
    return lying_mount.served_mount(path, user, lambda device: Server(device, archive), "fuse.safetensorsfs")
