# A user who may write an archive can read and settle its journals, even if another user made them. Commands fail for a user who
# cannot read a journal.
import json
import os
import shutil
import subprocess
import tempfile

import lease_client
import pytest
from archive_file import ArchiveFile, Expectation, random_bytes, write_bytes_tensors
from mounted import BUILD
from sharded_model import ShardedModel
from user_names import UserNames

LEAVE_JOURNAL = BUILD / "tests" / "leave_journal"
STFS = BUILD / "stfs"
BLOCK = 4096
ALICE, BOB, GROUP = 12345, 23456, 34567

pytestmark = pytest.mark.needs_root


def is_run_by(uid, gid, command, before=(), **more):
    return subprocess.run([*before, "setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--", *command],
                          capture_output=True, text=more.pop("text", True), **more)


class Shared:
    """An archive of Alice's with programs that everybody may run."""

    def __init__(self, directory, archives=None):
        self.directory = directory
        for program in (LEAVE_JOURNAL, STFS):
            if not program.exists():
                pytest.skip(f"{program} is not built")
            shutil.copy2(program, directory)
        self.stfs = os.path.join(directory, "stfs")
        self.archives = str(archives or os.path.join(directory, "archives"))
        os.mkdir(self.archives)
        os.chmod(directory, 0o755)
        path = os.path.join(self.archives, "model.safetensors")
        self.archive = ArchiveFile(write_bytes_tensors(path, {name: self.data_of(name) for name in "abc"}))
        self.path = path
        self.give(0o600, 0o755, ALICE)

    @staticmethod
    def data_of(name):
        return random_bytes(20_000, ord(name))

    def give(self, mode, directory_mode, gid):
        os.chown(self.path, ALICE, gid)
        os.chmod(self.path, mode)
        os.chown(self.archives, ALICE, gid)
        os.chmod(self.archives, directory_mode)

    def leave_journal(self, uid, gid, *group_record):
        """A committed journal of a dead owner, made under a tight umask."""
        self.old, self.new = Expectation(self.archive), Expectation(self.archive)
        data = random_bytes(2 * BLOCK, 77)
        self.new.image[6 * BLOCK:8 * BLOCK] = data
        made = is_run_by(uid, gid, [os.path.join(self.directory, "leave_journal"), self.path, str(6 * BLOCK), *group_record],
                         text=False, input=data, umask=0o077)
        assert made.returncode == 0, made.stderr
        self.journal = made.stdout.decode().strip()
        return self.journal

    def put(self, uid, gid, name, data, before=()):
        fresh = os.path.join(self.directory, "fresh")
        with open(fresh, "wb") as file:
            file.write(data)
        os.chmod(fresh, 0o644)
        return is_run_by(uid, gid, [self.stfs, "put", self.path, name, fresh], before)


