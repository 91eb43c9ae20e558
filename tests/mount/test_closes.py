# Whose close decides: what the kernel tells of closes and ends of processes, for each row of the table in
# fs/close_decision.h. After each test the whole archive is compared.
import errno
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from archive_file import Expectation
from mounted import PATIENCE, errno_of, eventually, run_python, shell, start_python, wait_ready
from written_tensor import T, check_shown, run

SIZE = 308_224  # of T
WHOLE = b"w" * SIZE


def whole(expected):
    expected.change(T, WHOLE)
    return expected


# ---- exits and signals, with threads ----

@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """closing_writer.c, compiled where everybody may run it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    directory = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    directory.chmod(0o755)
    program = directory / "closing_writer"
    source = Path(__file__).with_name("closing_writer.c")
    subprocess.run([compiler, "-O1", "-pthread", "-o", str(program), str(source)], check=True)
    yield str(program)
    shutil.rmtree(directory)


def write_and_end(program, target, how, threads=3, flags="t", before=(), size_bytes=SIZE):
    return subprocess.run([*before, program, str(target), flags, str(threads), str(size_bytes), how],
                          capture_output=True, text=True, timeout=60 * PATIENCE)


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


@pytest.mark.parametrize("threads", [0, 3])
def test_a_mount_of_an_ordinary_user_tells_an_exit_from_a_signal(archive, mounts, nobody, writer, threads):
    archive.path = nobody.own(shutil.copy(archive.path, nobody.directory / "model.safetensors"))
    expected = Expectation(archive)
    mount = nobody.mount(mounts, archive.path)
    before = [*mount.inside, *nobody.before]
    assert write_and_end(writer, mount / T, "kill", threads, "w", before).returncode != 0
    expected.check()
    assert "was killed by a signal" in mount.log()
    for how in ("exit", "thread"):
        for flags in "wr":
            assert write_and_end(writer, mount / T, how, threads, flags, before).returncode == 0
            whole(expected).check()
    assert mount.log().count("rolled back") == 1


@pytest.mark.parametrize("threads", [0, 3])
def test_a_mount_of_an_ordinary_user_tells_the_end_of_a_program_that_nobody_may_look_into(
        archive, mounts, nobody, writer, threads):
    archive.path = nobody.own(shutil.copy(archive.path, nobody.directory / "model.safetensors"))
    expected = Expectation(archive)
    mount = nobody.mount(mounts, archive.path)
    before = [*mount.inside, *nobody.before, "env", "NOT_DUMPABLE=1"]
    assert write_and_end(writer, mount / T, "kill", threads, "w", before).returncode != 0
    expected.check()
    assert mount.log().count("rolled back") == 1
    for flags in "wtr":
        assert write_and_end(writer, mount / T, "exit", threads, flags, before).returncode == 0
        whole(expected).check()
    assert mount.log().count("rolled back") == 1


@pytest.mark.needs_root
@pytest.mark.parametrize("threads", [0, 3])
def test_a_mount_without_rights_tells_the_end_of_another_users_program(archive, mounts, nobody, writer, threads):
    os.chmod(archive.path, 0o666)
    expected = Expectation(archive)
    mount = mounts(archive.path, "allow_other", path=nobody.make_mount_point(),
                   before=["setpriv", "--bounding-set=-sys_ptrace", "--"])
    assert write_and_end(writer, mount / T, "kill", threads, "w", nobody.before).returncode != 0
    expected.check()
    for flags in "wtr":
        assert write_and_end(writer, mount / T, "exit", threads, flags, nobody.before).returncode == 0
        whole(expected).check()
    assert mount.log().count("rolled back") == 1


def test_without_the_right_to_look_into_the_writer_the_flags_of_its_threads_tell(archive, mounts, writer):
    """A daemon without CAP_SYS_PTRACE, and a writer with more capabilities: its exit code reads as 0."""
    if shutil.which("setpriv") is None or os.geteuid() != 0:
        pytest.skip("needs root and setpriv to take a capability from the daemon")
    expected = Expectation(archive)
    mount = mounts(archive.path, before=["setpriv", "--bounding-set=-sys_ptrace", "--"])
    for threads in (0, 3):
        write_and_end(writer, mount / T, "kill", threads, "w")
        expected.check()
    assert mount.log().count("rolled back") == 2
    for threads in (0, 3):
        for flags in "wtr":
            assert write_and_end(writer, mount / T, "exit", threads, flags).returncode == 0
            whole(expected).check()
    assert mount.log().count("rolled back") == 2


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


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_TRUNC])
def test_the_death_of_a_child_that_wrote_nothing_has_no_effect(mount, expected, flags):
    fd = os.open(mount / T, flags)
    os.pwrite(fd, WHOLE[:100_000], 0)
    killed_child()
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


def test_a_duplicate_that_closes_commits_once(mount, expected):
    fd = os.open(mount / T, os.O_RDWR)
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


# ---- io_uring: a file in a slot of the ring closes without a FLUSH ----

FIXED_SLOT = """
import ctypes, errno, mmap, os, struct, sys
SETUP, ENTER, REGISTER = 425, 426, 427  # the same on all architectures
libc = ctypes.CDLL(None, use_errno=True)


