# Edits of the structure in a transaction's directory, by the commands that a person types: unseen until the move to
# committed/, then all of them in one commit. Each rule has its line in tests/fs/transaction_edit_test.cc.
import errno
import json
import os
import random
import shutil
import subprocess
import threading
import time

import numpy as np
import pytest
import safetensors
from edited_mount import RENAME_EXCHANGE, EditedMount, renameat2, save, stfs, u8
from mounted import errno_of, eventually, run_python, shell
from sharded_model import ShardedModel

SIZES = {"large": 300_001, "b": 3, "layers.0.c": 70_000, "layers.0.d": 4096, "layers.1.c": 70_000}
METADATA = "user.safetensors.metadata."


@pytest.fixture
def edited(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    due = save(path, SIZES)
    return EditedMount(mounts(path), [path], due)


def begin(edited, name="T"):
    directory = edited / ".safetensors" / "transactions" / name
    directory.mkdir()
    return directory


def commit(edited, name="T"):
    os.rename(edited / ".safetensors" / "transactions" / name, edited / ".safetensors" / "committed" / name)


def roll_back(directory):
    done = shell('rm -r "$1"', directory)
    assert done.returncode == 0, done.stderr


def images(directory):
    return {file.name: file.read_bytes() for file in directory.iterdir() if "safetensors" in file.name}


def run(command, **given):
    done = shell(command, **given)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def metadata_of(path):
    with safetensors.safe_open(path, "np") as archive:
        return archive.metadata() or {}


def test_everything_in_one_commit_of_a_sharded_model(tmp_path, mounts):
    model = ShardedModel(tmp_path / "sharded")
    edited = EditedMount(mounts(model.index), [model.directory / name for name in model.names], model.reference())
    before = images(model.directory)
    one, other, third = (model.tensors_of(name) for name in model.names)
    directory = begin(edited)
    patched, removed, moved, over, grown = one[0], one[1], other[0], third[0], other[1]
    data = os.urandom(len(edited.due[patched][2]))
    (tmp_path / "data").write_bytes(data)
    done = shell('cp "$1" "$2" && rm "$3" && mv "$4" "$5"', tmp_path / "data", directory / patched,
                 directory / removed, directory / moved, directory / over)
    assert done.returncode == 0, done.stderr
    (directory / "new").write_bytes(b"x" * 100_000)
    with open(directory / grown, "r+b", buffering=0) as file:
        os.setxattr(directory / grown, "user.safetensors.dtype", b"F32")
        os.setxattr(directory / grown, "user.safetensors.shape", b"[5]")
        file.write(b"12345678901234567890")
    os.setxattr(directory, METADATA + "tuned", b"yes")
    assert images(model.directory) == before
    edited.check()  # nothing of it is seen outside
    assert shell('mv "$1" "$2"', directory, edited / ".safetensors/committed").returncode == 0
    due = edited.due
    due[patched] = (*due[patched][:2], data)
    del due[removed]
    due[over] = due.pop(moved)
    due["new"] = u8(b"x" * 100_000)
    due[grown] = ("F32", [5], b"12345678901234567890")
    edited.check()
    assert edited.mount.attribute(None, "metadata.tuned") == "yes"
    assert metadata_of(edited.archives[0])["tuned"] == "yes"
    assert metadata_of(edited.view)["tuned"] == "yes"
    assert json.loads(model.index.read_text())["weight_map"].keys() == due.keys()
    assert os.listdir(edited / ".safetensors/committed") == ["T"]
    stfs("verify", model.index)
    edited.mount.unmount()
    assert images(model.directory).keys() == before.keys()


def test_the_commands_of_a_shell(edited, tmp_path):
    directory = begin(edited)
    (tmp_path / "new.bin").write_bytes(b"abcdefgh")
    before = images(tmp_path)
    for command in ("cp {0}/new.bin new", "setfattr -n user.safetensors.dtype -v F16 new",
                    "rm b", "mv layers.0.c renamed", "mv large layers.1.c",
                    "setfattr -n user.safetensors.dtype -v BF16 layers.0.d",
                    "setfattr -n user.safetensors.metadata.note -v 'hello world' .",
                    "cp {0}/new.bin dropped", "rm dropped", "echo hello > text"):
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
    (directory / "new").write_bytes(b"mine")
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


def test_an_open_file_is_busy_and_readers_keep_what_they_have_open(edited, open_fd):
    directory = begin(edited)
    reader = open_fd(edited / "large")
    os.rename(directory / "b", directory / "large")
    file = open(directory / "new", "wb", buffering=0)
    file.write(b"half")
    assert errno_of(commit, edited) == errno.EBUSY
    file.write(b" and half")
    file.close()
    old = edited.due["large"][2]
    commit(edited)
    assert os.pread(reader, len(old), 0) == old
    edited.due["large"] = edited.due.pop("b")
    edited.due["new"] = u8(b"half and half")
    edited.check()


def test_a_new_file_may_be_mapped_cut_appended_and_sparse(edited):
    directory = begin(edited)
    made = np.memmap(directory / "mapped", dtype="u1", mode="w+", shape=(10_000,))
    made[:] = np.arange(10_000) % 251
    made.flush()
    del made
    fd = os.open(directory / "sparse", os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, b"end", 100_000)
    os.ftruncate(fd, 100_001)
    os.close(fd)
    run("printf abc > appended; printf def >> appended; : > empty", cwd=directory)
    assert (directory / "mapped").read_bytes() == bytes(at % 251 for at in range(10_000))
    commit(edited)
    edited.due["mapped"] = u8(bytes(at % 251 for at in range(10_000)))
    edited.due["sparse"] = u8(bytes(100_000) + b"e")
    edited.due["appended"] = u8(b"abcdef")
    edited.due["empty"] = u8(b"")
    edited.check()


def test_a_killed_daemon_leaves_nothing(edited, mounts, tmp_path):
    before = images(tmp_path)
    directory = begin(edited)
    (directory / "new").write_bytes(os.urandom(500_000))
    (directory / "large").write_bytes(os.urandom(SIZES["large"]))
    os.unlink(directory / "b")
    os.rename(directory / "layers.0.c", directory / "c")
    edited.mount.kill()
    assert images(tmp_path) == before
    again = EditedMount(mounts(tmp_path / "m.safetensors"), edited.archives, edited.due)
    again.check()
    assert os.listdir(again / ".safetensors/transactions") == []


def test_a_daemon_killed_during_the_commit_leaves_all_or_nothing(tmp_path, mounts):
    model = ShardedModel(tmp_path / "sharded")
    archives = [model.directory / name for name in model.names]
    outcomes = set()
    for at in range(10):
        edited = EditedMount(mounts(model.index), archives, model.reference() if at == 0 else due)
        edited.due = edited.stored()
        directory = begin(edited)
        name = random.Random(at).choice(sorted(edited.due))
        (directory / f"new{at}").write_bytes(os.urandom(400_000))
        os.rename(directory / name, directory / f"{name}.{at}")
        os.setxattr(directory, METADATA + "step", str(at).encode())
        done = threading.Thread(target=errno_of, args=(commit, edited))
        done.start()
        time.sleep(at * 0.002)
        edited.mount.kill()
        done.join()
        stfs("recover", model.index)
        due = dict(edited.due)
        after = dict(due)
        after[f"{name}.{at}"] = after.pop(name)
        found = edited.stored()
        new = found.pop(f"new{at}", None)
        assert found == (due if new is None else after), at
        assert json.loads(model.index.read_text())["weight_map"].keys() == edited.stored().keys()
        stfs("verify", model.index)
        outcomes.add(new is None)
        due = edited.stored()
    assert outcomes  # a slow machine may see one of them only


def test_in_a_tree_names_are_flat_and_directories_follow(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    due = save(path, SIZES)
    tree = EditedMount(mounts(path, "layout=tree"), [path], due)
    directory = begin(tree)
    os.rename(directory / "layers.0.c", directory / "head.w")
    (directory / "x.y.z").write_bytes(b"new")
    os.unlink(directory / "layers.1.c")
    assert sorted(os.listdir(directory)) == ["head.w", "x.y.z"]
    commit(tree)
    due["head.w"] = due.pop("layers.0.c")
    due["x.y.z"] = u8(b"new")
    del due["layers.1.c"]
    tree.due = due
    tree.check({name.replace(".", "/"): name for name in due})


def test_each_model_of_a_directory_has_transactions(tmp_path, mounts):
    due = save(tmp_path / "one.safetensors", SIZES)
    save(tmp_path / "two.safetensors", SIZES, seed=2)
    other = (tmp_path / "two.safetensors").read_bytes()
    mount = mounts(tmp_path)
    model = mount / "one"
    directory = model / ".safetensors" / "transactions" / "T"
    directory.mkdir()
    os.unlink(directory / "b")
    (directory / "new").write_bytes(b"new")
    os.rename(directory, model / ".safetensors" / "committed" / "T")
    del due["b"]
    due["new"] = u8(b"new")
    assert sorted(os.listdir(model)) == sorted(due)
    edited = EditedMount(mount, [tmp_path / "one.safetensors"], due)
    assert edited.stored() == due
    assert (tmp_path / "two.safetensors").read_bytes() == other


@pytest.mark.parametrize("options", ["", ",edit=off"])
def test_a_delta_takes_transactions_and_its_base_stays(tmp_path, mounts, options):
    (tmp_path / "base").mkdir()
    base, delta = tmp_path / "base" / "m.safetensors", tmp_path / "delta.safetensors"
    due = save(base, SIZES)
    image = base.read_bytes()
    mount = mounts(base, f"delta={delta}{options}")
    for step in range(2):  # the second time the patched tensor is one of the delta
        directory = mount / ".safetensors" / "transactions" / "T"
        directory.mkdir()
        with open(directory / "large", "r+b") as file:
            file.seek(1000)
            file.write(b"patched %d" % step)
        (directory / "layers.0.d").write_bytes(b"%d" % step * 4096)
        if not options:
            os.rename(directory / "b", directory / f"b{step}") if step == 0 else os.unlink(directory / "b0")
            (directory / f"new{step}").write_bytes(b"new")
            os.setxattr(directory, METADATA + "step", b"%d" % step)
        with open(mount / "large", "rb", buffering=0) as reader:
            reader.read(4096)
            os.rename(directory, mount / ".safetensors" / "committed" / "T")
            due["large"] = u8(due["large"][2][:1000] + b"patched %d" % step + due["large"][2][1009:])
            reader.seek(0)
            assert reader.readall() == due["large"][2]
        due["layers.0.d"] = u8(b"%d" % step * 4096)
        if not options:
            due[f"new{step}"] = u8(b"new")
            old = due.pop("b0", None) or due.pop("b")
            if step == 0:
                due["b0"] = old
            assert mount.attribute(None, "metadata.step") == str(step)
        EditedMount(mount, [], due).check_shown()
        assert base.read_bytes() == image
    mount.unmount()
    mount = mounts(base, f"delta={delta}")
    EditedMount(mount, [], due).check_shown()
    assert base.read_bytes() == image


def test_without_edits_only_patches_are_staged(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    due = save(path, SIZES)
    edited = EditedMount(mounts(path, "edit=off"), [path], due)
    directory = begin(edited)
    assert errno_of(os.unlink, directory / "b") == errno.EPERM
    assert errno_of(os.rename, directory / "b", directory / "x") == errno.EPERM
    assert errno_of((directory / "new").write_bytes, b"x") == errno.EPERM
    assert errno_of(os.setxattr, directory / "b", "user.safetensors.dtype", b"I8") == errno.EPERM
    assert errno_of(os.setxattr, directory, METADATA + "k", b"v") == errno.EPERM
    (directory / "b").write_bytes(b"123")
    commit(edited)
    edited.due["b"] = u8(b"123")
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
    assert errno_of(os.setxattr, directory, "user.safetensors.name", b"x") == errno.EPERM
    file = open(directory / "new", "wb", buffering=0)
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
os.remove(directory + "/b")
os.rename(directory, root + "committed/T")
assert "made" in os.listdir(sys.argv[1]) and "b" not in os.listdir(sys.argv[1])
""", edited.mount.path)
    assert done.returncode == 0, done.stderr
    del edited.due["b"]
    edited.due["made"] = ("F32", [1], b"0123")
    edited.check()


def test_two_transactions_of_different_tensors_both_commit(edited):
    one, other = begin(edited, "one"), begin(edited, "other")
    os.rename(one / "b", one / "bb")
    os.unlink(other / "large")
    (other / "layers.0.d").write_bytes(b"d" * 4096)
    commit(edited, "one")
    assert not (other / "b").exists() and (other / "bb").exists()
    commit(edited, "other")
    edited.due["bb"] = edited.due.pop("b")
    del edited.due["large"]
    edited.due["layers.0.d"] = u8(b"d" * 4096)
    edited.check()


def test_names_lead_to_the_new_tensors_as_soon_as_mv_returns(edited):
    edited.write("one", b"0" * 1000)
    edited.write("other", b"0" * 1000)
    for step in range(1, 31):
        directory = begin(edited, f"T{step}")
        data = b"%d" % (step % 10) * 1000
        (directory / "new").write_bytes(data)
        os.setxattr(directory / "new", "user.safetensors.dtype", b"I8")
        os.rename(directory / "new", directory / "one")
        os.rename(directory / "other", directory / "another")
        assert (edited / "one").read_bytes() != data and (edited / "other").exists()
        commit(edited, f"T{step}")
        assert (edited / "one").read_bytes() == data
        assert not (edited / "other").exists() and (edited / "another").exists()
        os.rename(edited / "another", edited / "other")
        edited.due["one"] = ("I8", [1000], data)
    edited.check()


def test_a_commit_ends_while_others_try_to_remove_its_directories(edited):
    stop = threading.Event()

    def remove(path):
        while not stop.is_set():
            assert errno_of(os.rmdir, path) != 0

    others = [threading.Thread(target=remove, args=(edited / path,), daemon=True)
              for path in (".safetensors", ".safetensors/transactions", ".safetensors/committed")]
    for other in others:
        other.start()
    for step in range(4):  # each may wait two seconds for a lock
        directory = begin(edited, f"T{step}")
        (directory / f"step{step}").write_bytes(b"x")
        if step > 0:
            os.unlink(directory / f"step{step - 1}")
        committer = threading.Thread(target=commit, args=(edited, f"T{step}"), daemon=True)
        committer.start()
        committer.join(20)
        assert not committer.is_alive(), "a commit hangs"
    stop.set()
    for other in others:
        other.join(20)
        assert not other.is_alive()
    edited.due["step3"] = u8(b"x")
    edited.check()


@pytest.mark.needs_root
@pytest.mark.sequential
def test_another_user_edits_in_a_transaction_only_what_he_may_write_as_a_whole(tmp_path, nobody, mounts):
    model = ShardedModel(tmp_path / "sharded", shards=2)
    one, other = (model.directory / name for name in model.names)
    one.chmod(0o666)
    other.chmod(0o644)
    model.index.chmod(0o666)
    mount = mounts(model.index, "allow_other", path=nobody.make_mount_point())
    mine = model.tensors_of(one.name)[0]

    def by_nobody(script):
        return subprocess.run([*nobody.before, "sh", "-c", f"cd '{mount.path}/.safetensors/transactions' && {script}"],
                              capture_output=True, text=True)

    assert by_nobody("mkdir T").returncode == 0
    for script in (f"rm T/'{mine}'", f"mv T/'{mine}' T/x", "echo > T/x", "setfattr -n user.safetensors.metadata.k -v v T"):
        done = by_nobody(script)
        assert done.returncode != 0 and "Permission denied" in done.stderr, (script, done.stderr)
    other.chmod(0o666)
    assert eventually(lambda: by_nobody(f"rm T/'{mine}'").returncode == 0)
    assert by_nobody("mv T ../committed/").returncode == 0
    assert mine not in os.listdir(mount.path)


def test_listings_and_reads_beside_the_commits_show_all_or_nothing_after_each_mv(edited):
    names = set(edited.due)
    newest, stop, wrong = [0], threading.Event(), []

    def read():
        while not stop.is_set():
            least = newest[0]
            found = [int(name[4:]) for name in os.listdir(edited.mount.path) if name.startswith("step")]
            if found and found[0] < least or len(found) > 1:
                wrong.append((least, found))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for step in range(1, 21):
            directory = begin(edited, f"T{step}")
            if step == 1:
                (directory / "step1").write_bytes(b"x" * 1000)
            else:
                os.rename(directory / f"step{step - 1}", directory / f"step{step}")
                (directory / f"step{step}").write_bytes(b"%c" % step * 1000)
            commit(edited, f"T{step}")
            newest[0] = step
            assert set(os.listdir(edited.mount.path)) == names | {f"step{step}"}
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert wrong == []
    edited.due["step20"] = u8(b"%c" % 20 * 1000)
    edited.check()
