# A user who may write a directory of models plants an index there. This user must not choose or stop the content of a mount of
# the directory, or the model that a tool takes.
import json
import os
from pathlib import Path

import pytest
from test_journal_users import ALICE, Shared, is_run_by
from test_planted_files import MALLORY, VICTIMS, as_mallory, plant

NAME = "model.safetensors.index.json"
TEXT = json.dumps({"metadata": {}, "weight_map": {"evil": "model.safetensors"}}).encode()

pytestmark = pytest.mark.needs_root


@pytest.fixture
def shared(planted_ground):
    """Alice's archive, in a directory of hers that everybody may write."""
    directory, ground = planted_ground
    shared = Shared(directory, ground / "archives")
    shared.give(0o644, 0o777, ALICE)
    return shared


def own_index(shared, name):
    """Alice's, in a directory of its own."""
    path = Path(shared.directory, "ground", name)
    path.write_bytes(TEXT)
    os.chown(path, ALICE, ALICE)
    path.chmod(0o666)  # Mallory may link it, whatever protected_hardlinks says
    return path


PLANTED = {"a file": lambda shared, path: plant(path, TEXT),
           "a link": lambda shared, path: as_mallory('ln -s "$1" "$2"', own_index(shared, "own"), path),
           "a hard link": lambda shared, path: as_mallory('ln "$1" "$2"', own_index(shared, "own"), path),
           "a link to nothing": lambda shared, path: as_mallory('ln -s nothing "$1"', path),
           "a directory": lambda shared, path: as_mallory('mkdir "$1"', path),
           "a pipe": lambda shared, path: as_mallory('mkfifo "$1"', path)}
planted = pytest.mark.parametrize("make", PLANTED.values(), ids=PLANTED.keys())
open_to = pytest.mark.parametrize("mode", [0o777, 0o1777])


@planted
@open_to
@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_tools_take_the_archive_and_not_a_planted_index(shared, make, mode, victim):
    shared.give(0o644, mode, ALICE)
    make(shared, Path(shared.archives, NAME))
    listed = is_run_by(victim, victim, [shared.stfs, "ls", shared.archives], timeout=60)
    assert listed.returncode == 0 and "evil" not in listed.stdout and "a " in listed.stdout, listed
    # With no archive to take instead, the index is named.
    os.rename(shared.path, Path(shared.directory, "ground", "moved"))
    refused = is_run_by(victim, victim, [shared.stfs, "ls", shared.archives], timeout=60)
    assert refused.returncode == 1 and f'the index "{NAME}" is ignored' in refused.stderr, refused


@planted
@open_to
def test_a_mount_shows_the_archives_and_not_a_planted_index(shared, make, mode, mounts):
    shared.give(0o644, mode, ALICE)
    make(shared, Path(shared.archives, NAME))
    mount = mounts(shared.archives)
    # The root also shows the directory's other files, as they are.
    assert set(os.listdir(mount.path)) - {NAME} == {"model"}
    assert (mount / "model/a").read_bytes() == shared.data_of("a")
    assert f'the index "{NAME}" is ignored' in mount.log()
    assert mount.unmount() == 0


def test_a_mount_of_another_user_is_not_stopped_either(shared, mounts, nobody):
    plant(Path(shared.archives, NAME), b"no index")
    mount = nobody.mount(mounts, shared.archives, "ro")
    assert mount.sh("ls model").stdout.split() == ["a", "b", "c"]
    assert f'the index "{NAME}" is ignored: other users may write the directory, and it belongs to user {MALLORY}' in mount.log()
    assert mount.unmount() == 0


def test_the_owners_index_counts_beside_a_planted_one(shared, mounts):
    own = Path(shared.archives, "own.safetensors.index.json")
    own.write_text(json.dumps({"metadata": {}, "weight_map": {"a": "model.safetensors"}}))
    os.chown(own, ALICE, ALICE)
    plant(Path(shared.archives, NAME), TEXT)
    mount = mounts(shared.archives)
    assert (mount / "a").read_bytes() == shared.data_of("a")
    assert f'the index "{NAME}" is ignored' in mount.log()
    assert mount.unmount() == 0
    # A person may name the index.
    os.unlink(own)
    named = is_run_by(ALICE, ALICE, [shared.stfs, "ls", os.path.join(shared.archives, NAME)])
    assert "evil" in named.stdout + named.stderr, named


def test_an_index_of_the_group_counts_where_only_the_owner_may_write(shared, mounts):
    path = Path(shared.archives, NAME)
    path.write_text(json.dumps({"metadata": {}, "weight_map": {"a": "model.safetensors"}}))
    os.chown(path, MALLORY, MALLORY)
    shared.give(0o644, 0o755, ALICE)
    mount = mounts(shared.archives)
    assert (mount / "a").read_bytes() == shared.data_of("a")
    assert "is ignored" not in mount.log()
    assert mount.unmount() == 0