@pytest.fixture
def shared():
    for program in ("setpriv",):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}")
    directory = tempfile.mkdtemp(prefix="stfs-users-")
    try:
        yield Shared(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


CASES = {
    "root left it, its owner writes": (0o600, 0o755, ALICE, (0, 0), (ALICE, ALICE)),
    "its owner left it, root writes": (0o600, 0o755, ALICE, (ALICE, ALICE), (0, 0)),
    "a member of its group left it, its owner writes": (0o660, 0o775, GROUP, (BOB, GROUP), (ALICE, GROUP)),
    "its owner left it, a member of its group writes": (0o660, 0o775, GROUP, (ALICE, GROUP), (BOB, GROUP)),
    "root left it, a member of its group writes": (0o664, 0o775, GROUP, (0, 0), (BOB, GROUP)),
    "anybody left it, anybody else writes": (0o666, 0o777, ALICE, (BOB, BOB), (GROUP, GROUP)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_who_may_write_the_archive_settles_what_another_user_left(shared, case):
    mode, directory_mode, gid, first, second = case
    shared.give(mode, directory_mode, gid)
    journal = shared.leave_journal(*first)
    data = random_bytes(20_000, 5)
    names = UserNames(shared.directory, {GROUP: [ALICE, BOB]})
    if reason := names.why_unavailable():
        pytest.skip(reason)
    done = shared.put(*second, "c", data, names.before)
    assert done.returncode == 0, done.stderr
    shared.new.change("c", data)
    shared.new.check()
    assert not os.path.exists(journal)


def test_who_has_left_the_group_is_not_believed_any_more(shared):
    shared.give(0o660, 0o775, GROUP)
    journal = shared.leave_journal(BOB, GROUP)
    for members, why in ({GROUP: [ALICE]}, "does not know whether"), ({GROUP: [ALICE], BOB: [BOB]}, "may not write"):
        names = UserNames(shared.directory, members)
        if reason := names.why_unavailable():
            pytest.skip(reason)
        data = random_bytes(20_000, 5)
        done = shared.put(ALICE, GROUP, "c", data, names.before)
        assert f"belongs to user {BOB}" in done.stderr and why in done.stderr
        # A file of a user who certainly may not write the archive stops no commit.
        assert done.returncode == (0 if BOB in members else 1)
        if BOB in members:
            shared.old.change("c", data)
        shared.old.check()
    assert os.path.exists(journal)


@pytest.fixture
def sticky(shared):
    """An archive that a group may write, in a directory of root's where each removes only what is his."""
    shared.give(0o660, 0o1777, GROUP)
    os.chown(shared.archives, 0, 0)
    return shared


def put_as_bob(sticky, name, seed):
    data = random_bytes(20_000, seed)
    done = sticky.put(BOB, GROUP, name, data)
    assert done.returncode == 0, done.stderr
    sticky.new.change(name, data)
    sticky.new.check()
    return done


def is_void(journal):
    with open(journal, "rb") as file:
        return not any(file.read(BLOCK))


def test_a_journal_that_the_sticky_bit_keeps_is_finished_and_in_nobodys_way(sticky):
    journal = sticky.leave_journal(ALICE, GROUP)
    done = put_as_bob(sticky, "c", 5)
    assert f"{journal}: applied" in done.stderr and f"only user {ALICE} or root" in done.stderr
    assert is_void(journal)
    # Nothing is left to do, and later commands print no message.
    for seed in (6, 7):
        assert put_as_bob(sticky, "a", seed).stderr == ""
    for verb in ("recover", "ls", "info", "verify"):
        done = is_run_by(BOB, GROUP, [sticky.stfs, verb, sticky.path])
        assert (done.returncode, done.stderr) == (0, ""), verb
    found = json.loads(is_run_by(BOB, GROUP, [sticky.stfs, "recover", "--json", sticky.path]).stdout)
    assert found["left_undone"] == 0 and found["journals"][0]["is_left_void"] is True
    assert os.path.exists(journal)
    # A user who may remove the journal removes it.
    assert is_run_by(ALICE, GROUP, [sticky.stfs, "recover", sticky.path]).returncode == 0
    assert not os.path.exists(journal)
    sticky.new.check()


def test_stfs_recover_finishes_what_the_sticky_bit_keeps(sticky):
    journal = sticky.leave_journal(ALICE, GROUP)
    done = is_run_by(BOB, GROUP, [sticky.stfs, "recover", sticky.path])
    assert (done.returncode, done.stderr) == (0, "")
    assert f"applied: it holds no commit any more; in this directory only user {ALICE} or root" in done.stdout
    sticky.new.check()
    assert is_void(journal)


def test_a_mount_of_another_user_writes_beside_what_the_sticky_bit_keeps(sticky, mounts, nobody):
    """Beside journals that come before the mount, and while it lives."""
    sticky.give(0o660, 0o1777, nobody.gid)
    os.chown(sticky.archives, 0, 0)
    first = sticky.leave_journal(ALICE, nobody.gid)
    mount = nobody.mount(mounts, sticky.path)
    sticky.new.check()
    assert is_void(first) and f"{first}: made void: in this directory only user {ALICE} or root" in mount.log()

    def write(name, seed):
        data = random_bytes(20_000, seed)
        (nobody.directory / "fresh").write_bytes(data)
        done = mount.sh(f"cat '{nobody.directory}/fresh' > {name}")
        assert done.returncode == 0, (done.stderr, mount.log())
        sticky.new.change(name, data)
        sticky.new.check()

    for seed, name in ((1, "a"), (2, "b"), (3, "a")):
        write(name, seed)
    old = sticky.new
    second = sticky.leave_journal(ALICE, nobody.gid)
    for seed, name in ((4, "c"), (5, "c")):
        write(name, seed)
    assert sticky.new.image[6 * BLOCK:8 * BLOCK] != old.image[6 * BLOCK:8 * BLOCK]
    assert is_void(second)
    assert mount.unmount() == 0
    assert os.path.exists(first) and os.path.exists(second)


def test_a_journal_that_a_user_can_not_read_stops_his_put_and_says_whom_to_ask(shared):
    journal = shared.leave_journal(0, 0)
    # As an earlier version made it.
    os.chown(journal, 0, 0)
    os.chmod(journal, 0o600)
    done = shared.put(ALICE, ALICE, "c", random_bytes(20_000, 5))
    assert done.returncode == 1
    assert journal in done.stderr and "run `stfs recover` as root" in done.stderr
    shared.old.check()
    for verb in ("ls", "info", "verify"):
        read = is_run_by(ALICE, ALICE, [shared.stfs, verb, shared.path])
        assert read.returncode == 1, verb
        assert "a newer commit may not be shown" in read.stderr
    # The user that the message names can settle the journal.
    assert subprocess.run([shared.stfs, "recover", shared.path], capture_output=True).returncode == 0
    shared.new.check()
    assert shared.put(ALICE, ALICE, "c", random_bytes(20_000, 5)).returncode == 0


def test_a_strangers_journal_is_not_applied_and_stops_nobody(shared):
    shared.give(0o644, 0o777, ALICE)
    journal = shared.leave_journal(0, 0)
    os.chown(journal, BOB, BOB)
    os.chmod(journal, 0o644)
    recovered = subprocess.run([shared.stfs, "recover", "--force", shared.path], capture_output=True, text=True)
    assert recovered.returncode == 1 and f"user {BOB}" in recovered.stderr
    shared.old.check()
    for uid in (0, ALICE):
        data = random_bytes(20_000, 5 + uid)
        done = shared.put(uid, uid, "c", data)
        assert done.returncode == 0, done.stderr
        assert f"{journal}: ignored: belongs to user {BOB}, who may not write the archive" in done.stderr
        shared.old.change("c", data)
    shared.old.check()
    assert os.path.exists(journal)
    # If the stranger could write the archive earlier, its owner adopts the journal.
    os.chown(journal, ALICE, ALICE)
    assert subprocess.run([shared.stfs, "recover", shared.path], capture_output=True).returncode == 0
    assert not os.path.exists(journal)


def test_a_journal_stops_writers_if_its_owner_may_be_in_the_archives_group(shared):
    shared.give(0o664, 0o777, ALICE)
    journal = shared.leave_journal(0, 0)
    os.chown(journal, BOB, BOB)
    os.chmod(journal, 0o644)
    for uid in (0, ALICE):
        done = shared.put(uid, uid, "c", random_bytes(20_000, 5))
        assert done.returncode == 1
        assert f"belongs to user {BOB}" in done.stderr
        assert "root" not in done.stderr.partition("run `stfs recover`")[2], "root does no more than this user"
    shared.old.check()
    assert os.path.exists(journal)


def test_a_journal_of_a_newer_version_is_said_to_everybody(shared):
    journal = shared.leave_journal(ALICE, ALICE)
    with open(journal, "r+b") as file:
        file.seek(8)
        file.write(bytes([200, 0, 0, 0]))
    for verb in ("recover", "ls", "info", "verify"):
        done = subprocess.run([shared.stfs, verb, shared.path], capture_output=True, text=True)
        assert done.returncode == 1, verb
        assert "version that wrote it" in done.stderr
        assert "delete or move it" not in done.stderr
    done = subprocess.run([shared.stfs, "cat", shared.path, "a"], capture_output=True)
    assert b"a newer commit may not be shown" in done.stderr
    target = shutil.copy(shared.path, os.path.join(shared.directory, "target.safetensors"))
    for arguments in (["put", target, "a", shared.path], ["apply", target, shared.path],
                      ["apply", "--dry-run", target, shared.path], ["upload", shared.path, "--device", "cpu"]):
        done = subprocess.run([shared.stfs, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("a newer commit may not be shown") == 1, done.stderr
    server = lease_client.Server(os.path.join(shared.directory, "s"), shared.path)
    try:
        server.ready()
    finally:
        assert server.finish() is None
    assert server.errors.count("a newer commit may not be shown") == 1, server.errors
    assert shared.put(ALICE, ALICE, "c", random_bytes(20_000, 5)).returncode == 1
    shared.old.check()
    assert os.path.exists(journal)



def test_root_changes_no_shards_whose_owner_could_not_replace_the_index(tmp_path):
    model = ShardedModel(tmp_path / "sharded")
    for shard in model.directory.glob("*.safetensors"):
        os.chown(shard, ALICE, GROUP)
    names = subprocess.run([STFS, "ls", "--names", model.directory], capture_output=True, text=True, check=True).stdout.splitlines()
    before = {file.name: file.read_bytes() for file in model.directory.iterdir()}
    refused = subprocess.run([STFS, "mv", model.directory, names[0], "other"], capture_output=True, text=True)
    assert refused.returncode == 1 and "it has another owner than " in refused.stderr
    assert {file.name: file.read_bytes() for file in model.directory.iterdir()} == before
    subprocess.run(["sh", "-c", refused.stderr[refused.stderr.index("chown "):]], check=True)
    subprocess.run([STFS, "mv", model.directory, names[0], "other"], check=True)
    listed = subprocess.run([STFS, "ls", "--names", model.directory], capture_output=True, text=True, check=True).stdout.splitlines()
    assert sorted(listed) == sorted([*names[1:], "other"])
