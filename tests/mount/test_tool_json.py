# The promises of --json for every verb: an object that begins with "schema", and absolute paths.
import json
import os
import subprocess

import archive_file
import mounted
import numpy as np
import pytest
from lease_client import Server
from sharded_model import ShardedModel

pytestmark = [pytest.mark.sequential, pytest.mark.library]

STFS = mounted.BUILD / "stfs"
W = np.arange(12, dtype="f4").reshape(3, 4)
PATHS = {"base", "path", "path_a", "path_b", "delta", "output", "shard", "shards", "socket", "source", "sources"}

# verb -> its arguments, every path relative, and the paths that its object must have
VERBS = {
    "ls": (["ls", "m.safetensors"], {"path": "m.safetensors"}),
    "ls of shards": (["ls", "sharded"], {"path": "sharded/model.safetensors.index.json"}),
    "info": (["info", "./m.safetensors"], {"path": "m.safetensors"}),
    "info of shards": (["info", "sharded"], {"path": "sharded/model.safetensors.index.json"}),
    "info of a link": (["info", "link.safetensors"], {"path": "link.safetensors"}),
    "info of a directory": (["info", "one"], {"path": "one/o.safetensors"}),
    "slice": (["slice", "m.safetensors", "w[0]", "-o", "out.npy"], {"path": "m.safetensors", "output": "out.npy"}),
    "slice, looked at": (["slice", "m.safetensors", "w[0]"], {"path": "m.safetensors"}),
    "verify": (["verify", "m.safetensors"], {"path": "m.safetensors"}),
    "diff": (["diff", "m.safetensors", "link.safetensors"], {"path_a": "m.safetensors", "path_b": "link.safetensors"}),
    "diff, a version": (["diff", "m.safetensors", "d.safetensors", "--encoding", "xor", "--version", "1", "--out", "published"],
                        {"path": "published/weight_v000001"}),
    "put": (["put", "m.safetensors", "w", "d.safetensors"], {"path": "m.safetensors"}),
    "put, a new one": (["put", "-c", "m.safetensors", "v", "d.safetensors", "--from-tensor", "w"], {"path": "m.safetensors"}),
    "rm": (["rm", "m.safetensors", "w"], {"path": "m.safetensors"}),
    "mv": (["mv", "m.safetensors", "w", "v"], {"path": "m.safetensors"}),
    "set": (["set", "link.safetensors", "--unset", "title"], {"path": "link.safetensors"}),
    "apply": (["apply", "m.safetensors", "d.safetensors"], {"path": "m.safetensors", "delta": "d.safetensors"}),
    "apply a version": (["apply", "one", "published/weight_v000001"], {"path": "one/o.safetensors", "directory": "published/weight_v000001"}),
    "pull": (["pull", "one", "published"], {"path": "one"}),
    "pull, the status": (["pull", "--status", "one", "published"], {"path": "one", "published": "published"}),
    "commit": (["commit", "model.delta.safetensors"], {"path": "m.safetensors", "delta": "model.delta.safetensors"}),
    "commit into": (["commit", "model.delta.safetensors", "--into", "new.safetensors"],
                    {"path": "new.safetensors", "base": "m.safetensors", "delta": "model.delta.safetensors"}),
    "compact": (["compact", "m.safetensors"], {"path": "m.safetensors"}),
    "compact shards": (["compact", "sharded"], {"path": "sharded/model.safetensors.index.json"}),
    "repack": (["repack", "m.safetensors", "new.safetensors"], {"source": "m.safetensors", "path": "new.safetensors"}),
    "recover": (["recover", "link.safetensors"], {"path": "link.safetensors"}),
    "upload": (["upload", "m.safetensors", "--device", "cpu"], {}),
    "upload, planned": (["upload", "m.safetensors", "--device", "cpu", "--dry-run"], {}),
    "devices": (["devices"], {}),
    "mounts": (["mounts"], {}),
    "sample": (["sample", "new.safetensors"], {"path": "new.safetensors"}),
}


