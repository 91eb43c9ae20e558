# A cluster file system, which is made once for these tests and always removed at the end.
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mount"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import gluster  # noqa: E402
import mount_set  # noqa: E402
import mounted  # noqa: E402


def pytest_collection_modifyitems(items):
    reason = f"{mounted.BINARY} is not built" if not mounted.BINARY.exists() else gluster.why_unavailable()
    if reason:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    report = (yield).get_result()
    if report.failed and "volume" in item.funcargs:
        report.sections.append(("GlusterFS", item.funcargs["volume"].errors()))


@pytest.fixture(scope="session")
def volume():
    # glusterd puts the path into the names of its sockets, so the path is short.
    directory = Path(tempfile.mkdtemp(prefix="stfs-gluster-"))
    try:
        with gluster.volume_in(directory) as volume:
            yield volume
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def hosts(volume):
    return [volume.host(), volume.host()]


@pytest.fixture
def mounts(tmp_path):
    """mounts(SOURCE, options) returns a Mount, as in tests/mount."""
    with mount_set.mounts_below(tmp_path) as make:
        yield make
