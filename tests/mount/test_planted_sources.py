# Another user moves a private file of root's to the path of a source. Root's tools do not copy it into a model that this user
# may read.
import os
from pathlib import Path

import pytest
from access_list import let_user
from archive_file import random_bytes, write_bytes_tensors
from test_journal_users import ALICE, Shared, is_run_by
from test_planted_files import MALLORY, as_mallory

pytestmark = pytest.mark.needs_root

SECRET = b"secret text " * 8 + b"text"


class Scene(Shared):
    """A model that all may read, and a directory that all may write."""

    def __init__(self, directory, ground):
        super().__init__(directory, ground / "archives")
        self.give(0o644, 0o755, 0)
        self.shared = ground / "shared"
        self.shared.mkdir()
        self.shared.chmod(0o777)
        self.model = write_bytes_tensors(Path(self.archives, "public.safetensors"), {"t": random_bytes(100, 1)})
        self.model.chmod(0o644)
        self.before = self.model.read_bytes()

    def private(self, name, mode=0o600):
        """A file of root's in the shared directory: an archive, or the bytes of a tensor."""
        path = self.shared / name
        if name.endswith(".safetensors"):
            write_bytes_tensors(path, {"t": SECRET})
        else:
            path.write_bytes(SECRET)
        path.chmod(mode)
        return path

    def as_root(self, *arguments):
        return is_run_by(0, 0, [self.stfs, *map(str, arguments)], timeout=60)


@pytest.fixture
def scene(planted_ground):
    return Scene(*planted_ground)


VERBS = {
    "put of an archive": ("private.safetensors", lambda model, source: ("put", model, "t", source)),
    "put of raw bytes": ("private.bin", lambda model, source: ("put", model, "t", source)),
    "put of a new tensor": ("private.bin", lambda model, source: ("put", "-c", "--dtype", "U8", model, "new", source)),
    "apply": ("private.safetensors", lambda model, source: ("apply", model, source)),
    "set": ("private.bin", lambda model, source: ("set", model, "--metadata", f"key=@{source}")),
}
each_verb = pytest.mark.parametrize("name, command", VERBS.values(), ids=VERBS.keys())


@each_verb
def test_a_private_file_that_another_user_has_moved_is_not_copied_into_a_public_model(scene, name, command):
    source = scene.private(name)
    moved = source.with_name("update" + source.suffix)
    as_mallory('mv "$1" "$2"', source, moved)
    done = scene.as_root(*command(scene.model, moved))
    assert done.returncode != 0
    assert "Its directory may be written by every user" in done.stderr and str(scene.model) in done.stderr
    assert scene.model.read_bytes() == scene.before


def test_a_file_that_was_moved_to_a_directory_of_its_mover_is_refused(scene):
    source = scene.private("private.bin")
    as_mallory('mkdir "$1" && mv "$2" "$1/update.bin"', scene.shared / "own", source)
    done = scene.as_root("put", scene.model, "t", scene.shared / "own" / "update.bin")
    assert done.returncode != 0 and "Its directory may be written by user" in done.stderr
    assert scene.model.read_bytes() == scene.before


def test_a_private_delta_that_another_user_has_moved_is_not_committed(scene):
    changed = scene.private("changed.safetensors")
    delta = scene.shared / "private.safetensors"
    made = scene.as_root("diff", scene.model, changed, "--out", delta)
    assert made.returncode == 0, made.stderr
    delta.chmod(0o600)
    moved = scene.shared / "update.safetensors"
    as_mallory('mv "$1" "$2"', delta, moved)
    done = scene.as_root("commit", "--base", scene.model, moved)
    assert done.returncode != 0 and "Its directory may be written by every user" in done.stderr
    assert scene.model.read_bytes() == scene.before
    moved.chmod(0o644)
    assert scene.as_root("commit", "--base", scene.model, moved).returncode == 0


def test_a_link_to_a_private_file_in_a_sticky_directory_is_refused(scene):
    scene.shared.chmod(0o1777)
    source = scene.private("private.bin")
    os.link(source, scene.shared / "update.bin")  # where protected_hardlinks is 0, each user may make it
    done = scene.as_root("put", scene.model, "t", scene.shared / "update.bin")
    assert done.returncode != 0 and scene.model.read_bytes() == scene.before


@pytest.mark.parametrize("mode", [0o604, 0o640])
def test_a_source_that_its_group_or_others_may_not_read_is_private(scene, mode):
    moved = scene.shared / "update.bin"
    as_mallory('mv "$1" "$2"', scene.private("private.bin", mode), moved)
    done = scene.as_root("put", scene.model, "t", moved)
    assert done.returncode != 0 and scene.model.read_bytes() == scene.before


def test_a_file_in_a_sticky_directory_of_its_mover_is_refused(scene):
    source = scene.private("private.bin")
    moved = scene.shared / "own" / "update.bin"
    as_mallory('mkdir "$1" && chmod 1777 "$1" && mv "$2" "$3"', moved.parent, source, moved)
    done = scene.as_root("put", scene.model, "t", moved)
    assert done.returncode != 0 and "Its directory may be written by user" in done.stderr
    assert scene.model.read_bytes() == scene.before


def test_a_model_with_an_access_control_list_has_more_readers_than_its_mode_says(scene):
    scene.model.chmod(0o600)
    let_user(MALLORY, 0o4, scene.model)
    source = scene.private("private.bin")
    moved = source.with_name("update.bin")
    as_mallory('mv "$1" "$2"', source, moved)
    done = scene.as_root("put", scene.model, "t", moved)
    assert done.returncode != 0 and scene.model.read_bytes() == scene.before
    moved.chmod(0o644)
    assert scene.as_root("put", scene.model, "t", moved).returncode == 0


def test_a_file_of_a_third_user_in_a_sticky_directory_is_refused(scene):
    scene.shared.chmod(0o1777)
    source = scene.private("private.bin")
    os.chown(source, ALICE, ALICE)
    done = scene.as_root("put", scene.model, "t", source)
    assert done.returncode != 0 and scene.model.read_bytes() == scene.before


@each_verb
def test_a_private_file_in_a_directory_with_the_sticky_bit_is_copied(scene, name, command):
    scene.shared.chmod(0o1777)
    done = scene.as_root(*command(scene.model, scene.private(name)))
    assert done.returncode == 0, done.stderr


@each_verb
def test_a_source_that_all_may_read_is_copied_from_each_directory(scene, name, command):
    done = scene.as_root(*command(scene.model, scene.private(name, 0o644)))
    assert done.returncode == 0, done.stderr


@each_verb
def test_a_private_source_is_copied_into_a_private_model(scene, name, command):
    scene.model.chmod(0o600)
    done = scene.as_root(*command(scene.model, scene.private(name)))
    assert done.returncode == 0, done.stderr
