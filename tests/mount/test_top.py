# `stfs top` beside a real mount: one sample for scripts, and the live view in a terminal.
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import time

import mounted
import pytest
from written_tensor import T

STFS = mounted.BUILD / "stfs"


def once(*words):
    return subprocess.run([STFS, "top", "--once", *map(str, words)], capture_output=True, text=True, timeout=60 * mounted.PATIENCE)


class Screen:
    """stfs top in a terminal."""

    def __init__(self, path, columns=80):
        self.seen = ""
        pid, self.terminal = pty.fork()
        if pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a test that runs in the background ignores it
            os.environ.update(TERM="xterm-256color")
            os.execv(STFS, ["stfs", "top", str(path)])
        self.pid = pid

    def read(self):
        while select.select([self.terminal], [], [], 0)[0]:
            try:
                data = os.read(self.terminal, 65536)
            except OSError:  # the program has ended
                return self.seen
            if not data:
                break
            self.seen += data.decode()
        return self.seen

    def wait_for(self, text):
        assert mounted.eventually(lambda: text in self.read()), self.seen

    def exit_status(self):
        """The status of waitstatus_to_exitcode()."""
        ended = []

        def look():
            self.read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                ended.append(os.waitstatus_to_exitcode(status))
            return ended

        assert mounted.eventually(look), self.seen
        self.read()
        os.close(self.terminal)
        return ended[0]


def test_one_sample_has_the_counts_and_rates_of_the_mount(mount):
    before = json.loads((mount / ".safetensors/stats.json").read_text())
    data = (mount / T).read_bytes()
    (mount / T).write_bytes(data)
    result = once("--json", mount.path)
    assert (result.returncode, result.stderr) == (0, "")
    sample = json.loads(result.stdout)
    assert sample["path"] == str(mount.path) and sample["source"] == mount.source
    assert sample["commits"] == before["commits"] + 1
    assert sample["bytes_written"] >= before["bytes_written"] + len(data)
    assert sample["commits_per_second"] == 0 and sample["requests_per_second"] > 0  # the second look
    assert sample["waiting"] is None or sample["waiting"] >= 0
    lines = once(mount.path).stdout.splitlines()
    assert lines[0] == f"{mount.path}  from {mount.source}"
    assert any(line.split()[:1] == ["commits"] for line in lines)
    assert "\x1b" not in "".join(lines)


def test_the_tensors_with_the_most_bytes_of_the_last_reads_are_hot(mount):
    small = min((name for name in os.listdir(mount.path) if (mount / name).stat().st_size >= 1000), key=lambda name: (mount / name).stat().st_size)

    def hot(path):
        for name in (T, small, small):
            with open(mount / name, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # so that the mount gets the read
                file.read()
        if path == "lines":
            return once(mount.path).stdout
        text = (mount / ".safetensors/stats.json").read_text() if path == "stats.json" else once("--json", mount.path).stdout
        return json.loads(text)["hot_tensors"]

    # The mount forgets a read after ten seconds, so a busy machine needs another look.
    for path in ("stats.json", "--json"):
        assert mounted.eventually(lambda path=path: [tensor["name"] for tensor in hot(path)] == [T, small]), hot(path)
    first, second = hot("stats.json")
    assert first["share_of_bytes"] > 0.9 and 0 < second["share_of_bytes"] < 0.1
    assert mounted.eventually(lambda: re.search(rf"^ +9[0-9]\.[0-9] %  {re.escape(T)}$", hot("lines"), re.M)), hot("lines")


def test_a_mount_of_several_models_needs_the_name_of_one(archive, mounts, tmp_path):
    directory = tmp_path / "models"
    directory.mkdir()
    for name in ("a", "b"):
        shutil.copy(archive.path, directory / f"{name}.safetensors")
    mount = mounts(directory)
    result = once(mount.path)
    assert result.returncode == 1 and "name the mount, or one model of a mount of several" in result.stderr
    assert once(mount / "a").returncode == 0


def test_a_path_outside_of_mounts_is_refused(tmp_path):
    result = once(tmp_path)
    assert result.returncode == 1
    assert result.stderr == f"stfs top: {tmp_path}: is no mount of safetensorsfs\n"


def test_without_a_terminal_only_one_sample_is_possible(mount):
    result = subprocess.run([STFS, "top", mount.path], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and "--once" in result.stderr


def test_a_stopped_daemon_gives_no_answer_and_does_not_hang_the_command(mount):
    mount.process.send_signal(signal.SIGSTOP)
    try:
        begin = time.monotonic()
        result = once(mount.path)
        assert result.returncode == 1 and "gives no answer" in result.stderr
        assert time.monotonic() - begin < 30 * mounted.PATIENCE
        screen = Screen(mount.path)
        screen.wait_for("no answer")
        os.write(screen.terminal, b"q")
        assert screen.exit_status() == 0
    finally:
        mount.process.send_signal(signal.SIGCONT)


def test_the_view_ends_with_q_and_leaves_the_screen_as_it_was(mount):
    screen = Screen(mount.path)
    screen.wait_for("commits")
    os.write(screen.terminal, b"xq")
    assert screen.exit_status() == 0
    assert screen.seen.index("\x1b[?1049h") < screen.seen.index("commits") < screen.seen.index("\x1b[?1049l")
    assert screen.seen.count("\x1b[?25l") == screen.seen.count("\x1b[?25h") == 1


def test_the_view_ends_with_control_c(mount):
    screen = Screen(mount.path)
    screen.wait_for("commits")
    os.write(screen.terminal, b"\x03")
    assert screen.exit_status() == -signal.SIGINT
    assert "\x1b[?1049l" in screen.seen


def test_the_view_ends_when_the_mount_goes(mount):
    screen = Screen(mount.path)
    screen.wait_for("commits")
    result = subprocess.run([STFS, "umount", mount.path], capture_output=True, text=True, timeout=60 * mounted.PATIENCE)
    assert (result.returncode, result.stderr) == (0, "")
    assert screen.exit_status() == 0
    assert f"stfs top: {mount.path}: was unmounted" in screen.seen


@pytest.mark.parametrize("columns", [80, 200])
def test_a_line_is_no_wider_than_the_terminal(mount, columns):
    screen = Screen(mount.path, columns)
    screen.wait_for("q ends")
    for _ in range(2):
        seen = screen.read().count("q ends")
        screen_has_more = lambda seen=seen: screen.read().count("q ends") > seen  # noqa: E731
        assert mounted.eventually(screen_has_more)
    os.write(screen.terminal, b"q")
    assert screen.exit_status() == 0
    for line in re.sub(r"\x1b\[\??[0-9;]*[a-zA-Z]", "", screen.seen).splitlines():
        assert len(line) <= columns, line
