# Where the log of a mount goes: to standard error in the foreground, to syslog(3) from the background.
import shutil
import socket
import subprocess

import mount_namespace
import pytest
from mounted import BINARY, PATIENCE
from written_tensor import T


@pytest.fixture
def syslog(tmp_path):
    """What syslogd has in /dev/log."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "log"))
        server.settimeout(30 * PATIENCE)
        yield server


@pytest.mark.needs_root
def test_the_log_of_a_mount_in_the_background_is_syslogs(syslog, archive, expected, tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare for a /dev of its own")
    (tmp_path / "dev").mkdir()
    target = tmp_path / "in background"
    target.mkdir()
    # A /dev with two devices and a syslogd.
    own_dev = (f"mount -t tmpfs tmpfs '{tmp_path}/dev' && cp -a /dev/null /dev/fuse '{tmp_path}/dev' && "
               f"ln -s '{tmp_path}/log' '{tmp_path}/dev/log' && mount --bind '{tmp_path}/dev' /dev")
    script = 'printf 4321 >"$2/$3"; umount "$2"'
    done = subprocess.run([*mount_namespace.in_namespace(own_dev), "sh", "-c", f'"$0" "$1" "$2" && {script}',
                           BINARY, archive.path, target, T], capture_output=True, text=True, timeout=60 * PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "the terminal is not its own any more"
    lines = []
    while not lines or "unmounted from" not in lines[-1]:
        lines.append(syslog.recv(4096).decode().rstrip("\0"))
    # <PRIORITY>DATE safetensorsfs[PID]: TEXT; 30 is info, 28 a warning, 27 an error of a daemon.
    said = [(line.partition(">")[0], line.partition("]: ")[2]) for line in lines]
    assert all(" safetensorsfs[" in line for line in lines), lines
    assert ("<30", f"{archive.path}: mounted on {target}") in said
    assert [text for _, text in said if "4 bytes" in text and f'"{T}"' in text], said
    expected.check()
