# Another user makes files in root's mount (allow_other) while their names lead to a victim's private files, and changes files
# of a delta that replace such files. Rows of packaging/doc/threats.md.
import ctypes
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from archive_file import write_bytes_tensors
from attacker import MALLORY, as_user

pytestmark = pytest.mark.needs_root

ROUNDS = 3000
SECRET = b"the victim's"
LIBC = ctypes.CDLL(None, use_errno=True)
RENAME_EXCHANGE = 2


@pytest.fixture
def ground():
    """A directory in which everybody may make files."""
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv")
    directory = Path(tempfile.mkdtemp(prefix="stfs-created-"))
    (directory / "source").mkdir()
    directory.chmod(0o755)
    (directory / "source").chmod(0o777)
    write_bytes_tensors(directory / "source" / "m.safetensors", {"a": b"bytes", "b": b"more bytes"})
    (directory / "mnt").mkdir()
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def mallory(script, *arguments):
    return subprocess.Popen(as_user(MALLORY, [sys.executable, "-I", "-c", script, *map(str, arguments)]),
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def private_file(path):
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


def exchange(one, other):
    return LIBC.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), RENAME_EXCHANGE) == 0


def mounted(ground, mounts, options="allow_other"):
    mount = mounts(ground / "source" / "m.safetensors", options, path=ground / "mnt")
    return mount, ground / "mnt" / ".safetensors" / "pretrained"


CREATE_AGAIN_AND_AGAIN = """
import contextlib, os, sys
for _ in range(int(sys.argv[2])):
    with contextlib.suppress(OSError):
        file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
        with contextlib.suppress(OSError):
            print(os.fstat(file).st_uid, os.pread(file, 99, 0))
        os.close(file)
"""


def test_a_file_that_appears_while_another_user_makes_it_stays_private(ground, mounts):
    mount, pretrained = mounted(ground, mounts)
    (ground / "source").chmod(0o1777)
    secret = private_file(ground / "source" / "secret.json")
    script = mallory(CREATE_AGAIN_AND_AGAIN, pretrained / "token.json", ROUNDS)
    while script.poll() is None:
        exchanged = ground / "source" / "token.json"
        os.rename(secret, exchanged)
        os.rename(exchanged, secret)
    said = script.stdout.read()
    assert "Traceback" not in said, said
    assert "victim" not in said and "\n0 " not in "\n" + said, said
    assert secret.read_bytes() == SECRET
    assert mount.unmount() == 0


MAKE_NEW_ONES = """
import contextlib, os, sys
for at in range(int(sys.argv[2])):
    path = f"{sys.argv[1]}/x{at}.json"
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        with contextlib.suppress(OSError):
            print(os.fstat(file).st_uid, os.pread(file, 99, 0))
        with contextlib.suppress(OSError):
            os.close(os.dup(file))
        with contextlib.suppress(OSError):
            os.pwrite(file, b"MALLORY WROTE", 0)
        os.close(file)
"""


def test_who_makes_a_file_gets_no_other_that_has_its_name_now(ground, mounts):
    mount, pretrained = mounted(ground, mounts)
    secret = private_file(ground / "source" / "secret.json")
    script = mallory(MAKE_NEW_ONES, pretrained, ROUNDS)
    at = 0
    while script.poll() is None and at < ROUNDS:
        name = ground / "source" / f"x{at}.json"
        if exchange(name, secret):
            exchange(name, secret)
            at += 1
        elif (ground / "source" / f"x{at + 1}.json").exists():
            at += 1
    said, _ = script.communicate()
    assert "Traceback" not in said, said
    assert "victim" not in said and "\n0 " not in "\n" + said, said
    assert secret.read_bytes() == SECRET
    assert mount.unmount() == 0


