"""Two hosts of a real cluster file system write one archive: nothing is torn, reverted or refused."""
import os
import random
import subprocess
import threading
import time

import mounted
import pytest
import shared_archive
from shared_archive import MountWriter, PutWriter, SharedArchive, content, put

WRITERS = 4
ROUNDS = 12
KILLS = 8
# A client of GlusterFS serves cached bytes for some seconds, and on a busy machine the other host's server needs its time.
CACHE_SECONDS = 60


def writers_of(archive, hosts, mounts, rounds=None):
    """Returns a writer by a mount and a writer by a tool for each host."""
    return [MountWriter(archive, 0, mounts[0], rounds), MountWriter(archive, 1, mounts[1], rounds),
            PutWriter(archive, 2, hosts[0] / archive.name, rounds),
            PutWriter(archive, 3, hosts[1] / archive.name, rounds)]


def run_all(writers):
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    refused = [writer.refused for writer in writers if writer.refused]
    assert not refused, "\n".join(refused)


def agree(archive, hosts, mounts):
    """Checks that every view shows the last promised content once the clients' caches have expired.

    GlusterFS decides by the mtime whether a client's cached bytes are still valid. All writes within one tick of the
    server's clock have one mtime. A client that reads between two of them keeps the older bytes until the file changes
    again. Programs that only pread and pwrite see the same (1 of 56 rounds). So the file's time changes once more here.
    """
    os.utime(hosts[0] / archive.name)
    views = [lambda host=host: archive.view_of_file(host / archive.name) for host in hosts]
    views += [lambda mount=mount: archive.view_of_mount(mount) for mount in mounts]
    for view in views:
        problem = None

        def is_newest():
            nonlocal problem
            try:
                view()
            except AssertionError as error:
                problem = error
                return False
            return True

        assert mounted.eventually(is_newest, CACHE_SECONDS), problem


@pytest.mark.parametrize("filler_bytes", [shared_archive.FILLER_BYTES, 0], ids=["large", "small"])
def test_four_writers_on_two_hosts_are_never_refused(hosts, mounts, filler_bytes):
    archive = SharedArchive(hosts[0], f"writers{filler_bytes}.safetensors", WRITERS, filler_bytes)
    mounted_at = [mounts(host / archive.name) for host in hosts]
    run_all(writers_of(archive, hosts, mounted_at, ROUNDS))
    assert all(archive.promised[tensor] == archive.begun[tensor] for tensor in archive.sizes)
    agree(archive, hosts, mounted_at)


@pytest.mark.parametrize("settler", ["the same host", "the other host"])
def test_what_a_dead_host_has_committed_is_settled_from_either(hosts, settler):
    """A killed writer leaves a journal. The next writer applies it first, and no later write reverts it."""
    archive = SharedArchive(hosts[0], f"settled-{settler[4:8].strip()}.safetensors", 1)
    path = [host / archive.name for host in hosts]
    image = bytearray(path[0].read_bytes())
    at = image.find(content(0, 0, archive.sizes["w0.t3"][1]))
    begin, end = at // 4096 * 4096, (at + archive.sizes["w0.t3"][1] + 4095) // 4096 * 4096
    image[at:at + archive.sizes["w0.t3"][1]] = content(0, 1, archive.sizes["w0.t3"][1])
    subprocess.run([mounted.BUILD / "tests" / "leave_journal", path[0], str(begin)], input=image[begin:end],
                   check=True, capture_output=True)
    archive.promised["w0.t3"] = archive.begun["w0.t3"] = 1
    other = path[0] if settler == "the same host" else path[1]
    put(other, "w0.t3", content(0, 2, archive.sizes["w0.t3"][1]))
    archive.promised["w0.t3"] = archive.begun["w0.t3"] = 2
    put(other, "w0.t0", content(0, 1, archive.sizes["w0.t0"][1]))
    archive.promised["w0.t0"] = archive.begun["w0.t0"] = 1
    for there in path:
        recovered = subprocess.run([shared_archive.STFS, "recover", there], capture_output=True, text=True)
        assert recovered.returncode == 0, recovered.stdout + recovered.stderr
    agree(archive, hosts, [])


def test_the_daemon_of_either_host_may_die_at_any_moment(hosts, mounts):
    """kill -9 while four write. The next writer on either host settles the journal that the dead one has left."""
    archive = SharedArchive(hosts[0], "killed.safetensors", WRITERS)
    choices = random.Random(12)
    mounted_at = [mounts(host / archive.name) for host in hosts]
    for kill in range(KILLS):
        victim = kill % 2
        writers = writers_of(archive, hosts, mounted_at)
        for writer in writers:
            writer.start()
        time.sleep(0.3 + choices.random() * 0.3)
        mounted_at[victim].kill()
        mounted.unmount_by_force(mounted_at[victim].path)
        writers[victim].join()
        time.sleep(choices.random() * 0.2)
        for writer in writers:
            writer.stop()
        refused = [writer.refused for at, writer in enumerate(writers) if at != victim and writer.refused]
        assert not refused, "\n".join(refused)
        if choices.random() < 0.5:
            at = choices.randrange(2)
            recovered = subprocess.run([shared_archive.STFS, "recover", hosts[at] / archive.name],
                                       capture_output=True, text=True, timeout=60)
            assert recovered.returncode == 0, recovered.stdout + recovered.stderr
        mounted_at[victim] = mounts(hosts[victim] / archive.name)
        agree(archive, hosts, mounted_at)
        for tensor, number in archive.view_of_file(hosts[0] / archive.name).items():
            # Content that was visible once must stay.
            archive.promised[tensor] = number


def test_a_commit_starts_from_bytes_that_its_hosts_cache_hides(hosts):
    """Writes within one tick of the server's clock have one mtime. A client that reads between them keeps the older page."""
    archive = SharedArchive(hosts[0], "hidden.safetensors", 1)
    path = [host / archive.name for host in hosts]
    second = path[0].read_bytes().find(content(0, 0, archive.sizes["w0.t1"][1]))
    # The last byte of the tensor before it. The byte is in the first block that the commit writes.
    first = second - 1
    assert first // 4096 == second // 4096
    hidden = 0
    for at in range(1, 6):
        is_over = threading.Event()
        reader = threading.Thread(target=lambda: [path[0].read_bytes() for _ in iter(is_over.is_set, True)])
        reader.start()
        with open(path[1], "r+b", buffering=0) as file:
            for byte in (1, 2, 10 + at):
                os.pwrite(file.fileno(), bytes([byte]), first)
                os.fsync(file.fileno())
        hidden += path[0].read_bytes()[first] != 10 + at
        put(path[0], "w0.t1", content(0, at, archive.sizes["w0.t1"][1]))
        is_over.set()
        reader.join()
        due = bytes([10 + at]) + content(0, at, archive.sizes["w0.t1"][1])

        def is_there(view):
            os.utime(view)
            return view.read_bytes()[first:first + len(due)] == due

        # Wrong bytes that the commit took from the cache would stay.
        for view in path:
            assert mounted.eventually(lambda view=view: is_there(view), CACHE_SECONDS), (at, hidden, view)
    assert hidden, "no read came between two writes: this proves nothing here"
