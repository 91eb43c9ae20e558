# Reasons of refusals in places that a user can read without a system log: .safetensors/log, -o log=, stats.json.
import errno
import json
import os
import re
import stat
import subprocess

import pytest
from archive_file import write_bytes_tensors
from mounted import errno_of, eventually
from test_permissions import Visitor
from written_tensor import T

pytestmark = pytest.mark.sequential

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z "


def log_of(mount):
    return (mount / ".safetensors" / "log").read_text()


def stats_of(mount):
    return json.loads((mount / ".safetensors" / "stats.json").read_text())


def test_a_refusal_is_in_the_log_with_time_process_file_and_both_sizes(mount, archive):
    done = subprocess.run(["dd", f"of={mount / T}", "bs=10", "count=1"], input=b"too little", capture_output=True)
    assert done.returncode != 0
    line = [line for line in log_of(mount).splitlines() if "dd[" in line and "10 bytes" in line][0]
    assert re.match(TIME + r"dd\[\d+\]: ", line), line
    assert archive.path in line and T in line and "10 bytes" in line and "needs" in line, line
    assert re.match(TIME, stats_of(mount)["last_error"]) and "needs" in stats_of(mount)["last_error"]


REFUSALS = {
    "symlink": (lambda m: os.symlink("x", m / "new"), errno.EPERM),
    "link": (lambda m: os.link(m / T, m / "new"), errno.EPERM),
    "mkfifo": (lambda m: os.mkfifo(m / "new"), errno.EPERM),
    "mkdir": (lambda m: os.mkdir(m / "new"), errno.EPERM),
    "rename": (lambda m: os.rename(m / T, m / "a%zz"), errno.EILSEQ),
    "truncate": (lambda m: os.truncate(m / T, 1), errno.EINVAL),
    "dtype": (lambda m: os.setxattr(m / T, "user.safetensors.dtype", b"X9"), errno.EINVAL),
    "attribute": (lambda m: os.setxattr(m / T, "user.safetensors.checksum", b"x"), errno.EPERM),
    "other attribute": (lambda m: os.setxattr(m / T, "user.other", b"x"), errno.EPERM),
    "slice": (lambda m: os.stat(m / ".safetensors" / "slice" / f"{T}[9999999]"), errno.EINVAL),
    "write to a view": (lambda m: open(m / ".safetensors" / "header.json", "r+b"), errno.EROFS),
    "chmod of a view": (lambda m: os.chmod(m / ".safetensors" / "header.json", 0), errno.EPERM),
    "remove a view": (lambda m: os.unlink(m / ".safetensors" / "npy" / f"{T}.npy"), errno.EPERM),
    "write the log": (lambda m: open(m / ".safetensors" / "log", "r+b"), errno.EROFS),
}


@pytest.mark.parametrize("action", REFUSALS)
def test_every_refusal_has_one_line(mount, archive, action):
    act, due = REFUSALS[action]
    before = log_of(mount).splitlines()
    assert errno_of(act, mount) == due
    (line,) = log_of(mount).splitlines()[len(before):]
    assert re.match(TIME + r"\S+\[" + str(os.getpid()) + r"\]: ", line), line
    assert archive.path in line and os.strerror(due) in line, line


def test_a_file_without_a_form_is_no_silent_refusal(mount):
    (mount / "new").write_bytes(b"abc")
    assert eventually(lambda: '"new" is a scratch file' in log_of(mount))  # the kernel releases it after close()
    before = log_of(mount).splitlines()
    assert errno_of(os.rename, mount / "new", mount / T) == errno.ENODATA
    (line,) = log_of(mount).splitlines()[len(before):]
    assert "set the dtype and the shape of the new file first" in line and "set the dtype" in stats_of(mount)["last_error"]


def test_questions_add_no_lines(mount):
    before = log_of(mount)
    assert errno_of(os.stat, mount / "nothing") == errno.ENOENT
    assert errno_of(os.getxattr, mount / T, "user.nothing") == errno.ENODATA
    assert errno_of(os.mkdir, mount / ".safetensors" / "transactions") == errno.EEXIST
    os.access(mount / ".safetensors" / "header.json", os.W_OK)
    assert log_of(mount) == before


def test_the_log_keeps_its_name_its_mode_and_each_opened_state(mount):
    path = mount / ".safetensors" / "log"
    assert path.name in os.listdir(path.parent)
    status = os.stat(path)
    assert stat.S_IMODE(status.st_mode) == 0o400 and status.st_uid == os.getuid()
    with open(path, encoding="utf-8") as file:
        errno_of(os.symlink, "x", mount / "new")
        text = file.read()
        assert "symbolic" not in text
    assert "symbolic" in log_of(mount)
    assert os.stat(path).st_ino == status.st_ino


