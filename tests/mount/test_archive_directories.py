# A directory of archives: each archive is a directory of the mount, and its changes and errors do not affect the others.
# test_replacement.py and tests/fs/source_test.cc test changed and bad archives; test_new_models.py tests other files beside them.
import errno
import mmap
import os

import archive_file
import numpy as np
import pytest
from archive_file import ArchiveFile, random_bytes, save_with_reference
from mounted import errno_of, shell
from sharded_model import read_archive_view


@pytest.fixture
def zoo(tmp_path):
    directory = tmp_path / "zoo"
    directory.mkdir()
    for number, name in enumerate(["tiger", "owl.v2"]):
        tensors = {"w": archive_file.random_array("f4", (10, 20), number),
                   "b": archive_file.random_array("f2", (7,), number)}
        save_with_reference(directory / f"{name}.safetensors", tensors)
    (directory / "README").write_text("no archive")
    return directory


def test_each_archive_of_a_directory_is_a_directory(zoo, mounts):
    mount = mounts(zoo)
    assert sorted(os.listdir(mount.path)) == ["README", "owl.v2", "tiger"]
    assert not (mount / "README").is_symlink() and (mount / "README").read_text() == "no archive"
    assert mount.entry()[0] == str(zoo)
    inodes = set()
    for name in ("owl.v2", "tiger"):
        archive = ArchiveFile(zoo / f"{name}.safetensors")
        assert sorted(os.listdir(mount / name)) == ["b", "w"]
        for tensor in ("b", "w"):
            assert (mount / name / tensor).read_bytes() == archive.tensor(tensor)
            assert mount.attribute(f"{name}/{tensor}", "archive") == archive.path
            inodes.add((mount / name / tensor).stat().st_ino)
        views = mount / name / ".safetensors"
        assert read_archive_view(views / "archive.safetensors") == archive.reference()
        want = np.frombuffer(archive.tensor("w"), "<f4").reshape(10, 20)
        found = np.load(views / "slice" / "w[2:4].npy")
        np.testing.assert_array_equal(found.view("u4"), want[2:4].copy().view("u4"))
    assert len(inodes) == 4
    done = shell('find "$1" -type f | wc -l; ls -lR "$1" >/dev/null', mount.path)
    assert done.stdout.split() == ["5"] and done.stderr == ""


def test_writes_and_transactions_stay_in_their_archive(zoo, mounts):
    mount = mounts(zoo)
    other = (zoo / "owl.v2.safetensors").read_bytes()
    data = random_bytes(800, 5)
    (mount / "tiger" / "w").write_bytes(data)
    assert (mount / "tiger" / "w").read_bytes() == data
    directory = mount / "tiger" / ".safetensors" / "transactions" / "T"
    directory.mkdir()
    (directory / "b").write_bytes(b"12345678901234")
    (directory / "w").write_bytes(random_bytes(800, 6))
    assert errno_of(lambda: os.rename(directory, mount / "owl.v2" / ".safetensors" / "committed" / "T")) == errno.EXDEV
    os.rename(directory, mount / "tiger" / ".safetensors" / "committed" / "T")
    archive = ArchiveFile(zoo / "tiger.safetensors")
    assert archive.tensor("b") == b"12345678901234" and archive.tensor("w") == random_bytes(800, 6)
    assert (mount / "tiger" / "b").read_bytes() == b"12345678901234"
    assert (zoo / "owl.v2.safetensors").read_bytes() == other
    for act in (lambda: os.rmdir(mount / "tiger"), lambda: os.rename(mount / "tiger", mount / "lion")):
        assert errno_of(act) == errno.EPERM
    assert os.listxattr(mount.path) == []
    assert errno_of(lambda: os.getxattr(mount.path, "user.safetensors.archive")) == errno.ENODATA


def test_a_directory_read_only(zoo, mounts):
    mount = mounts(zoo, "ro")
    assert "ro" in mount.entry()[2]
    assert errno_of(lambda: (mount / "tiger" / "w").write_bytes(b"x" * 800)) == errno.EROFS
    assert (mount / "tiger" / "w").read_bytes() == ArchiveFile(zoo / "tiger.safetensors").tensor("w")


def contents(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_read_only_mounts_change_no_other_file_of_the_directory(zoo, mounts):
    (zoo / "notes.txt").write_text("kept")
    (zoo / "sub" / "deep").mkdir(parents=True)
    (zoo / "sub" / "deep" / "x").write_text("deep")
    before = contents(zoo)
    mount = mounts(zoo, "ro")
    assert not [entry.name for entry in os.scandir(mount.path) if entry.is_symlink()]
    for name in ("notes.txt", "sub/deep/x"):
        path = mount / name
        for act in (lambda: path.write_text("lost"), lambda: os.truncate(path, 0), lambda: os.unlink(path),
                    lambda: open(path, "a"), lambda: open(path, "r+"), lambda: os.chmod(path, 0o777),
                    lambda: os.rename(path, mount / "moved"), lambda: os.utime(path, (1, 1))):
            assert errno_of(act) == errno.EROFS, name
    for act in (lambda: (mount / "new").write_text("x"), lambda: (mount / "sub" / "new").write_text("x"),
                lambda: os.mkdir(mount / "sub" / "new"), lambda: os.rmdir(mount / "sub" / "deep"),
                lambda: os.symlink("x", mount / "sub" / "new")):
        assert errno_of(act) == errno.EROFS
    assert shell('echo x > "$1/notes.txt"', mount.path).returncode != 0
    assert contents(zoo) == before
    for number in range(3):  # the listing is that of now
        (zoo / f"late{number}").write_text("late")
        assert f"late{number}" in os.listdir(mount.path) and (mount / f"late{number}").read_text() == "late"


def test_a_large_file_beside_the_models_reads_whole(zoo, mounts):
    data = random_bytes(50_000_000, 3)
    (zoo / "large.gguf").write_bytes(data)
    mount = mounts(zoo, "ro")
    assert (mount / "large.gguf").read_bytes() == data
    with open(mount / "large.gguf", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[-1000:] == data[-1000:]
    # Another program's change is seen at the next open.
    (zoo / "large.gguf").write_bytes(b"small")
    assert (mount / "large.gguf").read_bytes() == b"small"


def test_many_names_beside_the_models_are_listed_once(zoo, mounts):
    names = sorted(f"file.{number:05d}" for number in range(5000))
    for name in names:
        (zoo / name).touch()
    mount = mounts(zoo)
    assert sorted(os.listdir(mount.path)) == sorted(["README", "owl.v2", "tiger", *names])
    done = shell('ls -lU "$1" | wc -l', mount.path)
    assert done.stdout.split() == [str(len(names) + 4)] and done.stderr == ""
