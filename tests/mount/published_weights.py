# The other side of a weight sync: publishes versions and receives them as the receivers of slime and SGLang do, with NumPy,
# zstandard, xxhash and blake3 in a thread pool over shared mappings (packaging/doc/weight-sync.md has the format).
import json
import mmap
import os
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import archive_file
import blake3
import numpy as np
import xxhash
import zstandard

INDEX = "model.safetensors.index.json"


def checksum(checksum_format, content):
    if checksum_format == "adler32":
        return f"{zlib.adler32(content):08x}"
    if checksum_format == "blake3":
        return blake3.blake3(content).hexdigest()
    return xxhash.xxh3_128_hexdigest(content)


def encode(encoding, old, new):
    if encoding == "xor":
        return (old ^ new).tobytes()
    positions = np.flatnonzero(old != new).astype("<u4")
    return np.uint32(len(positions)).tobytes() + positions.tobytes() + new[positions].tobytes()


def compress(diff):
    return zstandard.ZstdCompressor(level=1).compress(diff)


def version_directory(published, number):
    return Path(published) / f"weight_v{number:06d}"


def write_archive(path, tensors, metadata=None):
    """Any bytes under any names: {name: (dtype, shape, bytes)}."""
    header, end = {} if metadata is None else {"__metadata__": metadata}, 0
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + len(content)]}
        end += len(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(content for _, _, content in tensors.values()))


class Mapped:
    """The tensors of a model's directory as bytes, in shared mappings that change the files."""

    def __init__(self, directory):
        self.tensors, self.files = {}, {}
        for path in sorted(Path(directory).glob("*.safetensors")):
            with open(path, "r+b") as file:
                content = np.frombuffer(mmap.mmap(file.fileno(), 0), dtype=np.uint8)
            length = int(content[:8].view("<u8")[0])
            header = json.loads(content[8:8 + length].tobytes())
            header.pop("__metadata__", None)
            for name, entry in header.items():
                begin, end = entry["data_offsets"]
                self.tensors[name] = content[8 + length + begin:8 + length + end]
                self.files[name] = path.name


def publish(published, number, old, new, *, encoding="xor", checksum_format="xxh3-128", base=None, change=None):
    """Publishes the difference between two sets of tensors: {name: bytes as uint8}.

    change: gets {name: (diff, checksum)} before it is written, to damage it.
    """
    entries = {name: (compress(encode(encoding, old[name], new[name])), checksum(checksum_format, new[name]))
               for name in new if not np.array_equal(old[name], new[name])}
    if change is not None:
        change(entries)
    directory = version_directory(published, number)
    directory.mkdir(parents=True)
    names = sorted(entries)
    halves = [names[:len(names) // 2], names[len(names) // 2:]] if len(names) > 1 else [names]
    weight_map = {}
    for at, half in enumerate(halves):
        file = f"model-{at + 1:05d}-of-{len(halves):05d}.safetensors"
        write_archive(directory / (file + ".tmp"), {name: ("U8", [len(entries[name][0])], entries[name][0]) for name in half},
                      {name: entries[name][1] for name in half})
        os.rename(directory / (file + ".tmp"), directory / file)
        weight_map |= {name: file for name in half}
    write_index(directory, weight_map, number, number - 1 if base is None else base, encoding, checksum_format)
    return directory


def write_index(directory, weight_map, number, base, encoding, checksum_format):
    metadata = {"version": f"{number:06d}", "base_version": f"{base:06d}", "delta_encoding": encoding,
                "compression_format": "zstd", "checksum_format": checksum_format}
    (directory / (INDEX + ".tmp")).write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))
    os.rename(directory / (INDEX + ".tmp"), directory / INDEX)


def receive(directory, version):
    """Patches the model in place, then compares the checksums, then writes the state."""
    mapped = Mapped(directory).tensors
    index = json.loads((Path(version) / INDEX).read_text())
    encoding, checksum_format = index["metadata"]["delta_encoding"], index["metadata"]["checksum_format"]

    def patch(name):
        shard = archive_bytes(Path(version) / index["weight_map"][name])
        entry = shard["header"][name]["data_offsets"]
        diff = np.frombuffer(zstandard.ZstdDecompressor().decompress(shard["data"][entry[0]:entry[1]]), dtype=np.uint8)
        tensor = mapped[name]
        if encoding == "xor":
            np.bitwise_xor(tensor, diff, out=tensor)
        else:
            count = int(diff[:4].view("<u4")[0])
            tensor[diff[4:4 + 4 * count].view("<u4")] = diff[4 + 4 * count:]
        assert checksum(checksum_format, tensor) == shard["header"]["__metadata__"][name], name

    with ThreadPoolExecutor() as threads:
        list(threads.map(patch, index["weight_map"]))
    state = Path(directory) / ".weight_sync"
    state.mkdir(exist_ok=True)
    (state / "state.json").write_text(json.dumps({"version": index["metadata"]["version"]}))


def archive_bytes(path):
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    return {"header": json.loads(content[8:8 + length]), "data": content[8 + length:]}


def tensors_of(directory, index=INDEX):
    """The bytes of the tensors of a model: of its index, or of its only archive."""
    directory = Path(directory)
    if (directory / index).exists():
        names = set(json.loads((directory / index).read_text())["weight_map"].values())
    else:
        names = [path.name for path in directory.glob("*.safetensors")]
        assert len(names) == 1, names
    tensors = {}
    for name in names:
        archive = archive_bytes(directory / name)
        for tensor, entry in archive["header"].items():
            if tensor != "__metadata__":
                begin, end = entry["data_offsets"]
                tensors[tensor] = archive["data"][begin:end]
    return tensors


class Trainer:
    """A model that changes like one in reinforcement learning, and what it has published: each state by version."""

    def __init__(self, published, model, seed=0):
        self.published, self.model = Path(published), Path(model)
        self.numbers = np.random.default_rng(seed)
        self.states = [{name: content.copy() for name, content in Mapped(model).tensors.items()}]

    @property
    def newest(self):
        return len(self.states) - 1

    def step(self, *, names=None, density=0.02, publishes=True, **how):
        """Changes some low bytes of the tensors, and publishes the version."""
        old = self.states[-1]
        new = {name: content.copy() for name, content in old.items()}
        for name in (names if names is not None else new):
            count = len(new[name])
            if count == 0:
                continue
            at = np.unique(self.numbers.integers(0, count, max(1, int(count * density))))
            new[name][at] ^= self.numbers.integers(1, 256, len(at), dtype=np.uint8)
        self.states.append(new)
        if publishes:
            return publish(self.published, self.newest, old, new, **how)
        return None

    def version_of(self, directory):
        """The version whose tensors a model has; None if it has no whole version."""
        there = Mapped(directory).tensors
        found = [number for number, state in enumerate(self.states)
                 if all(np.array_equal(there[name], content) for name, content in state.items())]
        return found[-1] if found else None


def state_of(directory):
    path = Path(directory) / ".weight_sync/state.json"
    return int(json.loads(path.read_text())["version"]) if path.exists() else None


def save(directory, tensors, shards=1):
    """A checkpoint as frameworks save it, with the reference library."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    if shards == 1:
        archive_file.save_with_reference(directory / "model.safetensors", tensors)
        return directory
    names = list(tensors)
    weight_map = {}
    for at in range(shards):
        file = f"model-{at + 1:05d}-of-{shards:05d}.safetensors"
        part = names[at * len(names) // shards:(at + 1) * len(names) // shards]
        archive_file.save_with_reference(directory / file, {name: tensors[name] for name in part})
        weight_map |= {name: file for name in part}
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory
