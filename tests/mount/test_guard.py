# The guard: after kill -9 the mount point gives ENOTCONN and can be unmounted, also if a thread of the daemon waits in the
# kernel for a lock of a program. Before the kill the guard disturbs no program.
import errno
import os
import shutil
import signal
import subprocess
from pathlib import Path

import killed_daemon
import pytest
from killed_daemon import WITH_FUSECTL, WITHOUT_FUSECTL, Place, guards_of, thread_states, wait_asleep
from mounted import BINARY, PATIENCE, errno_of, eventually, start_python, wait_ready
from test_locks import HOLD, LOCK_BASE

pytestmark = pytest.mark.once


@pytest.fixture
def places(tmp_path):
    """places(prepare, user) -> Place in a mount namespace of its own."""
    spaces = []

    def make(prepare, user=None, options=()):
        spaces.append(killed_daemon.Namespace(prepare, *options))
        return Place(tmp_path, spaces[-1], user)

    yield make
    for space in spaces:
        space.end()


class Stuck:
    """A mount that would hang if it were killed: a rename waits for the archive's lock, so the kernel holds the root's lock,
    and a replaced archive makes the daemon tell the kernel which of the root's names to forget."""

    def __init__(self, place, archive, options="", flags=()):
        source = killed_daemon.copy_for(place.user, archive.path)
        shutil.copy2(source, f"{source}.new")
        if place.user:
            place.user.own(f"{source}.new")
        self.place, self.mount = place, place.mount(source, options, flags)
        self.holder = start_python(HOLD, source, LOCK_BASE, 1)
        wait_ready(self.holder)
        self.client = place.start("import os, sys\n"
                                  "os.stat(sys.argv[1] + '/small')\n"
                                  "print('ready', flush=True)\n"
                                  "os.rename(sys.argv[1] + '/small', sys.argv[1] + '/other')\n")
        assert self.client.stdout.readline() == "ready\n"
        assert eventually(lambda: Path(f"/proc/{self.client.pid}/wchan").read_text().startswith("request_wait"))
        os.rename(f"{source}.new", source)
        # Before the rename has lost its patience with the lock.
        assert eventually(lambda: ("name-notices", "D") in thread_states(self.mount.pid)), thread_states(self.mount.pid)

    def kill(self):
        try:
            killed_daemon.kill(self.mount, self.place)
        finally:
            killed_daemon.end(self.holder, self.client)


@pytest.mark.needs_root
@pytest.mark.parametrize("prepare", [WITH_FUSECTL, WITHOUT_FUSECTL], ids=["fusectl", "no-fusectl"])
def test_a_killed_mount_of_root_gives_enotconn(places, archive, prepare):
    place = places(prepare)
    Stuck(place, archive).kill()
    assert place.is_dead()
    place.unmount()


@pytest.mark.needs_root
def test_a_killed_mount_of_root_in_a_container_of_a_user_gives_enotconn(places, archive):
    """fusectl is not mounted in this namespace, but umount2(MNT_FORCE) is allowed."""
    place = places("true", options=["--user", "--map-root-user"])
    Stuck(place, archive).kill()
    assert place.is_dead()
    place.unmount()


def test_a_killed_mount_of_an_ordinary_user_gives_enotconn(places, archive, nobody):
    place = places(f"{WITH_FUSECTL} && {nobody.device}", nobody)
    Stuck(place, archive).kill()
    assert place.is_dead()
    subprocess.run([*place.before, "fusermount3", "-u", str(place.path)], check=True)


@pytest.mark.parametrize("who", ["root", "nobody"])
def test_auto_unmount_unmounts_a_killed_mount(places, archive, nobody, who):
    place = places(f"{WITH_FUSECTL} && {nobody.device}", nobody if who == "nobody" else None)
    Stuck(place, archive, "auto_unmount").kill()
    assert eventually(lambda: not place.space.is_mounted(place.path))


@pytest.fixture
def guard(mount):
    assert eventually(lambda: guards_of(mount.path))
    found, = guards_of(mount.path)
    wait_asleep(found)
    return found


