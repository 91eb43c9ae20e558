# Large patches on file systems that share blocks, and on one that does not: staged in several files at a time where
# that is faster (btrfs), whole or not at all, whatever writes them.
import os
import random
import sys
import tempfile
import threading
from pathlib import Path

import archive_file
import pytest
from mounted import eventually, shell

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "replay"))
import loop_disk  # noqa: E402

LARGE_BYTES = (16 << 20) + 5
DISK_BYTES = 400 << 20
MIB = 1 << 20
DD = 'dd if="$1" of="$2" bs=1M status=none conv=notrunc,fsync'


@pytest.fixture(params=("btrfs", "xfs", "ext4"))
def directory(request, tmp_path):
    """On a new file system of each kind."""
    if reason := loop_disk.why_unavailable(request.param):
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="stfs-disk-", dir=loop_disk.place_for_images()) as place:
        image = loop_disk.make_image(Path(place) / "image", request.param, DISK_BYTES)
        with loop_disk.mounted_image(image, request.param, tmp_path / "disk") as path:
            yield Path(path)


@pytest.fixture
def archive(directory):
    """A large tensor at an odd offset between two small ones."""
    path = directory / "model.safetensors"
    archive_file.write_bytes_tensors(path, {
        "before": archive_file.random_bytes(4099, 1), "large": archive_file.random_bytes(LARGE_BYTES, 2),
        "last": archive_file.random_bytes(100, 3)})
    return archive_file.ArchiveFile(path)


def staged_files(mount, directory):
    """The daemon's open files without a name. They vanish when they are closed."""
    return [name for name in mount.descriptors() if name.startswith(f"{directory}/#")]


@pytest.mark.sequential
@pytest.mark.parametrize("command", [DD, 'dd if="$1" of="$2" bs=3M status=none', 'cp "$1" "$2"', 'cat "$1" > "$2"'])
def test_a_whole_tensor_is_replaced_again_and_again(mount, expected, directory, tmp_path, command):
    for seed in (11, 12, 13):  # from the second time on its blocks are shared already
        data = archive_file.random_bytes(LARGE_BYTES, seed)
        (tmp_path / "data").write_bytes(data)
        done = shell(command, tmp_path / "data", mount / "large")
        assert done.returncode == 0, done.stderr
        expected.change("large", data)
        expected.check()
        assert (mount / "large").read_bytes() == data
    assert eventually(lambda: not staged_files(mount, directory))


def test_threads_write_places_of_one_tensor_side_by_side(mount, expected, open_fd):
    data = archive_file.random_bytes(LARGE_BYTES, 21)
    fd = open_fd(mount / "large", os.O_WRONLY | os.O_TRUNC)
    step = MIB + 77
    places = list(range(0, LARGE_BYTES, step))
    random.Random(22).shuffle(places)
    failures = []

    def write(mine):
        try:
            for at in mine:
                piece = data[at:at + step]
                # Several writes at one place: the last one must be there.
                for old in (b"x" * len(piece), piece[:5000], b"y" * min(9000, len(piece)), piece):
                    assert os.pwrite(fd, old, at) == len(old)
        except Exception as error:  # raised below
            failures.append(error)

    threads = [threading.Thread(target=write, args=(places[number::4],)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    os.close(fd)
    expected.change("large", data)
    expected.check()


@pytest.mark.sequential
def test_patches_over_patches(mount, expected, open_fd):
    fd = open_fd(mount / "large", os.O_WRONLY)
    randomly = random.Random(31)
    for number in range(90):
        in_order = number % 30 < 15  # long runs, and what lies across them
        at = number % 30 * MIB if in_order else randomly.randrange(LARGE_BYTES)
        size_bytes = MIB if in_order else randomly.choice((1, 4096, 100_000, MIB, MIB + 1))
        piece = archive_file.random_bytes(min(size_bytes, LARGE_BYTES - at), 100 + number)
        assert os.pwrite(fd, piece, at) == len(piece)
        expected.change("large", piece, at)
    os.close(fd)
    expected.check()


def test_a_refused_writer_leaves_the_old_tensor_and_nothing_else(mount, expected, directory):
    assert shell('head -c 1G /dev/zero > "$1"', mount / "large").returncode != 0  # passes the tensor's end
    assert shell('head -c 9M /dev/zero > "$1"', mount / "large").returncode != 0  # ends before it
    expected.check()
    assert eventually(lambda: not staged_files(mount, directory))
    assert not [name for name in os.listdir(directory) if name.startswith(".")]


def test_a_killed_mount_leaves_the_old_tensor(mount, expected, directory, open_fd):
    fd = open_fd(mount / "large", os.O_WRONLY | os.O_TRUNC)
    for number in range(12):
        os.pwrite(fd, bytes(MIB), number * MIB)
    assert staged_files(mount, directory)
    mount.kill()
    expected.check()
    assert not [name for name in os.listdir(directory) if name.startswith(".")]


@pytest.mark.sequential
def test_a_full_disk_refuses_and_keeps_the_old_tensor(mount, expected, directory, tmp_path):
    data = archive_file.random_bytes(LARGE_BYTES, 41)
    (tmp_path / "data").write_bytes(data)
    filler = directory / "filler"
    shell('head -c 4G /dev/zero > "$1"', filler)
    done = shell(DD, tmp_path / "data", mount / "large")
    assert done.returncode != 0 and "No space left" in done.stderr
    expected.check()
    filler.unlink()
    os.sync()  # btrfs gives the room back with its next transaction
    done = shell(DD, tmp_path / "data", mount / "large")
    assert done.returncode == 0, done.stderr
    expected.change("large", data)
    expected.check()
