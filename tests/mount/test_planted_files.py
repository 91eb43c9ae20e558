# A user who may write the directory of another user's archive plants files there: journals, group records, and other kinds of
# files with their names. Root's tool, another user's tool and root's mount must not believe, follow or wait for them.
import json
import os
import socket
import struct
import subprocess
from pathlib import Path

import pytest
import xxhash
from archive_file import random_bytes
from test_journal_users import ALICE, BLOCK, GROUP, Shared, is_run_by

MALLORY = 45678
VICTIMS = {"root's tool": 0, "another user's tool": ALICE}

pytestmark = pytest.mark.needs_root


@pytest.fixture
def shared(planted_ground):
    """Alice's archive, in a directory of hers that everybody may write."""
    directory, ground = planted_ground
    shared = Shared(directory, ground / "archives")
    shared.give(0o644, 0o777, ALICE)
    return shared


def as_mallory(script, *arguments, **more):
    done = is_run_by(MALLORY, MALLORY, ["sh", "-c", script, "sh", *map(str, arguments)], **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def plant(name, content):
    as_mallory('cat > "$1"', name, text=False, input=content)


def forged_journal(shared):
    """The name and the bytes of a journal that would change the archive."""
    journal = shared.leave_journal(0, 0)
    content = Path(journal).read_bytes()
    os.unlink(journal)
    return journal, content


def file_of_alice(shared, mode, gid=ALICE):
    """In a directory of its own: Alice lets others write it, or whoever is in its group."""
    path = Path(shared.directory, "ground", "notes")
    path.touch()
    os.chown(path, ALICE, gid)
    path.chmod(mode)
    return path


def link_a_writable_file(shared, journal, content):
    notes = file_of_alice(shared, 0o666)
    plant(notes, content)
    as_mallory('ln "$1" "$2"', notes, journal)


def link_a_file_that_then_goes(shared, journal, content):
    link_a_writable_file(shared, journal, content)
    os.unlink(Path(shared.directory, "ground", "notes"))


def link_a_file_of_another_group(shared, journal, content):
    shared.give(0o664, 0o777, GROUP)
    notes = file_of_alice(shared, 0o664, MALLORY)
    plant(notes, content)
    as_mallory('ln "$1" "$2"', notes, journal)
    os.unlink(notes)


def inherit_the_group(shared, journal, content):
    shared.give(0o664, 0o2777, GROUP)
    plant(journal, content)
    assert os.stat(journal).st_gid == GROUP


def write_plainly(_shared, journal, content):
    plant(journal, content)


FORGERIES = {"a second name of a file that others may write": link_a_writable_file,
             "a file that others may write, whose first name is gone": link_a_file_that_then_goes,
             "a file that another group may write": link_a_file_of_another_group,
             "a file with the group of its directory": inherit_the_group,
             "a plain forgery": write_plainly}
forgeries = pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES.keys())


@forgeries
@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_forged_journal_is_not_applied(shared, forge, victim):
    journal, content = forged_journal(shared)
    forge(shared, journal, content)
    if forge is not write_plainly:  # such a file is in nobody's way
        done = shared.put(victim, victim, "c", random_bytes(20_000, 5))
        assert done.returncode == 1 and journal in done.stderr, done
        assert f"belongs to user {os.stat(journal).st_uid}" in done.stderr
    for words in (["recover"], ["recover", "--force"]):
        done = is_run_by(victim, victim, [shared.stfs, *words, shared.path])
        assert done.returncode == 1 and journal in done.stdout + done.stderr, done
    shared.old.check()
    assert os.path.exists(journal)
    # Without the journal, commits work again.
    os.unlink(journal)
    assert shared.put(victim, victim, "c", random_bytes(20_000, 5)).returncode == 0


@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_tools_output_with_the_bytes_of_a_journal_is_none(shared, victim):
    """Mallory's tensor is a journal. The victim writes it to a file of the victim's own, to which Mallory gives a journal's
    name."""
    journal, content = forged_journal(shared)
    model, out = os.path.join(shared.archives, "mallory.safetensors"), os.path.join(shared.archives, "x.bin")
    header = json.dumps({"t": {"dtype": "U8", "shape": [len(content)], "data_offsets": [0, len(content)]}}).encode()
    plant(model, struct.pack("<Q", len(header)) + header + content)
    done = is_run_by(victim, victim, [shared.stfs, "slice", model, "t[...]", "-o", out])
    assert done.returncode == 0, done
    assert Path(out).read_bytes() == content and os.stat(out).st_uid == victim
    as_mallory('mv -f "$1" "$2"', out, journal)
    done = is_run_by(victim, victim, [shared.stfs, "recover", shared.path])
    assert done.returncode == 1 and "not made as a journal" in done.stdout + done.stderr, done
    done = is_run_by(victim, victim, [shared.stfs, "cat", shared.path, "c"], text=False)
    assert done.stdout == shared.data_of("c"), done
    done = shared.put(victim, victim, "c", random_bytes(20_000, 5))
    assert done.returncode == 1 and "not made as a journal" in done.stderr and "delete it" in done.stderr, done
    shared.old.check()
    os.unlink(journal)
    assert shared.put(victim, victim, "c", random_bytes(20_000, 5)).returncode == 0


