# Mounts whose daemon is killed: helpers to examine their programs, their mount points and the guard.
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import mount_namespace
import pytest
from mounted import PATIENCE, Mount, eventually, mount_entry

CONNECTIONS = "/sys/fs/fuse/connections"
WITH_FUSECTL = f"{{ mount -t fusectl none {CONNECTIONS} 2>/dev/null || true; }}"
WITHOUT_FUSECTL = f"{{ umount -l {CONNECTIONS} 2>/dev/null || true; }}"


class Namespace:
    """A mount namespace that outlives the daemons in it, and in which fusectl is mounted, or is not."""

    def __init__(self, prepare, *options):
        self.holder = subprocess.Popen([*mount_namespace.in_namespace(f"{prepare} && echo ready", *options), "cat"],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout.readline() == "ready\n"
        kinds = ["mnt", "user"] if "--user" in options else ["mnt"]
        names = {"mnt": "mount", "user": "user"}
        self.inside = ["nsenter", *(f"--{names[kind]}=/proc/{self.holder.pid}/ns/{kind}" for kind in kinds), "--"]

    def is_mounted(self, path):
        return mount_entry(path, self.holder.pid) is not None

    def end(self):
        self.holder.communicate()


class Place:
    """Where a user mounts: the namespace, the user's commands, the program and the mount point."""

    def __init__(self, directory, space, user=None):
        self.space, self.user = space, user
        self.path = Path(user.make_mount_point() if user else directory / "mnt")
        self.path.mkdir(exist_ok=True)
        self.log = directory / "killed.log"
        self.before = [*space.inside, *(user.before if user else [])]

    def mount(self, source, options="", flags=()):
        return Mount(source, self.path, self.log, options, before=self.before, flags=flags,
                     binary=self.user.binary if self.user else None, in_namespace=True)

    def start(self, code, *arguments):
        """A program of the user's, in Python; its argument is the mount point."""
        return subprocess.Popen([*self.before, sys.executable, "-c", code, str(self.path), *map(str, arguments)],
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def answer(self):
        """The result of statvfs of the mount point: "alive", an error, or "hangs"."""
        probe = self.start("import os, sys\n"
                           "try: os.statvfs(sys.argv[1]); print('alive')\n"
                           "except OSError as error: print(error.strerror)\n")
        try:
            return probe.communicate(timeout=5 * PATIENCE)[0].strip()
        except subprocess.TimeoutExpired:
            return "hangs"

    def is_dead(self):
        """Whether the mount point gives the error of a dead daemon. Running requests were aborted."""
        assert eventually(lambda: self.answer() != "Software caused connection abort")
        return self.answer() == "Transport endpoint is not connected"

    def unmount(self):
        subprocess.run([*self.space.inside, "umount", "-l", str(self.path)], check=True, capture_output=True)

    def rescue(self):
        """Ends hanging processes, so that a failing test leaves nothing behind."""
        subprocess.run([*self.space.inside, "umount", "-f", str(self.path)], capture_output=True)


def kill(mount, place):
    """kill -9; fails if the daemon hangs. Returns the seconds until it has ended."""
    began = time.monotonic()
    mount.may_die = True
    mount.process.kill()
    mount.watchdog.cancel()
    try:
        mount.process.wait(5 * PATIENCE)
    except subprocess.TimeoutExpired:
        states = thread_states(mount.pid)
        place.rescue()
        mount.process.wait()
        pytest.fail(f"the killed daemon hangs: {states}")
    return time.monotonic() - began


def thread_states(pid):
    """[(name, state)] of the threads of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            name, rest = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
            found.append((name, rest.split()[0]))
    return found


def guards_of(path):
    """Pids of the guards of a mount point."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if words[0] == b"stfs-guard" and os.fsencode(str(path)) in words:
                found.append(int(process.name))
    return found


def wait_asleep(guard):
    """Returns when the guard has begun to wait for its daemon's end."""
    def sleeps():
        return (Path(f"/proc/{guard}/comm").read_text() == "stfs-guard\n"
                and "sigtimedwait" in Path(f"/proc/{guard}/wchan").read_text())

    assert eventually(sleeps)


def end(*processes):
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def unmount(path):
    """A mount without a Mount, whatever its state."""
    for command in (["umount", "-l"], ["fusermount3", "-uz"]):
        if subprocess.run([*command, str(path)], capture_output=True).returncode == 0:
            return
    raise AssertionError(f"{path} does not unmount")


def copy_for(user, path):
    """The archive, owned by the user."""
    if user is None:
        return path
    return user.own(shutil.copy(path, user.directory / Path(path).name))
