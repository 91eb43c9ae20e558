# `stfs mounts` and `stfs umount` beside real mounts: states, a daemon that is stopped, and programs that keep a mount busy.
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import mounted
import pytest
from written_tensor import T

STFS = mounted.BUILD / "stfs"


def stfs(*words, before=(), program=STFS, timeout=60):
    return subprocess.run([*before, program, *map(str, words)], capture_output=True, text=True,
                          timeout=timeout * mounted.PATIENCE)


def listed(mount, run=stfs):
    """The row of a mount."""
    result = run("mounts", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    rows = [row for row in json.loads(result.stdout)["mounts"] if row["mount_point"] == str(mount.path)]
    assert len(rows) == 1
    return rows[0]


def stop(mount):
    # A mount that does not answer in time on a busy machine is listed without its process.
    assert mounted.eventually(lambda: listed(mount)["process"] == mount.pid)
    mount.process.send_signal(signal.SIGSTOP)
    assert mounted.eventually(lambda: all((task / "stat").read_text().rsplit(") ", 1)[1][0] == "T"
                                          for task in Path(f"/proc/{mount.pid}/task").iterdir()))


@pytest.fixture
def stopped(mount):
    """The mount, with a daemon that answers nothing."""
    stop(mount)
    yield mount
    mount.process.send_signal(signal.SIGCONT)


def test_a_mount_is_listed_with_its_source_state_and_process(mount):
    row = listed(mount)
    assert row["source"] == mount.source and row["state"] == "serving" and row["problem"] is None
    assert row["process"] == mount.pid and row["user"] == os.geteuid() and row["is_read_only"] is False
    assert row["tensors"] == len(os.listdir(mount.path))
    table = stfs("mounts").stdout.splitlines()
    assert table[0].split()[:4] == ["mount", "point", "source", "state"]
    assert any(line.startswith(str(mount.path)) and " serving " in line for line in table)
    assert str(mount.path) in stfs("mounts", "--names").stdout.splitlines()


def test_a_read_only_mount_is_listed_as_one(archive, mounts):
    row = listed(mounts(archive.path, "ro"))
    assert row["is_read_only"] is True and row["options"].split(",")[0] == "ro"


def test_a_stopped_daemon_is_listed_and_nothing_waits_for_it(stopped, archive, mounts):
    begin = time.monotonic()
    assert listed(stopped)["state"] == "no answer"
    assert time.monotonic() - begin < 30 * mounted.PATIENCE
    assert listed(stopped)["process"] == stopped.pid
    assert str(stopped.path) in stfs("mounts", "--names").stdout.splitlines()


def test_a_stopped_daemon_hides_no_other_mount(archive, mounts):
    silent, answering = mounts(archive.path, "ro"), mounts(archive.path, "ro")
    stop(silent)
    try:
        assert (listed(silent)["state"], listed(answering)["state"]) == ("no answer", "serving")
    finally:
        silent.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("named", ["its path", "with a slash", "by a link", "by a link to a link, with a slash"])
def test_a_killed_daemon_leaves_a_dead_mount_that_umount_removes(mount, tmp_path, named):
    mount.kill()
    assert mounted.eventually(lambda: listed(mount)["state"] == "dead")
    assert listed(mount)["process"] is None
    (tmp_path / "link").symlink_to(mount.path)
    (tmp_path / "second").symlink_to("link")
    paths = {"its path": mount.path, "with a slash": f"{mount.path}/", "by a link": tmp_path / "link"}
    result = stfs("umount", paths.get(named, f"{tmp_path}/second/"))
    assert (result.returncode, result.stderr) == (0, "")
    assert not mount.is_mounted()


def test_a_mount_whose_archive_became_invalid_is_listed_with_the_reason(archive, mounts):
    mount = mounts(archive.path, "ro")
    invalid = Path(f"{archive.path}.new")
    invalid.write_bytes(b"not an archive, but long enough for a header")
    invalid.replace(archive.path)
    assert mounted.eventually(lambda: listed(mount)["state"] == "broken")
    assert listed(mount)["problem"]
    assert f"{mount.path}: " in stfs("mounts").stdout


def test_a_hostile_mount_point_is_escaped(archive, mounts, tmp_path):
    path = tmp_path / "a\x1b[31m\u202e\n<script>"
    path.mkdir()
    mount = mounts(archive.path, "ro", path=path)
    row = listed(mount)
    assert row["state"] == "serving"
    for words in ([], ["--names"], ["--json"]):
        shown = stfs("mounts", *words).stdout
        assert "\x1b" not in shown and "\u202e" not in shown
    assert "a\\x1b[31m\\u202e\\n<script>" in stfs("mounts", "--names").stdout
    result = stfs("umount", path)
    assert (result.returncode, result.stderr) == (0, "")


def test_umount_ends_after_the_daemon(mount):
    """The daemon commits and closes its files at its end."""
    for _ in range(2):
        (mount / T).write_bytes((mount / T).read_bytes())
    result = stfs("umount", "--json", mount.path)
    assert (result.returncode, result.stderr) == (0, "")
    assert mount.process.poll() == 0, "the daemon still runs"
    assert json.loads(result.stdout)["mounts"] == [
        {"mount_point": str(mount.path), "source": mount.source, "is_done": True, "failure": None, "used_by": []}]


def test_umount_takes_a_link_and_a_relative_path(mount, tmp_path):
    (tmp_path / "link").symlink_to(mount.path)
    result = subprocess.run([STFS, "umount", "link"], cwd=tmp_path, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert not mount.is_mounted()


HOLDERS = {
    "an open file": "file = open(sys.argv[2], 'rb')",
    "a working directory": "os.chdir(sys.argv[1])",
    "a root directory": "os.chroot(sys.argv[1]); os.chdir('/')",
    "a mapping": "import mmap; fd = os.open(sys.argv[2], os.O_RDONLY)\n"
                 "map = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ); os.close(fd)",
}


@pytest.mark.parametrize("holder", [pytest.param(name, marks=pytest.mark.needs_root if "chroot" in HOLDERS[name] else ())
                                    for name in HOLDERS])
def test_umount_names_the_program_that_keeps_a_mount_busy(mount, holder):
    process = mounted.start_python(f"import os, sys\n{HOLDERS[holder]}\nprint('ready')\nsys.stdin.read()", mount.path, mount / T)
    try:
        mounted.wait_ready(process)
        result = stfs("umount", "--json", mount.path)
        assert result.returncode == 1
        comm = Path(f"/proc/{process.pid}/comm").read_text().strip()
        who = f"process {process.pid} ({comm}) of user {os.geteuid()}"
        assert result.stderr == f"stfs umount: {mount.path}: is in use by {who}\n"
        assert json.loads(result.stdout)["mounts"][0]["used_by"] == [{"process": process.pid, "description": who}]
        assert listed(mount)["state"] == "serving"
    finally:
        process.communicate("")
    result = stfs("umount", mount.path)
    assert (result.returncode, result.stderr) == (0, "")
    assert mount.process.poll() == 0


def test_umount_refuses_a_stopped_daemon_and_tells_how_to_continue_it(stopped):
    result = stfs("umount", stopped.path)
    assert result.returncode == 1
    assert f"is stopped: continue it with `kill -CONT {stopped.pid}`" in result.stderr
    assert stopped.is_mounted()


def test_umount_refuses_what_is_no_mount_point(mount, tmp_path):
    result = stfs("umount", tmp_path, mount / ".safetensors", tmp_path / "absent")
    assert result.returncode == 1
    plain, inside, absent = result.stderr.splitlines()
    assert plain == f"stfs umount: {tmp_path}: is no mount of safetensorsfs"
    assert inside == f"stfs umount: {mount / '.safetensors'}: is no mount point: name the mount point, {mount.path}"
    assert "No such file or directory" in absent
    assert mount.is_mounted()
    assert stfs("umount").returncode == 2


def test_an_ordinary_user_unmounts_with_fusermount3(nobody, archive, mounts):
    nobody.own(archive.path)
    copy = nobody.own(shutil.copy(archive.path, nobody.directory / "model.safetensors"))
    mount = nobody.mount(mounts, copy)
    program = nobody.directory / "stfs"
    shutil.copy2(STFS, program)
    run = lambda *words: stfs(*words, before=[*mount.inside, *nobody.before], program=program)  # noqa: E731
    row = listed(mount, run)
    assert row["state"] == "serving" and row["user"] == nobody.uid and row["process"] is not None
    result = run("umount", mount.path)
    assert (result.returncode, result.stderr) == (0, "")
    assert mount.process.poll() == 0


@pytest.mark.needs_root
def test_root_unmounts_the_mount_of_another_user_that_does_not_serve_root(nobody, archive, mounts):
    mount = nobody.mount(mounts, nobody.own(shutil.copy(archive.path, nobody.directory / "model.safetensors")))
    assert subprocess.run([*mount.inside, "stat", mount.path], capture_output=True).returncode != 0
    result = stfs("umount", mount.path, before=mount.inside)
    assert (result.returncode, result.stderr) == (0, "")
    assert mount.process.poll() == 0


@pytest.mark.needs_root
def test_only_a_guard_of_the_mounts_user_names_a_daemon(mount, nobody):
    """A process of another user may have the command line of a guard."""
    guard = next(pid for pid in filter(str.isdigit, os.listdir("/proc"))
                 if read_command_line(pid).startswith(b"stfs-guard\0%d\0" % mount.pid))
    words = [word.decode() for word in read_command_line(guard).split(b"\0")[1:-1]]
    os.kill(int(guard), signal.SIGKILL)
    assert mounted.eventually(lambda: listed(mount)["process"] is None)
    script = nobody.directory / str(os.getpid())  # the guard's second word is its parent
    script.write_text("printf stfs-guard > /proc/$$/comm; echo ready; read line")
    command = ["bash", "-c", 'exec -a stfs-guard bash "$@"', "bash", script.name, *words[1:]]
    for before, found in ((nobody.before, None), ([], os.getpid())):
        forged = subprocess.Popen([*before, *command], cwd=nobody.directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        mounted.wait_ready(forged)
        assert listed(mount)["process"] == found
        forged.communicate("\n")


def read_command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
