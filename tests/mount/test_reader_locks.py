# A user who may only read an archive can hold read locks on it. Readers do not wait for that user. A writer waits for a bounded
# time, then changes nothing and names the process. The locks of pulls are on a file that such a user can't open.
import errno
import os
import shutil
import stat
import subprocess
import time

import archive_file
import attacker as attack
import mounted
import pytest
from archive_file import random_bytes
from attack_fixtures import kind, mallory, scene  # noqa: F401
from published_weights import Trainer, save

pytestmark = pytest.mark.needs_root

READ_LOCK = """
fd = os.open(sys.argv[1], os.O_RDONLY)
if sys.argv[2] == "process":
    fcntl.lockf(fd, fcntl.LOCK_SH)
else:
    F_OFD_SETLK = 37
    fcntl.fcntl(fd, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
stay()
"""

# Holds whatever lock of flock(2) it can get, on all that it can open below a directory.
FLOCKS = """
held = []
for directory, directories, files in os.walk(sys.argv[1]):
    for name in [".", *files]:
        try:
            fd = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_NONBLOCK)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held.append(fd)
        except OSError:
            pass
stay()
"""


@pytest.mark.once
@pytest.mark.parametrize("lock", ["process", "description"])
def test_a_readers_lock_holds_up_writers_for_ten_seconds_and_readers_never(scene, mallory, mounts, lock):
    mount = mounts(scene.path)
    holder = mallory.does(READ_LOCK, scene.path, lock)
    started = time.monotonic()
    # Writers by both ways wait at the same time.
    _, fresh = scene.fresh()
    put = subprocess.Popen(attack.as_user(scene.owner, [scene.stfs, "put", scene.path, "a", fresh]),
                           stderr=subprocess.PIPE, text=True)
    write = subprocess.Popen(["dd", f"if={fresh}", f"of={mount.path}/b", "conv=notrunc", "status=none"],
                             stderr=subprocess.PIPE, text=True)
    for verb in ("ls", "info", "verify"):
        done = scene.run(verb, scene.path)
        assert done.returncode == 0, done.stderr
    assert scene.run("cat", scene.path, "a").returncode == 0
    reader, writer = mounts(scene.path, "ro"), mounts(scene.path)
    for each in (mount, reader, writer):
        assert (each.path / "a").read_bytes() == scene.expected.tensor("a")
    if not mounted.is_sanitized():
        assert time.monotonic() - started < 10 and put.poll() is None, "readers have waited"
    said = {"put": put.communicate()[1], "mount": write.communicate()[1] + mount.log()}
    assert put.returncode != 0 and write.returncode != 0, said
    if lock == "process":
        edit = scene.run("mv", scene.path, "c", "other")
        assert edit.returncode != 0
        said["edit"] = edit.stderr
    for text in said.values():
        assert "busy" in text or "holds a lock" in text, said
    # Root sees the process of every lock. Other users see only a process that the kernel names.
    for which in ("mount",) if scene.owner != 0 and lock == "description" else said:
        assert f"process {holder.pid}" in said[which] and f"of user {attack.MALLORY}" in said[which], said
    scene.expected.check()
    mallory.stop()
    assert scene.put("a").returncode == 0
    scene.write(mount.path, "b")
    scene.expected.check()


BLOCK = 4096
LEAVE_JOURNAL = mounted.BUILD / "tests" / "leave_journal"


def leave_journal(scene):
    """A committed journal of a dead writer."""
    data = random_bytes(2 * BLOCK, 77)
    program = shutil.copy2(LEAVE_JOURNAL, scene.directory)
    made = subprocess.run(attack.as_user(scene.owner, [program, scene.path, str(6 * BLOCK)]), input=data,
                          capture_output=True)
    assert made.returncode == 0, made.stderr
    scene.expected.image[6 * BLOCK:8 * BLOCK] = data
    return made.stdout.decode().strip()