def test_a_loop_of_refusals_fills_no_log(mount):
    for _ in range(2000):
        errno_of(os.symlink, "x", mount / "new")
    lines = log_of(mount).splitlines()
    assert 100 < len(lines) < 1000
    assert len(mount.log().splitlines()) < 1100


def test_a_directory_of_models_has_one_log_in_its_root(tmp_path, mounts):
    models = tmp_path / "models"
    models.mkdir()
    write_bytes_tensors(models / "a.safetensors", {"t": b"x"})
    (models / "b.safetensors").write_bytes(b"no archive")
    for options in ("", "ro"):
        mount = mounts(models, options)
        assert "b.safetensors" in log_of(mount)
        assert os.listdir(mount / ".safetensors") == ["log"]
        assert ".safetensors" not in os.listdir(mount.path)
        assert errno_of(os.unlink, mount / ".safetensors" / "log") in (errno.EPERM, errno.EROFS)
        assert errno_of(os.stat, mount / ".safetensors" / "npy") == errno.ENOENT
        if not options:
            assert errno_of((mount / "a" / "t").write_bytes, b"xy") != 0
            assert "a.safetensors" in log_of(mount).splitlines()[-1]
            assert log_of(mount / "a") == log_of(mount)
        mount.unmount()


@pytest.mark.needs_root
def test_another_user_reads_only_the_lines_of_that_users_own_requests(archive, nobody, mounts):
    os.chmod(archive.path, 0o666)
    there = Visitor(nobody, mounts, archive.path)
    assert errno_of(os.symlink, "x", there.mount / "roots-link") == errno.EPERM
    assert there.run("ln -s x nobodys-link").returncode != 0
    read = there.run("cat .safetensors/log .safetensors/stats.json")
    assert read.returncode == 0, read.stderr
    assert "nobodys-link" in read.stdout and "roots-link" not in read.stdout
    assert all(name in log_of(there.mount) for name in ("nobodys-link", "roots-link"))
    with open(there.mount / ".safetensors" / "log", encoding="utf-8") as file:
        done = there.run(f"cat /proc/{os.getpid()}/fd/{file.fileno()}")
        assert done.returncode != 0 or "roots-link" not in done.stdout


def test_lines_go_to_the_file_of_the_option_also_after_it_was_moved(archive, mounts, tmp_path):
    log = tmp_path / "log"
    mount = mounts(archive.path, f"log={log}")
    assert eventually(lambda: "mounted on" in log.read_text())
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    errno_of(os.symlink, "x", mount / "first")
    os.rename(log, tmp_path / "log.1")
    errno_of(os.symlink, "x", mount / "second")
    assert mount.unmount() == 0
    assert "first" in (tmp_path / "log.1").read_text() and "second" not in (tmp_path / "log.1").read_text()
    lines = log.read_text().splitlines()
    assert "second" in lines[0] and "unmounted" in lines[-1]
    assert all(re.match(TIME, line) for line in lines)


def test_a_log_that_cannot_be_one_ends_the_mount(archive, mounts, tmp_path):
    os.symlink(archive.path, tmp_path / "link")
    for name in ("link", "missing/log"):
        with pytest.raises(Exception, match=f"{tmp_path / name}.*log"):
            mounts(archive.path, f"log={tmp_path / name}")


@pytest.mark.needs_root
def test_a_directory_that_may_not_be_written_makes_the_mount_read_only(archive, nobody, mounts):
    directory = nobody.directory / "models"
    directory.mkdir(mode=0o755)
    path = directory / "m.safetensors"
    path.write_bytes(archive.content())
    os.chmod(path, 0o644)
    nobody.own(path)
    mount = nobody.mount(mounts, path)
    lines = [line for line in mount.log().splitlines() if str(directory) in line and "Permission denied" in line]
    assert len(lines) == 1 and "mounted read-only" in lines[0], mount.log()
    listed = mount.sh("ls -l")
    assert listed.returncode == 0 and not re.search(r"(?m)^-..w", listed.stdout), listed
    for script in (f"echo x > '{T}'", f"rm '{T}'", "echo x > new", "mkdir .safetensors/transactions/T"):
        assert "Read-only file system" in mount.sh(script).stderr, script
