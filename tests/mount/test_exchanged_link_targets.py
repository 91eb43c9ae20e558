# Mallory's link in a mounted directory of models leads to Mallory's archive. Then Mallory gives the path of the archive's
# directory to another user's directory, or to a file system whose program never answers.
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from archive_file import write_bytes_tensors
from attacker import Attacker
from mounted import BUILD, PATIENCE, eventually
from test_journal_users import ALICE, is_run_by
from test_mounted_places import silent_mount
from test_planted_files import MALLORY, as_mallory

pytestmark = pytest.mark.needs_root

STFS = BUILD / "stfs"
WAIT = 60 * PATIENCE


class Scene:
    """x of the directory leads to Mallory's archive, which everybody may write; good is Alice's."""

    def __init__(self, directory, ground, mounts):
        self.models, self.own, self.private = (ground / name for name in ("models", "own", "private"))
        for path, mode, owner in ((self.models, 0o1777, 0), (self.own, 0o755, MALLORY), (self.private, 0o700, ALICE)):
            path.mkdir()
            path.chmod(mode)
            os.chown(path, owner, owner)
        as_mallory('mkdir "$1"', self.own / "d")
        self.archive(self.own / "d" / "x.safetensors", MALLORY, 0o666)
        self.archive(self.models / "good.safetensors", ALICE, 0o644)
        as_mallory('ln -s "$1" "$2"', self.own / "d" / "x.safetensors", self.models / "x.safetensors")
        self.point = Path(directory, "mnt")
        self.point.mkdir()
        self.mounts = mounts

    def archive(self, path, owner, mode):
        write_bytes_tensors(path, {"t": b"bytes"})
        os.chown(path, owner, owner)
        os.chmod(path, mode)

    def mount(self, source=None):
        return self.mounts(source or self.models, "allow_other", path=self.point)

    def run(self, user, command, *arguments):
        return is_run_by(user, user, ["bash", "-c", command, "bash", *map(str, arguments)], timeout=WAIT)


@pytest.fixture
def scene(planted_ground, mounts):
    return Scene(*planted_ground, mounts)


def tree_of(path):
    return {(folder, name, os.lstat(os.path.join(folder, name)).st_uid)
            for folder, folders, names in os.walk(path) for name in [*folders, *names]}


def test_scratch_files_of_another_directory_are_not_reached(scene):
    scratch = scene.private / ".x.safetensors.scratch"
    scratch.mkdir()
    (scratch / "notes.txt").write_text("secret")
    (scratch / "notes.txt").chmod(0o644)
    scene.archive(scene.private / "x.safetensors", ALICE, 0o600)
    for path in (scratch, scratch / "notes.txt"):
        os.chown(path, ALICE, ALICE)
    mount = scene.mount()
    assert scene.run(MALLORY, 'cat "$1/t"; echo own > "$1/note" && cat "$1/note"', mount / "x").stdout == "bytesown\n"
    before = tree_of(scene.private)
    as_mallory('mv "$1/d" "$1/d2"; ln -s "$2" "$1/d"', scene.own, scene.private)
    for command in ('cat "$1/notes.txt"', 'rm "$1/notes.txt"', 'echo p > "$1/planted"', 'mv "$1/notes.txt" "$1/n"',
                    'rm "$1/note"'):
        done = scene.run(MALLORY, command, mount / "x")
        assert done.returncode != 0 and "secret" not in done.stdout, done
    assert tree_of(scene.private) == before
    assert (scratch / "notes.txt").read_text() == "secret"


