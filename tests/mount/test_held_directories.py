# A user who may only list a mount holds the kernel's lock of its root: the user lists it into a map of a file of another mount,
# whose daemon the user has stopped. Notices of names wait for that lock; nothing else does, and the mount ends.
import os
import shutil
import signal
import subprocess
from pathlib import Path

import killed_daemon
import numpy as np
import pytest
from archive_file import random_bytes, save_with_reference
from killed_daemon import thread_states
from mounted import BUILD, PATIENCE, eventually, mount_entry, run_python

pytestmark = pytest.mark.once

STFS = BUILD / "stfs"


class Held:
    """A mount of a model with the tensors a and b, of which somebody holds the root, and a notice that waits for it."""

    def __init__(self, directory, mounts, source, edit):
        own = save_with_reference(directory / "own.safetensors", {"z": np.ones(1 << 21, "u1")})
        self.mount, self.mallorys = mounts(source), mounts(own)
        self.holder = None
        program = directory / "held_directory"
        subprocess.run([shutil.which("cc"), "-O1", "-o", program, Path(__file__).with_name("held_directory.c")], check=True)
        os.stat(self.mallorys / "z")
        for name in "abc":  # a look-up of a name that the kernel does not know would wait for the lock
            os.stat(self.mount / name)
        self.holder = subprocess.Popen([program, self.mallorys / "z", self.mount.path], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True)
        try:
            assert self.holder.stdout.readline() == "ready\n"
            os.kill(self.mallorys.pid, signal.SIGSTOP)
            # Not at once: until then its threads may answer.
            assert eventually(lambda: {state for _, state in thread_states(self.mallorys.pid)} == {"T"})
            self.holder.stdin.write("go\n")
            self.holder.stdin.flush()
            # The holder waits in getdents64(2) (its numbers on x86-64 and on arm64), and not for a page of its program.
            assert eventually(lambda: Path(f"/proc/{self.holder.pid}/syscall").read_text().split()[0] in ("217", "61")
                              and "D" in dict(thread_states(self.holder.pid)).values())
            edit()
            assert eventually(lambda: ("name-notices", "D") in self.states()), self.states()
        except BaseException:
            self.let_go()
            raise

    def states(self):
        return thread_states(self.mount.pid)

    def let_go(self):
        os.kill(self.mallorys.pid, signal.SIGCONT)
        self.holder.communicate(timeout=20 * PATIENCE)


@pytest.fixture
def holds(tmp_path, mounts):
    """holds(SOURCE, EDIT) -> Held; EDIT changes names that the mount shows. Let go at the end."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    made = []

    def hold(source, edit):
        made.append(Held(tmp_path, mounts, source, edit))
        return made[-1]

    yield hold
    for held in made:
        held.let_go()


@pytest.fixture
def model(tmp_path):
    """An archive with the tensors a, b and c, in a directory of its own."""
    (tmp_path / "models").mkdir()
    path = save_with_reference(tmp_path / "models" / "m.safetensors", {name: np.ones(5000, "u1") for name in "abcd"})
    remove(path, "d")()  # leaves room in the header for an edit while it is mounted
    return path


def remove(model, name):
    return lambda: subprocess.run([STFS, "rm", model, name], check=True, timeout=60 * PATIENCE)


def run(code, *arguments):
    """In a process of its own: what hangs fails the test."""
    done = run_python(code, *arguments, timeout=20)
    assert done.returncode == 0, done.stderr


WRITE = """import os, sys
file = os.open(sys.argv[1], os.O_WRONLY)
os.write(file, bytes.fromhex(sys.argv[2]))
os.fsync(file)
os.close(file)
"""


def test_commits_do_not_wait_for_a_held_root(model, holds):
    held = holds(model, remove(model, "c"))
    for name in "ab":
        data = random_bytes(5000, ord(name))
        run(WRITE, held.mount / name, data.hex())
        run("import sys; assert open(sys.argv[1], 'rb').read().hex() == sys.argv[2]", held.mount / name, data.hex())
    held.let_go()
    assert eventually(lambda: sorted(set(os.listdir(held.mount.path))) == ["a", "b"])


def test_a_change_that_a_held_root_delays_is_told(model, holds):
    held = holds(model, remove(model, "c"))
    run("import os, sys; os.setxattr(sys.argv[1], 'user.safetensors.dtype', b'I8')", held.mount / "a")
    assert f"{model}: a program holds this directory" in held.mount.log()


def has_only_what_waits(pid):
    return {name for name, state in thread_states(pid) if state != "Z"} == {"name-notices"}


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_a_held_mount_ends(model, holds, ending):
    """The kernel ends the last thread when the directory is let go: until then the process is there."""
    held = holds(model, remove(model, "c"))
    held.mount.may_die = ending == signal.SIGKILL
    os.kill(held.mount.pid, ending)
    assert eventually(lambda: has_only_what_waits(held.mount.pid)), held.states()
    if ending == signal.SIGTERM:
        assert mount_entry(held.mount.path) is None
        assert "this process ends when it lets go" in held.mount.log()
    else:
        assert eventually(lambda: "not connected" in run_python(
            "import os, sys\ntry: os.statvfs(sys.argv[1])\nexcept OSError as error: print(error.strerror)",
            held.mount.path, timeout=20).stdout)
        killed_daemon.unmount(held.mount.path)
    held.let_go()
    assert held.mount.wait() == (0 if ending == signal.SIGTERM else -signal.SIGKILL)
