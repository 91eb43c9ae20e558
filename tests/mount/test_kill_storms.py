# Repeated kill -9 at random moments: of mounts, of the tools, of pull. Nothing hangs, every archive stays valid, the
# model is the old one or the new one, and no file of ours is left. A run with --long makes 10,000 kills, together with
# test_killed_mounts.py.
import os
import shutil
import subprocess
import threading
import time

import archive_file
import killed_daemon
import numpy as np
import pytest
from edited_mount import STFS, content
from kill_storm import LIMIT, Commands, Storm, StoredModel, recover
from killed_daemon import WITH_FUSECTL, Namespace, Place
from mounted import unmount_by_force
from published_weights import Trainer, save, state_of

pytestmark = pytest.mark.once

LONG = "STFS_LONG" in os.environ


def kills(in_long_runs, ordinary):
    return int(os.environ.get("STFS_KILLS", in_long_runs if LONG else ordinary))


# Loops of programs in a mount while its daemon is killed; m is the mount point, b a buffer.
LOOPS = {
    "mv": "os.rename(m + '/t9', m + '/u9'); os.rename(m + '/u9', m + '/t9')",
    "create": "n += 1; open(f'{m}/n{n % 50}', 'wb').write(b'x' * 100)",
    "rm": "open(m + '/z', 'wb').write(b'x' * 100); os.unlink(m + '/z')",
    "write": "f = os.open(f'{m}/t{n % 4}', os.O_RDWR); os.write(f, d); os.close(f); n += 1",
    "read": "f = os.open(f'{m}/t{n % 4}', 0); os.posix_fadvise(f, 0, 0, 4); os.preadv(f, [b], 0); os.close(f); n += 1",
    "mapped": "f = os.open(f'{m}/t{n % 4}', 0); x = mmap.mmap(f, 0, mmap.MAP_SHARED, mmap.PROT_READ); x[::4096]; x.close(); "
              "os.posix_fadvise(f, 0, 0, 4); os.close(f); n += 1",
}
PROGRAM = """
import mmap, os, sys
m, n, b, d = sys.argv[1], 0, mmap.mmap(-1, 1 << 20), b"d" * 300_000
print("ready", flush=True)
while True:
    try: LOOP
    except OSError: pass  # refused, or the daemon has gone
"""


def start(place, loop):
    program = place.start(PROGRAM.replace("LOOP", LOOPS[loop]))
    assert program.stdout.readline() == "ready\n"
    return program


@pytest.mark.parametrize("loop", ["mv", "create", "rm", "read", "mapped"])
@pytest.mark.parametrize("who", ["root", "nobody"])
def test_a_daemon_that_is_killed_in_a_loop_hangs_nobody(tmp_path, nobody, who, loop):
    user = nobody if who == "nobody" else None
    arrays = {f"t{at}": np.zeros(300_000 if at < 4 else 5000, "u1") for at in range(40)}
    storm = Storm()
    space = Namespace(f"{WITH_FUSECTL} && {nobody.device}")
    try:
        place = Place(tmp_path, space, user)
        for _ in range(kills(200, 2)):
            path = archive_file.save_with_reference(tmp_path / "m.safetensors", arrays)
            mount = place.mount(killed_daemon.copy_for(user, path))
            # Readers run beside a writer, so that their caches have something to forget.
            programs = [start(place, each) for each in ([loop, "write"] if loop in ("read", "mapped") else [loop])]
            time.sleep(storm.rng.random() * 0.2)
            try:
                killed_daemon.kill(mount, place)
                assert place.is_dead()
            finally:
                killed_daemon.end(*programs)
            place.unmount()
    finally:
        space.end()


@pytest.mark.parametrize("shards, in_long_runs", [(1, 2000), (3, 2000)], ids=["single", "sharded"])
def test_a_killed_command_has_changed_a_model_or_not(tmp_path, shards, in_long_runs):
    model, storm = StoredModel(tmp_path / "model", shards), Storm()
    while storm.kills < kills(in_long_runs, 25) or not (storm.done and storm.undone):
        if len(model.tensors) < 3 * shards or len(model.files()) < shards:
            model.begin_anew()
        kind = storm.rng.choice(Commands.KINDS)
        commands = Commands(model, tmp_path)
        words = getattr(commands, kind)()
        before, after = (model.tensors, model.metadata), (commands.tensors, commands.metadata)
        is_told = storm.kill(kind, words)
        recover(model.target)
        found = model.read()
        assert found in (before, after), (storm.kills, words)
        assert not is_told or found == after, (storm.kills, words)
        assert not model.what_is_wrong(), (storm.kills, words, model.what_is_wrong())
        storm.note(found, before, after)
        model.tensors, model.metadata = found


