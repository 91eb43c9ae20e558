# An archive on a volume with several writers. Each writer has separate tensors, whose valid content is known.
import json
import os
import random
import re
import struct
import subprocess
import threading
from pathlib import Path

import mounted
import numpy as np
from safetensors.numpy import save_file

STFS = mounted.BUILD / "stfs"
SETTLED = re.compile(r": (applied|removed): ")

# Adjacent tensors share blocks of 4 KiB, so the hosts write into the same blocks.
SIZES = (3000, 5000, 1234, 9000)
FILLER_BYTES = 200_000


def content(writer, number, size_bytes):
    """Returns content with the writer and the number in every piece, so that a mix of contents is detected."""
    pattern = struct.pack("<IIQ", writer, number, random.Random(writer << 20 | number).getrandbits(64))
    return (pattern * (size_bytes // len(pattern) + 1))[:size_bytes]


def told_by(data):
    """Returns (writer, number) if all of the data is one content, else None."""
    writer, number = struct.unpack_from("<II", data)
    return (writer, number) if data == content(writer, number, len(data)) else None


class SharedArchive:
    def __init__(self, host, name, writers, filler_bytes=FILLER_BYTES):
        self.name = name
        self.sizes = {f"w{writer}.t{at}": (writer, size)
                      for at, size in enumerate(SIZES) for writer in range(writers)}
        tensors = {name: np.frombuffer(content(writer, 0, size), np.uint8)
                   for name, (writer, size) in self.sizes.items()}
        if filler_bytes:
            tensors["filler"] = np.zeros(filler_bytes, np.uint8)
        save_file(tensors, host / name)
        self.promised = dict.fromkeys(self.sizes, 0)  # the last number that was committed, as a writer was told
        self.begun = dict.fromkeys(self.sizes, 0)

    def tensors_of(self, writer):
        return [name for name, (owner, _) in self.sizes.items() if owner == writer]

    def check(self, tensor, data, who):
        """Checks that the data is one whole content, not older than the promised one and not newer than the begun one."""
        writer, size_bytes = self.sizes[tensor]
        assert len(data) == size_bytes, f"{who}: {tensor} has {len(data)} bytes of {size_bytes}"
        told = told_by(data)
        assert told is not None, f"{who}: {tensor} is torn: {data[:16].hex()} ... {data[-16:].hex()}"
        assert told[0] == writer, f"{who}: {tensor} holds what writer {told[0]} wrote"
        assert self.promised[tensor] <= told[1] <= self.begun[tensor], (
            f"{who}: {tensor} is content {told[1]}; promised {self.promised[tensor]}, begun {self.begun[tensor]}")
        return told[1]

    def view_of(self, read, who):
        return {tensor: self.check(tensor, read(tensor), who) for tensor in self.sizes}

    def view_of_file(self, path):
        """Reads the tensors from the file, as the reference library does."""
        data = Path(path).read_bytes()
        header_bytes, = struct.unpack_from("<Q", data)
        header = json.loads(data[8:8 + header_bytes])

        def read(tensor):
            begin, end = header[tensor]["data_offsets"]
            return data[8 + header_bytes + begin:8 + header_bytes + end]

        return self.view_of(read, f"the file {path}")

    def view_of_mount(self, mount):
        return self.view_of(lambda tensor: (mount / tensor).read_bytes(), f"the mount of {mount.source}")


class Writer(threading.Thread):
    """Writes new contents to its tensors, one after another, until it is stopped or refused."""

    def __init__(self, archive, number, rounds=None):
        super().__init__(daemon=True)
        self.archive = archive
        self.number = number
        self.rounds = rounds
        self.stopping = threading.Event()
        self.done = 0
        self.refused = None

    def run(self):
        tensors = self.archive.tensors_of(self.number)
        while not self.stopping.is_set() and self.done != self.rounds:
            tensor = tensors[self.done % len(tensors)]
            number = self.archive.begun[tensor] + 1
            self.archive.begun[tensor] = number
            try:
                self.write(tensor, content(self.number, number, self.archive.sizes[tensor][1]))
            except Exception as error:  # the test reads it after join()
                self.refused = f"writer {self.number}, {tensor}, content {number}: {error}"
                return
            self.archive.promised[tensor] = number
            self.done += 1

    def stop(self):
        self.stopping.set()
        self.join()


class MountWriter(Writer):
    def __init__(self, archive, number, mount, rounds=None):
        super().__init__(archive, number, rounds)
        self.mount = mount

    def write(self, tensor, data):
        fd = os.open(self.mount / tensor, os.O_WRONLY)
        try:
            os.pwrite(fd, data, 0)
        finally:
            os.close(fd)


class PutWriter(Writer):
    def __init__(self, archive, number, path, rounds=None):
        super().__init__(archive, number, rounds)
        self.path = path

    def write(self, tensor, data):
        put(self.path, tensor, data)


def put(path, tensor, data):
    done = subprocess.run([STFS, "put", path, tensor, "-"], input=data, capture_output=True,
                          timeout=120 * mounted.PATIENCE)
    # The command reports the journals of dead writers that it has settled. Any other line is a fault.
    faults = [line for line in done.stderr.decode().splitlines() if not SETTLED.search(line)]
    if done.returncode != 0 or faults:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr.decode()}")
