# Sharded models as the tests see them: shards by the reference library, an index beside them.
import json
import os
from pathlib import Path

import archive_file
import numpy as np
import safetensors


class ShardedModel:
    """A directory of shards and their index. A test may change the lists of tensors and of the index's entries."""

    def __init__(self, directory, shards=3, tensors=None):
        self.directory = Path(directory)
        self.directory.mkdir(exist_ok=True)
        self.tensors = archive_file.sample_tensors() if tensors is None else tensors
        self.names = [f"model-{number + 1:05}-of-{shards:05}.safetensors" for number in range(shards)]
        self.weight_map = {name: self.names[at % shards] for at, name in enumerate(self.tensors)}
        for shard in self.names:
            mine = {name: self.tensors[name] for name, holder in self.weight_map.items() if holder == shard}
            archive_file.save_with_reference(self.directory / shard, mine)
        self.write_index()

    @property
    def index(self):
        return self.directory / "model.safetensors.index.json"

    def write_index(self, weight_map=None):
        total = sum(array.nbytes for array in self.tensors.values())
        self.index.write_text(json.dumps(
            {"metadata": {"total_size": total}, "weight_map": self.weight_map if weight_map is None else weight_map}))

    def shard_of(self, name):
        return self.directory / self.weight_map[name]

    def tensors_of(self, shard):
        return [name for name, holder in self.weight_map.items() if holder == shard]

    def archive_of(self, name):
        return archive_file.ArchiveFile(self.shard_of(name))

    def stored(self, name):
        """The tensor's bytes in its shard, by the reference library."""
        return self.archive_of(name).reference()[name][2]

    def reference(self):
        """{name: (dtype, shape, bytes)} of all shards."""
        found = {}
        for shard in self.names:
            found.update(archive_file.ArchiveFile(self.directory / shard).reference())
        return found


def hub_cache(directory, model):
    """The same files as a hub's cache keeps them: blobs, and a snapshot of links to them."""
    blobs, snapshot = Path(directory) / "blobs", Path(directory) / "snapshots" / "0123abcd"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate([*model.names, model.index.name]):
        os.rename(model.directory / file, blobs / f"blob{number}")
        os.symlink(f"../../blobs/blob{number}", snapshot / file)
    model.directory = snapshot
    return snapshot


def read_archive_view(path):
    """{name: (dtype, shape, bytes)} of an archive that is mapped by the reference library."""
    return {name: (entry["dtype"], list(entry["shape"]), bytes(entry["data"]))
            for name, entry in safetensors.deserialize(Path(path).read_bytes())}


def is_equal(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and np.array_equal(
        np.ascontiguousarray(one).reshape(-1).view(np.uint8), np.ascontiguousarray(other).reshape(-1).view(np.uint8))


def check_tree(mount, model):
    """Checks that the mount shows every tensor of the model, and its place."""
    reference = model.reference()
    assert sorted(os.listdir(mount.path)) == sorted(reference)
    for name, (dtype, shape, data) in reference.items():
        assert (mount / name).read_bytes() == data, name
        assert mount.attribute(name, "dtype") == dtype
        assert json.loads(mount.attribute(name, "shape")) == shape
        assert mount.attribute(name, "archive") == str(model.shard_of(name))
        begin = int(mount.attribute(name, "offset"))
        assert begin == model.archive_of(name).layout()[name][2]
    assert mount.attribute(None, "tensors") == str(len(reference))
