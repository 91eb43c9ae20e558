# A mount that a test works on: the daemon in the foreground with its log in a file, so that a crash,
# a report of a sanitizer or a bad exit status fails the test, and a clean-up that can't hang.
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import mount_namespace

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STFS_BUILD_DIR", REPOSITORY / "build" / "release")).resolve()
BINARY = BUILD / "safetensorsfs"
SANITIZER_REPORT = re.compile(
    r"ERROR: (Address|Leak|Undefined)\w*Sanitizer|runtime error:|WARNING: ThreadSanitizer|"
    r"terminate called|Assertion .* failed")


def is_sanitized():
    try:
        cache = (BUILD / "CMakeCache.txt").read_text()
    except OSError:
        return False
    return re.search(r"^STFS_SANITIZE:\w+=\S", cache, re.M) is not None


# A sanitizer makes everything slower, and so does other work of the machine. Limits in seconds are for hangs, never for
# speed.
SLOWER = 5 if is_sanitized() else 1
PATIENCE = 3 * SLOWER
# The time limit of a test in seconds; tests/run sets it.
LIMIT = int(os.environ.get("STFS_TEST_LIMIT", 150 * PATIENCE))


def unescape_mount(text):
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def mount_entry(path, pid="self"):
    """(source, type, options) of the mount at path, from the kernel's table, or None. Does not ask the file
    system, because it may be dead, or closed to this user."""
    path = os.path.realpath(os.path.dirname(str(path))) + "/" + os.path.basename(str(path))
    found = None
    with open(f"/proc/{pid}/mounts", encoding="utf-8", errors="surrogateescape") as table:
        for line in filter(None, table.read().split("\n")):
            source, target, kind, options = line.split(" ")[:4]
            if unescape_mount(target) == path:
                found = (unescape_mount(source), kind, options.split(","))
    return found


def eventually(condition, seconds=60):
    """Waits until the condition is true. Returns its last value."""
    deadline = time.monotonic() + seconds * PATIENCE
    while True:
        value = condition()
        if value or time.monotonic() > deadline:
            return value
        time.sleep(0.01)


def errno_of(action, *arguments, **kwargs):
    """The errno; 0 for a success."""
    try:
        action(*arguments, **kwargs)
    except OSError as error:
        return error.errno
    return 0


def unmount_by_force(path):
    if mount_entry(path) is None:
        return
    for command in (["umount", "-l", str(path)], ["fusermount3", "-uz", str(path)]):
        if subprocess.run(command, capture_output=True).returncode == 0:
            return


class MountFailed(Exception):
    """The daemon ended before the mount was there."""

    def __init__(self, status, log):
        super().__init__(f"exit status {status}:\n{log}")
        self.status = status
        self.log = log


