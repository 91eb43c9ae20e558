# `stfs serve` follows a weight sync: a version is a generation that shares the memory of all other tensors with the one
# before, and no generation is half a version.
import os
import signal
import subprocess
import threading
import time

import archive_file
import mounted
import numpy as np
import pytest
from lease_client import NEWER, Gone, Lease, query
from mounted import eventually
from published_weights import publish
from served_archive import directory, path, serve, stfs  # noqa: F401

COUNT = 100
SIZE = 4000  # of each tensor


class Model:
    """A model of one archive, or of two shards, and its versions."""

    def __init__(self, directory, is_sharded=False):
        self.directory = directory / "model"
        self.published = directory / "published"
        self.directory.mkdir()
        self.rng = np.random.default_rng(5)
        names = [f"t{at:03d}" for at in range(COUNT)]
        self.tensors = {name: self.rng.bytes(SIZE) for name in names}
        arrays = {name: np.frombuffer(content, "u1") for name, content in self.tensors.items()}
        if is_sharded:
            self.source = self.directory / "model.safetensors.index.json"
            halves = [dict(list(arrays.items())[:COUNT // 2]), dict(list(arrays.items())[COUNT // 2:])]
            files = [f"model-0000{at}-of-00002.safetensors" for at in (1, 2)]
            for file, half in zip(files, halves):
                archive_file.save_with_reference(self.directory / file, half)
            weights = {name: file for file, half in zip(files, halves) for name in half}
            self.source.write_text(archive_file.json.dumps({"metadata": {}, "weight_map": weights}))
        else:
            self.source = archive_file.save_with_reference(self.directory / "model.safetensors", arrays)
        self.version = 1
        (self.directory / ".weight_sync").mkdir()
        (self.directory / ".weight_sync" / "state.json").write_text('{"version": "000001"}')

    def publish(self, names):
        """The next version, in which these tensors have other bytes."""
        new = {name: self.rng.bytes(SIZE) for name in names}
        self.version += 1
        made = publish(self.published, self.version, *({name: np.frombuffer(state[name], "u1") for name in new}
                                                       for state in (self.tensors, new)))
        self.tensors.update(new)
        return made

    def apply(self, names):
        stfs("apply", self.source, self.publish(names))

    def is_in(self, lease):
        return all(lease[name] == content for name, content in self.tensors.items())


@pytest.fixture(params=[False, True], ids=["archive", "shards"])
def model(directory, request):
    return Model(directory, request.param)


def test_a_version_uploads_what_it_changes_and_shares_the_rest(serve, model, path):
    server = serve(model.source)
    assert server.event()["version"] == "000001"
    lease, old = Lease(path), Lease(path)
    before = dict(model.tensors)
    model.apply(["t050"])
    event = server.event()
    assert (event["event"], event["generation"], event["version"]) == ("generation", 2, "000002")
    assert (event["changed_tensors"], event["own_bytes"]) == (1, SIZE)
    assert event["shared_bytes"] + event["own_bytes"] == event["size_bytes"]
    assert lease.wait_news() == (NEWER, 2)
    inode = lease.inode_of("t001")
    lease.renew()
    assert lease.generation == 2 and model.is_in(lease)
    assert lease.inode_of("t001") == inode == old.inode_of("t001")
    assert lease.inode_of("t050") != inode
    assert [name for name, tensor in lease.tensors.items() if tensor["changed_in"] == 2] == ["t050"]
    # The other lease is as it was.
    assert old.generation == 1 and all(old[name] == content for name, content in before.items())
    assert len(server.arenas()) == 2
    # The generations share arenas, which the server counts once.
    report = query(path)
    assert [(row["generation"], row["version"], row["leases"]) for row in report["generations"]] == [
        (1, "000001", 1), (2, "000002", 1)]
    assert report["size_bytes"] == event["size_bytes"]
    status = stfs("serve", "--status", path).stdout
    assert "generation  2, version 000002: 100 tensors, " in status and " shared) on cpu, 1 lease\n" in status
    assert "older       1, version 000001: 100 tensors, " in status
    old.close()
    assert eventually(lambda: [row["generation"] for row in query(path)["generations"]] == [2])
    # Tensor t050 changes again. The server frees the memory that only the old generation uses with that generation.
    model.apply(["t050"])
    assert lease.wait_news() == (NEWER, 3)
    assert len(server.arenas()) == 3
    lease.renew()
    assert eventually(lambda: len(server.arenas()) == 2)
    assert model.is_in(lease)


def test_a_version_in_which_all_tensors_change(serve, model, path):
    server = serve(model.source).ready()
    lease = Lease(path)
    old = Lease(path)
    model.apply(list(model.tensors))
    event = server.event()
    assert (event["changed_tensors"], event["shared_bytes"]) == (COUNT, 0)
    assert lease.wait_news() == (NEWER, 2)
    lease.renew()
    assert model.is_in(lease)
    old.close()
    assert eventually(lambda: len(server.arenas()) == 1)


def test_a_put_beside_versions_is_never_missed(serve, model, path, directory):
    serve(model.source).ready()
    lease = Lease(path)
    raw = directory / "raw"
    for at in range(6):
        # The put comes before the version, after it, or at the same time: the version's names do not name its tensor.
        put = f"t{60 + at:03d}"
        model.tensors[put] = model.rng.bytes(SIZE)
        raw.write_bytes(model.tensors[put])
        version = model.publish([f"t{at:03d}"])
        commands = [("put", model.source, put, raw), ("apply", model.source, version)]
        if at % 3 == 2:
            threads = [threading.Thread(target=stfs, args=command) for command in commands]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        else:
            for command in commands if at % 3 else reversed(commands):
                stfs(*command)

        def is_served():
            lease.renew()
            return model.is_in(lease)

        assert eventually(is_served), at


def test_two_versions_in_quick_succession_and_no_generation_is_half_of_one(serve, model, path):
    server = serve(model.source).ready()
    lease = Lease(path)
    states = [dict(model.tensors)]
    names = [[f"t{(at * 13 + step) % COUNT:03d}" for step in range(0, COUNT, 9)] for at in range(12)]
    versions = []
    for changed in names:
        versions.append(model.publish(changed))
        states.append(dict(model.tensors))
    for version in versions:
        stfs("apply", model.source, version, "--durability", "process")
    seen = 0
    while True:
        event = server.event()
        number = int(event["version"])
        assert number > seen
        seen = number
        if seen == model.version:
            break
    lease.renew()
    assert model.is_in(lease)


def test_every_generation_is_one_version_while_versions_are_applied(serve, model, path):
    serve(model.source).ready()
    # Each version changes tensors of both halves of the model, and every second one is killed on its way. The
    # server has time to see what that has left, before the next one finishes it.
    states = {1: dict(model.tensors)}
    versions = []
    for at in range(15):
        versions.append(model.publish([f"t{(at + step) % COUNT:03d}" for step in (0, 30, 50, 80)]))
        states[model.version] = dict(model.tensors)

    def apply_all():
        for at, version in enumerate(versions):
            if at % 2 == 1:
                process = subprocess.Popen([mounted.BUILD / "stfs", "apply", model.source, version],
                                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                time.sleep(0.005 + 0.001 * at)
                process.kill()
                process.wait()
                time.sleep(0.1)
            stfs("apply", model.source, version)

    applier = threading.Thread(target=apply_all)
    applier.start()
    lease = Lease(path)
    deadline = time.monotonic() + 60 * mounted.PATIENCE
    while time.monotonic() < deadline:
        lease.renew()
        contents = {name: lease[name] for name in states[1]}
        held = [number for number, state in states.items() if state == contents]
        assert len(held) == 1, "the generation is no version"
        assert lease.manifest["version"] in (f"{held[0]:06d}", f"{held[0] - 1:06d}")
        if held[0] == model.version:
            break
    applier.join()
    assert model.is_in(lease)


def test_an_archive_that_is_replaced_is_uploaded_whole(serve, model, path, directory):
    server = serve(model.source).ready()
    lease = Lease(path)
    shard = next(model.directory.glob("model*.safetensors"))
    copy = directory / "copy"
    copy.write_bytes(shard.read_bytes())
    os.replace(copy, shard)
    event = server.event()
    assert (event["changed_tensors"], event["shared_bytes"]) == (COUNT, 0)
    assert lease.wait_news() == (NEWER, 2)
    lease.renew()
    assert model.is_in(lease)


def test_a_killed_server_and_killed_clients(serve, model, path):
    server = serve(model.source).ready()
    lease = Lease(path)
    client = subprocess.Popen(
        ["/usr/bin/python3", "-B", "-c", "import sys; sys.path.insert(0, sys.argv[1]); import lease_client, time\n"
         "lease = lease_client.Lease(sys.argv[2]); print('ready', flush=True); time.sleep(1000)",
         os.path.dirname(__file__), path], stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline() == "ready\n"
    model.apply(["t001"])
    assert lease.wait_news() == (NEWER, 2)
    lease.renew()
    assert [row["leases"] for row in query(path)["generations"]] == [1, 1]
    client.send_signal(signal.SIGKILL)
    client.communicate()
    assert eventually(lambda: [row["generation"] for row in query(path)["generations"]] == [2])
    server.kill()
    with pytest.raises(Gone):
        lease.wait_news()
    assert model.is_in(lease)
    model.apply(["t002"])
    server = serve(model.source)
    assert server.event()["version"] == "000003"
    newer = Lease(path)
    assert newer.generation == 1 and newer.manifest["server"] != lease.manifest["server"]
    assert model.is_in(newer)


def test_no_follow_keeps_the_first_generation(serve, model, path):
    server = serve(model.source, "--no-follow").ready()
    lease = Lease(path)
    before = dict(model.tensors)
    model.apply(["t001"])
    time.sleep(1.5)
    assert lease.news() is None
    later = Lease(path)
    assert later.generation == 1 and all(later[name] == content for name, content in before.items())
    assert server.end() != 0
