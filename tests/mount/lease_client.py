# A client of `stfs serve` written from the protocol's description (tools/serve/serve_protocol.h) alone, and the
# server as a process of the test.
import array
import json
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import threading

import mounted

STFS = mounted.BUILD / "stfs"
HEADER = struct.Struct("=IHHQQIiII")
MAGIC, VERSION = 0x53465453, 3
ATTACH, QUERY, GRANT, REPORT, REFUSAL, NEWER, STUCK, RENEW = range(1, 9)


def packet(kind, version=VERSION):
    return HEADER.pack(MAGIC, version, kind, 0, 0, 0, 0, 0, 0)


class Gone(Exception):
    """The server has ended the connection."""


class Refused(Exception):
    def __init__(self, errno, text):
        super().__init__(text)
        self.errno = errno


class Connection:
    def __init__(self, path, timeout=20):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(timeout * mounted.PATIENCE)
        self.socket.connect(str(path))

    def receive(self):
        """(kind, generation, document bytes, errno, text, descriptors)"""
        data, control, flags, _ = self.socket.recvmsg(8192, socket.CMSG_SPACE(200 * 4))
        descriptors = array.array("i")
        for level, type_, content in control:
            if (level, type_) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(content[:len(content) // 4 * 4])
        if not data:
            raise Gone
        magic, version, kind, generation, document, count, errno, text_bytes, reserved = HEADER.unpack(data[:40])
        assert (magic, version, reserved, flags & socket.MSG_CTRUNC) == (MAGIC, VERSION, 0, 0)
        assert (count, text_bytes) == (len(descriptors), len(data) - 40)
        text = data[40:].decode(errors="surrogateescape")
        if kind == REFUSAL:
            raise Refused(errno, text)
        return kind, generation, document, errno, text, list(descriptors)

    def close(self):
        self.socket.close()


def read_document(descriptor, size_bytes):
    # All processes with the descriptor share its position, so pread is used.
    text = os.pread(descriptor, size_bytes + 1, 0)
    os.close(descriptor)
    assert len(text) == size_bytes
    return json.loads(text)


class Lease(Connection):
    def __init__(self, path, timeout=20):
        super().__init__(path, timeout)
        self.arenas = {}  # by number: (descriptor, map)
        self._take(ATTACH)

    def _take(self, request):
        """Asks for a generation, and maps the arenas that are new to this client."""
        self.socket.send(packet(request))
        kind = NEWER
        while kind in (NEWER, STUCK):  # news that the server sent before the answer
            kind, self.generation, document_bytes, _, _, descriptors = self.receive()
        assert kind == GRANT
        self.manifest = read_document(descriptors[0], document_bytes)
        assert self.manifest["generation"] == self.generation
        numbers = [arena["number"] for arena in self.manifest["arenas"]]
        new = [arena for arena in self.manifest["arenas"] if arena["number"] not in self.arenas]
        assert len(set(numbers)) == len(numbers) and len(descriptors) == 1 + len(new)
        for number in set(self.arenas) - set(numbers):
            self._drop(number)
        for descriptor, arena in zip(descriptors[1:], new):
            mapped = mmap.mmap(descriptor, arena["size_bytes"], mmap.MAP_SHARED, mmap.PROT_READ)
            self.arenas[arena["number"]] = descriptor, mapped
        self.tensors = {tensor["name"]: tensor for tensor in self.manifest["tensors"]}

    def renew(self):
        """Takes the newest generation instead of this one."""
        self._take(RENEW)

    def _drop(self, number):
        descriptor, mapped = self.arenas.pop(number)
        mapped.close()
        os.close(descriptor)

    def arena_of(self, name):
        """(descriptor, map) of the arena that holds a tensor."""
        return self.arenas[self.manifest["arenas"][self.tensors[name]["arena"]]["number"]]

    def inode_of(self, name):
        return os.fstat(self.arena_of(name)[0]).st_ino

    @property
    def descriptors(self):
        return [descriptor for descriptor, _ in self.arenas.values()]

    def __getitem__(self, name):
        """The bytes of a tensor."""
        tensor = self.tensors[name]
        return self.arena_of(name)[1][tensor["offset"]:tensor["offset"] + tensor["size_bytes"]]

    def news(self):
        """(NEWER, generation) or (STUCK, why) or None, without waiting."""
        if not select.select([self.socket], [], [], 0)[0]:
            return None
        kind, generation, _, _, text, _ = self.receive()
        return kind, generation if kind == NEWER else text

    def wait_news(self):
        assert select.select([self.socket], [], [], 20 * mounted.PATIENCE)[0], "no news"
        return self.news()

    def close(self):
        super().close()
        for number in list(self.arenas):
            self._drop(number)


def query(path):
    connection = Connection(path)
    connection.socket.send(packet(QUERY))
    report, size_bytes = b"", 1
    while len(report) < size_bytes:
        kind, _, size_bytes, _, part, descriptors = connection.receive()
        assert kind == REPORT and not descriptors
        report += part.encode(errors="surrogateescape")  # a part may end inside a letter
    connection.close()
    return json.loads(report)


class Server:
    """stfs serve; its events as they come."""

    def __init__(self, path, *arguments, before=(), program=STFS):
        self.path = str(path)
        self.process = subprocess.Popen(
            [*before, program, "serve", *map(str, arguments), "--device", "cpu", "--socket", self.path, "--json"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.errors = ""
        self.reader = threading.Thread(target=self._read_errors, daemon=True)
        self.reader.start()
        self.watchdog = threading.Timer(90 * mounted.PATIENCE, self.process.kill)
        self.watchdog.daemon = True
        self.watchdog.start()

    def _read_errors(self):
        for line in self.process.stderr:
            self.errors += line

    def event(self):
        """The next one; None at the end."""
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def ready(self):
        event = self.event()
        assert event is not None and event["event"] == "serving", self.errors
        return self

    @property
    def pid(self):
        return self.process.pid

    def arenas(self):
        """Memory of each arena that the server holds, in bytes."""
        found = {}
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            try:
                if "arena" in os.readlink(f"/proc/{self.pid}/fd/{name}"):
                    status = os.stat(f"/proc/{self.pid}/fd/{name}")
                    found[status.st_ino] = status.st_blocks * 512
            except FileNotFoundError:  # closed meanwhile
                continue
        return list(found.values())

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.wait()

    def wait(self, seconds=30):
        status = self.process.wait(timeout=seconds * mounted.PATIENCE)
        self.reader.join(10)
        return status

    def finish(self):
        """The server's problem, or None."""
        self.watchdog.cancel()
        if self.process.poll() is None:
            self.end()
        self.reader.join(10)
        self.process.stdout.close()
        self.process.stderr.close()
        if self.process.returncode in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT):
            return f"the server crashed: {self.process.returncode}\n{self.errors}"
        return self.errors if mounted.SANITIZER_REPORT.search(self.errors) else None
