# stfs pull: chains, forks, new hosts, slow publishers, withdrawn versions, and receivers that are killed at any moment.
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time

import archive_file
import mounted
import numpy as np
import published_weights
import pytest
from mounted import eventually
from published_weights import INDEX, Trainer, save, state_of, version_directory
from test_weight_sync import stfs

STFS = mounted.BUILD / "stfs"
TENSORS = {"a": archive_file.random_array("f2", (40_001,), 1), "b": archive_file.random_array("u1", (12_345,), 2),
           "c": archive_file.random_array("f4", (), 3), "d": archive_file.random_array("f4", (0,), 4)}


@pytest.fixture
def trainer(tmp_path):
    """Version 0 is full and published."""
    return Trainer(tmp_path / "published", save(tmp_path / "published/weight_v000000", TENSORS, shards=2))


@pytest.fixture
def host(tmp_path):
    return tmp_path / "host"


@pytest.fixture
def follower(host, trainer):
    """follow(*words) -> process that follows, and its events."""
    processes = []

    def follow(*words):
        processes.append(subprocess.Popen([STFS, "pull", "--follow", "--json", *words, host, trainer.published],
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return processes[-1]
    yield follow
    for process in processes:
        process.kill()
        process.communicate()


def check(trainer, host, version):
    assert trainer.version_of(host) == state_of(host) == version


def test_a_new_host_is_seeded_and_brought_up_to_date(trainer, host):
    (trainer.published / "weight_v000000/config.json").write_text("{}")
    host.mkdir()
    (host / "foreign").write_text("stays")
    for _ in range(3):
        trainer.step()
    assert stfs("pull", "--to", "2", host, trainer.published).endswith("has version 000002\n")
    check(trainer, host, 2)
    stfs("pull", host, trainer.published)
    check(trainer, host, 3)
    assert (host / "foreign").read_text() == "stays" and (host / "config.json").read_text() == "{}"
    assert stfs("pull", host, trainer.published) == f"{host} has version 000003\n"
    assert "newer than 000001" in stfs("pull", "--to", "1", host, trainer.published, wanted=1)
    assert "version 000009 is not published yet" in stfs("pull", "--to", "9", "--wait", "0", host, trainer.published, wanted=1)


def test_a_chain_skips_repeats_and_forks(trainer, host):
    """The base_version decides, not the numbers."""
    stfs("pull", host, trainer.published)
    old = trainer.states[0]
    trainer.step()                                               # 1 changes 0
    trainer.step(publishes=False)
    published_weights.publish(trainer.published, 2, old, trainer.states[2], base=0)  # 2 changes 0 as well
    stfs("pull", host, trainer.published)
    check(trainer, host, 2)
    trainer.states.append(trainer.states[1])
    published_weights.publish(trainer.published, 3, trainer.states[1], trainer.states[2], base=1)  # 3 changes 1
    said = stfs("pull", host, trainer.published, wanted=1)
    assert "goes past it" in said, said
    check(trainer, host, 2)


def test_a_missing_version_is_named(trainer, host):
    for _ in range(3):
        trainer.step()
    stfs("pull", "--to", "1", host, trainer.published)
    shutil.rmtree(version_directory(trainer.published, 2))
    assert "version 000002 is not published, which version 000003 changes" in stfs("pull", host, trainer.published, wanted=1)
    check(trainer, host, 1)


def test_a_host_that_has_the_base_needs_no_full_version(trainer, tmp_path):
    host = shutil.copytree(trainer.published / "weight_v000000", tmp_path / "host")
    shutil.rmtree(trainer.published / "weight_v000000")
    trainer.step()
    trainer.step()
    stfs("pull", host, trainer.published)
    check(trainer, host, 2)


def test_a_full_version_ends_a_chain(trainer, host):
    stfs("pull", host, trainer.published)
    trainer.step()
    shutil.rmtree(version_directory(trainer.published, 1))  # lost: a host that has 0 needs the full one
    trainer.step(publishes=False)
    save(version_directory(trainer.published, 2),
         {name: np.frombuffer(content.tobytes(), TENSORS[name].dtype).reshape(TENSORS[name].shape)
          for name, content in trainer.states[2].items()}, shards=2)
    trainer.step()
    stfs("pull", host, trainer.published)
    check(trainer, host, 3)


def test_a_full_version_of_another_model_replaces_it(trainer, host):
    stfs("pull", host, trainer.published)
    save(version_directory(trainer.published, 1), {"other": np.arange(5, dtype="f4"), "b": np.arange(3, dtype="u1"),
                                                   "e": np.arange(4, dtype="u1")}, shards=3)
    stfs("pull", host, trainer.published)
    assert sorted(path.name for path in host.glob("*.safetensors")) == [f"model-{at:05d}-of-00003.safetensors" for at in (1, 2, 3)]
    assert state_of(host) == 1
    save(version_directory(trainer.published, 2), {"x": np.arange(5, dtype="f4"), "y": np.arange(3, dtype="u1"),
                                                   "z": np.arange(4, dtype="u1")}, shards=3)
    stfs("pull", host, trainer.published)
    assert sorted(path.name for path in host.glob("*.safetensors")) == [f"model-{at:05d}-of-00003.v000002.safetensors"
                                                                        for at in (1, 2, 3)]
    assert state_of(host) == 2


def test_unfinished_versions_are_left_for_later(trainer, host):
    trainer.step()
    version = trainer.step()
    index = (version / INDEX).read_text()
    for text in (None, index[:40], ""):
        os.unlink(version / INDEX)
        if text is not None:
            (version / INDEX).write_text(text)
        stfs("pull", host, trainer.published)
        check(trainer, host, 1)
        (version / INDEX).touch()
    (version / INDEX).write_text(index)
    shard = next(version.glob("*-00001-*"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    stfs("pull", host, trainer.published)
    check(trainer, host, 1)
    assert "unfinished" in stfs("pull", "--to", "2", "--wait", "0", host, trainer.published, wanted=1)
    shard.write_bytes(whole)
    stfs("pull", host, trainer.published)
    check(trainer, host, 2)


def test_a_follower_applies_each_version_and_runs_the_hook(trainer, host, follower, tmp_path):
    log = tmp_path / "log"
    process = follower("--exec", f"echo $STFS_VERSION $STFS_MODEL >> {log}", "--to", "4")
    for _ in range(4):
        trainer.step()
    events = [json.loads(line) for line in process.stdout]
    assert process.wait() == 0
    assert [event["version"] for event in events if event["event"] in ("seeded", "applied")] == [f"{at:06d}" for at in range(5)]
    assert log.read_text() == "".join(f"{at:06d} {host}\n" for at in range(5))
    check(trainer, host, 4)


def test_a_hook_that_fails_ends_the_pull_and_is_told(trainer, host, follower):
    process = follower("--exec", "exit 3")
    errors = process.communicate(timeout=60 * mounted.PATIENCE)[1]
    assert process.returncode == 1
    assert "--exec: the command for version 000000 ended with status 3" in errors
    check(trainer, host, 0)


def test_a_follower_waits_for_bytes_and_ends_with_damage(trainer, host, follower):
    stfs("pull", host, trainer.published)
    version = trainer.step()
    shard = next(version.glob("*-00001-*"))
    whole = bytearray(shard.read_bytes())
    whole[-1] ^= 1
    shard.write_bytes(whole)
    process = follower("--wait", "1")
    errors = process.communicate(timeout=60 * mounted.PATIENCE)[1]
    assert process.returncode == 1 and "weight_v000001: " in errors
    check(trainer, host, 0)


def test_a_follower_ends_cleanly_with_a_signal(trainer, host, follower):
    process = follower()
    eventually(lambda: state_of(host) == 0)
    process.terminate()
    assert process.wait() == -signal.SIGTERM
    check(trainer, host, 0)


def test_a_version_that_is_withdrawn_is_no_failure(trainer, host):
    """Versions come, go and come again while hosts pull."""
    stfs("pull", host, trainer.published)
    versions = [trainer.step() for _ in range(12)]
    hidden = trainer.published / "hidden"
    hidden.mkdir()
    is_over = threading.Event()

    def hide():
        while not is_over.is_set():
            version = random.choice(versions)
            os.rename(version, hidden / version.name)
            time.sleep(0.002)
            os.rename(hidden / version.name, version)
    thread = threading.Thread(target=hide)
    thread.start()
    try:
        for _ in range(60):
            done = subprocess.run([STFS, "pull", "--durability", "process", host, trainer.published], capture_output=True, text=True)
            assert trainer.version_of(host) == state_of(host)
            assert done.returncode == 0 or "is not published" in done.stderr, done
            if state_of(host) == 12:
                break
    finally:
        is_over.set()
        thread.join()
    stfs("pull", host, trainer.published)
    check(trainer, host, 12)


def test_two_receivers_of_one_host(trainer, host):
    for _ in range(6):
        trainer.step()
    both = [subprocess.Popen([STFS, "pull", "--durability", "process", host, trainer.published], stderr=subprocess.PIPE)
            for _ in range(2)]
    for process in both:
        assert process.communicate()[1] == b"" and process.returncode == 0
    check(trainer, host, 6)


@pytest.mark.sequential
def test_fifty_versions_survive_kills_of_puller_and_mount_while_readers_check(trainer, host, tmp_path):
    """A reader takes a tensor whole if its generation did not change meanwhile; then it is of one version."""
    stfs("pull", host, trainer.published)
    chance = random.Random(5)
    known = {}

    def know():
        for name, content in trainer.states[-1].items():
            known.setdefault((name, content.tobytes()), trainer.newest)
    know()
    is_over, wrong, reads = threading.Event(), [], [0]
    shard = next(host.glob("*-00001-*"))
    names = [name for name, file in published_weights.Mapped(host).files.items() if file == shard.name and len(trainer.states[0][name])]
    (tmp_path / "mnt").mkdir()

    def mount():
        return mounted.Mount(shard, tmp_path / "mnt", tmp_path / "log")
    place = [mount()]

    def read():
        while not is_over.is_set():
            name = chance.choice(names)
            path = place[0].path / name
            try:
                before = os.getxattr(path, "user.safetensors.generation")
                content = path.read_bytes()
                after = os.getxattr(path, "user.safetensors.generation")
            except OSError:
                continue  # the mount was killed
            reads[0] += 1
            if before == after and (name, content) not in known:
                wrong.append(name)
    reader = threading.Thread(target=read)
    reader.start()
    kills = 0
    try:
        for number in range(1, 51):
            trainer.step(publishes=False)
            know()
            published_weights.publish(trainer.published, number, trainer.states[-2], trainer.states[-1],
                                      encoding=chance.choice(["xor", "overwrite"]))
            is_done = False
            while not is_done:
                process = subprocess.Popen([STFS, "pull", "--durability", "process", host, trainer.published], stdout=subprocess.DEVNULL)
                try:
                    process.wait(chance.choice([0.002, 0.005, 0.01, 60]))
                except subprocess.TimeoutExpired:
                    process.kill()
                    kills += 1
                is_done = process.wait() == 0
            check(trainer, host, number)
            if number % 10 == 5:
                place[0].kill()
                mounted.unmount_by_force(place[0].path)
                place[0] = mount()
    finally:
        is_over.set()
        reader.join()
        place[0].unmount()
        place[0].finish()
    assert not wrong, (wrong, reads)
    assert kills > 5 and reads[0] > 50
    left = [name for name in os.listdir(host) if name.startswith(".") and name != ".weight_sync"]
    assert left == []
