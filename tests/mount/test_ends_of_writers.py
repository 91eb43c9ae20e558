# Ends of programs that have written, with threads and in other pid namespaces: the kernel's requests after exits and signals.
# The table is in fs/write/close_decision.h; after each test the whole archive is compared.
import os
import shutil
import signal
import sys

import pytest
from archive_file import Expectation
from closing_writer import SIZE, WHOLE, whole, write_and_end, writer  # noqa: F401
from mounted import shell
from written_tensor import T

HALF = SIZE // 2


@pytest.mark.parametrize("flags", ["w", "t", "r"])
@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_program_with_threads_that_exits_commits(mount, expected, writer, threads, flags):
    for _ in range(5):
        done = write_and_end(writer, mount / T, "exit", threads, flags)
        assert done.returncode == 0, done.stderr
        whole(expected).check()
    assert "rolled back" not in mount.log()


def test_an_exit_by_a_thread_that_is_not_the_first_commits(mount, expected, writer):
    for flags in "wtr":
        assert write_and_end(writer, mount / T, "thread", 2, flags).returncode == 0
        whole(expected).check()


@pytest.mark.parametrize("flags", ["w", "t", "r"])
@pytest.mark.parametrize("threads", [0, 3])
def test_a_program_with_threads_that_a_signal_ends_is_rolled_back(mount, expected, writer, threads, flags):
    assert write_and_end(writer, mount / T, "kill", threads, flags).returncode == -signal.SIGTERM
    expected.check()
    assert "was killed by a signal" in mount.log()


def test_python_with_a_daemon_thread_and_a_redirection_commits(mount, expected):
    code = (f"import sys, threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); "
            f"sys.stdout.buffer.write(b'w' * {SIZE})")
    for _ in range(5):
        done = shell('"$1" -c "$2" > "$3"', sys.executable, code, mount / T)
        assert done.returncode == 0, done.stderr
        whole(expected).check()


# Other processes may not inspect a process that is not dumpable.
@pytest.mark.parametrize("environment", [[], ["env", "NOT_DUMPABLE=1"]])
@pytest.mark.parametrize("threads", [0, 3])
def test_a_mount_of_an_ordinary_user_tells_an_exit_from_a_signal(archive, mounts, nobody, writer, threads, environment):
    archive.path = nobody.own(shutil.copy(archive.path, nobody.directory / "model.safetensors"))
    expected = Expectation(archive)
    mount = nobody.mount(mounts, archive.path)
    before = [*mount.inside, *nobody.before, *environment]
    assert write_and_end(writer, mount / T, "kill", threads, "w", before).returncode != 0
    expected.check()
    assert mount.log().count("rolled back") == 1
    assert environment or "was killed by a signal" in mount.log()
    for how in ("exit",) if environment else ("exit", "thread"):
        for flags in "wtr":
            assert write_and_end(writer, mount / T, how, threads, flags, before).returncode == 0
            whole(expected).check()
    assert mount.log().count("rolled back") == 1


@pytest.mark.needs_root
@pytest.mark.parametrize("of_another_user", [False, True])
@pytest.mark.parametrize("threads", [0, 3])
def test_a_mount_that_may_not_look_into_the_writer_tells_its_end_by_its_threads(
        archive, mounts, nobody, writer, threads, of_another_user):
    """A daemon without CAP_SYS_PTRACE, and another user or more capabilities: the writer's exit code reads as 0."""
    before = nobody.before if of_another_user else ()
    os.chmod(archive.path, 0o666)
    expected = Expectation(archive)
    mount = mounts(archive.path, "allow_other", path=nobody.make_mount_point(),
                   before=["setpriv", "--bounding-set=-sys_ptrace", "--"])
    assert write_and_end(writer, mount / T, "kill", threads, "w", before).returncode != 0
    expected.check()
    for flags in "wtr":
        assert write_and_end(writer, mount / T, "exit", threads, flags, before).returncode == 0
        whole(expected).check()
    assert mount.log().count("rolled back") == 1


@pytest.mark.needs_root
def test_an_exit_by_a_second_thread_that_a_mount_may_not_look_into_is_rolled_back_and_said(archive, mounts, writer):
    """Documented: neither the exit code nor the flags of the first thread tell."""
    expected = Expectation(archive)
    mount = mounts(archive.path, before=["setpriv", "--bounding-set=-sys_ptrace", "--"])
    write_and_end(writer, mount / T, "thread", 2, "w")
    expected.check()
    (line,) = [line for line in mount.log().splitlines() if "rolled back" in line]
    assert f'"{T}"' in line
    assert "ended without a close, by an exit or by a signal; this mount may not read which of the two" in line


# ---- pid namespaces ----

@pytest.fixture
def another_namespace():
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare for a pid namespace")
    return ["unshare", "--pid", "--fork", "--kill-child", "--"]


def test_a_writer_in_an_inner_pid_namespace_is_seen_like_any_other(mount, expected, writer, another_namespace):
    for flags in "wtr":
        write_and_end(writer, mount / T, "kill", 3, flags, [*another_namespace, "sh", "-c", '"$@"; exit 0', "sh"])
        expected.check()
    for flags in "wtr":
        done = write_and_end(writer, mount / T, "exit", 3, flags, another_namespace)
        assert done.returncode == 0, done.stderr
        whole(expected).check()


def test_a_writer_that_the_mount_cannot_see_commits_however_it_ends(archive, mounts, writer, another_namespace):
    """The daemon is in a pid namespace of its own, the writer is not: it has the number 0 there."""
    expected = Expectation(archive)
    mount = mounts(archive.path, before=another_namespace)
    for flags in "wtr":
        assert write_and_end(writer, mount / T, "exit", 3, flags).returncode == 0
        whole(expected).check()
    assert "rolled back" not in mount.log()


def test_a_killed_writer_that_the_mount_cannot_see_is_like_one_that_closes(archive, mounts, writer, another_namespace):
    """Half a change is committed: documented."""
    expected = Expectation(archive)
    mount = mounts(archive.path, before=another_namespace)
    assert write_and_end(writer, mount / T, "kill", 0, "w", size_bytes=HALF).returncode == -signal.SIGTERM
    expected.change(T, WHOLE[:HALF])
    expected.check()
    assert "rolled back" not in mount.log()
