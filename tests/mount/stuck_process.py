# A process of another user that the kernel holds, with a lock that readers of /proc take, for as long as a FUSE mount is stopped.
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from mounted import eventually
from test_planted_files import MALLORY

# Arguments: what is locked, the name of the process, a file of the mount, and an archive, which the process locks for reading, or a
# directory.
STUCK = r"""
import ctypes, fcntl, os, sys, threading
what, name, mapped, archive = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.epoll_wait.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
libc.pread.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
libc.prctl(15, name.encode())
locked = os.open(archive, os.O_RDONLY)
if what in ("descriptor", "memory map"):
    fcntl.lockf(locked, fcntl.LOCK_SH)
read, write = os.pipe()
go_on, say_go_on = os.pipe()
os.write(write, b"x")
epoll = libc.epoll_create1(0)
libc.epoll_ctl(epoll, 1, read, ctypes.byref((ctypes.c_uint32 * 3)(1, 0, 0)))
at = libc.mmap(None, 65536, 3, 2, os.open(mapped, os.O_RDONLY), 0)  # private: the first write reads the page
print(os.getpid(), flush=True)
sys.stdin.readline()  # the mount is stopped now
child = os.fork()
if child == 0:
    os.close(say_go_on)
    if what == "descriptor":  # the kernel holds the lock of the epoll descriptor while it copies
        libc.epoll_wait(epoll, at, 1, -1)
    elif what == "inode":  # ... and that of the file, shared
        libc.pread(os.open(archive, os.O_RDONLY | os.O_DIRECT), at, 4096, 0)
    elif what == "directory":  # ... and that of the directory, shared
        libc.getdents64(locked, ctypes.c_void_p(at), 4096)
    else:
        os.read(go_on, 1)
        libc.mmap(None, 4096, 3, 0x22, -1, 0)  # waits for the lock of the memory map; all later readers wait behind it
    os._exit(0)
print(child, flush=True)
if what == "memory map":
    threading.Thread(target=lambda: os.pread(os.open(f"/proc/{child}/mem", os.O_RDONLY), 16, at), daemon=True).start()
sys.stdin.readline()
os.write(say_go_on, b"x")
if what == "directory" and os.fork() == 0:  # waits for the lock, before the kernel looks at rights; all later readers wait behind it
    os.open(f"{archive}/no such name", os.O_CREAT | os.O_RDWR)
sys.stdin.readline()
"""


def states_of(pid):
    """The letter of each thread's state, by thread."""
    return {task.name: (task / "stat").read_text().rpartition(") ")[2][0] for task in Path(f"/proc/{pid}/task").glob("*")}


def waits_in_kernel(pid):
    """True if a thread waits for the disk or for a lock of the kernel, and goes on waiting."""
    found = None
    for _ in range(6):
        waiting = {task for task, state in states_of(pid).items() if state == "D"}
        found = waiting if found is None else found & waiting
        time.sleep(0.02)
    return bool(found)


@contextlib.contextmanager
def stuck_process(what, mount, tensor, archive, name="python3"):
    """Yields the pids of the process that has locked the archive, and of its child, which is stuck with a descriptor, its memory map, the
    inode or the directory. The mount is stopped meanwhile."""
    command = ["setpriv", f"--reuid={MALLORY}", f"--regid={MALLORY}", "--clear-groups", "--", sys.executable, "-c", STUCK, what, name,
               str(mount / tensor), str(archive)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        pid = int(process.stdout.readline())
        os.kill(mount.pid, signal.SIGSTOP)
        assert eventually(lambda: set(states_of(mount.pid).values()) == {"T"}, 20)  # each thread stops when it runs next
        process.stdin.write("\n")
        process.stdin.flush()
        child = int(process.stdout.readline())
        assert eventually(lambda: waits_in_kernel(pid if what == "memory map" else child), 20)
        process.stdin.write("\n")
        process.stdin.flush()
        if what == "memory map":
            assert eventually(lambda: waits_in_kernel(child), 20)
        yield pid, child
    finally:
        os.kill(mount.pid, signal.SIGCONT)
        process.kill()
        process.wait()
