# -o on_change=fail: an open file gives the bytes of one version, or ESTALE.
import errno
import hashlib
import os
import random
import signal
import subprocess
import threading
import time

import archive_file
import mounted
import pytest
from mounted import eventually
from published_weights import Trainer, save, state_of
from test_weight_sync import stfs

STFS = mounted.BUILD / "stfs"
PIECE = 64 << 10
FAIL = "ro,on_change=fail"
WHOLE = ".safetensors/archive.safetensors"


@pytest.fixture
def trainer(tmp_path):
    tensors = {name: archive_file.random_array("f2", (3_000_001,), seed) for seed, name in enumerate("abcd")}
    return Trainer(tmp_path / "published", save(tmp_path / "model", tensors, shards=2))


def read_in_pieces(path):
    """The bytes of a file, by one open descriptor; None if it gave ESTALE."""
    content = b""
    descriptor = None
    try:
        descriptor = os.open(path, os.O_RDONLY)
        while piece := os.read(descriptor, PIECE):
            content += piece
    except OSError as error:
        assert error.errno == errno.ESTALE, error
        return None
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return content


def digest(content):
    return hashlib.blake2b(content).digest()


@pytest.mark.once
@pytest.mark.parametrize("kills", [False, True], ids=["", "killed receivers"])
def test_no_file_is_read_half_old_and_half_new(trainer, mounts, kills):
    for _ in range(6):
        trainer.step()
    known = {name: {digest(state[name].tobytes()) for state in trainer.states} for name in "abcd"}
    mount = mounts(trainer.model, FAIL)
    counts = {"whole": 0, "stale": 0}
    is_over = threading.Event()
    wrong = []

    def read():
        while not is_over.is_set():
            for name in known:
                content = read_in_pieces(mount.path / name)
                counts["stale" if content is None else "whole"] += 1
                if content is not None and digest(content) not in known[name]:
                    wrong.append(name)

    reader = threading.Thread(target=read)
    reader.start()
    chance = random.Random(1)
    try:
        for number in range(1, trainer.newest + 1):
            version = trainer.published / f"weight_v{number:06d}"
            while state_of(trainer.model) != number:
                process = subprocess.Popen([STFS, "apply", "--durability", "process", trainer.model, version],
                                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                if kills and chance.random() < 0.7:
                    time.sleep(chance.random() * 0.1)
                    process.send_signal(signal.SIGKILL)
                error = process.communicate()[1]
                assert process.returncode in ((0, -signal.SIGKILL) if kills else (0,)), error
            # The settled archive can be read, whichever process was killed.
            assert eventually(lambda: read_in_pieces(mount.path / "a") is not None)
    finally:
        is_over.set()
        reader.join()
    # The number of failed reads is a matter of chance. No version has the digest of a file that is half old.
    assert not wrong and counts["whole"] > 0, counts
    assert eventually(lambda: all(read_in_pieces(mount.path / name) == trainer.states[-1][name].tobytes() for name in known))


def test_the_model_as_one_file_is_of_one_version_too(trainer, mounts):
    mount = mounts(trainer.model, FAIL)
    with open(mount.path / WHOLE, "rb", buffering=0) as old:
        first = old.read(PIECE)
        stfs("apply", trainer.model, trainer.step())
        with pytest.raises(OSError) as failed:
            while piece := old.read(PIECE):
                first += piece
        assert failed.value.errno == errno.ESTALE

    def shows_new():
        whole = read_in_pieces(mount.path / WHOLE)
        return whole is not None and whole.endswith(b"".join(trainer.states[1][name].tobytes() for name in "abcd"))
    assert eventually(shows_new)


def test_a_copy_says_that_its_source_has_changed(trainer, mounts, tmp_path):
    mount = mounts(trainer.model, FAIL)
    with open(mount.path / "d", "rb") as held:
        held.read(10)
        stfs("apply", trainer.model, trainer.step())
        done = subprocess.run(["cat", f"/proc/self/fd/{held.fileno()}"], pass_fds=[held.fileno()], capture_output=True)
    assert done.returncode == 1 and b"Stale file handle" in done.stderr
    assert eventually(lambda: subprocess.run(["cp", mount.path / "d", tmp_path / "d"], stderr=subprocess.DEVNULL).returncode == 0)
    assert (tmp_path / "d").read_bytes() == trainer.states[1]["d"].tobytes()
    assert "was changed: the mount shows the new version; reads of files that are open give ESTALE" in mount.log()


def test_generation_and_attributes_follow(trainer, mounts):
    mount = mounts(trainer.model, FAIL + ",layout=tree")
    before = int(os.getxattr(mount.path / "a", "user.safetensors.generation"))
    stfs("apply", trainer.model, trainer.step())
    assert eventually(lambda: int(os.getxattr(mount.path / "a", "user.safetensors.generation")) > before)
    assert eventually(lambda: (read_in_pieces(mount.path / ".safetensors/npy/a.npy") or b"").endswith(trainer.states[1]["a"].tobytes()))


def test_a_mount_begins_when_no_process_is_in_a_commit(trainer, mounts):
    stfs("apply", trainer.model, trainer.step())
    mount = mounts(trainer.model, FAIL)  # a moment after the last write
    assert read_in_pieces(mount.path / "a") == trainer.states[1]["a"].tobytes()


def test_wrong_uses_are_refused(trainer, tmp_path):
    for options, why in (("on_change=fail", "needs a read-only mount: -o ro,on_change=fail"),
                         ("ro,on_change=fail,passthrough", "goes without passthrough")):
        done = subprocess.run([mounted.BUILD / "safetensorsfs", trainer.model, tmp_path, "-o", options], capture_output=True, text=True)
        assert done.returncode == 2 and why in done.stderr
