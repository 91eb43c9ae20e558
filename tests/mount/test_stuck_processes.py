# A process of another user that never answers a reader of /proc, or that holds a file of the source in the kernel, keeps
# no tool and no mount of root waiting.
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import own_disk
import pytest
from archive_file import random_bytes, write_bytes_tensors
from mounted import BUILD, eventually, mount_entry
from naming_mount import naming_mount
from stuck_process import stuck_process, waits_in_kernel
from test_journal_users import is_run_by
from test_planted_files import MALLORY

pytestmark = pytest.mark.needs_root

FOREVER = 40  # seconds: a writer waits ten for a lock


def made(directory):
    directory.mkdir()
    return directory


@pytest.fixture
def model(planted_ground):
    """Root's model, which all may read."""
    model = write_bytes_tensors(planted_ground[1] / "model.safetensors", {name: random_bytes(100, 1) for name in "ab"})
    model.chmod(0o644)
    return model


@pytest.fixture
def models(planted_ground):
    """A directory on ext4, where a reader in the kernel keeps writers of the file, or of the directory, out."""
    with own_disk.own_disk("ext4", planted_ground[1] / "disk") as disk:
        models = made(disk / "models")
        for name in "xy":
            write_bytes_tensors(models / f"{name}.safetensors", {"t": random_bytes(5000, 3), "u": random_bytes(50, 4)}).chmod(0o644)
        yield models


@pytest.fixture
def other(planted_ground, mounts):
    """A mount from which Mallory maps a file. A test stops it."""
    source = write_bytes_tensors(planted_ground[1] / "other.safetensors", {"t": random_bytes(1 << 20, 2)})
    return mounts(source, "allow_other", path=made(planted_ground[1] / "mount of other"))


def numbers_of(mount):
    """The numbers of the mount and of its device, as in /proc/self/mountinfo."""
    lines = [line.split(" ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return next((line[0], line[2]) for line in lines if line[4] == str(mount.path))


def stfs(*arguments):
    return is_run_by(0, 0, [BUILD / "stfs", *map(str, arguments)], timeout=FOREVER)


def test_the_holder_of_a_lock_is_named_although_one_of_its_descriptors_is_stuck(model, other, mounts):
    mount = mounts(model)
    with stuck_process("descriptor", other, "t", model) as (holder, _):
        through = subprocess.Popen(["rm", mount / "b"], stderr=subprocess.PIPE, text=True)
        done = stfs("rm", model, "a")
        assert done.returncode == 1 and f"process {holder} (python3) of user {MALLORY}" in done.stderr
        assert "busy" in through.communicate(timeout=FOREVER)[1]
        assert eventually(lambda: f"process {holder} (python3) of user {MALLORY}" in mount.log())


@pytest.mark.parametrize("name", ["python3", "stfs-guard"])
def test_no_command_line_that_does_not_answer_holds_up_the_list_of_mounts(model, other, mounts, planted_ground, name):
    mount = mounts(model)
    place = made(planted_ground[1] / "of Mallory")
    os.chown(place, MALLORY, MALLORY)
    with naming_mount(place, model, MALLORY), stuck_process("memory map", other, "t", model, name):
        listed = stfs("mounts")
        assert listed.returncode == 0 and str(place) in listed.stdout
        assert f"{mount.pid}" in next(line for line in listed.stdout.splitlines() if str(mount.path) in line)
        assert stfs("umount", mount.path).returncode == 0


@contextlib.contextmanager
def running(command, **more):
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **more)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_busy_mount_names_its_users_beside_a_process_that_does_not_answer(model, other, mounts):
    mount = mounts(model)
    with running(["cat"], cwd=mount.path) as user, stuck_process("memory map", other, "t", model):
        done = stfs("umount", mount.path)
        assert done.returncode == 1 and f"process {user.pid} (cat)" in done.stderr


def test_a_process_that_has_only_mapped_a_file_keeps_the_mount_busy_and_is_named(model, mounts):
    mount = mounts(model)
    # Python's own mmap keeps a descriptor.
    script = ("import ctypes, os, sys; fd = os.open(sys.argv[1], os.O_RDONLY); "
              "libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_long; "
              "assert libc.mmap(None, ctypes.c_size_t(100), 1, 1, fd, ctypes.c_long(0)) > 0; os.close(fd); print(flush=True); input()")
    with running([sys.executable, "-c", script, mount / "a"]) as user:
        user.stdout.readline()
        done = stfs("umount", mount.path)
        assert done.returncode == 1 and f"process {user.pid} (" in done.stderr


def pose_as_guard(directory, mount):
    """Starts a set-user-ID program of root's under the guard's name with its arguments, of which the first makes it wait."""
    number, device = numbers_of(mount)
    named = directory / "stfs-guard"
    shutil.copy2(shutil.which("cat"), named)
    named.chmod(0o4755)
    os.mkfifo(directory / str(os.getpid()))
    words = ["stfs-guard", str(os.getpid()), number, "0", device, "leaves", "x"]
    return running(words, executable=named, cwd=directory, stderr=subprocess.DEVNULL)


def guard_of(mount):
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"stfs-guard", str(mount.pid).encode()]:
            return int(process.name)
    return None


def test_a_set_user_id_program_is_not_taken_for_the_guard(model, mounts, tmp_path):
    """A program such as sudo has root's numbers while it asks another user for the password."""
    mount = mounts(model)
    os.kill(eventually(lambda: guard_of(mount), 20), signal.SIGKILL)
    assert eventually(lambda: guard_of(mount) is None)
    with pose_as_guard(tmp_path, mount):
        done = stfs("umount", mount.path)
        assert done.returncode == 1 and "its daemon was not found" in done.stderr


@pytest.mark.parametrize("planted_ground", ["disk"], indirect=True)
def test_a_mount_leaves_its_mount_point_although_a_file_of_its_source_is_held_in_the_kernel(models, other, mounts, planted_ground):
    mount = mounts(models, "allow_other", path=made(planted_ground[1] / "mount of models"))
    with stuck_process("inode", other, "t", models / "x.safetensors"):
        edit = subprocess.Popen(["rm", mount / "x" / "t"])
        assert eventually(lambda: waits_in_kernel(mount.pid), 20)
        mount.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: mount_entry(mount.path) is None, FOREVER)
        assert mount.process.poll() is None
    assert mount.wait() == 0
    edit.wait(FOREVER)


@pytest.mark.parametrize("planted_ground", ["disk"], indirect=True)
def test_a_chmod_is_noticed_while_a_user_holds_the_directory_of_the_models_in_the_kernel(models, other, mounts, planted_ground):
    mount = mounts(models, "allow_other", path=made(planted_ground[1] / "mount of models"))

    def may_read():
        return is_run_by(MALLORY, MALLORY, ["head", "-c", "1", str(mount / "y" / "t")], text=False).returncode == 0

    assert may_read()
    with open(models / "y.safetensors") as private, open(models / "x.safetensors", "r+b") as own:
        with stuck_process("directory", other, "t", models):
            os.pwrite(own.fileno(), b"\1", os.fstat(own.fileno()).st_size - 1)  # the mount looks for journals in the directory
            assert eventually(lambda: waits_in_kernel(mount.pid), 20)
            os.fchmod(private.fileno(), 0o600)
            assert eventually(lambda: not may_read(), 30)
