# /proc hides other users' processes from the mount of an ordinary user (hidepid), so the mount cannot know whether a writer
# closes, exits or is killed during its writes. The mount never commits the unsynced bytes of such a writer, but commits a sync.
import os
import shutil
import signal
import subprocess

import mount_namespace
import pytest
from archive_file import Expectation
from closing_writer import SIZE, whole, write_and_end, writer  # noqa: F401
from written_tensor import T

ALICE = 12345
HALF = SIZE // 2
pytestmark = pytest.mark.needs_root


class HidingMount:
    """A mount of nobody's with a /proc of its own, whose processes Alice shares and nobody may not look into."""

    def __init__(self, mounts, archive, nobody, options):
        archive.path = nobody.own(shutil.copy(archive.path, nobody.directory / "model.safetensors"))
        os.chmod(archive.path, 0o666)
        conf = nobody.directory / "fuse.conf"
        conf.write_text("user_allow_other\n")
        before = [*mount_namespace.in_namespace(
            f"mount --bind '{conf}' /etc/fuse.conf && mount -t proc -o {options} proc /proc"), *nobody.before_daemon]
        self.mount = mounts(archive.path, "allow_other", path=nobody.make_mount_point(), before=before,
                            binary=nobody.binary, in_namespace=True)
        alice = ["setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", "--clear-groups", "--"]
        self.as_alice = [*self.mount.inside, *alice]
        self.as_nobody = [*self.mount.inside, *nobody.before]
        self.expected = Expectation(archive)

    def write(self, program, how, threads, flags, before=None, size_bytes=SIZE):
        return write_and_end(program, self.mount / T, how, threads, flags, before or self.as_alice, size_bytes)

    def rolled_back(self):
        return self.mount.log().count("rolled back")


def may_read_exit_codes(hiding):
    """Whether /proc shows nobody with which code a process of Alice's has ended; proc(5) says 0 where it must not."""
    killed = subprocess.Popen([*hiding.as_alice, "sh", "-c", "kill -KILL $$"])
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
    shown = subprocess.run([*hiding.as_nobody, "cat", f"/proc/{killed.pid}/stat"], capture_output=True, text=True)
    killed.wait()
    assert shown.stdout.split()[-1] in ("0", str(signal.SIGKILL.value)), shown
    return shown.stdout.split()[-1] != "0"


@pytest.fixture(params=["hidepid=1", "hidepid=2"])
def hiding(request, mounts, archive, nobody):
    return HidingMount(mounts, archive, nobody, request.param)


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("flags", "wr")
def test_a_hidden_writer_that_is_killed_in_the_middle_of_a_patch_changes_nothing(hiding, writer, threads, flags):  # noqa: F811
    for _ in range(5):
        assert hiding.write(writer, "kill", threads, flags, size_bytes=HALF).returncode != 0
        hiding.expected.check()
    assert hiding.rolled_back() == 5
    assert "/proc does not show this mount which of the two (hidepid)" in hiding.mount.log()


@pytest.mark.parametrize("threads", [0, 3])
def test_the_close_of_a_hidden_writer_fails_and_says_why(hiding, writer, threads):  # noqa: F811
    for count, flags in enumerate("wtr", 1):
        done = hiding.write(writer, "close", threads, flags)
        assert done.returncode == 5 and "Input/output error" in done.stderr, done
        hiding.expected.check()
        assert hiding.rolled_back() == count
    hiding.write(writer, "exit", threads, "t")
    hiding.expected.check()
    assert hiding.rolled_back() == 4


@pytest.mark.parametrize("threads", [0, 3])
def test_what_a_hidden_writer_syncs_is_committed(hiding, writer, threads):  # noqa: F811
    for flags in "wtr":
        assert hiding.write(writer, "sync", threads, flags).returncode == 0
        whole(hiding.expected).check()
    assert hiding.rolled_back() == 0


@pytest.mark.parametrize("threads", [0, 3])
def test_the_mounts_own_user_is_not_hidden(hiding, writer, threads):  # noqa: F811
    assert hiding.write(writer, "kill", threads, "w", hiding.as_nobody, HALF).returncode != 0
    hiding.expected.check()
    assert hiding.rolled_back() == 1
    for flags in "wtr":
        assert hiding.write(writer, "close", threads, flags, hiding.as_nobody).returncode == 0
        assert hiding.write(writer, "exit", threads, flags, hiding.as_nobody).returncode == 0
    whole(hiding.expected).check()
    assert hiding.rolled_back() == 1


@pytest.mark.parametrize("threads", [0, 3])
def test_with_the_group_that_may_look_a_mount_tells_an_exit_from_a_signal(mounts, archive, nobody, writer, threads):  # noqa: F811
    hiding = HidingMount(mounts, archive, nobody, f"hidepid=2,gid={nobody.gid}")
    assert hiding.write(writer, "kill", threads, "w", size_bytes=HALF).returncode != 0
    hiding.expected.check()
    due, other = "was killed by a signal", "may not read which of the two"
    if not may_read_exit_codes(hiding):
        due, other = other, due
    assert due in hiding.mount.log() and other not in hiding.mount.log()
    for flags in "wtr":
        assert hiding.write(writer, "close", threads, flags).returncode == 0
        assert hiding.write(writer, "exit", threads, flags).returncode == 0
    whole(hiding.expected).check()
    assert hiding.rolled_back() == 1
