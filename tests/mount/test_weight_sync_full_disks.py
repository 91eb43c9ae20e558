# A weight sync on a disk that gets full at each possible step: the model and its state are unchanged, no file keeps the space,
# and the same command succeeds when there is room.
import contextlib
import os
import subprocess

import archive_file
import mounted
import pytest
from own_disk import KINDS, full_but_for, own_disk
from published_weights import Trainer, save, state_of, tensors_of, version_directory
from test_weight_sync import STFS, stfs

BLOCK_BYTES = 4096
BLOCK_BY_BLOCK = 60  # steps
MOST_STEPS = 200
TENSORS = {f"layer.{at}": archive_file.random_array("f2", (20_001 + 1000 * at,), at) for at in range(6)}


@pytest.fixture(params=KINDS)
def disk(request, tmp_path):
    with own_disk(request.param, tmp_path / "disk") as path:
        yield path


@pytest.fixture
def published(tmp_path):
    return tmp_path / "published"


@pytest.fixture
def trainer(published):
    return Trainer(published, save(version_directory(published, 0), TENSORS, shards=2))


def kind_of(disk):
    """Of the file system that is mounted there."""
    with open("/proc/self/mounts", encoding="utf-8") as table:
        return {line.split(" ")[1]: line.split(" ")[2] for line in table}[str(disk)]


def files_below(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*"))
            if path.is_file() and path.name != "lock"}


@contextlib.contextmanager
def filled(disk):
    """grow(blocks) -> the disk has about so many free blocks more."""
    with full_but_for(disk, 0):
        filler = disk / "filler"

        def grow(blocks):
            os.truncate(filler, filler.stat().st_size - blocks * BLOCK_BYTES)
            os.sync()
        yield grow


def attempt(*words):
    """Nothing, or the message of a failure for lack of room."""
    done = subprocess.run([STFS, *map(str, words)], capture_output=True, text=True, timeout=60 * mounted.PATIENCE)
    if done.returncode == 0:
        return None
    assert done.returncode == 1, done
    lines = done.stderr.splitlines()  # what was recovered comes first
    assert all(line.startswith(f"stfs {words[0]}: /") for line in lines), done
    assert ": No space left on device" in lines[-1], done
    return lines[-1]


def succeeds_with_room(disk, directory, *words):
    """Gives the full disk more and more room until the command succeeds. The messages of the failures.

    After each failure all files are what they were."""
    messages = []
    with filled(disk) as grow:
        before = files_below(directory)
        for step in range(MOST_STEPS):
            message = attempt(*words)
            if message is None:
                return messages
            messages.append(message)
            # btrfs writes each block to another place, so it may lack space to apply a committed change. The next command
            # finishes that change.
            if kind_of(disk) == "btrfs" and any("the change is committed" in one for one in messages):
                grow(step)
                continue
            assert message.endswith(": No space left on device") and "committed" not in message, message
            assert files_below(directory) == before, (step, message)
            grow(1 if step < BLOCK_BY_BLOCK else step)
    raise AssertionError(messages)


@pytest.mark.sequential
@pytest.mark.parametrize("words", [[], ["--durability", "process"]], ids=["power", "process"])
def test_a_version_of_diffs(disk, trainer, words):
    """Its journals, and the state."""
    host = disk / "host"
    stfs("pull", host, trainer.published)
    for number in (1, 2):
        version = trainer.step()
        assert succeeds_with_room(disk, host, "apply", *words, host, version)
        assert trainer.version_of(host) == state_of(host) == number


@pytest.mark.sequential
def test_a_state_alone(disk, trainer):
    """Another receiver has applied the version, and was killed before it wrote the state."""
    host = disk / "host"
    stfs("pull", host, trainer.published)
    state = (host / ".weight_sync/state.json").read_text()
    version = trainer.step()
    stfs("apply", host, version)
    (host / ".weight_sync/state.json").write_text(state)
    succeeds_with_room(disk, host, "apply", host, version)
    assert trainer.version_of(host) == state_of(host) == 1


@pytest.mark.sequential
def test_a_full_version_for_a_new_host(disk, trainer):
    host = disk / "host"
    host.mkdir()
    (host / "foreign").write_text("stays")
    assert succeeds_with_room(disk, host, "pull", host, trainer.published)
    assert trainer.version_of(host) == state_of(host) == 0


@pytest.mark.sequential
@pytest.mark.parametrize("shards", [1, 2])
def test_a_full_version_with_other_tensors(disk, published, shards):
    save(version_directory(published, 0), TENSORS, shards)
    host = disk / "host"
    stfs("pull", host, published)
    (host / "foreign").write_text("stays")
    other = {f"other.{at}": archive_file.random_array("f2", (20_001 + 1000 * at,), 9 + at) for at in range(6)}
    save(version_directory(published, 1), other, shards)
    (version_directory(published, 1) / "config.json").write_text("{}")
    assert succeeds_with_room(disk, host, "pull", host, published)
    assert tensors_of(host) == {name: array.tobytes() for name, array in other.items()} and state_of(host) == 1
    assert sum(name.endswith(".safetensors") for name in os.listdir(host)) == shards
