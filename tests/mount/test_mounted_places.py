# A user who may write the directory of somebody else's archive mounts a FUSE file system where a mount or a tool keeps files of
# its own. The kernel asks that user's daemon for everything that is in it, and waits: this one never answers.
import contextlib
import errno
import os
import subprocess

import pytest
from archive_file import random_bytes
from mounted import errno_of
from test_journal_users import ALICE, Shared, is_run_by
from test_planted_files import MALLORY, VICTIMS, as_mallory
from test_planted_syncs import Host, check_refused

TOLD = f"another file system is mounted there (fuse) by user {MALLORY}"

pytestmark = pytest.mark.needs_root


@contextlib.contextmanager
def silent_mount(path, *more):
    """As fusermount3 mounts for Mallory; with allow_other the kernel lets other users wait, too."""
    as_mallory('mkdir "$1"', path)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"/dev/fuse: {error}")
    try:
        options = ",".join((f"fd={device},rootmode=40000,user_id={MALLORY},group_id={MALLORY}", *more))
        made = subprocess.run(["mount", "-i", "-n", "-t", "fuse", "-o", options, "none", path], pass_fds=[device],
                              capture_output=True, text=True)
        if made.returncode != 0:
            pytest.skip(f"no mount of fuse: {made.stderr}")
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", path], check=True)
    finally:
        os.close(device)  # ends what waits for it
        os.rmdir(path)


options_of_mallory = pytest.mark.parametrize("more", [(), ("allow_other",)], ids=["for Mallory", "allow_other"])


@pytest.fixture
def shared(planted_ground):
    """Alice's archive, in a directory of hers that everybody may write."""
    directory, ground = planted_ground
    shared = Shared(directory, ground / "archives")
    shared.give(0o644, 0o777, ALICE)
    return shared


@options_of_mallory
def test_a_mount_on_the_scratch_directory_is_named(shared, mounts, more):
    scratch = os.path.join(shared.archives, ".model.safetensors.scratch")
    early = mounts(shared.path)
    with silent_mount(scratch, *more):
        late = mounts(shared.path)
        for mount in (early, late):
            assert (mount / "a").read_bytes() == shared.data_of("a")
            assert errno_of(open, mount / "new", "w") == errno.EACCES
            assert f"{scratch}: {TOLD}" in mount.log()
            assert "unmount it with `umount -l`" in mount.log()
        for victim in VICTIMS.values():
            listed = is_run_by(victim, victim, [shared.stfs, "info", shared.path], timeout=60)
            assert listed.returncode == 0, listed
            assert shared.put(victim, victim, "c", random_bytes(20_000, victim)).returncode == 0
    for mount in (early, late):
        (mount / f"new{mount.path.name}").write_text("scratch")
        assert mount.unmount() == 0


@options_of_mallory
@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_mount_on_the_place_of_pulls_is_named(planted_ground, victim, more):
    host = Host(*planted_ground, victim)
    with silent_mount(host.model / ".weight_sync", *more):
        check_refused(host, host.pull(), f".weight_sync: {TOLD}")
    done = host.pull()
    assert done.returncode == 0, done