def edit(storm, mount, due):
    """(what a program does in a mount, the tensors after it)"""
    after, name = dict(due), storm.rng.choice(sorted(due))
    data = storm.rng.randbytes(storm.rng.choice([7, 70_001]))
    patch = storm.rng.randbytes(len(due[name][2]))
    new = f"new{storm.rng.randrange(3)}"
    array = np.frombuffer(data, "u1")

    def remove():
        del after[name]
        return lambda: os.unlink(mount / name)

    def rename():
        after[new] = after.pop(name)
        return lambda: os.rename(mount / name, mount / new)

    def write():
        after[name] = (*due[name][:2], patch)
        return lambda: (mount / name).write_bytes(patch)

    def make():
        after[new] = ("U8", [len(data)], data)
        return lambda: np.save(mount / ".safetensors" / "npy" / f"{new}.npy", array)

    act = storm.rng.choice([remove, rename, write, make])()
    return act, after


@pytest.mark.parametrize("kind", ["sharded", "delta", "directory"])
def test_a_killed_mount_of_a_model_has_made_an_edit_or_not(tmp_path, mounts, kind):
    model, storm = StoredModel(tmp_path / "model", 3 if kind == "sharded" else 1), Storm()
    base, point = model.read(), tmp_path / "mnt"
    point.mkdir()
    options = f"reshape,delta={model.directory / 'delta'}" if kind == "delta" else "reshape"
    source = model.directory if kind == "directory" else model.target
    below = point / model.target.stem if kind == "directory" else point  # a directory of models has a directory for each
    due, longest = model.tensors, 0.05
    while storm.kills < kills(500, 8) or not (storm.done and storm.undone):
        if len(due) < 6:
            model.begin_anew()
            due, base = model.tensors, model.read()
        mount = mounts(source, options, path=point)
        act, after = edit(storm, below, due)
        ended = []

        def attempt(act=act, ended=ended):
            try:
                act()
                ended.append(True)
            except OSError:
                pass

        program = threading.Thread(target=attempt)
        program.start()
        program.join(storm.rng.random() * longest)
        mount.watchdog.cancel()
        mount.may_die = True
        mount.process.kill()
        mount.process.wait(LIMIT)
        program.join(LIMIT)
        assert not program.is_alive(), "a program hangs"
        unmount_by_force(point)
        storm.kills += 1
        again = mounts(source, options, path=point)
        found = content(below / ".safetensors" / "archive.safetensors")
        assert again.unmount() == 0
        assert found in (due, after), storm.kills
        assert not ended or found == after, storm.kills
        assert not model.what_is_wrong(), (storm.kills, model.what_is_wrong())
        assert kind != "delta" or model.read() == base
        storm.note(found, due, after)
        due = found


def test_a_killed_commit_of_a_delta_is_finished_by_the_next(tmp_path):
    model, storm = StoredModel(tmp_path / "model"), Storm()
    delta = tmp_path / "delta.safetensors"
    while storm.kills < kills(500, 10) or not (storm.done and storm.undone):
        model.begin_anew()
        before = model.read()
        shutil.copy(model.target, tmp_path / "changed.safetensors")
        for words in (["mv", "s0.t1", "renamed"], ["rm", "s0.t3"]):
            subprocess.run([STFS, words[0], tmp_path / "changed.safetensors", *words[1:]], check=True, capture_output=True)
        delta.unlink(missing_ok=True)
        subprocess.run([STFS, "diff", model.target, tmp_path / "changed.safetensors", "--out", delta], capture_output=True)
        after = (content(tmp_path / "changed.safetensors"), before[1])
        is_told = storm.kill("commit", ["commit", "--base", model.target, delta])
        recover(model.target)
        found = model.read()
        assert found in (before, after) and (not is_told or found == after), storm.kills
        assert not model.what_is_wrong(), (storm.kills, model.what_is_wrong())
        storm.note(found, before, after)
        if found == before:
            subprocess.run([STFS, "commit", "--base", model.target, delta], check=True, capture_output=True)
            assert model.read() == after


def test_a_killed_pull_leaves_one_version_and_nothing_else(tmp_path):
    storm = Storm()
    tensors = {"a": archive_file.random_array("f2", (40_001,), 1), "b": archive_file.random_array("u1", (12_345,), 2)}
    trainer = Trainer(tmp_path / "published", save(tmp_path / "published/weight_v000000", tensors, shards=2))
    host = tmp_path / "host"
    version = 0
    while storm.kills < kills(1000, 10):
        if storm.rng.randrange(3):
            trainer.step()
            version += 1
        storm.kill("pull", ["pull", host, trainer.published])
        if storm.rng.randrange(2):
            continue
        subprocess.run([STFS, "pull", host, trainer.published], check=True, capture_output=True, timeout=LIMIT)
        assert trainer.version_of(host) == state_of(host) == version
        left = [name for name in os.listdir(host) if name.startswith(".") and name != ".weight_sync"]
        assert not left and set(os.listdir(host / ".weight_sync")) <= {"lock", "state.json"}, (storm.kills, left)
        if version > 20:  # a chain of one's own for each part of the storm
            shutil.rmtree(host)
            shutil.rmtree(tmp_path / "published")
            trainer = Trainer(tmp_path / "published", save(tmp_path / "published/weight_v000000", tensors, shards=2))
            version = 0