def test_a_mount_that_does_not_answer_in_the_place_of_the_directory_stops_nobody(scene):
    mount = scene.mount()
    assert (mount / "x" / "t").read_bytes() == b"bytes"
    as_mallory('mv "$1/d" "$1/d2"', scene.own)
    with silent_mount(scene.own / "d", "allow_other"):
        asking = [subprocess.Popen(["setpriv", f"--reuid={MALLORY}", f"--regid={MALLORY}", "--clear-groups", "bash", "-c",
                                    'ls "$1"; touch "$1/q$2"; cat "$1/r$2"', "bash", mount / "x", str(number)],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for number in range(30)]  # fmt: skip
        try:
            done = scene.run(ALICE, 'ls "$1" && cat "$1/good/t" && printf BYTES | dd of="$1/good/t" conv=notrunc status=none',
                             mount.path)
            assert done.returncode == 0 and "bytes" in done.stdout, done
            os.chmod(scene.models / "good.safetensors", 0o600)
            assert eventually(lambda: scene.run(MALLORY, 'cat "$1/good/t"', mount.path).returncode != 0)
            for process in asking:
                process.wait(WAIT)
        finally:
            for process in asking:
                process.kill()
                process.wait()


def test_a_mount_that_does_not_answer_in_the_place_of_the_mounted_directory_stops_nobody(scene):
    models = scene.own / "models"
    as_mallory('mkdir "$1"; chmod 1777 "$1"', models)
    scene.archive(models / "good.safetensors", ALICE, 0o644)
    mount = scene.mount(models)
    as_mallory('mv "$1" "$1.old"', models)
    with silent_mount(models, "allow_other"):
        done = scene.run(ALICE, 'ls "$1" && cat "$1/good/t"; cat "$1/missing"; touch "$1/new.safetensors"; ls "$1"', mount.path)
        assert "good" in done.stdout and "bytes" in done.stdout, done
        os.chmod(scene.own / "models.old" / "good.safetensors", 0o600)
        assert eventually(lambda: scene.run(MALLORY, 'cat "$1/good/t"', mount.path).returncode != 0)
        assert eventually(lambda: "is another directory than the one that is mounted" in mount.log())
        assert mount.unmount() == 0


def test_a_link_to_an_open_file_of_a_mount_that_does_not_answer_holds_nobody(scene):
    attacker = Attacker()
    try:
        with silent_mount(scene.own / "silent", "allow_other"):
            program = attacker.does("os.dup2(os.open(sys.argv[1], os.O_PATH), 50)\nstay()\n", scene.own / "silent")
            as_mallory('ln -s "/proc/$1/fd/50" "$2"', program.pid, scene.models / "evil.safetensors")
            mount = scene.mount()
            assert {"good", "x"} <= set(os.listdir(mount.path))
            assert (mount / "good" / "t").read_bytes() == b"bytes"
            for verb in ("info", "ls"):
                assert is_run_by(0, 0, [STFS, verb, scene.models / "evil.safetensors"], timeout=WAIT).returncode == 1
    finally:
        attacker.stop()


def test_in_a_user_namespace_that_does_not_know_root_the_links_of_proc_are_followed(scene):
    # In this user namespace an unknown user owns /proc/self and all files of root.
    shards = scene.own / "sharded"
    shards.mkdir()
    for number in (1, 2):
        write_bytes_tensors(shards / f"m-0000{number}-of-00002.safetensors", {f"t{number}": b"bytes"})
    names = {f"t{number}": f"m-0000{number}-of-00002.safetensors" for number in (1, 2)}
    (shards / "m.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    for path in (shards, *shards.iterdir()):
        os.chown(path, ALICE, ALICE)
    stfs = shutil.copy2(STFS, scene.point.parent)
    alone = ["unshare", "--user", "--"]
    if is_run_by(ALICE, ALICE, [*alone, "true"]).returncode != 0:
        pytest.skip("no user namespaces")
    done = is_run_by(ALICE, ALICE, [*alone, stfs, "mv", shards, "t1", "renamed"], timeout=WAIT)
    assert done.returncode == 0, done
    listed = is_run_by(ALICE, ALICE, [*alone, "bash", "-c", '"$1" ls /dev/stdin < "$2"', "bash", stfs,
                                      shards / "m-00001-of-00002.safetensors"], timeout=WAIT)  # fmt: skip
    assert "renamed" in listed.stdout, listed