HOLD_LOCK = """import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("forge", [link_a_writable_file, link_a_file_that_then_goes])
@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_lock_makes_no_forged_journal_a_true_one(shared, forge, victim):
    journal, content = forged_journal(shared)
    forge(shared, journal, content)
    holder = subprocess.Popen(["setpriv", f"--reuid={MALLORY}", f"--regid={MALLORY}", "--clear-groups", "--", "/usr/bin/python3",
                               "-c", HOLD_LOCK, journal], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "locked\n"
        for words in (["put", shared.path, "b", "-"], ["recover", shared.path]):
            done = is_run_by(victim, victim, [shared.stfs, *words], input="b" * 20_000)
            said = done.stdout + done.stderr
            assert done.returncode == 1 and journal in said and f"belongs to user {ALICE}" in said, done
    finally:
        holder.communicate()
    shared.old.check()


@forgeries
def test_a_mount_shows_nothing_of_a_forged_journal(shared, forge, mounts):
    journal, content = forged_journal(shared)
    forge(shared, journal, content)
    before = Path(shared.path).read_bytes()
    mount = mounts(shared.path)
    for name in "abc":
        assert (mount / name).read_bytes() == shared.data_of(name)
    if forge is not write_plainly:
        with pytest.raises(OSError), open(mount / "c", "r+b", buffering=0) as file:
            file.write(random_bytes(20_000, 5))
            os.fsync(file.fileno())
    assert os.path.basename(journal) in mount.log()
    assert mount.unmount() == 0
    assert Path(shared.path).read_bytes() == before and os.path.exists(journal)


def test_users_whom_a_namespace_does_not_have_are_not_taken_for_one(shared):
    """There, root may write the archive as a member of its group, and Mallory's journal shows the number of its owner."""
    if subprocess.run(["unshare", "--user", "--map-root-user", "true"], capture_output=True).returncode != 0:
        pytest.skip("there are no user namespaces here")
    journal, content = forged_journal(shared)
    shared.give(0o664, 0o777, 0)
    plant(journal, content)
    done = subprocess.run(["unshare", "--user", "--map-root-user", shared.stfs, "recover", shared.path],
                          capture_output=True, text=True)
    assert done.returncode == 1 and "does not have that user" in done.stdout + done.stderr, done
    shared.old.check()
    assert os.path.exists(journal)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        directory = os.open(os.path.dirname(path), os.O_PATH)  # the path itself may be longer than an address
        made.bind(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
        os.close(directory)
    os.chown(path, MALLORY, MALLORY)


STRANGE_FILES = {"a pipe": lambda path: as_mallory('mkfifo "$1"', path),
                 "a socket": make_socket,
                 "a directory": lambda path: as_mallory('mkdir "$1"', path),
                 "a link to a device": lambda path: as_mallory('ln -s /dev/zero "$1"', path),
                 "a link to a private file": lambda path: as_mallory('ln -s /etc/shadow "$1"', path),
                 "a file without permissions": lambda path: as_mallory(': > "$1"; chmod 0 "$1"', path)}
strange_files = pytest.mark.parametrize("make", STRANGE_FILES.values(), ids=STRANGE_FILES.keys())
SUFFIXES = ["", ".standing", ".group", ".staged", ".0123456789abcdef.index", ".other"]


def journal_names(shared, tmp_path):
    stem = os.path.join(shared.archives, ".model.safetensors.stj." + "0123456789abcdef" * 2)
    return [stem + suffix for suffix in SUFFIXES]


@strange_files
@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_what_is_no_file_under_a_journals_name_changes_nothing_and_stops_no_reader(shared, make, victim, tmp_path):
    for name in journal_names(shared, tmp_path):
        make(name)
    before = Path(shared.path).read_bytes()
    for words in (["ls", shared.path], ["info", shared.path], ["cat", shared.path, "a"], ["recover", shared.path]):
        done = is_run_by(victim, victim, [shared.stfs, *words], text=False, timeout=60)
        assert done.returncode in (0, 1), done  # said, and no hang
    done = is_run_by(victim, victim, [shared.stfs, "cat", shared.path, "a"], text=False, timeout=60)
    assert done.stdout == shared.data_of("a"), done
    assert Path(shared.path).read_bytes() == before


@strange_files
def test_a_mount_reads_beside_what_is_no_file_under_a_journals_name(shared, make, mounts, tmp_path):
    for name in journal_names(shared, tmp_path):
        make(name)
    before = Path(shared.path).read_bytes()
    mount = mounts(shared.path)
    assert (mount / "a").read_bytes() == shared.data_of("a")
    assert mount.unmount() == 0
    assert Path(shared.path).read_bytes() == before


GROUP_NAME = ".model.safetensors.stj." + "f" * 32 + ".group"


def record_of(journal, numbers=b""):
    text = b"STFSGRP1\0" + os.path.basename(journal).encode() + b"\0" + numbers
    return text + struct.pack("<Q", xxhash.xxh3_64_intdigest(text))


def own_record(path, journal):
    """Writes a group record as Alice's transaction leaves it. It stores its own inode number and birth time."""
    path.touch()
    birth = subprocess.run(["stat", "-c", "%.9W", path], capture_output=True, text=True, check=True).stdout.strip()
    seconds, nanoseconds = birth.split(".") if "." in birth else ("0", "0")
    birth_ns = int(seconds) * 1_000_000_000 + int(nanoseconds)
    path.write_bytes(record_of(journal, b"#%016x%016x\0" % (os.stat(path).st_ino, birth_ns)))
    os.chown(path, ALICE, ALICE)


def plant_record(path, content):
    plant(path, content)


def link_record(path, content):
    target = Path(path).parent / "record"
    plant(target, content)
    as_mallory('ln -s record "$1"', path)


@pytest.mark.parametrize("make", [plant_record, link_record], ids=["a file", "a link"])
@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_a_planted_group_record_does_not_commit_a_crashed_transaction(shared, make, victim):
    """Its owner died before the transaction's own record had a name."""
    journal = shared.leave_journal(0, 0, GROUP_NAME)
    record = os.path.join(shared.archives, GROUP_NAME)
    make(record, record_of(journal))
    done = is_run_by(victim, victim, [shared.stfs, "recover", shared.path])
    assert journal in done.stdout and "never committed" in done.stdout, done
    why = f"belongs to user {MALLORY}" if make is plant_record else "is a symbolic link"
    assert GROUP_NAME in done.stdout and why in done.stdout
    shared.old.check()
    assert not os.path.exists(journal) and os.path.lexists(record)
    # The record blocks no commit.
    assert shared.put(victim, victim, "c", random_bytes(20_000, 5)).returncode == 0


def test_a_mount_rolls_back_what_only_a_planted_group_record_commits(shared, mounts):
    journal = shared.leave_journal(0, 0, GROUP_NAME)
    record = os.path.join(shared.archives, GROUP_NAME)
    plant(record, record_of(journal))
    mount = mounts(shared.path)
    assert (mount / "b").read_bytes() == shared.data_of("b")
    assert mount.unmount() == 0
    shared.old.check()
    assert not os.path.exists(journal)


@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
def test_the_transactions_own_group_record_commits_it(shared, victim):
    journal = shared.leave_journal(0, 0, GROUP_NAME)
    record = Path(shared.archives, GROUP_NAME)
    own_record(record, journal)
    done = is_run_by(victim, victim, [shared.stfs, "recover", shared.path])
    assert done.returncode == 0 and "applied" in done.stdout, done
    shared.new.check()
    assert not record.exists()


def test_a_second_name_of_a_group_record_decides_nothing(shared):
    """Recovery must neither apply nor remove the journal, because the transaction may be committed."""
    journal = shared.leave_journal(0, 0, GROUP_NAME)
    record = Path(shared.archives, GROUP_NAME)
    own_record(record, journal)
    link = Path(shared.archives, "link")
    os.link(record, link)
    done = subprocess.run([shared.stfs, "recover", shared.path], capture_output=True, text=True)
    assert done.returncode == 1 and "has 2 names" in done.stdout + done.stderr, done
    shared.old.check()
    os.unlink(link)
    assert subprocess.run([shared.stfs, "recover", shared.path], capture_output=True).returncode == 0
    shared.new.check()
