# Transactions over many tensors, as a person makes them: mkdir, write, mv. test_foreign_writers.py and
# tests/fs/transaction_directory_test.cc test changes by other programs, tests/fs/mount_root_test.cc a replaced archive.
import errno
import os
import threading

import numpy as np
import pytest
from archive_file import ArchiveFile, Expectation, random_bytes, write_bytes_tensors
from mounted import errno_of, shell

NAMES = ["layers.0.weight", "layers.1.weight", "layers.0.bias", "odd", "small", "scalar", "embed"]


def transactions(mount):
    return mount / ".safetensors" / "transactions"


def begin(mount, name="T"):
    directory = transactions(mount) / name
    directory.mkdir()
    return directory


def commit(mount, name="T"):
    os.rename(transactions(mount) / name, mount / ".safetensors" / "committed" / name)


def refused(mount, name="T"):
    """The errno of a commit that must fail."""
    with pytest.raises(OSError) as raised:
        commit(mount, name)
    return raised.value.errno


def journals(archive):
    directory, name = os.path.split(archive.path)
    return [entry for entry in os.listdir(directory) if entry.startswith(f".{name}.stj.")]


def test_mv_changes_all_tensors_at_once(mount, expected):
    directory = begin(mount)
    for seed, name in enumerate(NAMES):
        data = random_bytes(expected.size(name), seed)
        (directory / name).write_bytes(data)
        assert (directory / name).read_bytes() == data
        assert (mount / name).read_bytes() == expected.tensor(name)
    assert sorted(os.listdir(directory)) == sorted(NAMES)
    expected.check()  # nothing yet
    assert shell('mv "$1" "$2"', directory, mount / ".safetensors" / "committed").returncode == 0
    for seed, name in enumerate(NAMES):
        expected.change(name, random_bytes(expected.size(name), seed))
        assert (mount / name).read_bytes() == expected.tensor(name)
    expected.check()
    assert journals(mount.archive) == []


@pytest.mark.parametrize("way", ["cp {0} {1}", "dd if={0} of={1} bs=64K status=none",
                                 "dd if={0} of={1} bs=1M conv=notrunc status=none", "cat {0} > {1}"])
def test_every_way_to_write_a_file_stages(mount, expected, tmp_path, way):
    directory = begin(mount)
    for name in ("embed", "odd"):
        data = random_bytes(expected.size(name), 7)
        (tmp_path / name).write_bytes(data)
        expected.change(name, data)
        done = shell(way.format('"$1"', '"$2"'), tmp_path / name, directory / name)
        assert done.returncode == 0, done.stderr
    commit(mount)
    expected.check()


def test_readers_see_the_new_bytes_through_descriptors_and_mappings_that_are_open(mount, expected, open_fd):
    name = "layers.1.weight"
    fd = open_fd(mount / name)
    mapping = np.memmap(mount / name, dtype="u1", mode="r")
    assert mapping.tobytes() == expected.tensor(name)
    directory = begin(mount)
    data = random_bytes(expected.size(name), 5)
    (directory / name).write_bytes(data)
    commit(mount)
    assert os.pread(fd, len(data), 0) == data
    assert mapping.tobytes() == data


def test_a_reader_beside_the_commits_sees_all_old_or_all_new_after_each_mv(tmp_path, mounts):
    names = [f"t{at}" for at in range(8)]
    path = write_bytes_tensors(tmp_path / "m.safetensors", {name: b"\0" * 20_000 for name in names})
    mount = mounts(path)
    stop, wrong, newest = threading.Event(), [], [0]

    def read():
        while not stop.is_set():
            least = newest[0]
            for name in names:
                data = (mount / name).read_bytes()
                if data != data[:1] * 20_000 or data[0] < least:
                    wrong.append((name, least, set(data)))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for step in range(1, 21):
            directory = begin(mount, f"T{step}")
            for name in names:
                (directory / name).write_bytes(bytes([step]) * 20_000)
            commit(mount, f"T{step}")
            newest[0] = step
    finally:
        stop.set()
        reader.join()
    assert wrong == []