def where_threads_wait(pid):
    """Name, state and place in the kernel of each thread of a process, as far as one may see them."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        for name in ("comm", "stat", "wchan", "syscall", "stack"):
            try:
                text = (task / name).read_text()
            except OSError as error:
                text = error.strerror
            lines.append(f"{task.name} {name}: {text.strip()}")
    return "\n".join(lines)


class Mount:
    """safetensorsfs -f on a source. finish() says whether it ended well."""

    def __init__(self, source, path, log_path, options="", before=(), binary=None, flags=(),
                 in_namespace=False):
        self.source = str(source)
        self.path = Path(path)
        self.log_path = Path(log_path)
        self.process = None
        self.may_die = False  # a test that kills the daemon says so
        self.hung = False
        command = [*before, str(binary or BINARY), self.source, str(self.path), "-f", *flags]
        if options:
            command += ["-o", options]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        # The start of a command line that must see the mount of a daemon in a separate mount namespace.
        self.inside = ["nsenter", f"--mount=/proc/{self.process.pid}/ns/mnt", "--"] if in_namespace else []
        # A signal can't interrupt a request that is never answered; the daemon's death ends it. The watchdog runs shortly before
        # the test's own limit, so it does not end tests that are only slow.
        self.watchdog = threading.Timer(LIMIT * 0.9, self._hang)
        self.watchdog.daemon = True
        self.watchdog.start()
        eventually(lambda: self.is_mounted() or self.process.poll() is not None, 30)
        if self.process.poll() is not None or not self.is_mounted():
            self.watchdog.cancel()
            self.process.kill()
            status = self.process.wait()
            unmount_by_force(self.path)
            raise MountFailed(status, self.log())

    def _hang(self):
        self.hung = True
        self.process.kill()

    def __truediv__(self, name):
        return self.path / name

    def entry(self):
        """The kernel's line about this mount, as the daemon's mount namespace has it."""
        if self.process.poll() is None:
            try:
                return mount_entry(self.path, self.process.pid)
            except OSError:
                pass  # it ended just now
        return mount_entry(self.path)

    def is_mounted(self):
        return self.entry() is not None

    def log(self):
        return self.log_path.read_text(errors="replace")

    def attribute(self, name, attribute):
        return os.getxattr(self.path / name if name is not None else self.path,
                           f"user.safetensors.{attribute}").decode()

    def generation(self, name):
        return int(self.attribute(name, "generation"))

    @property
    def pid(self):
        return self.process.pid

    def descriptors(self):
        """The targets of the daemon's descriptors."""
        directory = f"/proc/{self.pid}/fd"
        found = []
        for name in os.listdir(directory):
            try:
                found.append(os.readlink(f"{directory}/{name}"))
            except FileNotFoundError:  # closed meanwhile
                continue
        return found

    def deleted_files(self):
        """Files that the daemon has open or mapped and that have no name any more."""
        found = self.descriptors()
        with open(f"/proc/{self.pid}/maps") as maps:
            found += maps.read().splitlines()
        return [file for file in found if file.endswith("(deleted)") and ".safetensors" in file]

    def kill(self):
        """Kills the daemon, as a crash or the kernel's out-of-memory killer does."""
        self.may_die = True
        self.process.kill()
        self.process.wait()

    def wait(self, seconds=20):
        try:
            return self.process.wait(timeout=seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            print(f"process {self.pid} has not ended; mounted for {mount_namespace.holders(self.path) or 'nobody'}; "
                  f"its threads:\n{where_threads_wait(self.pid)}", file=sys.stderr)
            raise

    def unmount(self, seconds=20):
        """Unmounts, waits for the daemon and returns its exit status."""
        result = None
        for _ in range(100):  # a descriptor that was just closed may still be on its way
            result = subprocess.run([*self.inside, "umount", str(self.path)], capture_output=True, text=True)
            if result.returncode != 0:
                result = subprocess.run([*self.inside, "fusermount3", "-u", str(self.path)],
                                        capture_output=True, text=True)
            if result.returncode == 0 or not self.is_mounted():
                return self.wait(seconds)
            time.sleep(0.02)
        raise AssertionError(f"{self.path} does not unmount: {result.stderr}")

    def finish(self):
        """Unmounts in any state of the mount. Returns its problem, or None."""
        wrong = None
        try:
            if self.process.poll() is None and self.is_mounted():
                try:
                    self.unmount()
                except (AssertionError, subprocess.TimeoutExpired) as error:
                    wrong = str(error)
            elif self.process.poll() is None:
                self.wait()
        except subprocess.TimeoutExpired:
            wrong = "the daemon does not end after the unmount"
        finally:
            self.watchdog.cancel()
            unmount_by_force(self.path)
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
                try:
                    self.process.wait(5 * PATIENCE)
                except subprocess.TimeoutExpired:
                    wrong = wrong or "the daemon ignores SIGTERM"
                    self.process.kill()
                    self.process.wait()
        if self.hung:
            wrong = "the daemon did not answer and was killed"
        elif self.process.returncode != 0 and not self.may_die and wrong is None:
            wrong = f"the daemon ended with status {self.process.returncode}"
        if SANITIZER_REPORT.search(self.log()):
            wrong = "the daemon's log holds a report of a sanitizer"
        return None if wrong is None else f"{wrong}\n--- its log ---\n{self.log()[-6000:]}"


def run_python(code, *arguments, before=(), timeout=60, **kwargs):
    """Runs code in a separate process, so that SIGBUS or a kill does not hit pytest."""
    return subprocess.run([*before, sys.executable, "-c", code, *map(str, arguments)],
                          capture_output=True, text=True, timeout=timeout * PATIENCE, **kwargs)


def start_python(code, *arguments):
    """Starts code in a separate process beside the test. wait_ready() waits for its line "ready"."""
    return subprocess.Popen([sys.executable, "-u", "-c", code, *map(str, arguments)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True)


def wait_ready(process):
    line = process.stdout.readline()
    assert line == "ready\n", f"the process wrote {line!r}: {process.stderr.read()}"


def shell(script, *arguments, cwd=None, timeout=60):
    """A script as a person types it; its arguments are $1, $2, ..."""
    return subprocess.run(["bash", "-c", script, "bash", *map(str, arguments)], capture_output=True,
                          text=True, cwd=cwd, timeout=timeout * PATIENCE)


def in_child(function, timeout=120):
    """Runs function() in a fork, so that a signal that kills it (SIGBUS from a mapping) fails the test
    and not pytest."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        text = ""
        try:
            function()
        except BaseException:
            text = traceback.format_exc()
        with os.fdopen(write_end, "w") as pipe:
            pipe.write(text)
        os._exit(1 if text else 0)
    os.close(write_end)
    timer = threading.Timer(timeout * PATIENCE, os.kill, (child, signal.SIGKILL))
    timer.start()
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    timer.cancel()
    assert status == 0, text or f"the process ended with {status} (-7 is SIGBUS, -9 that it took too long)"
