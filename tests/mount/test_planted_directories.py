# A user who may write a model's directory gives a private directory of root's the name of a directory that mounts make
# there, or exchanges the directory of a log. Rows of packaging/doc/threats.md.
import os
import shutil
import stat

import pytest
from archive_file import write_bytes_tensors
from mounted import BUILD, eventually
from test_journal_users import is_run_by
from test_planted_files import MALLORY, as_mallory

pytestmark = pytest.mark.needs_root

KEYS = '{"key": "secret"}'


class Scene:
    """Root's model in a directory that everybody may write, and beside it a private directory of root's."""

    def __init__(self, directory, ground, mounts):
        self.models = ground / "models"
        self.models.mkdir()
        self.models.chmod(0o777)
        self.model = self.models / "model.safetensors"
        write_bytes_tensors(self.model, {"t": b"bytes"})
        self.model.chmod(0o644)
        self.private = self.models / "rootpriv"
        self.private.mkdir(0o700)
        (self.private / "keys.json").write_text(KEYS)
        (self.private / "keys.json").chmod(0o644)
        self.point = directory / "mnt"
        self.point.mkdir()
        self.mounts = mounts

    def mount(self, options="allow_other"):
        return self.mounts(self.model, options, path=self.point)

    def move(self, name):
        as_mallory('mv "$1" "$2"', self.private, self.models / name)
        self.private = self.models / name

    def check_closed(self, place):
        """Checks that the path in the mount gives Mallory no access."""
        for command in ('cat "$1/keys.json"', 'echo x > "$1/keys.json"', 'rm "$1/keys.json"', 'mv "$1/keys.json" "$1/mine"',
                        'touch "$1/planted"'):
            done = is_run_by(MALLORY, MALLORY, ["sh", "-c", command, "sh", place], timeout=60)
            assert done.returncode != 0 and "secret" not in done.stdout, (command, done)
        assert os.listdir(self.private) == ["keys.json"] and (self.private / "keys.json").read_text() == KEYS


@pytest.fixture
def scene(planted_ground, mounts):
    return Scene(*planted_ground, mounts)


@pytest.mark.parametrize("mode", [0o644, 0o666])
@pytest.mark.parametrize("is_mounted", [False, True])
def test_a_private_directory_is_no_directory_of_scratch_files(scene, mode, is_mounted):
    scene.model.chmod(mode)
    if is_mounted:
        mount = scene.mount()
    scene.move(".model.safetensors.scratch")
    if not is_mounted:
        mount = scene.mount()
    scene.check_closed(mount.path)
    assert "keys.json" not in os.listdir(mount.path)
    assert eventually(lambda: f"{scene.private}: is ignored: its mode 0700" in mount.log())
    scene.private.rename(scene.models / "away")
    (mount / "note").write_text("x")  # a new one is made
    assert (scene.private / "note").read_text() == "x"


@pytest.mark.parametrize("mode", [0o644, 0o666, 0o600])
def test_a_private_directory_is_not_that_of_a_delta(scene, mode):
    delta = scene.models / "delta.safetensors"
    mount = scene.mount(f"allow_other,delta={delta}")
    delta.chmod(mode)
    assert eventually(lambda: stat.S_IMODE((mount / "t").stat().st_mode) == mode)
    scene.move("delta.safetensors.pretrained")
    if mode == 0o666:
        scene.private.chmod(0o755)
        (scene.private / "keys.json").chmod(0o600)
    pretrained = mount / ".safetensors/pretrained"
    scene.check_closed(pretrained)
    # Root sees its files, and lets the kernel know them.
    assert (pretrained / "keys.json").read_text() == KEYS
    scene.check_closed(pretrained)
    if mode != 0o600:  # else the kernel refuses
        assert eventually(lambda: f"{scene.private}: is refused to other users" in mount.log())


@pytest.mark.parametrize("mode", [0o644, 0o666])
def test_the_directory_that_a_mount_makes_for_a_delta_is_for_others(scene, mode):
    (scene.models / "config.json").write_text("{}")
    (scene.models / "config.json").chmod(0o644)
    delta = scene.models / "delta.safetensors"
    mount = scene.mount(f"allow_other,delta={delta}")
    delta.chmod(mode)
    assert eventually(lambda: stat.S_IMODE((mount / "t").stat().st_mode) == mode)
    pretrained = mount / ".safetensors/pretrained"
    (pretrained / "config.json").write_text("changed")
    private = scene.models / "delta.safetensors.pretrained"
    assert private.stat().st_mode & 0o777 == 0o755
    assert as_mallory('cat "$1/config.json"', pretrained) == "changed"
    if mode == 0o666:
        as_mallory('echo mine > "$1/own.json" && rm "$1/own.json"', pretrained)
    private.chmod(0o700)  # it has the mark
    assert as_mallory('cat "$1/config.json"', pretrained) == "changed"
    # In a copy of the files the mark does not count: the modes do.
    shutil.copytree(private, scene.models / "copy")
    shutil.rmtree(private)
    (scene.models / "copy").rename(private)
    private.chmod(mode | 0o111)
    assert as_mallory('cat "$1/config.json"', pretrained) == "changed"


def test_a_log_goes_on_in_its_directory(scene):
    above = scene.models / "logs"
    above.mkdir(0o755)
    mount = scene.mount(f"allow_other,log={above}/log")
    as_mallory('mv "$1" "$1.old"; ln -s "$2" "$1"', above, scene.private)
    (mount / "t").write_bytes(b"BYTES")
    os.rename(scene.models / "logs.old/log", scene.models / "logs.old/log.1")
    assert mount.unmount() == 0
    assert os.listdir(scene.private) == ["keys.json"]
    assert "unmounted" in (scene.models / "logs.old/log").read_text()


@pytest.mark.parametrize("shared", [0o777, 0o775])
def test_the_files_of_a_private_directory_are_no_leftovers_of_a_publisher(scene, shared):
    """A directory that a publisher has not made under its name stays as it is."""
    published = scene.models
    os.chown(published, 0, MALLORY)
    published.chmod(shared)
    shard = scene.private / "model-00001-of-00002.safetensors"
    shutil.copy(scene.model, shard)
    tuned = write_bytes_tensors(scene.models / "tuned.safetensors", {"t": b"other"})
    scene.move("weight_v000001")
    publish = [BUILD / "stfs", "diff", scene.model, tuned, "--encoding", "xor", "--version", "1", "--out", published]
    done = is_run_by(0, 0, publish, timeout=60)
    assert done.returncode != 0 and f"{scene.private}: has files like those of an interrupted publisher" in done.stderr
    assert set(os.listdir(scene.private)) == {"keys.json", shard.name}
    shutil.rmtree(scene.private)
    done = is_run_by(0, 0, publish, timeout=60)
    assert done.returncode == 0, done.stderr
    # Files of a publisher that was killed before it has named the index are removed.
    (scene.private / "model.safetensors.index.json").unlink()
    done = is_run_by(0, 0, publish, timeout=60)
    assert done.returncode == 0, done.stderr