def is_gone(pid):
    return not os.path.exists(f"/proc/{pid}")


def test_a_guard_ends_with_the_orderly_end(mount, guard):
    assert mount.unmount() == 0
    assert is_gone(guard)


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_guard_ends_with_a_mount_that_a_signal_ends(mount, guard, ending):
    mount.process.send_signal(ending)
    assert mount.wait() == 0
    assert is_gone(guard)


def test_a_guard_ends_when_the_mount_is_killed(mount, guard):
    mount.kill()
    assert eventually(lambda: is_gone(guard))


def test_a_mount_without_its_guard_goes_on(mount, guard, expected):
    os.kill(guard, signal.SIGKILL)
    assert eventually(lambda: ") Z " in Path(f"/proc/{guard}/stat").read_text())
    expected.check()
    assert len(os.listdir(mount.path)) > 1
    assert mount.unmount() == 0
    assert is_gone(guard)


def test_a_guard_takes_no_other_signal_for_the_end(mount, guard):
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        os.kill(guard, number)
    wait_asleep(guard)
    assert errno_of(os.statvfs, mount.path) == 0


def test_a_guard_has_nothing_of_the_daemons(mount, guard):
    links = {number: os.readlink(f"/proc/{guard}/fd/{number}") for number in os.listdir(f"/proc/{guard}/fd")}
    assert {links.pop(number) for number in "012"} == {"/dev/null"}
    assert not links or list(links) == ["3"] and links["3"].endswith("/abort"), links
    assert os.readlink(f"/proc/{guard}/cwd") == "/"
    assert os.getsid(guard) == guard  # no terminal sends it a signal
    assert ".safetensors" not in Path(f"/proc/{guard}/maps").read_text()


def test_a_shell_that_collects_the_output_gets_its_end(archive, tmp_path):
    (tmp_path / "mnt").mkdir()
    script = 'exec 9>&1; text=$("$1" "$2" "$3" 2>&1) && echo "$text" && umount "$3" || fusermount3 -u "$3"'
    done = subprocess.run(["bash", "-c", script, "bash", BINARY, archive.path, tmp_path / "mnt"], capture_output=True,
                          text=True, timeout=60 * PATIENCE)
    assert done.stdout == "\n" and done.returncode == 0, done
    assert eventually(lambda: not guards_of(tmp_path / "mnt"))


def test_a_mount_in_the_background_has_a_guard(archive, tmp_path):
    path = tmp_path / "mnt"
    path.mkdir()
    subprocess.run([BINARY, archive.path, path], check=True)
    try:
        assert eventually(lambda: guards_of(path))
        guard, = guards_of(path)
        wait_asleep(guard)
        daemon = int(Path(f"/proc/{guard}/stat").read_text().rsplit(")", 1)[1].split()[1])
        assert Path(f"/proc/{daemon}/comm").read_text() == "safetensorsfs\n"
        os.kill(daemon, signal.SIGKILL)
        assert eventually(lambda: is_gone(guard))
        assert errno_of(os.statvfs, path) == errno.ENOTCONN
    finally:
        killed_daemon.unmount(path)


@pytest.mark.needs_root
@pytest.mark.parametrize("prepare", [WITH_FUSECTL, WITHOUT_FUSECTL], ids=["fusectl", "no-fusectl"])
def test_a_slow_guard_leaves_the_next_mount_alone(places, archive, prepare):
    """The next mount has the mount point and the device number of the guard's mount."""
    place = places(prepare)
    first = place.mount(archive.path)
    assert eventually(lambda: guards_of(place.path))
    guard, = guards_of(place.path)
    wait_asleep(guard)
    os.kill(guard, signal.SIGSTOP)
    killed_daemon.kill(first, place)
    place.unmount()
    second = place.mount(archive.path)
    os.kill(guard, signal.SIGCONT)
    assert eventually(lambda: is_gone(guard))
    assert place.answer() == "alive"
    assert second.unmount() == 0