def call(*arguments):
    done = libc.syscall(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


params = ctypes.create_string_buffer(120)
try:
    ring = call(SETUP, 4, params)
except OSError as error:
    if error.errno in (errno.ENOSYS, errno.EPERM):
        print("skip: io_uring_setup:", error.strerror)
        sys.exit(0)
    raise
sq = struct.unpack_from("10I", params, 40)  # head, tail, mask, entries, flags, dropped, array
entries = struct.unpack_from("I", params, 0)[0]
cq_entries = struct.unpack_from("I", params, 4)[0]
cq = struct.unpack_from("10I", params, 80)  # head, tail, mask, entries, overflow, cqes
rings = mmap.mmap(ring, max(sq[6] + entries * 4, cq[5] + cq_entries * 16), offset=0)
cq_ring = mmap.mmap(ring, cq[5] + cq_entries * 16, offset=0x8000000)
sqes = mmap.mmap(ring, entries * 64, offset=0x10000000)


def submit(opcode, fd, flags, offset=0, address=0, length=0, slot=0):
    tail = struct.unpack_from("I", rings, sq[1])[0]
    at = tail & struct.unpack_from("I", rings, sq[2])[0]
    sqes[at * 64:at * 64 + 64] = struct.pack("=BBHiQQIIQHHI16x", opcode, flags, 0, fd, offset, address, length, 0, 7,
                                             0, 0, slot)
    struct.pack_into("I", rings, sq[6] + 4 * at, at)
    struct.pack_into("I", rings, sq[1], tail + 1)
    call(ENTER, ring, 1, 1, 1, None, 0)
    head = struct.unpack_from("I", cq_ring, cq[0])[0]
    mask = struct.unpack_from("I", cq_ring, cq[2])[0]
    _, result, _ = struct.unpack_from("=QiI", cq_ring, cq[5] + 16 * (head & mask))
    struct.pack_into("I", cq_ring, cq[0], head + 1)
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


fd = os.open(sys.argv[1], getattr(os, sys.argv[2]))
call(REGISTER, ring, 2, (ctypes.c_int * 1)(fd), 1)  # IORING_REGISTER_FILES
os.close(fd)
data = b"slot" * int(sys.argv[3])
buffer = ctypes.create_string_buffer(data, len(data))
done = 0
while done < len(data):
    done += submit(23, 0, 1, int(sys.argv[4]) + done, ctypes.addressof(buffer) + done, len(data) - done)  # WRITE
if sys.argv[5] == "close":
    print("written", flush=True)
    sys.stdin.readline()
    submit(19, 0, 0, slot=1)  # IORING_OP_CLOSE of slot 0
    print("closed", flush=True)
    sys.stdin.read()
else:
    print("exits", flush=True)
"""


def wait_for_slot(process, due):
    line = process.stdout.readline()
    if line.startswith("skip: "):
        pytest.skip(line[6:].strip())
    assert line == due + "\n", process.stderr.read()


@pytest.mark.parametrize("how", ["close", "exit"])
@pytest.mark.parametrize("flags", ["O_WRONLY", "O_RDWR"])
def test_a_fixed_file_of_an_io_uring_commits_with_its_release(mount, expected, flags, how):
    process = start_python(FIXED_SLOT, mount / T, flags, 25, 1000, how)
    try:
        wait_for_slot(process, {"close": "written", "exit": "exits"}[how])
        if how == "close":
            expected.check()
            process.stdin.write("close\n")
            process.stdin.flush()
        expected.change(T, b"slot" * 25, 1000)
        assert eventually(expected.matches)
    finally:
        process.communicate()
    check_shown(mount, expected)
    assert "dropped" not in mount.log()


def test_a_fixed_file_of_an_io_uring_that_cannot_be_committed_is_logged(mount, expected, tmp_path):
    process = start_python(FIXED_SLOT, mount / T, "O_WRONLY", 25, 1000, "close")
    try:
        wait_for_slot(process, "written")
        (tmp_path / "new").write_bytes(mount.archive.content())
        os.rename(tmp_path / "new", mount.archive.path)  # nothing can be committed to the old one
        process.communicate("close\n")
        assert eventually(lambda: "not committed" in mount.log() and "dropped" in mount.log()), mount.log()
    finally:
        process.kill()
        process.communicate()
    expected.check()


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
    write_and_end(writer, mount / T, "kill", 0, "w", size_bytes=5)  # half a change: documented
    expected.check()
    assert "rolled back" not in mount.log()


# ---- times ----

@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_WRONLY | os.O_TRUNC, os.O_RDWR])
def test_a_time_set_before_the_close_stays(mount, expected, flags):
    fd = os.open(mount / T, flags)
    os.write(fd, WHOLE)
    os.utime(fd, ns=(5, 1_000_000_000_000_000_007))
    os.close(fd)
    whole(expected).check()
    assert os.stat(mount / T).st_mtime_ns == 1_000_000_000_000_000_007
    (mount / T).write_bytes(WHOLE)
    assert abs(os.stat(mount / T).st_mtime - time.time()) < 100


def test_a_time_set_after_the_last_store_to_a_mapping_stays(mount):
    mapped = np.memmap(mount / T, np.uint8, "r+")
    mapped[:] = 1
    os.utime(mount / T, (7, 7))
    del mapped
    assert os.stat(mount / T).st_mtime == 7


def test_cp_p_keeps_the_time(mount, expected, fresh):
    data, path = fresh()
    os.chmod(path, os.stat(mount / T).st_mode & 0o777)
    os.utime(path, (1, 123456789))
    done = run("cp", "-p", path, mount / T)
    assert done.returncode == 0, done.stderr
    expected.change(T, data)
    check_shown(mount, expected)
    assert os.stat(mount / T).st_mtime == 123456789


def test_rsync_t_keeps_the_time(mount, expected, fresh):
    if shutil.which("rsync") is None:
        pytest.skip("there is no rsync")
    data, path = fresh()
    os.utime(path, (1, 123456789))
    done = run("rsync", "-t", "--inplace", path, mount / T)
    assert done.returncode == 0, done.stderr
    expected.change(T, data)
    check_shown(mount, expected)
    assert os.stat(mount / T).st_mtime == 123456789


def test_a_transaction_keeps_the_times_and_shows_them_with_its_commit(mount, expected, fresh):
    data, path = fresh()
    os.chmod(path, os.stat(mount / T).st_mode & 0o777)
    os.utime(path, (1, 123456789))
    before = os.stat(mount / T).st_mtime
    directory = mount / ".safetensors" / "transactions" / "T"
    directory.mkdir()
    assert run("cp", "-p", path, directory / T).returncode == 0
    assert os.stat(mount / T).st_mtime == before
    os.rename(directory, mount / ".safetensors" / "committed" / "T")
    expected.change(T, data)
    check_shown(mount, expected)
    assert os.stat(mount / T).st_mtime == 123456789


# ---- truncate by name, and the size that a writer sees ----

def test_truncate_by_name_right_after_an_open_is_its_o_trunc(mount, expected, open_fd):
    fd = open_fd(mount / T, os.O_WRONLY)
    os.truncate(mount / T, 0)
    os.write(fd, WHOLE)
    os.close(fd)
    whole(expected).check()
    fd = open_fd(mount / T, os.O_WRONLY)
    os.truncate(mount / T, 0)
    assert errno_of(os.close, fd) == errno.EINVAL
    check_shown(mount, expected)


def test_truncate_by_name_is_refused_after_another_open_or_a_write(mount, expected, open_fd):
    fd = open_fd(mount / T, os.O_WRONLY)
    open_fd(mount / "odd", os.O_WRONLY)
    assert errno_of(os.truncate, mount / T, 0) == errno.EINVAL
    os.pwrite(fd, b"patch", 3)
    assert errno_of(os.truncate, mount / T, 0) == errno.EINVAL
    os.close(fd)
    expected.change(T, b"patch", 3)
    check_shown(mount, expected)


def test_a_truncating_writer_sees_the_one_size_that_the_inode_has(mount, expected, open_fd):
    """fs/close_decision.h says why: readers keep the old tensor, and the kernel has one size for both."""
    fd = open_fd(mount / T, os.O_WRONLY | os.O_TRUNC)
    assert os.fstat(fd).st_size == SIZE
    assert os.lseek(fd, 0, os.SEEK_END) == SIZE
    assert os.lseek(fd, 0, os.SEEK_CUR) == SIZE
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, WHOLE)
    os.close(fd)
    whole(expected)
    check_shown(mount, expected)
