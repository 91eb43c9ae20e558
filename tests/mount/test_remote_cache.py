# Blocks of remote archives stay on this disk: for the next program, for programs at the same time, and through kills.
import email.utils
import itertools
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import threading

import numpy as np
import pytest
import safetensors.numpy
from delta_variants import STFS
from mirror_mount import CREATE, mirror_mount
from mounted import eventually
from remote_cache import (  # noqa: F401
    BLOCK, DIGEST, ENTRY, HEADER, OLD, OTHER_DIGEST, arrays, cache, cached_file, hub, libcurl, server, stfs, Table, url
)
from web_server import Page, served


def test_a_second_program_asks_for_no_byte_again(url, server, mounts, cache):
    assert stfs("cat", url, "embed") == arrays()["embed"].tobytes()
    first = server.sent_bytes
    assert first >= 3_000_000
    assert stfs("cat", url, "embed") == arrays()["embed"].tobytes()
    mount = mounts(url)
    assert (mount / "embed").read_bytes() == arrays()["embed"].tobytes()
    assert mount.unmount() == 0
    # One byte shows which version the server has, each time a program opens the file.
    assert {wanted for _, wanted, _ in server.requests[2:]} == {"bytes=0-0"} and server.sent_bytes - first <= 4
    assert cache.stat().st_mode & 0o77 == 0 and cached_file(cache).stat().st_mode & 0o77 == 0


def test_the_header_of_a_cached_archive_needs_no_second_request(url, server):
    stfs("ls", url)
    del server.requests[:]
    stfs("ls", url)
    assert [wanted for _, wanted, _ in server.requests] == ["bytes=0-0"]


def test_a_new_version_takes_the_place_of_the_cached_one(url, server, cache, mounts):
    old = mounts(url)
    assert (old / "h.1.w").read_bytes() == arrays()["h.1.w"].tobytes()
    (old / "embed").read_bytes()
    server.add("/m.safetensors", safetensors.numpy.save(arrays(2)), OTHER_DIGEST)
    assert stfs("cat", url, "embed") == arrays(2)["embed"].tobytes()
    assert (old / "embed").read_bytes() == arrays()["embed"].tobytes(), "a mount keeps its version"
    assert OTHER_DIGEST in cached_file(cache).read_bytes()[:HEADER].decode("latin-1")


@pytest.mark.parametrize("damage", ["byte", "table", "header", "cut", "empty", "hole"])
def test_damage_of_the_cache_costs_a_request_and_no_wrong_byte(url, server, cache, damage):
    stfs("cat", url, "embed")
    path = cached_file(cache)
    size = server.pages["/m.safetensors"].size
    table = Table(path, size)
    before = len(server.requests)
    if damage == "byte":
        table.flip(3)
    elif damage == "table":
        with open(path, "r+b") as file:
            file.seek(HEADER + 3 * ENTRY)
            file.write(b"\7")
    elif damage == "header":
        with open(path, "r+b") as file:
            file.write(b"\0" * HEADER)
    elif damage == "cut":
        os.truncate(path, table.data_at + 2 * BLOCK)
    elif damage == "empty":
        os.truncate(path, 0)
    else:
        with open(path, "r+b") as file:
            file.seek(table.data_at + 2 * BLOCK)
            file.write(bytes(3 * BLOCK))
    assert stfs("cat", url, "embed") == arrays()["embed"].tobytes()
    assert len(server.requests) > before + 1
    del server.requests[:]
    assert stfs("cat", url, "embed") == arrays()["embed"].tobytes()
    assert len(server.requests) == 1, "the damage is mended"


