# 100,000 tensors, as in a large model: all commands that people type still work.
import json
import os
import random
import struct
import subprocess
from pathlib import Path

import pytest
from directory import Directory
from mounted import shell

pytestmark = pytest.mark.once

COUNT = 100_000


def tensor_name(number):
    return f"model.layers.{number // 1000}.experts_{number % 10}.weight_{number}"


def tensor_size(number):
    return 4 * (1 + number % 16)


@pytest.fixture(scope="module")
def large_archive(tmp_path_factory):
    """COUNT tensors; the content of each is its number, again and again."""
    path = tmp_path_factory.mktemp("scale") / "large.safetensors"
    entries, data, offset = [], bytearray(), 0
    for number in range(COUNT):
        size_bytes = tensor_size(number)
        entries.append(f'{json.dumps(tensor_name(number))}:{{"dtype":"U32","shape":[{size_bytes // 4}],'
                       f'"data_offsets":[{offset},{offset + size_bytes}]}}')
        data += struct.pack("<I", number) * (size_bytes // 4)
        offset += size_bytes
    text = ("{" + ",".join(entries) + "}").encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@pytest.fixture
def scaled(large_archive, mounts):
    return mounts(large_archive)


def test_ls_and_wc_count_every_tensor(scaled):
    done = shell('ls "$1" | wc -l; ls -U "$1" | wc -l; ls -l "$1" | wc -l', scaled.path)
    assert done.stdout.split() == [str(COUNT), str(COUNT), str(COUNT + 1)] and done.stderr == ""


def test_find_by_size_finds_the_right_ones(scaled):
    done = shell('find "$1" -type f -size 64c | wc -l; find "$1" -name "*_777"', scaled.path)
    expected = sum(tensor_size(number) == 64 for number in range(COUNT))
    assert done.stdout.splitlines() == [str(expected), str(scaled / tensor_name(777))]


def test_getfattr_of_a_sample(scaled):
    for number in random.Random(3).sample(range(COUNT), 200):
        name = tensor_name(number)
        assert scaled.attribute(name, "name") == name
        assert scaled.attribute(name, "shape") == f"[{tensor_size(number) // 4}]"
    assert scaled.attribute(None, "tensors") == str(COUNT)
    done = subprocess.run(["getfattr", "-d", "-n", "user.safetensors.dtype", scaled / tensor_name(5)],
                          capture_output=True, text=True)
    assert 'dtype="U32"' in done.stdout


def test_a_sample_reads_its_own_number(scaled):
    for number in random.Random(4).sample(range(COUNT), 500):
        due = struct.pack("<I", number) * (tensor_size(number) // 4)
        assert (scaled / tensor_name(number)).read_bytes() == due


def test_readdir_is_complete_and_its_positions_hold(scaled):
    with Directory(scaled.path) as directory:
        positions, names = [], []
        while True:
            position = directory.tell()
            entry = directory.next()
            if entry is None:
                break
            positions.append(position)
            names.append(entry[0])
        assert set(names) == {".", ".."} | {tensor_name(number) for number in range(COUNT)}
        assert len(names) == COUNT + 2
        for index in [0, 1, 2, COUNT + 1, *random.Random(5).sample(range(COUNT), 50)]:
            directory.seek(positions[index])
            assert directory.next()[0] == names[index]
        directory.seek(positions[-10])
        assert [name for name, _, _ in directory.rest()] == names[-10:]
        directory.rewind()
        assert [name for name, _, _ in directory.rest()] == names


def test_inode_numbers_are_unique(scaled):
    with os.scandir(scaled.path) as entries:
        assert len({entry.inode() for entry in entries}) == COUNT


def test_writes_land_in_the_right_tensor(large_archive, mounts, tmp_path):
    copy = tmp_path / "copy.safetensors"
    content = bytearray(Path(large_archive).read_bytes())
    copy.write_bytes(content)
    mount = mounts(copy)
    for number in random.Random(6).sample(range(COUNT), 50):
        name, size_bytes = tensor_name(number), tensor_size(number)
        begin = int(mount.attribute(name, "offset"))
        (mount / name).write_bytes(b"\xEE" * size_bytes)
        content[begin:begin + size_bytes] = b"\xEE" * size_bytes
    assert copy.read_bytes() == bytes(content)


def test_the_tree_layout_holds_as_many(large_archive, mounts):
    mount = mounts(large_archive, "layout=tree")
    done = shell('find "$1" -printf "%y\\n" | sort | uniq -c', mount.path)
    directories = {".".join(tensor_name(number).split(".")[:depth])
                   for number in range(COUNT) for depth in range(1, 5)}
    assert done.stdout.split() == [str(len(directories) + 1), "d", str(COUNT), "f"]
