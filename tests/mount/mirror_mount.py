# Another user's FUSE file system that shows the files of a directory, and reports root as the owner of all of them.
import contextlib
import errno
import os
import struct

import lying_mount

LOOKUP, SETATTR, MKDIR, UNLINK, OPEN, READ, WRITE, RELEASE, FLUSH, CREATE = 1, 4, 9, 10, 14, 15, 16, 18, 25, 35


class Mirror(lying_mount.Server):
    def __init__(self, device, directory):
        super().__init__(device, {})
        self.paths = {lying_mount.ROOT: str(directory)}
        self.written = []  # the paths of files that a program has made or written

    def attributes(self, node):
        found = os.lstat(self.paths[node])
        return struct.pack("=6Q10I", node, found.st_size, found.st_blocks, 0, 0, 0, 0, 0, 0, found.st_mode, 1, 0, 0, 0, 4096, 0)

    def node_of(self, path):
        node = next((node for node, known in self.paths.items() if known == path), len(self.paths) + 1)
        self.paths[node] = path
        return node

    def entry(self, path):
        os.lstat(path)
        node = self.node_of(path)
        return struct.pack("=4Q2I", node, 0, 0, 0, 0, 0) + self.attributes(node)

    def entries(self, offset, most):
        self.names = []
        return super().entries(offset, most)

    def answer(self, code, node, body):
        try:
            return self.mirrored(code, node, body)
        except OSError as error:
            return -error.errno

    def mirrored(self, code, node, body):
        path = self.paths.get(node, "")
        opened = struct.pack("=QII", 0, 0, 0)
        if code == LOOKUP:
            return self.entry(path + "/" + os.fsdecode(body.rstrip(b"\0")))
        if code == SETATTR:
            return struct.pack("=QII", 0, 0, 0) + self.attributes(node)
        if code == OPEN:
            return opened
        if code == READ:
            offset, size = struct.unpack_from("=QI", body, 8)
            with open(path, "rb") as file:
                return os.pread(file.fileno(), size, offset)
        if code in (WRITE, MKDIR, CREATE, UNLINK):
            self.written.append((code, path))
            return -errno.EROFS
        if code == lying_mount.READLINK:
            return os.fsencode(os.readlink(path))
        if code in (RELEASE, FLUSH):
            return b""
        return super().answer(code, node, body)


@contextlib.contextmanager
def mirror_mount(path, user, directory):
    """Mounts a mirror of `directory`. Yields the list of what programs have tried to write."""
    servers = []

    def make(device):
        servers.append(Mirror(device, directory))
        return servers[0]

    with lying_mount.served_mount(path, user, make):
        yield servers[0].written
