# Kills a process at each of its system calls: strace delivers SIGKILL before the call, so the call is not made. The disk does
# not change between two calls, so these are all the states that a kill can leave.
import collections
import os
import re
import shutil
import signal
import subprocess
import time

from mounted import eventually

# System calls on an archive, a journal or their directory, and calls that can come between these.
CALLS = ["openat", "fcntl", "pread64", "pwrite64", "copy_file_range", "fdatasync", "fsync", "linkat", "unlink", "ioctl",
         "fallocate", "statx", "getdents64"]
_LINE = re.compile(r"^(\d+) +(\w+)\(")


def why_no_strace():
    """The reason why strace cannot kill processes here, or None."""
    if shutil.which("strace") is None:
        return "there is no strace"
    probe = subprocess.run(["strace", "-f", "-o", "/dev/null", "-e", "inject=fsync:signal=KILL", "true"],
                           capture_output=True, text=True)
    return f"strace does not work here: {probe.stderr.strip()}" if probe.returncode != 0 else None


def traced(log, calls=tuple(CALLS)):
    """The start of a command line: strace writes the command's calls to a file."""
    return ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={','.join(calls)}"]


def killed_at(call, number):
    """The start of a command line: strace kills the command at its number-th such call (of one thread)."""
    return ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}",
            "-e", f"inject={call}:signal=KILL:when={number}"]


def stopped_at(call, number):
    return ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}",
            "-e", f"inject={call}:signal=STOP:when={number}"]


def calls_in(log):
    """Names of the calls in a log of traced(), in order, each with its number within its thread."""
    counts = collections.Counter()
    calls = []
    with open(log, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if match := _LINE.match(line):
                counts[match.groups()] += 1
                calls.append((match[2], counts[match.groups()]))
    return calls


def points(log, first_openat=1):
    """(call, number) of every place to die at; loading the program itself is not one."""
    return sorted({(call, number) for call, number in calls_in(log) if call != "openat" or number >= first_openat})


def openats_of_loader(log, name):
    """Number of openat calls before the first that names the file."""
    count = 0
    with open(log, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if " openat(" in line:
                count += 1
                if name in line:
                    return count
    return 1


def after(log, call, later, number):
    """Which of the `later` calls is the number-th after the last `call`."""
    calls = [name for name, _ in calls_in(log)]
    last = len(calls) - 1 - calls[::-1].index(call)
    return calls[:last].count(later) + number


class Stopped:
    """A process that sleeps where stopped_at() has stopped it."""

    def __init__(self, tracer):
        """tracer: strace, started with stopped_at()."""
        self.tracer = tracer
        assert eventually(self._child), "strace has started nothing"
        self.pid = self._child()
        sleeping = 0
        deadline = time.monotonic() + 20
        # strace stops the program for a moment at each traced call. The stop that this waits for lasts.
        while sleeping < 4:
            assert time.monotonic() < deadline and tracer.poll() is None, "it was not stopped"
            time.sleep(0.05)
            sleeping = sleeping + 1 if self._is_stopped() else 0

    def _child(self):
        """The program's pid. strace first starts other children to probe the kernel."""
        with open(f"/proc/{self.tracer.pid}/task/{self.tracer.pid}/children", encoding="ascii") as children:
            for pid in children.read().split():
                try:
                    if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == os.path.basename(self._program()):
                        return int(pid)
                except OSError:
                    pass  # it has ended
        return None

    def _program(self):
        return next(word for word in map(str, self.tracer.args[1:]) if os.path.isabs(word) and word != "/dev/null")

    def _is_stopped(self):
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as line:
            return line.read().rsplit(")", 1)[1].split()[0] in "tT"

    def go_on(self):
        os.kill(self.pid, signal.SIGCONT)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
