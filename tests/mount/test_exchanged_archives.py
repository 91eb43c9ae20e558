# A user who may write the directory of an archive exchanges its name while the owner's tool writes.
import os
from pathlib import Path

import pytest
from attack_fixtures import kind, mallory, scene  # noqa: F401
from attacker import MALLORY

pytestmark = pytest.mark.needs_root


EXCHANGE = """
import ctypes, itertools
path, own, found = sys.argv[1:]
directory = os.path.dirname(path)
exchange = ctypes.CDLL(None).renameat2
names = -100, path.encode(), -100, own.encode(), 2  # AT_FDCWD and RENAME_EXCHANGE
print("ready", flush=True)
for number in itertools.count():
    exchange(*names)
    for name in os.listdir(directory):
        if ".stj." not in name:
            continue
        try:
            journal = os.stat(os.path.join(directory, name))
        except FileNotFoundError:
            continue
        if journal.st_uid == os.getuid() or journal.st_mode & 0o022:
            open(found, "a").write(f"{name} {journal.st_uid} {journal.st_mode:o}\\n")
"""


def test_a_journal_takes_no_access_from_a_file_that_gets_the_archives_name_meanwhile(scene, mallory):
    """Writes during an exchange fail. Mallory owns no journal, and may write none."""
    os.chmod(scene.archives, 0o777)
    own = Path(scene.archives) / "own"
    own.write_text("no archive: nobody makes a journal for it")
    os.chown(own, MALLORY, MALLORY)
    own.chmod(0o666)
    found = Path(scene.archives) / "found"
    exchanging = mallory.does(EXCHANGE, scene.path, own, found)
    try:
        done = [scene.put("a").returncode for _ in range(60)]
        assert exchanging.poll() is None
    finally:
        exchanging.kill()
    assert not found.exists(), found.read_text()
    assert set(done) <= {0, 1}
