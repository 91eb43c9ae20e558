# Another user's archives in a mounted directory of models: they hide no other user's files, and don't fill the mount's memory.
# Rows of packaging/doc/threats.md.
import os
import struct
import subprocess

import pytest
from archive_file import write_bytes_tensors
from attacker import ALICE, MALLORY, as_user
from mounted import eventually

pytestmark = pytest.mark.needs_root

TEXT = b'{"of": "Alice"}'


@pytest.fixture
def directory(tmp_path):
    """Users may make files there, and remove only their own. Alice has a model in it and a file beside it."""
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(path.stat().st_mode | 0o111)
    directory = tmp_path / "models"
    directory.mkdir()
    directory.chmod(0o1777)
    add_model(directory / "a.safetensors", ALICE)
    (directory / "tokenizer.json").write_bytes(TEXT)
    give(directory / "tokenizer.json", ALICE)
    return directory


def give(path, uid):
    path.chmod(0o644)
    os.chown(path, uid, uid)


def add_model(path, uid):
    """It has its name only when it is that user's."""
    made = path.with_name("." + path.name)
    write_bytes_tensors(made, {"t": b"12345"})
    give(made, uid)
    made.rename(path)


def test_a_model_hides_no_older_file_of_another_user(directory, mounts):
    add_model(directory / "tokenizer.json.safetensors", MALLORY)
    mount = mounts(directory, "allow_other")
    assert (mount / "tokenizer.json").read_bytes() == TEXT
    assert "tokenizer.json.safetensors: not shown" in mount.log() and f"a file of user {ALICE}" in mount.log()


def test_a_model_that_comes_later_hides_no_file_of_another_user(directory, mounts):
    mount = mounts(directory, "allow_other")
    add_model(directory / "tokenizer.json.safetensors", MALLORY)
    add_model(directory / "b.safetensors", MALLORY)
    assert eventually(lambda: (mount / "b").is_dir())
    assert (mount / "tokenizer.json").read_bytes() == TEXT
    assert mount.log().count("tokenizer.json.safetensors: not shown") == 1


def test_the_owner_of_the_directory_may_hide_files(directory, mounts):
    add_model(directory / "tokenizer.json.safetensors", 0)
    mount = mounts(directory, "allow_other")
    assert (mount / "tokenizer.json" / "t").read_bytes() == b"12345"


def test_a_later_file_of_another_user_hides_no_model(directory, mounts):
    (directory / "a").write_bytes(b"x")
    give(directory / "a", MALLORY)
    mount = mounts(directory, "allow_other")
    assert (mount / "a" / "t").read_bytes() == b"12345"


def test_the_headers_of_one_user_fill_no_memory(directory, mounts):
    """A header may have 100 MB, and many names. One user has 512 MiB, and the last model may go beyond."""
    header = b"{}" + b" " * (100_000_000 - 8 - 2)
    first = directory / "b0.safetensors"
    first.write_bytes(struct.pack("<Q", len(header)) + header)
    give(first, MALLORY)
    for number in range(1, 8):
        os.link(first, directory / f"b{number}.safetensors")
    add_model(directory / "z.safetensors", ALICE)
    mount = mounts(directory, "allow_other")
    shown = [name for name in os.listdir(mount.path) if name.startswith("b") and (mount / name).is_dir()]
    assert len(shown) == 6
    assert f"user {MALLORY} has 536870912 bytes in headers of models" in mount.log()
    for name in ("a", "z"):
        assert (mount / name / "t").read_bytes() == b"12345"


def test_a_scratch_file_has_the_mode_of_its_makers_umask(directory, mounts):
    archive = directory / "a.safetensors"
    mount = mounts(archive, "allow_other")
    make = 'umask 077 && echo private > "$1"/notes && cat "$1"/notes'
    made = subprocess.run(as_user(ALICE, ["sh", "-c", make, "sh", mount.path]), capture_output=True, text=True)
    assert (made.returncode, made.stdout) == (0, "private\n"), made
    for path in (mount / "notes", directory / ".a.safetensors.scratch" / "notes"):
        assert path.stat().st_mode & 0o777 == 0o600
        assert subprocess.run(as_user(MALLORY, ["cat", path]), capture_output=True).returncode != 0
