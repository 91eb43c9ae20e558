# Fixtures of all tests with mounts: a check that the kernel allows mounts, a sample archive, and mounts that are always
# unmounted at the end.
import contextlib
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
pytest.register_assert_rewrite("edited_mount", "served_archive", "sharded_model", "written_tensor")  # told as if the test checked
import archive_file  # noqa: E402
import mount_namespace  # noqa: E402
import mount_set  # noqa: E402
import mounted  # noqa: E402
import own_disk  # noqa: E402
import sharded_model  # noqa: E402
import written_tensor  # noqa: E402


def why_not_mountable():
    """The reason why nothing can be mounted here, or None."""
    if not mounted.BINARY.exists():
        return f"{mounted.BINARY} is not built"
    if not os.path.exists("/dev/fuse"):
        return "/dev/fuse is missing (modprobe fuse)"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        if shutil.which("fusermount3") is None:
            return f"/dev/fuse: {error.strerror}, and there is no fusermount3"
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return "not root, and there is no fusermount3"
    return None


def pytest_configure(config):
    config.addinivalue_line("markers", "needs_root: mounts, changes users or namespaces as root only")


def pytest_collection_modifyitems(items):
    reason = why_not_mountable()
    for item in items:
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
        elif item.get_closest_marker("needs_root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root"))


@pytest.fixture
def archive_path(tmp_path):
    """The sample, written by the reference library."""
    return archive_file.save_with_reference(tmp_path / "model.safetensors")


@pytest.fixture
def archive(archive_path):
    return archive_file.ArchiveFile(archive_path)


@pytest.fixture(params=["disk", "tmpfs"])
def planted_ground(request):
    """Two directories that all users reach: on the plain disk, and below it on the plain disk or on a tmpfs."""
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv")
    directory = Path(tempfile.mkdtemp(prefix="stfs-planted-"))
    directory.chmod(0o755)
    try:
        with contextlib.ExitStack() as undo:
            ground = directory / "ground"
            if request.param == "tmpfs":
                undo.enter_context(own_disk.own_disk("tmpfs", ground))
            else:
                ground.mkdir()
            ground.chmod(0o755)
            yield directory, ground
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def mounts(tmp_path):
    """mounts(SOURCE, options) -> Mount, as many as a test wants."""
    with mount_set.mounts_below(tmp_path) as make:
        yield make


@pytest.fixture
def mount(archive, mounts):
    """The sample, mounted read-write."""
    mount = mounts(archive.path)
    mount.archive = archive
    return mount


@pytest.fixture
def expected(mount):
    """The expected content of the archive of `mount`. A test changes it when it changes the archive."""
    return archive_file.Expectation(mount.archive)


@pytest.fixture
def fresh(tmp_path, expected):
    """fresh(N) -> (bytes, path of a plain file with them): new content of N bytes, T's size by default."""
    made = []

    def make(size_bytes=None):
        size_bytes = expected.size(written_tensor.T) if size_bytes is None else size_bytes
        data = archive_file.random_bytes(size_bytes, 1000 + len(made))
        path = tmp_path / f"fresh{len(made)}"
        path.write_bytes(data)
        made.append(path)
        return data, path

    return make


@pytest.fixture
def model(tmp_path):
    return sharded_model.ShardedModel(tmp_path / "sharded")


@pytest.fixture
def open_fd():
    """os.open whose descriptors are closed at the end, so that a failing test leaves no busy mount."""
    opened = []

    def open_(path, flags=os.O_RDONLY, mode=0o666):
        opened.append(os.open(path, flags, mode))
        return opened[-1]

    yield open_
    for fd in opened:
        try:
            os.close(fd)
        except OSError:
            pass


class OrdinaryUser:
    """The user nobody, with a directory of its own and a copy of the binary that it may run."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.uid = pwd.getpwnam("nobody").pw_uid
        self.gid = pwd.getpwnam("nobody").pw_gid
        # The start of a command line: setpriv runs the command as this user.
        self.before = [shutil.which("setpriv"), f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups", "--"]
        self.binary = self.directory / "safetensorsfs"
        shutil.copy2(mounted.BINARY, self.binary)
        os.chmod(self.directory, 0o755)
        os.chown(self.directory, self.uid, self.gid)
        # udev lets all users open /dev/fuse; containers often don't. Then the daemon runs in a mount namespace in which all
        # users may open it. Other processes are not affected.
        self.in_namespace = os.stat("/dev/fuse").st_mode & 0o006 != 0o006
        self.before_daemon = self.before
        self.device = "true"  # the shell command for it
        if self.in_namespace:
            node = self.directory / "fuse"
            os.mknod(node, 0o666 | stat.S_IFCHR, os.stat("/dev/fuse").st_rdev)
            os.chmod(node, 0o666)
            self.device = f"mount --bind '{node}' /dev/fuse"
            self.before_daemon = [*mount_namespace.in_namespace(self.device), *self.before]
            probe = subprocess.run([*self.before_daemon, "dd", "if=/dev/null", "of=/dev/fuse", "count=0"],
                                   capture_output=True, text=True)
            if probe.returncode != 0:
                pytest.skip(f"nobody can't have /dev/fuse here: {probe.stderr.strip()}")

    def own(self, path):
        os.chown(path, self.uid, self.gid)
        return path

    def make_mount_point(self):
        path = self.directory / "mnt"
        path.mkdir()
        return self.own(path)

    def mount(self, mounts, source, options=""):
        """Mounts a source as this user; .sh(SCRIPT) of the result runs a script in the mount as this user."""
        mount = mounts(source, options, path=self.make_mount_point(), before=self.before_daemon, binary=self.binary,
                       in_namespace=self.in_namespace)
        mount.sh = lambda script: subprocess.run(
            [*mount.inside, *self.before, "sh", "-c", f"cd '{mount.path}' && {script}"], capture_output=True, text=True)
        return mount


@pytest.fixture
def nobody():
    try:
        pwd.getpwnam("nobody")
    except KeyError:
        pytest.skip("there is no user nobody")
    if os.geteuid() != 0:
        pytest.skip("needs root to become nobody")
    for program in ("setpriv", "fusermount3", "unshare", "nsenter"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}")
    directory = tempfile.mkdtemp(prefix="stfs-nobody-")
    try:
        yield OrdinaryUser(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
