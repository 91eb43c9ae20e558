# The tree: every tensor of the archive is visible once, under a name that a directory can hold. tests/fs/filesystem_tree_test.cc
# and inode_table_test.cc test the attributes of files and directories; test_scale.py has 100,000 files.
import errno
import os
import re

import pytest
from archive_file import ArchiveFile, write_bytes_tensors
from directory import DT_DIR, DT_REG, Directory
from mounted import errno_of

pytestmark = pytest.mark.sequential

SHORTENED = re.compile(r"~[0-9a-f]{16}\Z")


def encoded(name):
    """The rules of names, written down a second time."""
    if name == "":
        return "%"
    if name in (".", "..", ".safetensors"):
        return name.replace(".", "%2E") if name != ".safetensors" else "%2Esafetensors"
    return "".join(f"%{ord(c):02X}" if c in "%/\x7f" or ord(c) < 32 else c for c in name)


AWKWARD_NAMES = [
    "", ".", "..", "...", ".hidden", ".safetensors", ".safetensorsx", "%", "%%", "%2F", "%2E", "a/b", "a%2Fb",
    "/", "//", "a\nb", "\n", "\0", "a\0b", "\x01", "\x1f", "\x7f", "tab\there", " ", " leading", "trailing ",
    "-rf", "--help", "*", "?", "[a]", "\\", "'", '"', "$(reboot)", "naïve", "层.0.权重", "🙂", "~", "a~b",
    "\x80c1", "x" * 255, "é" * 127, "e\u0301", "\u00e9", "model.layers.0.self_attn.q_proj.weight",
]
LONG_NAMES = ["x" * 256, "x" * 257, "y" * 5000, "é" * 128, "é" * 200, "a" + "é" * 128, "ab" + "é" * 128,
              "层" * 86, "a" + "层" * 86, "ab" + "层" * 86, "🙂" * 64, "a" + "🙂" * 64, "/" * 86, "a" + "/" * 85,
              "\0" * 300, "%" * 86]


def contents_for(names):
    return {name: f"content of number {number}".encode() for number, name in enumerate(names)}


@pytest.fixture
def awkward(tmp_path, mounts):
    contents = contents_for(AWKWARD_NAMES + LONG_NAMES)
    mount = mounts(write_bytes_tensors(tmp_path / "awkward.safetensors", contents))
    mount.contents = contents
    return mount


def true_name(path):
    return os.getxattr(path, "user.safetensors.name").decode()


def test_every_awkward_name_is_visible_once_encoded_as_promised_and_reads_its_own_bytes(awkward):
    """How a long name is cut, and what else has the same short form: tests/fs/names_test.cc, inode_table_test.cc."""
    entries = os.listdir(awkward.path)
    assert len(entries) == len(set(entries)) == len(awkward.contents)
    shown = {true_name(awkward / entry): entry for entry in entries}
    assert {name: (awkward / entry).read_bytes() for name, entry in shown.items()} == awkward.contents
    assert {name: shown[name] for name in AWKWARD_NAMES} == {name: encoded(name) for name in AWKWARD_NAMES}
    for name in LONG_NAMES:
        assert SHORTENED.search(shown[name]) and encoded(name).startswith(shown[name][:-17]), name
        assert 250 <= len(os.fsencode(shown[name])) <= 255


def test_a_name_over_255_bytes_is_refused_as_everywhere(mount):
    for directory in (mount.path, mount / ".safetensors" / "npy"):
        assert errno_of(os.stat, directory / ("x" * 256)) == errno.ENAMETOOLONG
    transactions = mount / ".safetensors" / "transactions"
    assert errno_of(os.mkdir, transactions / ("x" * 256)) == errno.ENAMETOOLONG
    assert errno_of(os.mkdir, transactions / ("x" * 255)) == 0
    assert os.listdir(transactions) == ["x" * 255]


def test_a_slice_may_have_a_longer_name_than_a_file(tmp_path, mounts):
    name = "t" * 255
    mount = mounts(write_bytes_tensors(tmp_path / "m.safetensors", {name: b"abcd"}))
    assert (mount / ".safetensors" / "slice" / f"{name}[1:3]").read_bytes() == b"bc"


def test_inode_numbers_are_unique_and_agree_with_readdir_and_so_do_types(mount):
    with Directory(mount.path) as directory:
        found = directory.rest()
    entries = [entry for entry in found if entry[0] not in (".", "..")]
    assert [kind for name, _, kind in found if name in (".", "..")] == [DT_DIR, DT_DIR]
    assert {kind for _, _, kind in entries} == {DT_REG}
    inodes = [ino for _, ino, _ in entries]
    assert len(set(inodes)) == len(inodes)
    assert os.stat(mount.path).st_ino not in inodes
    assert all(os.stat(mount / name).st_ino == ino for name, ino, _ in entries)


def test_two_readers_of_one_directory_do_not_disturb_each_other(mount, archive):
    with Directory(mount.path) as one, Directory(mount.path) as two:
        first = [one.next() for _ in range(5)]
        assert len(two.rest()) == len(archive.layout()) + 2
        assert len(first + one.rest()) == len(archive.layout()) + 2


def test_an_archive_without_tensors_is_an_empty_directory(tmp_path, mounts):
    mount = mounts(write_bytes_tensors(tmp_path / "none.safetensors", {}))
    assert os.listdir(mount.path) == []


# ---- layout=tree ----

@pytest.fixture
def tree(tmp_path, mounts):
    names = ["model.layers.0.weight", "model.layers.0.bias", "model.layers.10.weight", "model.norm", "lm_head",
             "a", "a.b", "a.b.c", "x..y", ".first", "last.", "", ".", "..", "p/q.r", "s.%", "t.\n",
             "long." + "z" * 300, "z" * 300 + ".long"]
    contents = contents_for(names)
    mount = mounts(write_bytes_tensors(tmp_path / "tree.safetensors", contents), "layout=tree")
    mount.contents = contents
    return mount


def files_below(path):
    return [os.path.join(where, name) for where, _, names in os.walk(path) for name in names]


def test_tree_layout_shows_each_tensor_once(tree):
    files = files_below(tree.path)
    shown = {true_name(path): open(path, "rb").read() for path in files}
    assert len(files) == len(tree.contents)
    assert shown == tree.contents


def test_writing_works_below_directories(tree):
    archive = ArchiveFile(tree.source)
    size_bytes = archive.size("model.layers.0.weight")
    (tree / "model/layers/0/weight").write_bytes(b"n" * size_bytes)
    assert archive.tensor("model.layers.0.weight") == b"n" * size_bytes
