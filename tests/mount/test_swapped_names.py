# Another user gives a name to another file while root's mount (allow_other) works with it. Rows of packaging/doc/threats.md.
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from archive_file import write_bytes_tensors
from attacker import MALLORY, as_user

pytestmark = pytest.mark.needs_root


@pytest.fixture
def ground():
    """A directory that everybody may enter."""
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv")
    directory = Path(tempfile.mkdtemp(prefix="stfs-swapped-"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def mallory(script, *arguments):
    return subprocess.run(as_user(MALLORY, [sys.executable, "-I", "-c", script, *map(str, arguments)]),
                          capture_output=True, text=True)


def make_private(path):
    path.write_text("secret")
    path.chmod(0o600)
    return path


def test_a_private_file_in_a_planted_scratch_directory_stays_private(ground, mounts):
    path = ground / "m.safetensors"
    write_bytes_tensors(path, {"a": b"bytes"})
    path.chmod(0o644)
    private = ground / ".m.safetensors.scratch"
    private.mkdir(mode=0o700)
    make_private(private / "key")
    point = ground / "mnt"
    point.mkdir()
    mount = mounts(path, "allow_other", path=point)
    assert not (point / "key").exists()  # not even to root
    done = mallory("import sys; print(open(sys.argv[1]).read())", point / "key")
    assert "FileNotFoundError" in done.stderr, done
    assert mount.unmount() == 0


def test_keys_of_metadata_in_a_transaction_are_its_makers(ground, mounts):
    path = ground / "m.safetensors"
    write_bytes_tensors(path, {"a": b"bytes"})
    point = ground / "mnt"
    point.mkdir()
    mount = mounts(path, "allow_other", path=point)
    transaction = point / ".safetensors" / "transactions" / "t"
    transaction.mkdir()
    os.setxattr(transaction, "user.safetensors.metadata.secret", b"value")
    assert "user.safetensors.metadata.secret" in os.listxattr(transaction)
    done = mallory("import os, sys; print(os.listxattr(sys.argv[1]))", transaction)
    assert "secret" not in done.stdout, done
    transaction.rmdir()
    assert mount.unmount() == 0
