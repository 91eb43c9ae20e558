# Other programs change a mounted archive, and the mount follows: each way to change it, more changes than inotify's queue
# holds, journals that another process has finished, archives behind links.
import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest
from archive_file import ArchiveFile, Expectation, random_bytes, write_bytes_tensors
from mounted import BUILD, errno_of, eventually
from test_recovery import Left, archive  # noqa: F401

STFS = BUILD / "stfs"
QUEUE = Path("/proc/sys/fs/inotify/max_queued_events")


def put(path, tensor, data, tmp_path):
    (tmp_path / "data").write_bytes(data)
    subprocess.run([STFS, "put", path, tensor, tmp_path / "data"], check=True, capture_output=True)


def journals_in(directory):
    return sorted(name for name in os.listdir(directory) if ".stj." in name)


# ---- a change by another program while a transaction is open ----

def by_put(archive, data, tmp_path, mounts):
    put(archive.path, "b", data, tmp_path)


def by_another_mount(archive, data, tmp_path, mounts):
    (mounts(archive.path) / "b").write_bytes(data)


def by_a_plain_write(archive, data, tmp_path, mounts):
    with open(archive.path, "r+b") as file:
        file.seek(archive.layout()["b"][2])
        file.write(data)


def by_a_recovered_journal(archive, data, tmp_path, mounts):
    left = Left(archive)
    subprocess.run([STFS, "recover", archive.path], check=True, capture_output=True)
    left.new.check()


@pytest.mark.parametrize("change", [by_put, by_another_mount, by_a_plain_write, by_a_recovered_journal])
def test_a_transaction_notices_each_way_to_change_its_tensor(archive, mounts, tmp_path, change):  # noqa: F811
    mount = mounts(archive.path)
    directory = mount / ".safetensors" / "transactions" / "T"
    directory.mkdir()
    ours, theirs = random_bytes(20_000, 50), random_bytes(20_000, 51)
    (directory / "b").write_bytes(ours)
    change(archive, theirs, tmp_path, mounts)
    after = Expectation(archive)
    assert after.tensor("b") != ours
    assert errno_of(os.rename, directory, mount / ".safetensors" / "committed" / "T") == errno.ESTALE
    after.check()
    assert (mount / "b").read_bytes() == after.tensor("b")


# ---- inotify's queue ----

@pytest.mark.needs_root
@pytest.mark.skipif(not os.access(QUEUE, os.W_OK), reason=f"{QUEUE} can't be written here")
def test_a_change_that_inotify_had_no_room_to_tell_shows(archive, mounts, tmp_path):  # noqa: F811
    before = QUEUE.read_text()
    room = 64
    QUEUE.write_text(str(room))
    try:
        mount = mounts(archive.path)
        assert eventually(lambda: ": mounted on " in mount.log())  # by then it has its queue
    finally:
        QUEUE.write_text(before)
    assert (mount / "b").read_bytes() == archive.tensor("b")  # cached by the kernel
    directory = Path(archive.path).parent
    data = random_bytes(20_000, 52)
    expected = Expectation(archive)
    expected.change("b", data)
    os.kill(mount.pid, signal.SIGSTOP)  # nobody takes an event
    try:
        for number in range(2 * room):
            (directory / f"other{number}").touch()
        by_a_plain_write(archive, data, tmp_path, mounts)
    finally:
        os.kill(mount.pid, signal.SIGCONT)
    assert eventually(lambda: (mount / "b").read_bytes() == data), "old bytes go on"
    expected.check()


# ---- a journal that a reader shows, and that another process finishes ----

@pytest.mark.parametrize("options", ["ro", ""])
def test_a_reader_goes_on_from_what_another_process_has_recovered(archive, mounts, tmp_path, options):  # noqa: F811
    if options:  # shows it out of the journal
        left = Left(archive)
        mount = mounts(archive.path, options)
        assert (mount / "b").read_bytes() == left.new.tensor("b")
    else:
        mount = mounts(archive.path)
        left = Left(archive)
    subprocess.run([STFS, "recover", archive.path], check=True, capture_output=True)
    assert not os.path.exists(left.path)
    for seed in (53, 54):
        data = random_bytes(20_000, seed)
        put(archive.path, "b", data, tmp_path)
        left.new.change("b", data)
        left.new.check()
        assert eventually(lambda: (mount / "b").read_bytes() == data), "the bytes of a journal that has gone go on"
        assert mount.attribute("b", "checksum") == mounts(archive.path, "ro").attribute("b", "checksum")


# ---- an archive behind a symbolic link ----

@pytest.fixture
def linked(tmp_path):
    """(link, archive): the link is in another directory than the archive."""
    (tmp_path / "blobs").mkdir(), (tmp_path / "links").mkdir()
    path = write_bytes_tensors(tmp_path / "blobs" / "0a1b2c", {name: random_bytes(20_000, ord(name)) for name in "abc"})
    link = tmp_path / "links" / "model.safetensors"
    link.symlink_to("../blobs/0a1b2c")
    return link, ArchiveFile(path)


def test_a_commit_through_a_link_has_its_journals_beside_the_file(linked, mounts):
    link, archive = linked  # noqa: F811
    expected = Expectation(archive)
    mount = mounts(link)
    seen = set()
    for number in range(6):  # the second small commit asks for a lane journal
        data = random_bytes(100, 60 + number)
        with open(mount / "a", "r+b") as file:
            file.write(data)
        expected.change("a", data)
        assert journals_in(link.parent) == []
        eventually(lambda: journals_in(Path(archive.path).parent), 1)
        seen |= set(journals_in(Path(archive.path).parent))
    assert any(name.startswith(".0a1b2c.stj.") and name.endswith(".standing") for name in seen), seen
    mount.kill()
    other = mounts(archive.path)
    expected.check()
    assert (other / "a").read_bytes() == expected.tensor("a")


def test_a_journal_beside_the_file_is_found_through_a_link(linked, mounts):
    link, archive = linked  # noqa: F811
    left = Left(archive)
    mount = mounts(link)
    left.new.check()
    assert (mount / "b").read_bytes() == left.new.tensor("b")
    assert journals_in(Path(archive.path).parent) == []
