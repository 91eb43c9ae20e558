# Starting: every failure reaches the terminal, with the path and the reason, before anything is mounted.
import json
import os
import signal
import subprocess
import time

import pytest
from archive_file import ArchiveFile, save_with_reference
from mount_namespace import in_namespace
from mounted import BINARY, PATIENCE, SANITIZER_REPORT, errno_of, eventually, mount_entry, unmount_by_force

pytestmark = [pytest.mark.sequential, pytest.mark.library]


@pytest.fixture
def mountpoint(tmp_path):
    path = tmp_path / "mnt"
    path.mkdir()
    yield path
    while mount_entry(path) is not None:
        unmount_by_force(path)


class Outcome:
    def __init__(self, status, text):
        self.status, self.text = status, text

    def says(self, *words):
        missing = [word for word in words if str(word).lower() not in self.text.lower()]
        assert not missing, f"{missing} is not in:\n{self.text}"
        assert not SANITIZER_REPORT.search(self.text), self.text
        return True


@pytest.fixture
def start(tmp_path, mountpoint):
    """start(ARGUMENT...) runs the binary as typed, into the background if it wants to."""
    def run(*arguments, before=(), cwd=None):
        output = tmp_path / "output"
        with open(output, "wb") as file:
            status = subprocess.run([*before, str(BINARY), *map(str, arguments)], stdin=subprocess.DEVNULL,
                                    stdout=file, stderr=file, timeout=30 * PATIENCE, cwd=cwd).returncode
        return Outcome(status, output.read_text(errors="replace"))
    return run


# ---- successful starts ----

