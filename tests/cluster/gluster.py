# A GlusterFS volume on this machine alone: two bricks, and a client for each host that a test wants.
#
# The servers have separate namespaces (processes, network, mounts), so no other program uses their addresses and ports. All
# servers end with the first of them, which ends with pytest. No daemon of the system is touched.
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import mount_namespace
import mounted

ADDRESS = "127.1.1.1"  # the command line refuses names of the local host
VOLUME = "models"
PROGRAMS = ("glusterd", "glusterfs", "gluster", "unshare", "nsenter", "ip")
PR_SET_PDEATHSIG = 1
# The paths of the bricks' sockets are fixed.
BEFORE = "ip link set lo up && mkdir -p /run/gluster && mount -t tmpfs none /run/gluster"

_libc = ctypes.CDLL(None)


def why_unavailable():
    """Returns the reason if no volume can be made here, or None."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"there is no {missing[0]} (glusterfs-server)"
    if os.geteuid() != 0:
        return "needs root for GlusterFS"
    probe = subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc", "true"],
                           capture_output=True, text=True)
    return f"no namespaces: {probe.stderr.strip()}" if probe.returncode else None


def _die_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _use_each_brick(path):
    """Raises OSError if files can't be made. The hash of a name decides which brick has the file."""
    for number in range(16):
        file = path / f"probe{number}"
        file.write_bytes(b"probe")
        file.unlink()


class Host:
    """One client of the volume, with separate caches."""

    def __init__(self, path, process):
        self.path = path
        self.process = process

    def __truediv__(self, name):
        return self.path / name


class Volume:
    """A volume that is made and started in a directory with extended attributes (ext4, xfs, tmpfs of Linux 6.6)."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.log = self.directory / "log"
        self.socket = self.directory / "glusterd.socket"
        for name in ("log", "run", "state", "brick1", "brick2"):
            (self.directory / name).mkdir()
        option = "--xlator-option=management."
        server = ["glusterd", "-N", f"--log-file={self.log}/glusterd.log", f"--pid-file={self.directory}/run/glusterd.pid",
                  f"{option}working-directory={self.directory}/state", f"{option}run-directory={self.directory}/run",
                  f"{option}transport.socket.bind-address={ADDRESS}", f"{option}glusterd-sockfile={self.socket}",
                  f"{option}cluster-test-mode={self.log}"]
        with open(self.log / "output", "wb") as output:
            self.servers = subprocess.Popen(
                [*mount_namespace.in_namespace(BEFORE, "--pid", "--net", "--fork", "--kill-child", "--mount-proc"),
                 *server],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=_die_with_parent)
        self.hosts = []

    def start(self):
        if not mounted.eventually(self.socket.exists, 60):
            raise RuntimeError(f"glusterd does not start:\n{self.tail('glusterd.log')}")
        bricks = [f"{ADDRESS}:{self.directory}/brick{number}" for number in (1, 2)]
        self.command("volume", "create", VOLUME, *bricks, "force")
        self.command("volume", "start", VOLUME)

    def tail(self, name):
        path = self.log / name
        return path.read_text(errors="replace")[-4000:] if path.exists() else "(no log)"

    def errors(self):
        """Returns the errors in GlusterFS's own logs."""
        lines = [f"{log.name}: {line}" for log in sorted(self.log.rglob("*.log"))
                 for line in log.read_text(errors="replace").splitlines() if "] E [" in line]
        return "\n".join(lines[-40:])

    def command(self, *words):
        deadline = time.monotonic() + 60 * mounted.PATIENCE
        while True:
            done = subprocess.run(["gluster", "--mode=script", f"--glusterd-sock={self.socket}", *words],
                                  capture_output=True, text=True, timeout=120 * mounted.PATIENCE)
            if done.returncode == 0:
                return done.stdout
            # The socket exists before glusterd answers.
            if "Connection failed" not in done.stdout + done.stderr or time.monotonic() > deadline:
                raise RuntimeError(f"gluster {' '.join(words)}: {done.stdout}{done.stderr}"
                                   f"\n{self.tail('glusterd.log')}")
            time.sleep(0.1)

    def namespace(self):
        """Returns the path of the servers' network namespace."""
        pid = self.servers.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return f"/proc/{children[0]}/ns/net"

    def host(self):
        """Mounts the volume for another host."""
        path = self.directory / f"host{len(self.hosts)}"
        path.mkdir()
        log = self.log / f"{path.name}.log"
        process = subprocess.Popen(
            ["nsenter", f"--net={self.namespace()}", "glusterfs", "-N", "-s", ADDRESS, "--volfile-id", VOLUME,
             "-l", str(log), str(path)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=_die_with_parent)
        self.hosts.append(Host(path, process))
        # The mount is in the table before the graph of the volume exists, and the graph exists before each brick has
        # answered. Until then requests get EIO or ENOTCONN.
        if not mounted.eventually(lambda: mounted.mount_entry(path) and mounted.errno_of(_use_each_brick, path) == 0, 60):
            raise RuntimeError(f"the volume does not mount:\n{self.tail(log.name)}")
        return self.hosts[-1]

    def stop(self):
        for host in self.hosts:
            mounted.unmount_by_force(host.path)
        for process in (*(host.process for host in self.hosts), self.servers):
            process.kill()
            process.wait()


@contextlib.contextmanager
def volume_in(directory):
    volume = Volume(directory)
    try:
        volume.start()
        yield volume
    finally:
        volume.stop()
