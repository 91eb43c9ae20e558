# An unprivileged user who may write the directory of other users' archives, and not the archives.
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import mounted
import pytest
from archive_file import ArchiveFile, Expectation, random_bytes, write_bytes_tensors

ALICE, MALLORY = 12345, 23456
BYTES = 20_000


def as_user(uid, command):
    """The command as a user of that number without other groups. Root needs no change."""
    if uid == 0:
        return list(command)
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--", *command]


# The beginning of each program of the attacker. stay() prints that the program is ready, and waits for the end of its input.
PROLOGUE = """
import fcntl, os, signal, socket, stat, struct, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel's wish that a lease ends
def stay():
    print("ready", flush=True)
    sys.stdin.read()
"""


class Attacker:
    """Runs Python programs as Mallory; each lives until the end of the test."""

    def __init__(self, uid=MALLORY):
        self.uid = uid
        self.running = []

    def does(self, script, *arguments):
        program = subprocess.Popen(as_user(self.uid, [sys.executable, "-I", "-c", PROLOGUE + script, *map(str, arguments)]),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.running.append(program)
        assert program.stdout.readline() == "ready\n"
        return program

    def stop(self):
        for program in self.running:
            program.stdin.close()
            program.wait()
            program.stdout.close()
        self.running.clear()


class Scene:
    """An archive in a directory where everybody may make files, with the sticky bit, on some file system."""

    def __init__(self, directory, owner):
        self.directory = directory
        self.owner = owner
        os.chmod(directory, 0o755)
        self.stfs = shutil.copy2(mounted.BUILD / "stfs", directory)
        self.archives = os.path.join(directory, "archives")
        os.mkdir(self.archives)
        self.path = os.path.join(self.archives, "model.safetensors")
        tensors = {name: random_bytes(BYTES, ord(name)) for name in "abc"}
        self.archive = ArchiveFile(write_bytes_tensors(self.path, tensors))
        self.expected = Expectation(self.archive)
        os.chown(self.path, owner, owner)
        os.chmod(self.path, 0o644)
        os.chmod(self.archives, 0o1777)
        self.seed = 100

    def mount_point(self):
        """A place that every user can reach."""
        path = Path(self.directory) / "mnt"
        path.mkdir()
        return path

    def planted(self, number=0, suffix=""):
        return os.path.join(self.archives, f".model.safetensors.stj.{number:032x}{suffix}")

    def run(self, *arguments, uid=None, before=(), **more):
        uid = self.owner if uid is None else uid
        return subprocess.run([*before, *as_user(uid, [self.stfs, *map(str, arguments)])], capture_output=True,
                              text=True, errors="replace", **more)

    def fresh(self):
        self.seed += 1
        data = random_bytes(BYTES, self.seed)
        path = os.path.join(self.directory, "fresh")
        with open(path, "wb") as file:
            file.write(data)
        os.chmod(path, 0o644)
        return data, path

    def put(self, name, **more):
        """Writes a tensor with the owner's tool."""
        data, path = self.fresh()
        done = self.run("put", self.path, name, path, **more)
        if done.returncode == 0:
            self.expected.change(name, data)
        return done

    def write(self, mount, name):
        """Writes a tensor through root's mount."""
        data, _ = self.fresh()
        with open(mount / name, "r+b") as file:
            file.write(data)
        self.expected.change(name, data)


def scene_in(kind, owner):
    """A generator for fixtures: the plain disk of the machine, or tmpfs."""
    for program in ("setpriv",):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}")
    parent = None
    if kind == "tmpfs":
        parent = "/dev/shm"
        if not os.path.isdir(parent):
            pytest.skip("there is no /dev/shm")
    directory = tempfile.mkdtemp(prefix="stfs-attack-", dir=parent)
    try:
        yield Scene(directory, owner)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
