# Fixtures that clean up after a test: mounts, loop devices, processes, images.
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import loop_disk  # noqa: E402
import programs  # noqa: E402
import kills  # noqa: E402, after what finds tests/mount
from mount_set import mounts_below  # noqa: E402
from mounted import unescape_mount  # noqa: E402


def pytest_collection_modifyitems(items):
    reason = programs.why_unbuilt()
    if reason:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


def unmount_below(directory):
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as table:
        targets = [unescape_mount(line.split(" ")[1]) for line in table]
    for target in reversed(targets):
        if target.startswith(f"{directory}/"):
            subprocess.run(["umount", "-l", target], capture_output=True)


@pytest.fixture
def scratch():
    """A directory for images. A replay copies images often."""
    directory = Path(tempfile.mkdtemp(prefix="stfs-replay-", dir=loop_disk.place_for_images()))
    try:
        yield directory
    finally:
        unmount_below(directory)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def disk(scratch):
    """disk(KIND, size_bytes) -> the directory where a new file system is mounted; the last one has attributes."""
    stack = []

    def make(kind, size_bytes=None, options=""):
        reason = loop_disk.why_unavailable(kind)
        if reason:
            pytest.skip(reason)
        number = len(stack)
        image = loop_disk.make_image(scratch / f"image{number}", kind, size_bytes)
        mounted = loop_disk.mounted_image(image, kind, scratch / f"disk{number}", options=options)
        directory = Path(mounted.__enter__())
        stack.append(mounted)
        return directory

    yield make
    for mounted in reversed(stack):
        try:
            mounted.__exit__(None, None, None)
        except OSError:
            pass  # lazily unmounted, because a failed test may have left it busy


@pytest.fixture
def strace():
    """For tests that kill or trace."""
    reason = kills.why_no_strace()
    if reason:
        pytest.skip(reason)


@pytest.fixture
def processes():
    """A list for processes, also stopped ones, that must not outlive the test."""
    started = []
    yield started
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()


@pytest.fixture
def mounts(scratch):
    """mounts(SOURCE, options) -> Mount, as in tests/mount."""
    with mounts_below(scratch) as make:
        yield make
