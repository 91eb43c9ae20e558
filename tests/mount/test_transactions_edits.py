# Edits of the structure in a transaction's directory, by the commands that a person types: unseen until the move to
# committed/, then all of them in one commit. Each rule has its line in tests/fs/transaction_edit_test.cc.
import errno
import json
import os
import shutil

import numpy as np
from edited_mount import RENAME_EXCHANGE, renameat2, u8, write_tensor
from mounted import errno_of, run_python, shell
from transaction_edits import METADATA, SIZES, begin, commit, edited, images, metadata_of, roll_back, run  # noqa: F401


def test_the_commands_of_a_shell(edited, tmp_path):
    directory = begin(edited)
    (tmp_path / "new.bin").write_bytes(b"abcdefgh")
    before = images(tmp_path)
    for command in ("cp {0}/new.bin new", "setfattr -n user.safetensors.dtype -v F16 new",
                    "rm b", "mv layers.0.c renamed", "mv large layers.1.c",
                    "setfattr -n user.safetensors.dtype -v BF16 layers.0.d",
                    "setfattr -n user.safetensors.metadata.note -v 'hello world' .",
                    "setfattr -n user.safetensors.shape -v [4] new",
                    "cp {0}/new.bin dropped", "rm dropped", "echo hello > text", "setfattr -n user.safetensors.dtype -v U8 text",
                    "setfattr -n user.safetensors.shape -v [6] text"):
        run(command.format(tmp_path), cwd=directory)
    assert run("ls", cwd=directory).split() == ["layers.0.d", "layers.1.c", "new", "renamed", "text"]
    assert run("cat text new", cwd=directory) == "hello\nabcdefgh"
    assert 'dtype="F16"' in run("getfattr -d new", cwd=directory)
    listed = run("getfattr -d .", cwd=directory)
    assert 'metadata.note="hello world"' in listed and "b" in listed
    assert json.loads(os.getxattr(directory, "user.safetensors.deleted")) == ["b", "layers.1.c"]
    assert errno_of(os.stat, directory / "b") == errno.ENOENT
    assert shell("cat large", cwd=directory).returncode != 0
    assert images(tmp_path) == before
    edited.check()
    run("mv transactions/T committed/", cwd=edited / ".safetensors")
    due = edited.due
    del due["b"]
    due["renamed"] = due.pop("layers.0.c")
    due["layers.1.c"] = due.pop("large")
    due["layers.0.d"] = ("BF16", [2048], due["layers.0.d"][2])
    due["new"] = ("F16", [4], b"abcdefgh")
    due["text"] = u8(b"hello\n")
    edited.check()
    assert metadata_of(edited.archives[0]) == {"note": "hello world"}


def test_rm_rolls_back_whatever_was_staged(edited, tmp_path):
    before = images(tmp_path)
    directory = begin(edited)
    (directory / "new").write_bytes(os.urandom(50_000))
    (directory / "large").write_bytes(os.urandom(SIZES["large"]))
    os.unlink(directory / "b")
    os.rename(directory / "layers.0.c", directory / "layers.0.d")
    assert renameat2(directory / "new", directory / "layers.1.c", RENAME_EXCHANGE) == 0
    (directory / "layers.0.c").write_bytes(b"another one")
    os.setxattr(directory / "layers.0.c", "user.safetensors.dtype", b"I8")
    os.setxattr(directory, METADATA + "k", b"v")
    roll_back(directory)
    assert os.listdir(edited / ".safetensors/transactions") == []
    edited.check()
    assert images(tmp_path) == before
    begin(edited)
    os.unlink(edited / ".safetensors/transactions/T/b")  # only deletions
    roll_back(directory)
    edited.check()
    edited.mount.unmount()
    assert images(tmp_path) == before


def test_editors_write_in_a_transaction(edited):
    edited.write("text", b"one two\n")
    directory = begin(edited)
    expected = b"one two\n"
    for command, word, by in (("sed -i s/one/ONE/ text", b"one", b"ONE"), ("perl -pi -e s/two/TWO/ text", b"two", b"TWO"),
                              ("vim -u NONE -es -c 's/ONE/One/' -c wq text < /dev/null", b"ONE", b"One")):
        if shutil.which(command.split()[0]) is None:
            continue
        run(command, cwd=directory)
        expected = expected.replace(word, by)
        assert (directory / "text").read_bytes() == expected
    assert (edited / "text").read_bytes() == b"one two\n"
    assert os.listdir(directory) == ["text"]
    commit(edited)
    edited.due["text"] = u8(expected)
    edited.check()


