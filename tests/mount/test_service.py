# The unit safetensorsfs@.service without systemd: its commands with its settings, in the order in which systemd
# runs them when a mount starts, dies and stops. tests/packaging checks what systemd thinks of the file.
import ctypes
import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from archive_file import ArchiveFile, Expectation, save_with_reference
from killed_daemon import guards_of
from mounted import BINARY, PATIENCE, REPOSITORY, errno_of, eventually, is_sanitized, mount_entry, unmount_by_force


class Service:
    """The lines of the unit's section [Service], and what they are filled in with."""

    def __init__(self, settings):
        unit = (REPOSITORY / "packaging/systemd/safetensorsfs@.service.in").read_text()
        lines = unit.replace("@CMAKE_INSTALL_FULL_BINDIR@", str(BINARY.parent)).splitlines()
        self.lines = [line.split("=", 1) for line in lines[lines.index("[Service]"):lines.index("[Install]")] if "=" in line]
        given = [text.split("=", 1) for text in self.all("Environment")]
        self.environment = {**os.environ, **dict(given), **settings}

    def all(self, name):
        return [value for key, value in self.lines if key == name]

    def end(self):
        """What the unit does after the program's end, if it does anything."""
        assert all(self.run(name) == 0 for name in ("ExecStop", "ExecStopPost") if self.all(name))

    def run(self, name):
        """The only command of that name; its exit status, which a leading dash makes 0."""
        (command,) = self.all(name)
        words = shlex.split(command.removeprefix("-"))
        for key, value in self.environment.items():
            words = [word.replace(f"${{{key}}}", value) for word in words]
        status = subprocess.run(words, env=self.environment, timeout=30 * PATIENCE).returncode
        return 0 if command.startswith("-") else status


def server_of(path):
    """The process that serves a mount. Its guard has the same arguments until it begins."""
    def found():
        return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and str(path) in arguments_of(pid)]

    assert eventually(lambda: len(found()) == 1), found()
    return found()[0]


def arguments_of(pid):
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []
    return arguments if arguments[0] == str(BINARY) else []


def kill(path, kills_guard):
    """As kill -9 of the program, or of all processes of the service."""
    server = server_of(path)
    # First, or the guard would see the end of the program.
    for guard in guards_of(path) if kills_guard else []:
        os.kill(guard, signal.SIGKILL)
    os.kill(server, signal.SIGKILL)
    if kills_guard:
        assert eventually(lambda: mount_entry(path) and errno_of(os.listdir, path) != 0)


def has_ended(pid):
    return eventually(lambda: not arguments_of(pid))


@pytest.fixture
def service(tmp_path):
    example = (REPOSITORY / "packaging/examples/service.conf").read_text()
    names = [line.partition("=")[0].lstrip("# ") for line in example.splitlines() if "=" in line]
    assert {"SOURCE", "MOUNTPOINT"} <= set(names), "the example names other settings than the unit"
    (tmp_path / "mount point").mkdir()
    path = tmp_path / "mount point"
    settings = {"SOURCE": str(save_with_reference(tmp_path / "my model.safetensors")), "MOUNTPOINT": str(path)}
    service = Service(settings)
    service.path, service.expected = path, Expectation(ArchiveFile(settings["SOURCE"]))
    yield service
    unmount_by_force(path)


def is_right(service):
    service.expected.check()
    return all((service.path / name).read_bytes() == service.expected.tensor(name) for name in service.expected.layout)


def test_the_service_brings_the_mount_back_when_its_program_dies(service):
    """By the guard (SIGKILL to the program), or by the next start (SIGKILL to all, as `systemctl kill -s KILL`)."""
    assert (service.all("Restart"), service.all("Type")) == (["on-failure"], ["forking"])
    assert service.run("ExecStart") == 0
    for seed, kills_guard in ((1, False), (2, True)):
        data = bytes([seed]) * service.expected.size("odd")
        (service.path / "odd").write_bytes(data)
        service.expected.change("odd", data)
        fd = os.open(service.path / "small", os.O_WRONLY)
        os.write(fd, b"x")
        kill(service.path, kills_guard)
        assert errno_of(os.close, fd) != 0
        service.end()
        assert kills_guard or eventually(lambda: mount_entry(service.path) is None)
        assert service.run("ExecStart") == 0
        assert is_right(service)


def test_a_service_that_is_stopped_leaves_no_mount_and_may_be_started_again(service):
    for _ in range(2):
        assert service.run("ExecStart") == 0
        assert is_right(service)
        pid = server_of(service.path)
        os.kill(pid, signal.SIGTERM)  # as systemd stops what has no ExecStop
        assert has_ended(pid)
        service.end()
        assert mount_entry(service.path) is None
        assert os.listdir(service.path) == []


@pytest.fixture
def their_mount(tmp_path):
    """A live mount of another user, without allow_other: even root may not enter, and mountpoint(1) fails."""
    place = tmp_path / "place"
    place.mkdir()
    server = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={server},rootmode=40000,user_id=12345,group_id=12345"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"theirs", os.fsencode(place), b"fuse.safetensorsfs", 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    yield place
    unmount_by_force(place)
    os.close(server)


