# The close that decides: the kernel's requests for closes by forked children, passed descriptors and mappings, for the rows of
# the table in fs/write/close_decision.h. After each test the whole archive is compared.
import errno
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from closing_writer import SIZE, WHOLE, whole
from mounted import PATIENCE, errno_of, eventually, run_python, shell, start_python, wait_ready
from written_tensor import T, check_shown

pytestmark = pytest.mark.library

# ---- fork ----

def fork(action=lambda: None):
    """Runs action in a child, which exits without Python's clean-up; its status."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


def killed_child():
    """A child with a copy of each descriptor and mapping, ended by SIGTERM."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            signal.pause()
    time.sleep(0.05)
    os.kill(child, signal.SIGTERM)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM


def test_a_child_or_a_bystander_commits_nothing_of_a_read_write_descriptor(mount, expected, open_fd):
    fd = open_fd(mount / T, os.O_RDWR)
    os.pwrite(fd, b"one", 0)
    assert fork() == 0
    expected.check()
    subprocess.run(["true"], pass_fds=[fd], check=True)
    expected.check()
    for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY):
        os.close(os.open(mount / T, flags))  # this process wrote, but not through that one ...
    expected.change(T, b"one", 0)  # ... which is a close by a writer all the same
    os.pwrite(fd, b"two", 9)
    for flags in ("O_RDONLY", "O_RDWR", "O_WRONLY"):
        assert run_python(f"import os, sys; os.close(os.open(sys.argv[1], os.{flags}))", mount / T).returncode == 0
        expected.check()
    os.close(fd)
    expected.change(T, b"two", 9)
    check_shown(mount, expected)


@pytest.mark.parametrize("end", [fork, killed_child])
@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_TRUNC])
def test_the_end_of_a_child_that_wrote_nothing_has_no_effect(mount, expected, flags, end):
    fd = os.open(mount / T, flags)
    os.pwrite(fd, WHOLE[:100_000], 0)
    end()
    expected.check()
    os.pwrite(fd, WHOLE[100_000:], 100_000)
    os.close(fd)
    whole(expected)
    check_shown(mount, expected)


def test_the_death_of_a_child_has_no_effect_on_a_mapping(mount, expected):
    mapped = np.memmap(mount / T, np.uint8, "r+")
    mapped[:1000] = ord("w")
    killed_child()
    mapped[1000:] = ord("w")
    mapped.flush()
    whole(expected).check()
    mapped[:3] = list(b"end")
    killed_child()
    del mapped
    expected.change(T, b"end", 0)
    check_shown(mount, expected)


def test_the_death_of_a_child_has_no_effect_on_a_transaction(mount, expected):
    directory = mount / ".safetensors" / "transactions" / "T"
    directory.mkdir()
    fd = os.open(directory / T, os.O_RDWR)
    os.pwrite(fd, WHOLE[:1000], 0)
    killed_child()
    os.pwrite(fd, WHOLE[1000:], 1000)
    killed_child()
    os.close(fd)
    expected.check()
    os.rename(directory, mount / ".safetensors" / "committed" / "T")
    whole(expected)
    check_shown(mount, expected)


def test_a_child_that_wrote_commits_with_its_exit_and_is_rolled_back_by_its_death(mount, expected, open_fd):
    for flags in (os.O_WRONLY, os.O_RDWR):
        fd = open_fd(mount / T, flags)
        assert fork(lambda fd=fd: os.pwrite(fd, b"child", 50)) == 0
        expected.change(T, b"child", 50)
        expected.check()

        def die(fd=fd):
            os.pwrite(fd, b"never", 50)
            os.kill(os.getpid(), signal.SIGKILL)

        assert fork(die) == signal.SIGKILL
        expected.check()
        assert errno_of(os.close, fd) == errno.EIO
    check_shown(mount, expected)


def fill(path, at, size_bytes):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"w" * size_bytes)


def fill_mapping(path, at, size_bytes):
    mapped = np.memmap(path, np.uint8, "r+")
    mapped[at:at + size_bytes] = ord("w")
    mapped.flush()


@pytest.mark.parametrize("method,action", [("fork", fill), ("fork", fill_mapping), ("spawn", fill)])
def test_workers_of_multiprocessing_each_write_their_part(mount, expected, method, action):
    context = multiprocessing.get_context(method)
    part = SIZE // 4
    fd = os.open(mount / T, os.O_RDWR)  # a forked worker inherits it, and wrote nothing through it
    workers = [context.Process(target=action, args=(str(mount / T), at, part)) for at in range(0, SIZE, part)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60 * PATIENCE)
        assert worker.exitcode == 0
    os.close(fd)
    whole(expected)
    check_shown(mount, expected)


