# A user who may write a directory above a mount point exchanges it: a mount and its unmount stay with the directory that was
# checked, and with the mount that was made. Rows of packaging/doc/threats.md.
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from attacker import MALLORY, as_user
from mounted import BINARY, BUILD, PATIENCE, eventually, is_sanitized, mount_entry, unmount_by_force

pytestmark = pytest.mark.needs_root


class Ground:
    """A directory of Mallory's with a mount point in it, and a private one of the user who mounts."""

    def __init__(self, directory, owner):
        self.directory = directory
        os.chmod(directory, 0o755)
        self.parent = directory / "parent"
        self.point = self.parent / "mnt"
        self.private = directory / "private"
        for path in (self.point, self.private / "mnt"):
            path.mkdir(parents=True)
            os.chown(path, owner, owner)
        os.chown(directory, MALLORY, MALLORY)
        os.chown(self.parent, MALLORY, MALLORY)
        self.moved = directory / "parent.moved" / "mnt"

    def exchange(self):
        """As Mallory: the name of the directory above the mount point leads to the private one."""
        script = 'mv -T "$1" "$1.moved" && ln -s "$2" "$1"'
        subprocess.run(as_user(MALLORY, ["sh", "-c", script, "sh", self.parent, self.private]), check=True)


@pytest.fixture
def make_ground():
    made = []

    def make(owner=0):
        if shutil.which("setpriv") is None:
            pytest.skip("there is no setpriv")
        made.append(Ground(Path(tempfile.mkdtemp(prefix="stfs-exchanged-")), owner))
        return made[-1]

    yield make
    for ground in made:
        for path in (ground.moved, ground.point, ground.private / "mnt"):
            unmount_by_force(path)
        shutil.rmtree(ground.directory)


@pytest.fixture
def exchange_at_mount():
    """exchange_at_mount(GROUND) -> the beginning of a command, whose mount(2) or umount2(2) comes just after the exchange."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    if is_sanitized():
        pytest.skip("a sanitizer has to be the first library that is loaded")

    def make(ground):
        library = ground.directory / "exchanged_parent.so"
        source = Path(__file__).with_name("exchanged_parent.c")
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        return ["env", f"LD_PRELOAD={library}", f"EXCHANGED={ground.parent}", f"EXCHANGED_FOR={ground.private}"]

    return make


@pytest.mark.parametrize("options", ["ro", "ro,auto_unmount"])
def test_root_mounts_on_the_directory_that_was_checked(archive, make_ground, exchange_at_mount, options):
    ground = make_ground()
    daemon = subprocess.Popen([*exchange_at_mount(ground), BINARY, archive.path, ground.point, "-f", "-o", options])
    try:
        assert eventually(lambda: mount_entry(ground.moved))
        assert mount_entry(ground.private / "mnt") is None
        assert len(os.listdir(ground.moved)) > 1
    finally:
        daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(20 * PATIENCE) == 0
    assert mount_entry(ground.moved) is None


def test_an_ordinary_user_is_told_that_the_mount_is_elsewhere(archive, nobody, make_ground, exchange_at_mount):
    """fusermount3 mounts by the path, on a directory of this user's only."""
    ground = make_ground(nobody.uid)
    source = shutil.copy(archive.path, ground.directory)
    nobody.own(source)
    os.chown(ground.parent, nobody.uid, nobody.uid)  # the preloaded code exchanges as the user who mounts
    os.chown(ground.directory, nobody.uid, nobody.uid)
    done = subprocess.run([*nobody.before_daemon, *exchange_at_mount(ground), nobody.binary, source, ground.point, "-f"],
                          capture_output=True, text=True, timeout=60 * PATIENCE)
    assert done.returncode != 0
    assert f"{ground.point}: somebody exchanged the directory" in done.stderr
    assert mount_entry(ground.moved) is None


@pytest.mark.parametrize("ending", ["SIGTERM", "SIGKILL"])
def test_only_our_own_mount_is_unmounted(archive, make_ground, mounts, ending):
    ground = make_ground()
    mount = mounts(archive.path, "ro,auto_unmount", path=ground.point)
    subprocess.run(["mount", "-t", "tmpfs", "root's", ground.private / "mnt"], check=True)
    ground.exchange()
    mount.may_die = ending == "SIGKILL"
    os.kill(mount.pid, signal.Signals[ending])
    mount.process.wait(20 * PATIENCE)
    assert eventually(lambda: mount_entry(ground.moved) is None)
    assert mount_entry(ground.private / "mnt") is not None


@pytest.mark.parametrize("moment", ["at the system call", "before its directory is opened"])
def test_stfs_unmounts_the_mount_that_it_has_looked_at(archive, make_ground, mounts, exchange_at_mount, moment):
    ground = make_ground()
    mounts(archive.path, "ro", path=ground.point).may_die = True
    subprocess.run(["mount", "-t", "tmpfs", "root's", ground.private / "mnt"], check=True)
    is_early = moment != "at the system call"
    done = subprocess.run([*exchange_at_mount(ground), *["EXCHANGED_EARLY=1"][:is_early], BUILD / "stfs", "umount", ground.point],
                          capture_output=True, text=True, timeout=60 * PATIENCE)
    assert mount_entry(ground.private / "mnt") is not None
    assert (mount_entry(ground.moved) is not None) == is_early
    assert done.returncode == is_early, done.stderr
    assert ("a directory above it was exchanged" in done.stderr) == is_early
    if is_early:
        subprocess.run([BUILD / "stfs", "umount", ground.moved], check=True)
