# Archives of the tests, made by the reference library or byte by byte. A second, deliberately simple reader parses them, so
# the tests do not check the mount against its own code.
import json
import os
import struct

import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import save_file

# The header's spelling -> the NumPy type that the reference library writes as it.
NUMPY_TYPES = {
    "BOOL": np.dtype(bool), "U8": np.dtype("u1"), "I8": np.dtype("i1"), "I16": np.dtype("i2"),
    "U16": np.dtype("u2"), "F16": np.dtype("f2"), "BF16": np.dtype(ml_dtypes.bfloat16),
    "I32": np.dtype("i4"), "U32": np.dtype("u4"), "F32": np.dtype("f4"), "C64": np.dtype("c8"),
    "F64": np.dtype("f8"), "I64": np.dtype("i8"), "U64": np.dtype("u8"),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2), "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
}


def random_bytes(size_bytes, seed):
    """size_bytes bytes, the same for the same seed. No byte is zero, because bugs often show zeros."""
    return np.random.default_rng(seed).integers(1, 256, size_bytes, dtype=np.uint8).tobytes()


def random_array(dtype, shape, seed):
    """An array of any type of NUMPY_TYPES with random bits."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    if dtype == np.dtype(bool):
        return (np.frombuffer(random_bytes(count, seed), np.uint8) % 2).astype(bool).reshape(shape)
    return np.frombuffer(random_bytes(count * dtype.itemsize, seed), dtype).reshape(shape)


def sample_tensors():
    """One tensor of each type that the reference library writes, and shapes that are easy to get wrong."""
    tensors = {}
    for seed, (spelling, dtype) in enumerate(NUMPY_TYPES.items()):
        tensors[f"dtype.{spelling}"] = random_array(dtype, (5, 7), seed)
    tensors["layers.0.weight"] = random_array("f4", (256, 301), 100)       # 308,224 bytes
    tensors["layers.1.weight"] = random_array("f4", (256, 301), 101)
    tensors["layers.0.bias"] = random_array("f2", (4099,), 102)            # straddles pages
    tensors["odd"] = random_array("u1", (12345,), 103)                     # and shifts what follows
    tensors["small"] = random_array("i8", (3,), 104)
    tensors["scalar"] = random_array("f4", (), 105)
    tensors["empty"] = random_array("f4", (0, 4), 106)
    tensors["embed"] = random_array(ml_dtypes.bfloat16, (1000, 300), 107)  # 600,000 bytes
    return tensors


def save_with_reference(path, tensors=None, metadata=None):
    """An archive written by the reference library; by default with the sample's tensors."""
    save_file(sample_tensors() if tensors is None else tensors, path,
              metadata={"format": "pt", "title": "a sample"} if metadata is None else metadata)
    return path


def write_raw(path, tensors, metadata=None, align=8):
    """An archive of (name, dtype, shape, bytes), in that order, for names and types that NumPy lacks."""
    offset = 0
    header = {}
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % align)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, _, data in tensors:
            file.write(data)
    return path


def write_bytes_tensors(path, contents, metadata=None):
    """An archive of U8 vectors from {name: bytes}."""
    return write_raw(path, [(name, "U8", [len(data)], data) for name, data in contents.items()],
                     metadata)


class ArchiveFile:
    """An archive as it is on the disk now. Each call parses it again."""

    def __init__(self, path):
        self.path = str(path)

    def header(self):
        with open(self.path, "rb") as file:
            (size_bytes,) = struct.unpack("<Q", file.read(8))
            return size_bytes, json.loads(file.read(size_bytes))

    def layout(self):
        """{name: (dtype, shape, first byte in the file, byte after the last)}"""
        size_bytes, header = self.header()
        base = 8 + size_bytes
        return {name: (entry["dtype"], entry["shape"], base + entry["data_offsets"][0],
                       base + entry["data_offsets"][1])
                for name, entry in header.items() if name != "__metadata__"}

    def content(self):
        with open(self.path, "rb") as file:
            return file.read()

    def tensor(self, name):
        _, _, begin, end = self.layout()[name]
        with open(self.path, "rb") as file:
            return os.pread(file.fileno(), end - begin, begin)

    def size(self, name):
        _, _, begin, end = self.layout()[name]
        return end - begin

    def reference(self):
        """{name: (dtype, shape, bytes)} as the reference library reads it."""
        return {name: (entry["dtype"], list(entry["shape"]), bytes(entry["data"]))
                for name, entry in safetensors.deserialize(self.content())}


class Expectation:
    """The expected bytes of an archive: its bytes now, with the changes that a test notes."""

    def __init__(self, archive):
        self.archive = archive
        self.layout = archive.layout()
        self.image = bytearray(archive.content())

    def size(self, name):
        return self.layout[name][3] - self.layout[name][2]

    def tensor(self, name):
        _, _, begin, end = self.layout[name]
        return bytes(self.image[begin:end])

    def change(self, name, data, at=0):
        """Notes a change: the tensor must have these bytes from `at` on."""
        _, _, begin, end = self.layout[name]
        assert begin + at + len(data) <= end, "the test itself writes past the tensor"
        self.image[begin + at:begin + at + len(data)] = data

    def matches(self):
        return self.archive.content() == bytes(self.image)

    def check(self):
        """Checks all bytes of the archive, and the tensors that the reference library reads."""
        found = self.archive.content()
        if found != bytes(self.image):
            raise AssertionError(self.difference(found))
        for name, (_, _, data) in self.archive.reference().items():
            assert data == self.tensor(name), f"{name}: the reference library reads other bytes"

    def difference(self, found):
        if len(found) != len(self.image):
            return f"the archive has {len(found)} bytes, {len(self.image)} are due"
        wrong = np.flatnonzero(np.frombuffer(found, np.uint8) != np.frombuffer(self.image, np.uint8))
        first, last = int(wrong[0]), int(wrong[-1])
        where = [name for name, (_, _, begin, end) in self.layout.items()
                 if begin <= last and first < end]
        return (f"{len(wrong)} bytes of the archive are wrong, from {first} to {last}, in "
                f"{', '.join(where[:5]) or 'the header'}")