def test_rm_rolls_back(mount, expected):
    directory = begin(mount)
    for name in NAMES:
        (directory / name).write_bytes(random_bytes(expected.size(name), 9))
    removed = shell('rm -r "$1"', directory)
    assert removed.returncode == 0, removed.stderr
    assert os.listdir(transactions(mount)) == []
    expected.check()
    assert journals(mount.archive) == []


def test_a_transaction_over_shards_of_two_directories_is_eopnotsupp_and_stays(model, mounts, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    moved = tmp_path / "elsewhere" / "moved.safetensors"
    os.rename(model.directory / model.names[1], moved)
    os.symlink(moved, model.directory / model.names[1])
    before = model.reference()
    here, there = model.tensors_of(model.names[0])[0], model.tensors_of(model.names[1])[0]
    mount = mounts(model.index)
    directory = begin(mount)
    for name in (here, there):
        (directory / name).write_bytes(random_bytes(len(before[name][2]), 8))
    done = shell('mv "$1" "$2"', directory, mount / ".safetensors" / "committed")
    assert done.returncode == 1 and "Operation not supported" in done.stderr, done
    assert refused(mount) == errno.EOPNOTSUPP
    assert [line for line in mount.log().splitlines() if "transaction T: not committed" in line and str(moved) in line
            and f"{model.directory / model.names[0]}" in line and "lie in different directories" in line], mount.log()
    assert model.reference() == before
    assert sorted(os.listdir(directory)) == sorted([here, there])
    os.unlink(directory / there)
    commit(mount)
    assert (mount / here).read_bytes() == random_bytes(len(before[here][2]), 8)
    assert (mount / there).read_bytes() == before[there][2] == model.stored(there)


def test_a_killed_daemon_leaves_the_archive_and_no_journal(mount, expected):
    directory = begin(mount)
    for name in NAMES:
        (directory / name).write_bytes(random_bytes(expected.size(name), 9))
    mount.kill()
    expected.check()
    assert journals(mount.archive) == []


def test_in_a_tree_the_names_are_still_flat(archive, mounts):
    mount = mounts(archive.path, "layout=tree")
    expected = Expectation(archive)
    data = random_bytes(expected.size("layers.0.weight"), 3)
    (begin(mount) / "layers.0.weight").write_bytes(data)
    commit(mount)
    expected.change("layers.0.weight", data)
    expected.check()
    assert (mount / "layers" / "0" / "weight").read_bytes() == data


def test_what_is_no_transaction_is_refused(mount, expected):
    """As the kernel asks for it; each rule has its line in tests/fs/transaction_directory_test.cc."""
    directory = begin(mount)
    assert errno_of((mount / ".safetensors" / "committed" / "x").mkdir) == errno.EPERM
    assert errno_of((directory.parent / "no tensor").write_bytes, b"x") == errno.EPERM
    assert errno_of((directory / "directory").mkdir) == errno.EPERM
    assert errno_of(os.rename, mount / "odd", directory / "odd") == errno.EPERM
    assert errno_of(os.rename, directory / "odd", mount / "odd2") == errno.EPERM
    expected.check()


@pytest.mark.once  # TSan ends a program that holds more than 64 locks, and each of these tensors has one
def test_a_thousand_tensors_in_one_transaction(tmp_path, mounts):
    sizes = {f"model.layers.{at}.weight": 1 + at * 37 % 9000 for at in range(1000)}
    path = write_bytes_tensors(tmp_path / "m.safetensors",
                               {name: random_bytes(size, 1) for name, size in sizes.items()})
    mount, archive = mounts(path), ArchiveFile(path)
    expected = Expectation(archive)
    directory = begin(mount)
    for seed, (name, size) in enumerate(sizes.items()):
        data = random_bytes(size, seed)
        (directory / name).write_bytes(data)
        expected.change(name, data)
    assert len(os.listdir(directory)) == 1000
    commit(mount)
    expected.check()
    assert journals(archive) == []