def test_two_mounts_ask_for_each_block_once(server, mounts):
    data = arrays()["embed"]
    url = server.add("/m.safetensors", safetensors.numpy.save({"embed": data}), DIGEST)
    both = [mounts(url), mounts(url)]
    del server.requests[:]
    sent = server.sent_bytes
    shown = [None, None]

    def read(number):
        shown[number] = (both[number] / "embed").read_bytes()

    readers = [threading.Thread(target=read, args=(number,)) for number in (0, 1)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert shown == [data.tobytes()] * 2
    assert server.sent_bytes - sent <= server.pages["/m.safetensors"].size


def test_a_stopped_program_keeps_no_reader_waiting_for_ever(url, server, mounts, cache):
    """Its request has stalled, and it has the lock. It ends: then the next program fetches the block."""
    server.fault_of = lambda path, first, last: ("stall", 0) if first else None
    waiting = subprocess.Popen([STFS, "cat", url, "embed"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually(lambda: any(wanted != f"bytes=0-{BLOCK - 1}" for _, wanted, _ in list(server.requests)))
    os.kill(waiting.pid, signal.SIGSTOP)
    server.fault_of = lambda *_: None
    other = subprocess.Popen([STFS, "cat", url, "embed"], stdout=subprocess.PIPE)
    os.kill(waiting.pid, signal.SIGKILL)
    waiting.wait()
    assert other.communicate()[0] == arrays()["embed"].tobytes()


def test_a_kill_while_the_cache_fills_leaves_no_wrong_byte(server, cache):
    rng = random.Random(7)
    wanted = arrays()["embed"].tobytes()
    url = server.add("/m.safetensors", safetensors.numpy.save(arrays()), DIGEST)
    for _ in range(12):
        shutil.rmtree(cache, ignore_errors=True)
        after = rng.randrange(1, 8)
        seen = len(server.requests)
        program = subprocess.Popen([STFS, "cat", url, "embed"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while program.poll() is None and len(server.requests) < seen + after:
            pass
        program.kill()
        program.wait()
        assert stfs("cat", url, "embed") == wanted


def test_blocks_that_go_meanwhile_are_fetched_again(url, server, mounts, cache):
    """An open mount has proven its blocks. Another program drops them."""
    mount = mounts(url)
    wanted = arrays()["embed"].tobytes()
    stop = threading.Event()
    failures = []

    def read():
        while not stop.is_set():
            shown = mmap.mmap(-1, 4 << 20)
            file = os.open(mount / "embed", os.O_RDONLY | os.O_DIRECT)  # past the kernel's cache
            size = os.readv(file, [shown])
            os.close(file)
            if shown[:size] != wanted:
                failures.append("wrong bytes")
                return

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(40):
        stfs("cache", "--drop", url)
    stop.set()
    for reader in readers:
        reader.join()
    assert not failures


def test_the_hub_is_not_asked_for_blocks_that_are_here(hub):
    assert stfs("cat", "hf://org/model", "embed") == arrays()["embed"].tobytes()
    del hub.requests[:]
    assert stfs("cat", "hf://org/model", "embed") == arrays()["embed"].tobytes()
    assert not [path for path, _, _ in hub.requests if "resolve" in path]


@pytest.mark.parametrize("etag, time", [(None, OLD), ('W/"1"', OLD), ('W/' + DIGEST, OLD), ('"1"', None), ('"1"', "new"), ('"1"', "x")])
def test_without_a_strong_etag_nothing_is_shared(server, cache, etag, time):
    """A short ETag may be made of the time in seconds: then another version of that second has it, too."""
    if time:
        server.times = itertools.repeat(email.utils.formatdate(usegmt=True) if time == "new" else time)
    server.pages["/m.safetensors"] = Page.of(safetensors.numpy.save(arrays()), etag)
    for _ in range(2):
        assert stfs("cat", f"{server.address}/m.safetensors", "embed") == arrays()["embed"].tobytes()
    assert not list(cache.glob("?" * 32))


def test_a_short_etag_counts_if_the_last_change_is_some_time_ago(server, cache):
    server.times = itertools.repeat(OLD)
    url = server.add("/m.safetensors", safetensors.numpy.save(arrays()), '"1"')
    stfs("cat", url, "embed")
    del server.requests[:]
    assert stfs("cat", url, "embed") == arrays()["embed"].tobytes()
    assert [wanted for _, wanted, _ in server.requests] == ["bytes=0-0"]


def test_addresses_with_a_query_share_only_what_an_etag_of_the_bytes_names(server, cache):
    data = safetensors.numpy.save(arrays())
    server.times = itertools.repeat(OLD)
    server.pages["/m.safetensors"] = Page.of(data, '"1"')
    assert stfs("cat", f"{server.address}/m.safetensors?sig=secret", "h.1.w")
    assert not list(cache.glob("?" * 32))
    server.pages["/m.safetensors"] = Page.of(data, DIGEST)
    assert stfs("cat", f"{server.address}/m.safetensors?sig=secret", "h.1.w")
    assert b"secret" not in cached_file(cache).read_bytes()[:HEADER]


@pytest.mark.parametrize("plant", ["link", "fifo", "directory", "hard link"])
def test_a_planted_file_of_the_cache_is_not_used(url, cache, tmp_path, plant):
    stfs("cat", url, "h.1.w")
    path = cached_file(cache)
    path.unlink()
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    if plant == "link":
        path.symlink_to(victim)
    elif plant == "fifo":
        os.mkfifo(path)
    elif plant == "directory":
        path.mkdir()
    else:
        os.link(victim, path)
    assert stfs("cat", url, "embed") == arrays()["embed"].tobytes()
    assert victim.read_bytes() == b"precious"


def test_files_of_two_servers_share_nothing(url, server):
    """The ETag is the same. One server must not choose the bytes of the other one's file."""
    stfs("fetch", url)
    with served() as other:
        address = other.add("/m.safetensors", safetensors.numpy.save(arrays(2)), DIGEST)
        assert stfs("cat", address, "embed") == arrays(2)["embed"].tobytes()
    assert stfs("cat", url, "embed") == arrays()["embed"].tobytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes a directory of another user")
def test_a_directory_of_another_user_is_no_cache(url, server, cache):
    stfs("fetch", url)
    os.chown(cache, 65534, 65534)
    before = len(server.requests)
    assert stfs("cat", url, "embed") == arrays()["embed"].tobytes()
    assert len(server.requests) > before + 1
    assert "another user may have made it" in stfs("cache", status=1)


@pytest.mark.needs_root
def test_the_cache_in_another_users_mount_is_not_used(url, server, tmp_path, monkeypatch):
    """The mount's server reports root as the owner of directories, and has blocks of other bytes with true hashes."""
    forged, place = tmp_path / "forged", tmp_path / "place"
    place.mkdir()
    server.add("/m.safetensors", safetensors.numpy.save(arrays(2)), DIGEST)
    monkeypatch.setenv("XDG_CACHE_HOME", str(forged))
    stfs("fetch", url)
    server.add("/m.safetensors", safetensors.numpy.save(arrays()), DIGEST)
    assert stfs("cat", url, "embed") == arrays(2)["embed"].tobytes()
    with mirror_mount(place, 45678, forged) as written:
        monkeypatch.setenv("XDG_CACHE_HOME", str(place))
        assert stfs("cat", url, "embed") == arrays()["embed"].tobytes()
        assert "or may write it" in stfs("cache", status=1)
        assert not [path for _, path in written if "safetensorsfs/" in path]


@pytest.mark.needs_root
def test_no_bytes_are_kept_in_another_users_mount(server, tmp_path, monkeypatch):
    """Without a strong ETag, a file without a name has the bytes."""
    url = server.add("/m.safetensors", safetensors.numpy.save(arrays()), "")
    place = tmp_path / "place"
    for directory in (place, tmp_path / "cached"):
        directory.mkdir()
    with mirror_mount(place, 45678, tmp_path / "cached") as written:
        monkeypatch.setenv("XDG_CACHE_HOME", str(place))
        assert stfs("cat", url, "embed") == arrays()["embed"].tobytes()
        assert not [what for what, _ in written if what == CREATE]


def test_a_server_of_whole_files_is_asked_again_for_a_dropped_block(server, cache):
    data = safetensors.numpy.save({"a": np.ones(100_000, "u1")})
    url = server.add("/m.safetensors", data, DIGEST)
    server.fault_of = lambda *_: "whole"
    assert stfs("cat", url, "a") == bytes([1]) * 100_000
    Table(cached_file(cache), len(data)).flip(0)
    assert stfs("cat", url, "a") == bytes([1]) * 100_000


def test_files_behind_a_signature_are_for_this_user_alone(server, mounts):
    url = server.add("/m.safetensors", safetensors.numpy.save(arrays()), DIGEST)
    assert (mounts(url + "?sig=x") / "embed").stat().st_mode & 0o777 == 0o400


def test_two_addresses_that_differ_in_their_query_are_two_files(server):
    """As versions of an object in S3 are."""
    for number, etag in ((1, DIGEST), (2, OTHER_DIGEST)):
        server.add(f"/{number}.safetensors", safetensors.numpy.save(arrays(number)), etag)
    server.add("/m.safetensors", safetensors.numpy.save(arrays(3)), '"' + "3" * 32 + '"')
    answer = server.answer

    def by_query(request):
        request.path = request.path.replace("/m.safetensors?id=", "/").replace("=", "") + (".safetensors" if "id=" in request.path else "")
        return answer(request)

    server.answer = by_query
    url = f"{server.address}/m.safetensors"
    assert stfs("cat", url + "?id=2", "embed") == arrays(2)["embed"].tobytes()
    for one, other in (("?id=1", "?id=2"), ("?id=1", ""), ("", "?id=1")):
        assert "is open with another query, as another file" in stfs("diff", url + one, url + other, status=1)


def test_a_drop_that_was_cut_short_stops_nobody(url, server, cache):
    """The generation is odd while blocks are dropped. The program was killed then."""
    stfs("fetch", url)
    with open(cached_file(cache), "r+b") as file:
        file.seek(16)
        (generation,) = struct.unpack("<Q", file.read(8))
        assert generation and generation % 2 == 0
        file.seek(16)
        file.write(struct.pack("<Q", generation + 1))
    assert stfs("cat", url, "embed") == arrays()["embed"].tobytes()
    with open(cached_file(cache), "rb") as file:
        file.seek(16)
        assert struct.unpack("<Q", file.read(8)) == (generation + 2,)


def test_the_command_line_that_others_see_has_no_signature(url, mounts):
    mount = mounts(url + "?sig=secret")
    with open(f"/proc/{mount.process.pid}/cmdline", "rb") as file:
        shown = file.read()
    assert url.encode() in shown and b"secret" not in shown


def test_a_commit_of_the_hub_is_the_one_that_was_asked_for(hub):
    wanted = "0" * 40
    hub.models["org/model"][wanted] = hub.models["org/model"]["main"]
    assert f"asked for commit {wanted}" in stfs("ls", f"hf://org/model@{wanted}", status=1)


def test_names_that_would_disturb_a_terminal_are_left_out(hub):
    hub.add_model("org/other", {"\x1b[31m/model.safetensors": safetensors.numpy.save(arrays())})
    assert "has no .safetensors archive" in stfs("ls", "hf://org/other", status=1)


def test_a_listed_size_that_no_file_has_is_refused(hub, cache):
    hub.listed_sizes = {"model.safetensors": 1 << 62}
    assert "at most 35184372088832 are possible" in stfs("ls", "hf://org/model", status=1)
    assert not list(cache.glob("?" * 32))


def test_recover_asks_no_server(url, server, mounts):
    mount = mounts(url)
    del server.requests[:]
    assert "is on a web server, so no commit was left there" in stfs("recover", mount.path, status=1)
    assert not server.requests
