# A user who may write the directory above a mounted directory of models puts another directory at its path. The mount keeps the
# directory that it has opened.
import os

import pytest
from archive_file import write_bytes_tensors
from mounted import eventually
from test_journal_users import is_run_by
from test_planted_files import MALLORY, as_mallory

pytestmark = pytest.mark.needs_root


def read_by_mallory(path):
    done = is_run_by(MALLORY, MALLORY, ["cat", str(path)], text=False, timeout=60)
    return done.stdout if done.returncode == 0 else None


def test_a_private_directory_that_another_user_puts_at_the_path_is_not_shown(planted_ground, mounts):
    directory, ground = planted_ground
    models = ground / "models"
    private = ground / "private"
    for path, mode in ((models, 0o1777), (private, 0o700)):
        path.mkdir()
        path.chmod(mode)
    ground.chmod(0o777)
    write_bytes_tensors(models / "a.safetensors", {"t": b"shown"})
    write_bytes_tensors(private / "a.safetensors", {"t": b"other"})
    write_bytes_tensors(private / "s.safetensors", {"t": b"secret"})
    for archive in (models / "a.safetensors", private / "a.safetensors", private / "s.safetensors"):
        archive.chmod(0o644)
    point = directory / "mnt"
    point.mkdir()
    mount = mounts(models, "allow_other", path=point)
    as_mallory('mv "$1" "$1.old"; mv "$2" "$1"; touch "$1.old/new.safetensors"', models, private)
    assert eventually(lambda: "is another directory than the one that is mounted" in mount.log())
    assert os.listdir(mount.path) == ["a"]
    assert read_by_mallory(mount / "a" / "t") == b"shown"
    assert read_by_mallory(mount / "s" / "t") is None
    os.rename(models, private)
    os.rename(f"{models}.old", models)
    write_bytes_tensors(models / "b.safetensors", {"t": b"more"})
    assert eventually(lambda: sorted(os.listdir(mount.path)) == ["a", "b"])
    assert (mount / "b" / "t").read_bytes() == b"more"