def test_the_command_returns_0_when_the_mount_is_usable_and_lets_go_of_the_terminal(archive, mountpoint):
    """A pipe that the daemon kept open would keep `safetensorsfs ... | cat` from ending."""
    done = subprocess.run([BINARY, archive.path, mountpoint], capture_output=True, timeout=30 * PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (mountpoint / "odd").read_bytes() == archive.tensor("odd")


def test_the_background_daemon_holds_no_directory_and_its_own_session(start, archive, mountpoint, tmp_path):
    assert start(archive.path, mountpoint, cwd=tmp_path).status == 0
    def found():
        return [pid for pid in os.listdir("/proc") if pid.isdigit() and _command(pid)[2:3] == [str(mountpoint)]]

    assert eventually(lambda: len(found()) == 1), "one process serves; its guard begins as a copy of it"
    daemon, = found()
    assert os.readlink(f"/proc/{daemon}/cwd") == "/"
    assert os.getsid(int(daemon)) == int(daemon) != os.getsid(0)


def _command(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read().split("\0")
    except OSError:
        return []


def test_relative_paths_work_from_the_background(start, archive, mountpoint, tmp_path):
    assert start("model.safetensors", "mnt", cwd=tmp_path).status == 0
    assert (mountpoint / "odd").read_bytes() == archive.tensor("odd")
    (mountpoint / "odd").write_bytes(b"r" * archive.size("odd"))
    assert archive.tensor("odd") == b"r" * archive.size("odd")


def test_an_archive_of_any_name_can_be_mounted(start, mountpoint, tmp_path):
    for name in ("with space.safetensors", "with,comma.safetensors", "no-extension", "new\nline.safetensors",
                 "back\\slash.safetensors", "ü.safetensors", "-dash.safetensors"):
        path = save_with_reference(tmp_path / name)
        outcome = start(path, mountpoint)
        assert outcome.status == 0, outcome.text
        assert mount_entry(mountpoint)[0] == str(path)
        assert len(os.listdir(mountpoint)) > 10
        assert subprocess.run(["umount", mountpoint]).returncode == 0


def test_a_mount_point_of_any_name_works(start, archive, tmp_path):
    for name in ("m space", "m,comma", "m\\b", "m\nn", "m\tt", "mü", "m'quote"):
        path = tmp_path / name
        path.mkdir()
        try:
            assert start(archive.path, path).status == 0
            assert len(os.listdir(path)) > 10
            assert subprocess.run(["umount", path]).returncode == 0
        finally:
            unmount_by_force(path)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is not there")
def test_help_that_nobody_gets_is_a_failure():
    with open("/dev/full", "w") as full:
        done = subprocess.run([BINARY, "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "No space left on device" in done.stderr


@pytest.mark.parametrize("options", [
    "rw,layout=flat,allow_other,uid=0,gid=0,umask=0,threads=1,nonempty,nosuid,nodev,noatime,noexec",
    "ro,layout=tree,default_permissions,threads=16,umask=022,exec,async,dirsync,diratime,relatime,sync,user,atime",
    "defaults,dev,suid,nodiratime,noatime,atime,noauto,nofail,_netdev,x-systemd.x=1,fsname=mine,subtype=other", "", ","])
def test_options_that_are_accepted(start, archive, mountpoint, options):
    outcome = start(archive.path, mountpoint, *(["-o", options] if options else []))
    assert outcome.status == 0, outcome.text
    assert (mountpoint / ("scalar")).read_bytes() == archive.tensor("scalar")


def test_the_source_and_the_type_that_are_shown_can_be_chosen(start, archive, mountpoint):
    assert start(archive.path, mountpoint, "-o", "fsname=my model\\1,subtype=other").status == 0
    source, kind, options = mount_entry(mountpoint)
    assert (source, kind) == ("my model\\1", "fuse.other")
    assert (mountpoint / "scalar").read_bytes() == archive.tensor("scalar")


def test_auto_unmount_takes_the_mount_down_after_a_crash(archive, mounts):
    mount = mounts(archive.path, "auto_unmount")
    assert (mount / "odd").read_bytes() == archive.tensor("odd")
    mount.kill()
    assert eventually(lambda: not mount.is_mounted())


# ---- wrong usage: 2 ----

@pytest.mark.parametrize("options, word", [("threads=0", "threads"), ("ro,nonsense=1,rw", "nonsense")])
def test_a_wrong_option_is_status_2_and_named(start, archive, mountpoint, options, word):
    outcome = start(archive.path, mountpoint, "-o", options)
    assert outcome.status == 2, outcome.text
    assert outcome.says(word)
    assert mount_entry(mountpoint) is None


# ---- failures: 1 ----

def failed(outcome, *words):
    assert outcome.status == 1, f"status {outcome.status}: {outcome.text}"
    assert len(outcome.text.strip().splitlines()) <= 4, f"too many words:\n{outcome.text}"
    return outcome.says(*words)


# The source, the mount point, and parts of the message. tests/fs/source_test.cc and mount_point_test.cc test the single checks;
# tests/core/model_index_test.cc has each bad index.
FAILURES = [
    ("nothing.safetensors", "mnt", ["nothing.safetensors", "no such file"]),
    ("empty", "mnt", ["empty", "directory", "safetensors"]),
    ("bad", "mnt", ["bad/a.safetensors", "header"]),
    ("deep/m.safetensors.index.json", "mnt", ["deep/m.safetensors.index.json", "byte"]),
    ("void/m.safetensors.index.json", "mnt", ["void/m.safetensors.index.json"]),
    ("pipe", "mnt", ["pipe"]),
    ("/dev/null", "mnt", ["/dev/null"]),
    ("/dev/zero", "mnt", ["/dev/zero"]),
    ("mounted/odd", "mnt", ["mounted/odd"]),  # a tensor is a file like any other, and happens to be no archive
    ("model.safetensors", "nowhere", ["nowhere", "exist"]),
    ("model.safetensors", "file", ["file", "directory"]),
    ("model.safetensors", "mounted/odd", ["mounted/odd", "directory"]),
    ("model.safetensors", "mounted/missing", ["mounted/missing", "exist"]),
    ("mnt", "model.safetensors", ["model.safetensors", "not a directory"]),
]


@pytest.mark.parametrize("source, target, words", FAILURES)
def test_what_cannot_be_mounted_or_mounted_on(start, archive, mounts, mountpoint, tmp_path, source, target, words):
    for name in ("empty", "bad", "deep", "void", "mounted"):
        (tmp_path / name).mkdir()
    (tmp_path / "bad" / "a.safetensors").write_bytes(b"short")
    (tmp_path / "deep" / "m.safetensors.index.json").write_text("[" * 100_000)
    (tmp_path / "void" / "m.safetensors.index.json").write_text('{"weight_map":{}}')
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    if "mounted/" in source + target:
        mounts(archive.path, path=tmp_path / "mounted")
    assert failed(start(tmp_path / source, tmp_path / target), *words)
    assert mount_entry(tmp_path / target) is None


def test_a_source_that_nobody_may_read(start, nobody, mountpoint):
    path = save_with_reference(nobody.directory / "secret.safetensors")
    os.chmod(path, 0o600)
    target = nobody.make_mount_point()
    done = subprocess.run([*nobody.before, nobody.binary, path, target], capture_output=True, text=True)
    assert done.returncode == 1 and "Permission denied" in done.stderr and "secret.safetensors" in done.stderr


def test_a_mount_point_that_is_not_empty_is_refused_unless_asked_for(start, archive, mountpoint):
    (mountpoint / "precious").write_bytes(b"x")
    assert failed(start(archive.path, mountpoint), mountpoint, "not empty", "nonempty")
    assert mount_entry(mountpoint) is None
    assert start(archive.path, mountpoint, "-o", "nonempty").status == 0
    assert (mountpoint / "odd").read_bytes() == archive.tensor("odd")
    assert subprocess.run(["umount", mountpoint]).returncode == 0
    assert (mountpoint / "precious").read_bytes() == b"x"


def _to_archive(tmp_path):
    return "in/a.safetensors", "in"


def _to_index(tmp_path):
    (tmp_path / "in" / "m.safetensors.index.json").write_text('{"weight_map":{"odd":"a.safetensors"}}')
    return "in/m.safetensors.index.json", "in"


def _to_shard(tmp_path):
    """The index lies elsewhere."""
    names = ArchiveFile(tmp_path / "in" / "a.safetensors").layout()
    (tmp_path / "m.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(names, "s.safetensors")}))
    (tmp_path / "s.safetensors").symlink_to("in/a.safetensors")
    return "m.safetensors.index.json", "in"


def _to_delta(tmp_path):
    return "model.safetensors", "in", "-o", "delta=in/new.delta.safetensors"


def _to_bind_mount(tmp_path):
    (tmp_path / "bound").mkdir()
    return "bound/a.safetensors", "in"


HIDDEN = {"the directory itself": lambda tmp_path: ("in", "in"), "its archive": _to_archive, "an index": _to_index,
          "a directory above": lambda tmp_path: ("in", "."), "a link": lambda tmp_path: ("link", "in"),
          "a shard": _to_shard, "a delta": _to_delta, "a bind mount": _to_bind_mount}


@pytest.mark.parametrize("way", HIDDEN)
def test_a_mount_that_would_hide_its_own_source_is_refused(start, archive, mountpoint, tmp_path, way):
    """Its first access to the source would wait for itself: SIGKILL then ends the test, in a namespace whose end
    unmounts."""
    (tmp_path / "in").mkdir()
    save_with_reference(tmp_path / "in" / "a.safetensors")
    (tmp_path / "link").symlink_to("in")
    source, target, *rest = HIDDEN[way](tmp_path)
    before = in_namespace("mount --bind in bound" if way == "a bind mount" else "true")
    outcome = start(source, target, "-f", "-o", "nonempty", *rest, cwd=tmp_path,
                    before=[*before, "timeout", "-s", "KILL", str(5 * PATIENCE)])
    assert failed(outcome, "leads through the mount point", tmp_path / target, "choose a mount point")
    assert not (tmp_path / "in" / "new.delta.safetensors").exists()


def test_a_mount_point_in_the_source_directory_works(start, archive, mountpoint, tmp_path):
    assert start(tmp_path, mountpoint).status == 0
    assert (mountpoint / "model" / "odd").read_bytes() == archive.tensor("odd")


def test_a_mount_point_in_use_by_us_is_refused(start, archive, mountpoint):
    assert start(archive.path, mountpoint).status == 0
    outcome = start(archive.path, mountpoint)
    assert failed(outcome, mountpoint, "already")
    assert (mountpoint / "odd").read_bytes() == archive.tensor("odd")
    assert subprocess.run(["umount", mountpoint]).returncode == 0
    assert mount_entry(mountpoint) is None


@pytest.fixture(params=[False, True], ids=["unnoticed", "noticed"])
def dead(archive, mounts, request):
    """A mount whose program was killed, and of which the kernel still remembers something."""
    mount = mounts(archive.path)
    os.stat(mount.path)  # into the kernel's cache
    mount.kill()
    assert not request.param or errno_of(os.listdir, mount.path) != 0
    return mount


@pytest.mark.needs_root
@pytest.mark.parametrize("ending", ["", "/"])
def test_a_dead_mount_of_roots_own_is_unmounted_by_the_next_one(start, archive, dead, ending):
    assert start(archive.path, f"{dead.path}{ending}").status == 0
    assert (dead.path / "odd").read_bytes() == archive.tensor("odd")
    assert subprocess.run(["umount", dead.path]).returncode == 0
    assert mount_entry(dead.path) is None, "the dead mount is below"


def test_a_dead_mount_that_is_not_roots_safetensorsfs_says_how_to_unmount(start, archive, mounts):
    mount = mounts(archive.path, "subtype=another")
    mount.kill()
    assert failed(start(archive.path, mount.path), mount.path, "dead mount", "umount")
    assert mount_entry(mount.path)
    for path in (mount.path, mount.path / "odd"):
        told = subprocess.run([BINARY.parent / "stfs", "ls", path], capture_output=True, text=True)
        assert told.returncode == 1 and f"{path}: lies in a dead mount" in told.stderr, told.stderr


def test_without_a_right_to_fuse_the_message_says_what_is_needed(nobody):
    """No fusermount3 in PATH, no access to /dev/fuse, or both: never silence."""
    path = nobody.own(save_with_reference(nobody.directory / "m.safetensors"))
    target = nobody.make_mount_point()
    done = subprocess.run([*nobody.before, nobody.binary, path, target], capture_output=True, text=True,
                          env={"PATH": "/nonexistent"})
    if done.returncode == 0:  # libfuse knows a full path too
        unmount_by_force(target)
        pytest.skip("libfuse found fusermount3 without PATH")
    assert done.returncode == 1 and str(target) in done.stderr and "fuse" in done.stderr


def test_a_signal_before_the_mount_is_ready_leaves_no_mount(archive, tmp_path):
    for number in range(15):
        path = tmp_path / f"early{number}"
        path.mkdir()
        process = subprocess.Popen([BINARY, archive.path, path, "-f"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        time.sleep(0.001 * number)
        process.send_signal(signal.SIGTERM)
        process.wait(20 * PATIENCE)
        left = mount_entry(path)
        unmount_by_force(path)
        assert left is None
