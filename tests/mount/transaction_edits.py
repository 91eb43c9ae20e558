# A mounted archive whose structure is edited in the directory of a transaction.
import os

import pytest
import safetensors
from edited_mount import EditedMount, save
from mounted import shell

SIZES = {"large": 300_001, "b": 3, "layers.0.c": 70_000, "layers.0.d": 4096, "layers.1.c": 70_000}
METADATA = "user.safetensors.metadata."


@pytest.fixture
def edited(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    due = save(path, SIZES)
    return EditedMount(mounts(path), [path], due)


def begin(edited, name="T"):
    directory = edited / ".safetensors" / "transactions" / name
    directory.mkdir()
    return directory


def commit(edited, name="T"):
    os.rename(edited / ".safetensors" / "transactions" / name, edited / ".safetensors" / "committed" / name)


def roll_back(directory):
    done = shell('rm -r "$1"', directory)
    assert done.returncode == 0, done.stderr


def images(directory):
    return {file.name: file.read_bytes() for file in directory.iterdir() if "safetensors" in file.name}


def run(command, **given):
    done = shell(command, **given)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def metadata_of(path):
    with safetensors.safe_open(path, "np") as archive:
        return archive.metadata() or {}