@pytest.mark.parametrize("first", ["mount", "put", "recover"])
def test_a_readers_lock_on_a_dead_writers_journal_stops_nobody(scene, mallory, mounts, first):
    journal = leave_journal(scene)
    mallory.does(READ_LOCK, journal, "description")
    if first == "put":
        assert scene.put("c").returncode == 0
    elif first == "recover":
        assert scene.run("recover", scene.path).returncode == 0
    mount = mounts(scene.path)
    assert not os.path.exists(journal)
    scene.write(mount.path, "a")
    for name in "abc":
        assert (mount.path / name).read_bytes() == scene.expected.tensor(name)
    scene.expected.check()


@pytest.mark.once
def test_a_readers_lock_on_an_archive_that_waits_for_recovery_stops_writers_only(scene, mallory, mounts):
    leave_journal(scene)
    holder = mallory.does(READ_LOCK, scene.path, "process")
    mount = mounts(scene.path)
    for name in "abc":
        assert (mount.path / name).read_bytes() == scene.expected.tensor(name)
    recovery = scene.run("recover", scene.path)
    assert recovery.returncode == 1 and f"process {holder.pid}" in recovery.stderr, recovery.stderr
    with pytest.raises(OSError) as refused, open(mount.path / "a", "r+b") as file:
        file.write(b"x" * attack.BYTES)
    assert refused.value.errno == errno.EBUSY and f"process {holder.pid}" in mount.log()
    mallory.stop()
    scene.write(mount.path, "b")
    scene.expected.check()


@pytest.fixture
def trainer(kind):
    """A model of root's that follows versions, in directories that everybody may read."""
    for scene in attack.scene_in(kind, 0):
        home = os.path.join(scene.directory, "weights")
        os.mkdir(home)
        tensors = {"a": archive_file.random_array("f2", (4001,), 1), "b": archive_file.random_array("u1", (1234,), 2)}
        yield Trainer(os.path.join(home, "published"), save(os.path.join(home, "model"), tensors, shards=1))


def test_readers_can_not_hold_the_lock_of_pulls(trainer, mallory):
    stfs = mounted.BUILD / "stfs"
    version = trainer.step()
    done = subprocess.run([stfs, "apply", "--wait", "0", trainer.model, version], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lock = os.path.join(trainer.model, ".weight_sync", "lock")
    assert stat.S_IMODE(os.stat(lock).st_mode) == 0o600
    mallory.does(FLOCKS, os.path.dirname(trainer.model))
    done = subprocess.run([stfs, "apply", "--wait", "0", trainer.model, trainer.step()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_who_holds_the_lock_of_pulls_is_named(trainer):
    stfs = mounted.BUILD / "stfs"
    version = trainer.step()
    os.mkdir(os.path.join(trainer.model, ".weight_sync"))
    lock = os.path.join(trainer.model, ".weight_sync", "lock")
    os.close(os.open(lock, os.O_CREAT, 0o666))
    os.chmod(lock, 0o666)
    for uid in (0, attack.ALICE):
        attacker = attack.Attacker(uid)
        holder = attacker.does("fd = os.open(sys.argv[1], os.O_RDONLY)\nfcntl.flock(fd, fcntl.LOCK_SH)\nstay()", lock)
        done = subprocess.run([stfs, "apply", "--wait", "0", trainer.model, version], capture_output=True, text=True)
        assert done.returncode == 1
        assert f"process {holder.pid} (" in done.stderr and f"of user {uid} has held the lock" in done.stderr
        attacker.stop()
    assert subprocess.run([stfs, "apply", "--wait", "0", trainer.model, version]).returncode == 0


def test_a_group_that_may_write_the_model_shares_the_lock_of_pulls(trainer):
    stfs = mounted.BUILD / "stfs"
    model = os.path.join(trainer.model, "model.safetensors")
    assert subprocess.run([stfs, "apply", trainer.model, trainer.step()], capture_output=True).returncode == 0
    lock = os.path.join(trainer.model, ".weight_sync", "lock")
    os.unlink(lock)
    os.chown(model, 0, 34567)
    os.chmod(model, 0o664)
    subprocess.run([stfs, "apply", trainer.model, trainer.step()], capture_output=True)
    status = os.stat(lock)
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (0, 34567, 0o660)