# ---- exec, dup, SCM_RIGHTS ----

def test_a_descriptor_that_goes_through_exec_commits_when_the_new_program_exits(mount, expected):
    code = ("import os, sys; fd = os.open(sys.argv[1], os.O_WRONLY); os.set_inheritable(fd, True); "
            "os.write(fd, b'before'); "
            "os.execv(sys.executable, [sys.executable, '-c', f'import os; os.write({fd}, b\"after\")'])")
    done = run_python(code, mount / T)
    assert done.returncode == 0, done.stderr
    expected.change(T, b"beforeafter", 0)
    check_shown(mount, expected)


def test_exec_closes_a_descriptor_that_is_not_inherited_and_that_commits(mount, expected):
    code = ("import os, sys, threading, time; "
            "threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); "
            "fd = os.open(sys.argv[1], os.O_RDWR); os.write(fd, b'before'); os.execv('/bin/sleep', ['sleep', '0'])")
    assert run_python(code, mount / T).returncode == 0
    expected.change(T, b"before", 0)
    check_shown(mount, expected)


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR])
def test_a_duplicate_that_closes_commits_once(mount, expected, flags):
    fd = os.open(mount / T, flags)
    duplicate = os.dup(fd)
    os.pwrite(duplicate, b"dup", 100)
    os.close(duplicate)
    expected.change(T, b"dup", 100)
    expected.check()
    generation = mount.generation(T)
    os.close(fd)
    assert mount.generation(T) == generation


RECEIVER = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    _, (fd,), _, _ = socket.recv_fds(connection, 1, 1)
if sys.argv[2] == "writes":
    os.pwrite(fd, b"received", 7)
if sys.argv[2] == "dies":
    os.kill(os.getpid(), 9)
os.close(fd)
"""


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR])
def test_whoever_receives_a_descriptor_decides_over_what_it_writes_itself(mount, expected, open_fd, tmp_path, flags):
    fd = open_fd(mount / T, flags)
    os.pwrite(fd, b"sender", 0)

    def hand_over(what):
        path = tmp_path / what
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen()
            receiver = subprocess.Popen([sys.executable, "-c", RECEIVER, str(path), what])
            connection, _ = server.accept()
            with connection:
                socket.send_fds(connection, [b"x"], [fd])
                receiver.wait(60 * PATIENCE)

    hand_over("looks")
    hand_over("dies")
    expected.check()
    hand_over("writes")
    expected.change(T, b"sender", 0)
    expected.change(T, b"received", 7)
    expected.check()
    os.close(fd)
    check_shown(mount, expected)


# ---- mappings ----

MAPS_AND_CLOSES = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
size_bytes = int(sys.argv[2])
fd = os.open(sys.argv[1], os.O_RDWR)
at = libc.mmap(None, size_bytes, 3, 1, fd, 0)  # PROT_READ | PROT_WRITE, MAP_SHARED
os.close(fd)
ctypes.memset(at, ord("w"), size_bytes)
"""


def test_a_mapping_that_outlives_its_descriptor_commits_beside_another_that_is_open(mount, expected):
    other = start_python("import os, sys, time; fd = os.open(sys.argv[1], os.O_RDWR); print('ready'); time.sleep(60)",
                         mount / T)
    try:
        wait_ready(other)
        done = run_python(MAPS_AND_CLOSES, mount / T, SIZE)
        assert done.returncode == 0, done.stderr
        whole(expected)
        assert eventually(expected.matches)
    finally:
        other.kill()
        other.communicate()
    check_shown(mount, expected)


# ---- a shell's group ----

def test_a_group_of_commands_commits_when_its_last_part_has_come(mount, expected, fresh):
    data, path = fresh()
    done = shell('{ head -c 100001 "$1"; true; sleep 0; tail -c +100002 "$1"; } > "$2"', path, mount / T)
    assert done.returncode == 0, done.stderr
    expected.change(T, data)
    check_shown(mount, expected)


def test_a_group_of_commands_that_patches_commits_each_part_with_its_writer(mount, expected):
    done = shell('{ head -c 5 /dev/zero; true; cat; } 1<> "$1" < /dev/null', mount / T)
    assert done.returncode == 0, done.stderr
    expected.change(T, bytes(5), 0)
    check_shown(mount, expected)
