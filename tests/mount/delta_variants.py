# Variants of one base and their deltas, for the tests of delta mounts.
import json
import os
import subprocess

import archive_file
import ml_dtypes
import mounted
import numpy as np
import pytest
import safetensors
from sharded_model import ShardedModel, is_equal, read_archive_view

STFS = mounted.BUILD / "stfs"


def stfs(*words, wanted=0):
    done = subprocess.run([STFS, *map(str, words)], capture_output=True, text=True, timeout=60 * mounted.PATIENCE)
    assert done.returncode == wanted, (words, done.stdout, done.stderr)
    return done.stdout + done.stderr


def tuned(base):
    """Other values in two tensors, a new one, and one less."""
    tensors = dict(base)
    tensors["layers.1.weight"] = tensors["layers.1.weight"][::-1].copy()
    tensors["odd"] = tensors["odd"] ^ 5
    tensors["adapter.größe"] = np.arange(9000, dtype=np.int64)
    del tensors["layers.0.bias"]
    return tensors


def quantized(base):
    """Other dtypes and shapes."""
    tensors = dict(base)
    tensors["layers.0.weight"] = np.full((7, 301), 3, np.int8)
    tensors["layers.1.weight"] = np.arange(256, dtype=np.float32).astype(ml_dtypes.bfloat16)
    return tensors


def renamed(base):
    """All tensors but one are removed or new."""
    return {("embed" if name == "embed" else f"model.{name}"): array for name, array in base.items()}


VARIANTS = {"tuned": tuned, "quantized": quantized, "renamed": renamed}


class Variants:
    """A base and its deltas in separate directories, and the variants as the reference library reads them."""

    def __init__(self, directory, is_sharded):
        self.tensors = archive_file.sample_tensors()
        self.directory = directory / "base"
        self.directory.mkdir()
        if is_sharded:
            model = ShardedModel(self.directory, tensors=self.tensors)
            self.base = model.index
            self.files = [self.directory / name for name in model.names]
        else:
            self.base = archive_file.save_with_reference(self.directory / "model.safetensors", self.tensors)
            self.files = [self.base]
        self.deltas, self.wanted = {}, {}
        for name, make in VARIANTS.items():
            whole = archive_file.save_with_reference(directory / "whole.safetensors", make(self.tensors), {"variant": name})
            self.deltas[name] = directory / f"{name}.delta.safetensors"
            stfs("diff", "-q", self.base, whole, "--out", self.deltas[name])
            self.wanted[name] = archive_file.ArchiveFile(whole).reference()
            whole.unlink()
        self.known = self.state()

    def state(self):
        """All that may be seen of the base's files and of the deltas, and what lies beside them."""
        paths = [*self.files, *self.deltas.values()]
        beside = sorted(os.listdir(self.directory)), sorted(os.listdir(self.directory.parent))
        return beside[0], [(os.stat(path).st_mtime_ns, os.stat(path).st_ino, path.read_bytes()) for path in paths]

    def mount(self, mounts, *names, options=""):
        deltas = ":".join(str(self.deltas[name]) for name in names)
        return mounts(self.base, options=f"delta={deltas}{options}")

    def check(self, mount, name):
        """The mount shows the variant, in all its forms."""
        arrays = VARIANTS[name](self.tensors)
        assert sorted(os.listdir(mount.path)) == sorted(arrays)
        view = mount / ".safetensors" / "archive.safetensors"
        assert read_archive_view(view) == self.wanted[name]
        with safetensors.safe_open(view, "numpy") as file:  # maps it
            assert file.metadata() == {"variant": name}
            for tensor, array in arrays.items():
                if array.dtype.kind in "iuf" and not array.dtype.name.startswith("float8"):
                    assert is_equal(file.get_tensor(tensor), array), tensor
        for tensor, array in arrays.items():
            assert (mount / tensor).read_bytes() == array.tobytes(), tensor
            assert json.loads(mount.attribute(tensor, "shape")) == list(array.shape), tensor
        assert np.array_equal(np.load(mount / ".safetensors" / "npy" / "embed.npy", mmap_mode="r").view(np.uint16),
                              arrays["embed"].view(np.uint16))
        assert json.loads((mount / ".safetensors" / "metadata.json").read_text()) == {"variant": name}


@pytest.fixture(params=[False, True], ids=["archive", "sharded"])
def variants(request, tmp_path):
    return Variants(tmp_path, request.param)


@pytest.fixture
def single(tmp_path):
    return Variants(tmp_path, False)


def has_attributes(path):
    try:
        os.setxattr(path, "user.probe", b"")
    except OSError:
        return False
    os.removexattr(path, "user.probe")
    return True


def write_later(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.fixture
def slow(tmp_path):
    """A base of many zeros that must be read, which takes a while."""
    base = tmp_path / "large.safetensors"
    entries = {"large": {"dtype": "U8", "shape": [1 << 36], "data_offsets": [0, 1 << 36]},
               "small": {"dtype": "U8", "shape": [4], "data_offsets": [1 << 36, (1 << 36) + 4]}}
    header = json.dumps(entries).encode()
    header += b" " * (-(8 + len(header)) % 4096)
    with open(base, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + (1 << 36) + 4)
    archive_file.write_bytes_tensors(tmp_path / "patch.safetensors", {"small": b"1234"})
    return base


def delta_of(path, base, **keys):
    """A delta for this base that another program made."""
    names = {"": "1", ".base": base.name, ".base_tensors": "0" * 32, ".base_bytes": "0" * 32, ".removed": "[]"} | keys
    archive_file.write_bytes_tensors(path, {"small": b"1234"}, {f"safetensorsfs.delta{key}": value for key, value in names.items()})
    return path


def digest_of(directory, base):
    """The digest of names, dtypes and shapes, from a delta of the base's twin that has no bytes of it to be read."""
    import xxhash
    _, header = archive_file.ArchiveFile(base).header()
    digest = xxhash.xxh128()

    def add(value):
        digest.update(value.to_bytes(8, "little") if isinstance(value, int) else len(value).to_bytes(8, "little") + value)

    for name in sorted(header):
        add(name.encode())
        add(header[name]["dtype"].encode())
        add(len(header[name]["shape"]))
        for size in header[name]["shape"]:
            add(size)
    return digest.hexdigest()
