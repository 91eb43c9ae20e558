# The tree: every tensor of the archive is visible once, under a name that a directory can hold.
import errno
import os
import re
import stat
import subprocess

import pytest
from archive_file import ArchiveFile, write_bytes_tensors
from directory import DT_DIR, DT_REG, Directory
from mounted import errno_of

pytestmark = pytest.mark.sequential

SHORTENED = re.compile(r"~[0-9a-f]{16}\Z")


def encoded(name):
    """What DESIGN.md says about names, written down a second time."""
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


def test_flat_layout_lists_each_tensor_under_its_name(mount, archive):
    assert sorted(os.listdir(mount.path)) == sorted(archive.layout())


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


def test_the_same_file_names_come_back_at_the_next_mount(tmp_path, mounts):
    path = write_bytes_tensors(tmp_path / "a.safetensors", contents_for(AWKWARD_NAMES + LONG_NAMES))
    first = mounts(path)
    before = {entry: true_name(first / entry) for entry in os.listdir(first.path)}
    first.unmount()
    second = mounts(path)
    assert {entry: true_name(second / entry) for entry in os.listdir(second.path)} == before


@pytest.mark.parametrize("name", ["nothing", "layers", "layers.0", "layers.0.weight.", "Layers.0.weight",
                                  "%6Cayers.0.weight", "x" * 255, "a\nb", ".safetensorsx"])
def test_a_missing_name_is_enoent(mount, name):
    for _ in range(2):  # the second answer comes from the kernel's cache
        with pytest.raises(FileNotFoundError):
            os.stat(mount / name)


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


def test_nothing_is_found_below_a_tensor(mount):
    with pytest.raises(NotADirectoryError):
        os.stat(mount / "odd" / "x")


def test_a_tensor_is_a_regular_file_of_its_size(mount, archive):
    for name, (_, _, begin, end) in archive.layout().items():
        status = os.stat(mount / name)
        assert stat.S_ISREG(status.st_mode), name
        assert status.st_size == end - begin, name
        assert status.st_nlink == 1, name
        assert status.st_blocks * 512 >= status.st_size, f"{name}: du would show too little"


def test_files_take_owner_mode_and_time_from_the_archive(mount, archive):
    source, shown = os.stat(archive.path), os.stat(mount / "odd")
    assert (shown.st_uid, shown.st_gid) == (source.st_uid, source.st_gid)
    assert stat.S_IMODE(shown.st_mode) & 0o111 == 0
    assert abs(shown.st_mtime - source.st_mtime) < 2
    root = os.stat(mount.path)
    assert stat.S_ISDIR(root.st_mode) and stat.S_IMODE(root.st_mode) & 0o500 == 0o500


def test_uid_gid_and_umask_options_are_shown(archive, mounts):
    mount = mounts(archive.path, "uid=1234,gid=2345,umask=0077")
    status = os.stat(mount / "odd")
    assert (status.st_uid, status.st_gid) == (1234, 2345)
    assert stat.S_IMODE(status.st_mode) & 0o077 == 0
    root = os.stat(mount.path)
    assert (root.st_uid, root.st_gid) == (1234, 2345)
    assert stat.S_IMODE(root.st_mode) & 0o077 == 0


def test_inode_numbers_are_unique_and_agree_with_readdir(mount):
    with Directory(mount.path) as directory:
        entries = [entry for entry in directory.rest() if entry[0] not in (".", "..")]
    inodes = [ino for _, ino, _ in entries]
    assert len(set(inodes)) == len(inodes)
    assert os.stat(mount.path).st_ino not in inodes
    assert all(os.stat(mount / name).st_ino == ino for name, ino, _ in entries)


def test_readdir_tells_the_type_and_lists_dot_and_dotdot(mount):
    with Directory(mount.path) as directory:
        types = {name: kind for name, _, kind in directory.rest()}
    assert types.pop(".") == DT_DIR and types.pop("..") == DT_DIR
    assert set(types.values()) == {DT_REG}


def test_seekdir_goes_back_to_any_position(tmp_path, mounts):
    contents = contents_for([f"tensor.{number}" for number in range(2000)])
    mount = mounts(write_bytes_tensors(tmp_path / "many.safetensors", contents))
    with Directory(mount.path) as directory:
        positions, names = [], []
        while True:
            positions.append(directory.tell())
            entry = directory.next()
            if entry is None:
                break
            names.append(entry[0])
        assert len(set(names)) == 2002
        for index in (0, 1, 2, 3, 17, 500, 1999, 2001, 1000, 5):
            directory.seek(positions[index])
            assert directory.next()[0] == names[index]
        directory.seek(positions[1990])
        assert [name for name, _, _ in directory.rest()] == names[1990:]
        directory.rewind()
        assert [name for name, _, _ in directory.rest()] == names


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


def test_tree_layout_turns_dots_into_directories(tree):
    assert sorted(os.listdir(tree / "model")) == ["layers", "norm"]
    assert sorted(os.listdir(tree / "model/layers")) == ["0", "10"]
    assert (tree / "model/layers/0/weight").read_bytes() == tree.contents["model.layers.0.weight"]
    assert (tree / "lm_head").read_bytes() == tree.contents["lm_head"]


def test_tree_layout_shows_each_tensor_once(tree):
    files = files_below(tree.path)
    shown = {true_name(path): open(path, "rb").read() for path in files}
    assert len(files) == len(tree.contents)
    assert shown == tree.contents


@pytest.mark.parametrize("name, path", [
    ("x..y", "x/%/y"), (".first", "%/first"), ("last.", "last/%"), ("p/q.r", "p%2Fq/r"), ("s.%", "s/%25"),
    ("t.\n", "t/%0A")])
def test_tree_layout_encodes_components_like_names(tree, name, path):
    assert true_name(tree / path) == name


def test_find_and_tar_see_the_whole_tree(tree, tmp_path):
    found = subprocess.run(["find", tree.path, "-type", "f", "-print0"], capture_output=True)
    assert found.stdout.count(b"\0") == len(tree.contents) and found.returncode == 0
    copied = subprocess.run(["cp", "-r", tree.path, tmp_path / "copy"], capture_output=True, text=True)
    assert copied.returncode == 0, copied.stderr
    assert len(files_below(tmp_path / "copy")) == len(tree.contents)


def test_a_path_through_dotdot_comes_back(tree):
    assert (tree / "model/layers/../norm").read_bytes() == tree.contents["model.norm"]


def test_writing_works_below_directories(tree):
    archive = ArchiveFile(tree.source)
    size_bytes = archive.size("model.layers.0.weight")
    (tree / "model/layers/0/weight").write_bytes(b"n" * size_bytes)
    assert archive.tensor("model.layers.0.weight") == b"n" * size_bytes