def test_the_owner_of_a_delta_does_not_own_the_files_of_the_source(ground, mounts):
    source = ground / "source"
    source.chmod(0o755)
    secret = private_file(source / "secret.json")
    (source / "public.json").write_bytes(b"{}")
    (source / "public.json").chmod(0o644)
    (source / "private").mkdir(mode=0o700)
    (source / "private" / "keys.json").write_bytes(SECRET)
    delta = ground / "run.safetensors"
    mounts(source / "m.safetensors", f"delta={delta}").unmount()
    os.chown(delta, MALLORY, MALLORY)
    mount, pretrained = mounted(ground, mounts, f"allow_other,delta={delta}")
    for path in ("secret.json", "private"):
        said, _ = mallory("import os, sys; os.chmod(sys.argv[1], 0o755)", pretrained / path).communicate()
        assert "PermissionError" in said, said
    said, _ = mallory("import sys; open(sys.argv[1], 'r+b').write(b'x')", pretrained / "secret.json").communicate()
    assert "PermissionError" in said, said
    # A file that both modes allow to read may be written repeatedly, in a copy.
    for _ in range(2):
        said, _ = mallory("import sys; open(sys.argv[1], 'r+b').write(b'[]')", pretrained / "public.json").communicate()
        assert said == ""
    assert (pretrained / "public.json").read_bytes() == b"[]"
    assert (source / "public.json").read_bytes() == b"{}"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    # A copy keeps the source's owner, and only the owner may change its mode.
    said, _ = mallory("import os, sys; os.chmod(sys.argv[1], 0o666)", pretrained / "public.json").communicate()
    assert "PermissionError" in said, said
    assert mount.unmount() == 0


def test_a_victims_file_that_is_moved_to_a_private_directory_is_not_written(ground, mounts):
    source = ground / "source"
    source.chmod(0o755)
    delta = ground / "run.safetensors"
    mounts(source / "m.safetensors", f"delta={delta}").unmount()
    os.chown(delta, MALLORY, MALLORY)
    private = ground / "run.safetensors.pretrained"
    private.mkdir()
    private.chmod(0o755)
    os.chown(private, MALLORY, MALLORY)
    moved = private / "moved.json"
    moved.write_bytes(SECRET)
    moved.chmod(0o644)  # it may be read
    mount, pretrained = mounted(ground, mounts, f"allow_other,delta={delta}")
    said, _ = mallory("import sys; open(sys.argv[1], 'r+b').write(b'MALLORY')", pretrained / "moved.json").communicate()
    assert "PermissionError" in said, said
    said, _ = mallory("import os, sys; os.chmod(sys.argv[1], 0o666)", pretrained / "moved.json").communicate()
    assert "PermissionError" in said, said
    assert moved.read_bytes() == SECRET
    assert mount.unmount() == 0


def test_a_write_shows_nobody_the_rest_of_a_private_base(ground, mounts):
    source = ground / "source"
    source.chmod(0o755)
    (source / "m.safetensors").chmod(0o600)
    delta = ground / "run.safetensors"
    mounts(source / "m.safetensors", f"delta={delta}").unmount()
    delta.chmod(0o666)
    mount, _ = mounted(ground, mounts, f"allow_other,delta={delta}")
    point = ground / "mnt"
    said, _ = mallory("import os, sys; os.pwrite(os.open(sys.argv[1], os.O_WRONLY), b'A', 1)", point / "b").communicate()
    assert "PermissionError" in said, said
    assert stat.S_IMODE((point / "b").stat().st_mode) & 0o077 == 0
    (point / "b").write_bytes(b"MORE bytes")  # root may
    assert mount.unmount() == 0


def test_a_number_is_not_given_to_a_file_that_gets_the_inode_of_another(ground, mounts):
    mount, pretrained = mounted(ground, mounts)
    source = ground / "source"
    for at in range(20):
        own = source / f"own{at}.json"
        own.write_bytes(b"mallory's")
        own.chmod(0o666)
        open_file = os.open(pretrained / own.name, os.O_RDWR)
        inode = own.stat().st_ino
        own.unlink()
        later = private_file(source / f"later{at}.json")
        if later.stat().st_ino != inode:
            os.close(open_file)
            continue
        os.rename(later, own)
        shown = b""
        try:
            shown = os.pread(open_file, 99, 0)
            os.pwrite(open_file, b"MALLORY", 0)
        except OSError:
            pass  # ESTALE
        assert shown != SECRET
        os.close(open_file)
        assert own.read_bytes() == SECRET
        break
    assert mount.unmount() == 0