@pytest.fixture
def directory(tmp_path):
    archive_file.save_with_reference(tmp_path / "m.safetensors", {"w": W})
    archive_file.save_with_reference(tmp_path / "d.safetensors", {"w": W + 1})
    (tmp_path / "one").mkdir()
    archive_file.save_with_reference(tmp_path / "one/o.safetensors", {"w": W})
    (tmp_path / "published/weight_v000001").mkdir(parents=True)
    archive_file.save_with_reference(tmp_path / "published/weight_v000001/model.safetensors", {"w": W + 1})
    os.symlink("m.safetensors", tmp_path / "link.safetensors")
    done = subprocess.run([STFS, "diff", "m.safetensors", "d.safetensors", "--out", "model.delta.safetensors"], cwd=tmp_path)
    assert done.returncode == 0
    ShardedModel(tmp_path / "sharded", shards=2, tensors={"a": W, "b": W})
    return tmp_path


def members(value):
    """(key, value) of all objects."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield key, member
            yield from members(member)
    elif isinstance(value, list):
        for element in value:
            yield from members(element)


def check(document):
    assert isinstance(document, dict)
    assert next(iter(document.items())) == ("schema", 1)
    for key, value in members(document):
        if key in PATHS:
            for path in value if isinstance(value, list) else [value]:
                assert os.path.isabs(path) and "/./" not in path, (key, path)


@pytest.mark.parametrize("case", VERBS)
def test_an_object_with_a_schema_and_absolute_paths(directory, case):
    arguments, paths = VERBS[case]
    done = subprocess.run([STFS, *arguments, "--json"], cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    check(document)
    assert {key: document[key] for key in paths} == {key: str(directory / path) for key, path in paths.items()}


def test_every_verb_with_json_is_in_the_table():
    help_text = subprocess.run([STFS, "--help"], capture_output=True, text=True, check=True).stdout
    verbs = [line.split()[0] for line in help_text.split("Verbs:\n")[1].split("\n\n")[0].splitlines()]
    helps = {verb: subprocess.run([STFS, verb, "--help"], capture_output=True, text=True, check=True).stdout for verb in verbs}
    with_json = [verb for verb, text in helps.items() if "\n  --json" in text]
    assert sorted({arguments[0] for arguments, _ in VERBS.values()} | {"cache", "fetch", "serve", "top", "umount"}) == sorted(with_json)


def test_the_verbs_of_a_mount_print_objects_with_a_schema(directory, mounts):
    mount = mounts(directory / "m.safetensors")
    for words in (["top", "--once"], ["umount"]):
        done = subprocess.run([STFS, *words, "--json", mount.path], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        check(json.loads(done.stdout))


def test_a_version_of_a_mount_has_its_generation_as_a_string(directory, mounts):
    mount = mounts(directory / "m.safetensors")
    done = subprocess.run([STFS, "diff", directory / "d.safetensors", mount.path, "--encoding", "xor", "--version", "2", "--since", "0",
                           "--out", directory / "new", "--json"], capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    check(document)
    assert document["generation"] == os.getxattr(mount.path, "user.safetensors.generation").decode()


def test_shards_are_paths(directory):
    done = subprocess.run([STFS, "ls", "--json", "sharded"], cwd=directory, capture_output=True, text=True, check=True)
    for row in json.loads(done.stdout)["tensors"]:
        with open(row["shard"], "rb") as file:
            file.seek(row["offset"])
            assert file.read(row["size_bytes"]) == W.tobytes()


def test_what_fails_has_a_schema_too(directory):
    os.unlink(next((directory / "sharded").glob("*-00001-*")))
    for arguments in (["ls", "sharded"], ["info", "sharded"], ["verify", "sharded"], ["apply", "m.safetensors", "sharded"],
                      ["diff", "m.safetensors", "d.safetensors"], ["diff", "sharded", "sharded"]):
        done = subprocess.run([STFS, *arguments, "--json"], cwd=directory, capture_output=True, text=True)
        assert done.returncode == 1
        check(json.loads(done.stdout))


def test_each_event_of_a_server_and_its_status(directory):
    server = Server(directory / "s", directory / "m.safetensors")
    try:
        event = server.event()
        check(event)
        assert (event["event"], event["socket"]) == ("serving", str(directory / "s"))
        status = subprocess.run([STFS, "serve", "--status", "s", "--json"], cwd=directory, capture_output=True, text=True)
        document = json.loads(status.stdout)
        check(document)
        assert (document["socket"], document["sources"]) == (str(directory / "s"), [str(directory / "m.safetensors")])
    finally:
        assert server.finish() is None
