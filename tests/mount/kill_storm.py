# Models for the tests with random kills, and commands of the tools that change them. Each command knows the model before and
# after it.
import json
import os
import random
import subprocess
import time
from pathlib import Path

import numpy as np
import safetensors
from edited_mount import STFS, content
from mounted import PATIENCE
from safetensors.numpy import save_file

LIMIT = 20 * PATIENCE  # a program that takes more seconds hangs


class StoredModel:
    """Archives in a separate directory: one, or the shards of an index."""

    def __init__(self, directory, shards=1, seed=1):
        self.directory = Path(directory)
        self.directory.mkdir()
        self.rng = random.Random(seed)
        self.shards = shards
        self.begin_anew()

    @property
    def target(self):
        return self.directory / ("model.safetensors" if self.shards == 1 else "model.safetensors.index.json")

    def begin_anew(self):
        for name in os.listdir(self.directory):
            os.unlink(self.directory / name)
        weight_map, arrays = {}, {}
        for shard in range(self.shards):
            file = "model.safetensors" if self.shards == 1 else f"m-{shard}.safetensors"
            mine = {f"s{shard}.t{at}": np.frombuffer(self.rng.randbytes(size), "u1")
                    for at, size in enumerate((400_000, 4096, 30_001, 3))}
            save_file(mine, self.directory / file, metadata={"kept": "yes"})
            weight_map.update(dict.fromkeys(mine, file))
            arrays.update(mine)
        if self.shards > 1:
            total = sum(array.nbytes for array in arrays.values())
            self.target.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
        self.tensors, self.metadata = self.read()

    def files(self):
        if self.shards == 1:
            return [self.target]
        weight_map = json.loads(self.target.read_text())["weight_map"]
        return [self.directory / file for file in sorted(set(weight_map.values()))]

    def read(self):
        """({name: (dtype, shape, bytes)}, {key: value}) as the reference library reads what the index names."""
        tensors, metadata = {}, {}
        for file in self.files():
            tensors.update(content(file))
            with safetensors.safe_open(file, "np") as archive:
                metadata.update(archive.metadata() or {})
        if self.shards > 1:
            assert set(json.loads(self.target.read_text())["weight_map"]) == set(tensors)
        return tensors, {key: value for key, value in metadata.items() if not key.startswith("__")}

    def what_is_wrong(self):
        """What a finished recovery must not leave: invalid archives, named or not, and hidden files."""
        wrong = [name for name in os.listdir(self.directory) if name.startswith(".")]
        for file in self.directory.glob("*.safetensors"):
            try:
                content(file)
            except safetensors.SafetensorError as error:
                wrong.append(f"{file.name}: {error}")
        return wrong


class Commands:
    """Each method returns the words of a command of stfs, and changes `tensors` and `metadata` as the command does."""

    KINDS = ("put", "put_many", "create", "rm", "rm_shard", "mv", "set_metadata", "set_shape", "compact")

    def __init__(self, model, scratch):
        self.model, self.scratch, self.rng = model, scratch, model.rng
        self.tensors, self.metadata = dict(model.tensors), dict(model.metadata)
        self.name = self.rng.choice(sorted(self.tensors))

    def bytes_file(self, size):
        data = self.rng.randbytes(size)
        (self.scratch / "bytes").write_bytes(data)
        return data

    def put(self):
        dtype, shape, old = self.tensors[self.name]
        self.tensors[self.name] = (dtype, shape, self.bytes_file(len(old)))
        return ["put", "--raw", self.model.target, self.name, self.scratch / "bytes"]

    def put_many(self):
        """By apply, over several shards."""
        chosen = self.rng.sample(sorted(self.tensors), min(4, len(self.tensors)))
        arrays = {}
        for name in chosen:
            dtype, shape, old = self.tensors[name]
            data = self.rng.randbytes(len(old))
            self.tensors[name] = (dtype, shape, data)
            arrays[name] = np.frombuffer(data, "u1").reshape(shape)
        save_file(arrays, self.scratch / "delta.safetensors")
        return ["apply", self.model.target, self.scratch / "delta.safetensors"]

    def create(self):
        data = self.bytes_file(self.rng.choice([5, 9000, 500_000]))
        name = f"new{self.rng.randrange(4)}"
        self.tensors[name] = ("U8", [len(data)], data)
        return ["put", "--raw", "--create", "--dtype", "U8", self.model.target, name, self.scratch / "bytes"]

    def rm(self):
        del self.tensors[self.name]
        return ["rm", self.model.target, self.name]

    def rm_shard(self):
        """Every tensor of a shard."""
        file = self.rng.choice(self.model.files())
        gone = sorted(content(file))
        if len(gone) == len(self.tensors):
            return self.rm()
        for name in gone:
            del self.tensors[name]
        return ["rm", self.model.target, *gone]

    def mv(self):
        new = self.rng.choice(["short", "long" * 40, "other"])
        if new in self.tensors:
            return self.rm()
        self.tensors[new] = self.tensors.pop(self.name)
        return ["mv", self.model.target, self.name, new]

    def set_metadata(self):
        self.metadata["key"] = "v" * self.rng.choice([1, 50, 5000])
        return ["set", self.model.target, "--metadata", f"key={self.metadata['key']}"]

    def set_shape(self):
        dtype, shape, data = self.tensors[self.name]
        shape = [1, len(data)] if len(shape) == 1 else [len(data)]
        self.tensors[self.name] = (dtype, shape, data)
        return ["set", self.model.target, self.name, "--shape", ",".join(map(str, shape))]

    def compact(self):
        return ["compact", self.model.target]


class Storm:
    """Kills commands at random moments. Learns how long each kind takes."""

    def __init__(self, seed=1):
        self.rng = random.Random(seed)
        self.seconds = {}
        self.kills = self.done = self.undone = 0

    def kill(self, kind, words):
        """Runs a command and kills it. @return whether the command reported success."""
        seconds = self.seconds.setdefault(kind, 0.03)
        began = time.monotonic()
        command = subprocess.Popen([STFS, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            errors = command.communicate(timeout=self.rng.random() * 1.2 * seconds)[1]
        except subprocess.TimeoutExpired:
            command.kill()
            command.communicate(timeout=LIMIT)
            self.kills += 1
            self.seconds[kind] = 1.05 * seconds  # it may never have come to its end
            return False
        assert command.returncode == 0, (words, errors)
        self.seconds[kind] = (seconds + time.monotonic() - began) / 2
        return True

    def note(self, found, before, after):
        if before != after:
            self.done += found == after
            self.undone += found == before


def recover(target):
    done = subprocess.run([STFS, "recover", target], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