@pytest.mark.needs_root
def test_a_stopped_service_unmounts_no_mount_of_another_user(service, their_mount):
    """Who may write the directory of the mount point makes it a link to another mount."""
    assert service.run("ExecStart") == 0
    os.kill(server_of(service.path), signal.SIGTERM)
    assert eventually(lambda: mount_entry(service.path) is None)
    service.path.rmdir()
    service.path.symlink_to(their_mount)
    service.end()
    assert service.run("ExecStart") == 1
    service.end()
    assert mount_entry(their_mount)


def test_a_start_that_fails_is_a_failure_of_the_service_and_harms_no_other_mount(service, mounts, tmp_path):
    mount = mounts(service.environment["SOURCE"])
    service.environment["SOURCE"] = str(tmp_path / "none.safetensors")
    assert service.run("ExecStart") == 1
    service.end()
    assert mount_entry(service.path) is None
    assert (mount / "odd").read_bytes() == service.expected.tensor("odd")


def words_of(service, name):
    (command,) = service.all(name)
    words = shlex.split(command.removeprefix("-"))
    for key, value in service.environment.items():
        words = [word.replace(f"${{{key}}}", value) for word in words]
    return words


def write_and_stop(service):
    """As a service lives: a change of a tensor, then the stop."""
    assert eventually(lambda: mount_entry(service.path))
    data = bytes([3]) * service.expected.size("odd")
    (service.path / "odd").write_bytes(data)
    service.expected.change("odd", data)
    os.remove(service.path / "small")
    os.kill(server_of(service.path), signal.SIGTERM)


@pytest.mark.needs_root
def test_the_units_capabilities_suffice(service):
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv")
    (kept,) = service.all("CapabilityBoundingSet")
    bound = ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in kept.split())])
    assert service.all("NoNewPrivileges") == ["yes"]
    sandbox = ["setpriv", f"--bounding-set={bound}", "--no-new-privs", "--"]
    subprocess.run([*sandbox, *words_of(service, "ExecStart")], check=True, timeout=30 * PATIENCE)
    pid = server_of(service.path)
    write_and_stop(service)
    assert has_ended(pid)
    assert mount_entry(service.path) is None
    # After a crash, with the guard and without it.
    for kills_guard in (False, True):
        subprocess.run([*sandbox, *words_of(service, "ExecStart")], check=True, timeout=30 * PATIENCE)
        kill(service.path, kills_guard)
        assert kills_guard or eventually(lambda: mount_entry(service.path) is None)
    subprocess.run([*sandbox, *words_of(service, "ExecStart")], check=True, timeout=30 * PATIENCE)
    assert (service.path / "odd").read_bytes() == service.expected.tensor("odd")


def allowed_calls(filters):
    """The system calls of a SystemCallFilter; a group has the names of @default, too."""
    names = set()
    for word in ("@default", *filters.split()):
        if not word.startswith("@"):
            names.add(word)
            continue
        shown = subprocess.run(["systemd-analyze", "--no-pager", "syscall-filter", word], capture_output=True, text=True, check=True)
        for entry in shown.stdout.splitlines()[1:]:
            entry = entry.strip()
            if entry.startswith("@"):
                names |= allowed_calls(entry)
            elif entry and not entry.startswith("#"):
                names.add(entry)
    return names


@pytest.mark.needs_root
def test_the_units_filter_allows_the_calls_of_a_mount(service, tmp_path):
    for program in ("strace", "systemd-analyze"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}")
    if is_sanitized():
        pytest.skip("a sanitizer makes calls of its own")
    (filters,) = service.all("SystemCallFilter")
    trace = tmp_path / "calls"
    traced = subprocess.Popen(["strace", "-f", "-qq", "-o", trace, *words_of(service, "ExecStart")], stderr=subprocess.PIPE)
    if not eventually(lambda: mount_entry(service.path) or traced.poll() is not None) or traced.poll() is not None:
        pytest.skip(f"strace does not work here: {traced.communicate()[1].decode()}")
    write_and_stop(service)
    traced.communicate(timeout=30 * PATIENCE)
    # And what clears a dead mount away.
    assert service.run("ExecStart") == 0
    kill(service.path, kills_guard=True)
    traced = subprocess.Popen(["strace", "-f", "-qq", "-A", "-o", trace, *words_of(service, "ExecStart")])
    assert eventually(lambda: mount_entry(service.path) and errno_of(os.listdir, service.path) == 0)
    os.kill(server_of(service.path), signal.SIGTERM)
    traced.communicate(timeout=30 * PATIENCE)
    assert mount_entry(service.path) is None
    text = trace.read_text(errors="replace")
    calls = set(re.findall(r"^\d+ +(\w+)\(", text, re.M))
    assert {"umount2", "pwrite64", "capset"} <= calls
    refused = calls - allowed_calls(filters)
    assert not refused, f"SystemCallFilter lacks {sorted(refused)}"
    assert service.all("RestrictAddressFamilies") == ["AF_UNIX"]
    assert set(re.findall(r" socket(?:pair)?\((\w+)", text)) <= {"AF_UNIX"}
    assert service.all("MemoryDenyWriteExecute") == ["yes"]
    assert not re.findall(r" mmap\([^)\n]*PROT_WRITE\|PROT_EXEC.*| mprotect\([^)\n]*PROT_EXEC.*", text)
    assert service.all("RestrictNamespaces") == ["yes"]
    assert "CLONE_NEW" not in text
