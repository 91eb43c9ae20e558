# Edits in a transaction's directory while others read, write, commit and kill.
import errno
import json
import os
import random
import subprocess
import threading
import time

import pytest
from edited_mount import EditedMount, stfs, u8, write_tensor
from mounted import errno_of, eventually
from sharded_model import ShardedModel
from transaction_edits import METADATA, SIZES, begin, commit, edited, images  # noqa: F401


def test_an_open_file_is_busy_and_readers_keep_what_they_have_open(edited, open_fd):
    directory = begin(edited)
    reader = open_fd(edited / "large")
    os.rename(directory / "b", directory / "large")
    file = open(directory / "new", "wb", buffering=0)
    file.write(b"half")
    assert errno_of(commit, edited) == errno.EBUSY
    file.write(b" and half")
    os.setxattr(file.fileno(), "user.safetensors.dtype", b"U8")
    os.setxattr(file.fileno(), "user.safetensors.shape", b"[13]")
    file.close()
    old = edited.due["large"][2]
    commit(edited)
    assert os.pread(reader, len(old), 0) == old
    edited.due["large"] = edited.due.pop("b")
    edited.due["new"] = u8(b"half and half")
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
        edited = EditedMount(mounts(model.index), archives, {})
        edited.due = edited.stored()
        directory = begin(edited)
        name = random.Random(at).choice(sorted(edited.due))
        write_tensor(directory / f"new{at}", os.urandom(400_000))
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
        write_tensor(directory / "new", data)
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
        write_tensor(directory / f"step{step}", b"x")
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
                write_tensor(directory / "step1", b"x" * 1000)
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