def test_a_refused_commit_changes_nothing_and_may_be_corrected(edited, tmp_path):
    directory = begin(edited)
    os.unlink(directory / "b")
    write_tensor(directory / "new", b"mine")
    os.rename(directory / "layers.0.c", directory / "c")
    edited.write("new", b"theirs")
    before = images(tmp_path)
    done = shell("mv transactions/T committed/", cwd=edited / ".safetensors")
    assert done.returncode != 0 and "Stale file handle" in done.stderr
    assert 'another program has made a tensor "new" since' in edited.mount.log()
    edited.check()
    assert images(tmp_path) == before
    os.rename(directory / "new", directory / "newer")
    edited.rename("layers.0.c", "elsewhere")
    assert errno_of(commit, edited) == errno.ESTALE
    assert 'tensor "layers.0.c" was renamed by another program' in edited.mount.log()
    edited.check()
    os.unlink(directory / "c")
    commit(edited)
    del edited.due["b"]
    edited.due["newer"] = u8(b"mine")
    edited.check()


def test_a_new_file_may_be_mapped_cut_appended_and_sparse(edited):
    directory = begin(edited)
    made = np.memmap(directory / "mapped", dtype="u1", mode="w+", shape=(10_000,))
    made[:] = np.arange(10_000) % 251
    made.flush()
    del made
    os.setxattr(directory / "mapped", "user.safetensors.dtype", b"U8")
    os.setxattr(directory / "mapped", "user.safetensors.shape", b"[10000]")
    fd = os.open(directory / "sparse", os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, b"end", 100_000)
    os.ftruncate(fd, 100_001)
    os.close(fd)
    run("printf abc > appended; printf def >> appended; : > empty", cwd=directory)
    for name, size in (("sparse", 100_001), ("appended", 6), ("empty", 0)):
        os.setxattr(directory / name, "user.safetensors.dtype", b"U8")
        os.setxattr(directory / name, "user.safetensors.shape", b"[%d]" % size)
    assert (directory / "mapped").read_bytes() == bytes(at % 251 for at in range(10_000))
    commit(edited)
    edited.due["mapped"] = u8(bytes(at % 251 for at in range(10_000)))
    edited.due["sparse"] = u8(bytes(100_000) + b"e")
    edited.due["appended"] = u8(b"abcdef")
    edited.due["empty"] = u8(b"")
    edited.check()


def test_names_and_forms_are_refused_where_they_are_set(edited, tmp_path):
    directory = begin(edited)
    for name in ("%zz", "__metadata__", "__safetensorsfs.free.0"):
        assert errno_of((directory / name).write_bytes, b"x") == errno.EILSEQ, name
        done = shell('mv "$1" "$2"', directory / "b", directory / name)
        assert done.returncode != 0 and "subdirectory of itself" not in done.stderr
    assert errno_of((directory / ("n" * 256)).write_bytes, b"x") == errno.ENAMETOOLONG
    assert errno_of(os.setxattr, directory / "b", "user.safetensors.shape", b"[4]") == errno.EINVAL
    assert errno_of(os.setxattr, directory / "b", "user.safetensors.dtype", b"F64") == errno.EINVAL
    assert errno_of(os.setxattr, directory, METADATA + "k", b"\xff") == errno.EINVAL
    assert errno_of(os.setxattr, directory, "user.safetensors.name", b"x") == 0  # ignored
    assert errno_of(os.setxattr, directory, "user.safetensors.unknown", b"x") == errno.EPERM
    file = open(directory / "new", "wb", buffering=0)
    os.setxattr(directory / "new", "user.safetensors.dtype", b"U8")
    os.setxattr(directory / "new", "user.safetensors.shape", b"[100]")
    file.write(b"short")
    assert errno_of(file.close) == errno.EINVAL
    done = shell("mv transactions/T committed/", cwd=edited / ".safetensors")
    assert done.returncode != 0 and "No data available" in done.stderr
    edited.check()
    roll_back(directory)
    edited.check()


def test_python_edits_in_a_transaction(edited):
    done = run_python("""
import os, sys, tempfile
root = sys.argv[1] + "/.safetensors/"
directory = root + "transactions/T"
os.mkdir(directory)
with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
    file.write(b"0123")
os.replace(file.name, directory + "/made")
os.setxattr(directory + "/made", "user.safetensors.dtype", b"F32")
os.setxattr(directory + "/made", "user.safetensors.shape", b"[1]")
os.remove(directory + "/b")
os.rename(directory, root + "committed/T")
assert "made" in os.listdir(sys.argv[1]) and "b" not in os.listdir(sys.argv[1])
""", edited.mount.path)
    assert done.returncode == 0, done.stderr
    del edited.due["b"]
    edited.due["made"] = ("F32", [1], b"0123")
    edited.check()
