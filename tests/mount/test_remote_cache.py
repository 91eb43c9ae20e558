# Blocks of remote archives stay on this disk: for the next program, for programs at the same time, and through kills.
import contextlib
import email.utils
import errno
import hashlib
import itertools
import json
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
from hub_server import commit_of, digest_of, hub_served
from mirror_mount import CREATE, mirror_mount
from mounted import errno_of, eventually
from web_server import Page, needs_libcurl, served

BLOCK = 256 << 10
DIGEST, OTHER_DIGEST = '"0123456789abcdef0123456789abcdef"', '"fedcba9876543210fedcba9876543210"'  # ETags
OLD = "Mon, 06 Jul 2026 10:00:00 GMT"
HEADER, ENTRY = 4096, 16


@pytest.fixture(autouse=True, scope="module")
def libcurl():
    needs_libcurl(STFS)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The directory of the shared files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "safetensorsfs" / "blocks"


@pytest.fixture
def server():
    with served() as server:
        yield server


def arrays(seed=1):
    rng = np.random.default_rng(seed)
    return {"embed": rng.integers(0, 256, 3_000_000, "u1"), "h.0.w": rng.normal(size=(300, 500)).astype("f4"),
            "h.1.w": rng.normal(size=(17, 3)).astype("f2")}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with hub_served() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        hub.add_model("org/model", {"model.safetensors": safetensors.numpy.save(arrays()), "config.json": b"{}"})
        yield hub


@pytest.fixture
def url(server):
    return server.add("/m.safetensors", safetensors.numpy.save(arrays()), DIGEST)


def stfs(*words, status=0, **more):
    result = subprocess.run([STFS, *map(str, words)], capture_output=True, **more)
    assert result.returncode == status, result.stderr
    return result.stdout if status == 0 else result.stderr.decode()


def cached_file(cache):
    (path,) = [path for path in cache.iterdir() if len(path.name) == 32]
    return path


class Table:
    """The table of a shared file: its entries can be read and changed."""

    def __init__(self, path, size):
        self.path, self.count = path, -(-size // BLOCK)
        self.data_at = HEADER + -(-self.count * ENTRY // 4096) * 4096

    def __getitem__(self, block):
        """(hash, the minute of the last use, whether it is pinned)"""
        with open(self.path, "rb") as file:
            file.seek(HEADER + block * ENTRY)
            return struct.unpack("<QII", file.read(ENTRY))

    def set_used_at(self, block, minute):
        with open(self.path, "r+b") as file:
            file.seek(HEADER + block * ENTRY + 8)
            file.write(struct.pack("<I", minute))

    def flip(self, block, at=100):
        with open(self.path, "r+b") as file:
            file.seek(self.data_at + block * BLOCK + at)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))

    def blocks(self):
        return [block for block in range(self.count) if self[block][0]]


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


def fetched(*words):
    return json.loads(stfs("fetch", "--json", *words))


def test_fetch_brings_tensors_before_they_are_read(url, server):
    plan = fetched("-n", url, "h.*")
    assert plan["dry_run"] and plan["tensors"] == 2 and 0 < plan["missing_bytes"] <= 600_102 + 2 * BLOCK and plan["requests"] == 1
    sent = server.sent_bytes
    assert stfs("fetch", url, "h.*").decode() == f"2 tensors, 586.0 KiB: fetched {plan['missing_bytes'] / 1024:.1f} KiB\n"
    assert server.sent_bytes - sent <= plan["missing_bytes"] + 2
    del server.requests[:]
    assert stfs("cat", url, "h.0.w") == arrays()["h.0.w"].tobytes()
    assert [wanted for _, wanted, _ in server.requests] == ["bytes=0-0"]
    assert "all bytes are on this machine" in stfs("fetch", url, "h.*").decode()


def test_fetch_refuses_what_it_can_not_bring(url, tmp_path):
    (tmp_path / "m.safetensors").write_bytes(safetensors.numpy.save(arrays()))
    assert "is on this machine" in stfs("fetch", tmp_path / "m.safetensors", status=1)
    assert "no tensor matches, did you mean" in stfs("fetch", url, "embd", status=1)


def test_fetch_pins_only_what_other_programs_find(server, cache):
    url = server.add("/m.safetensors", safetensors.numpy.save(arrays()), 'W/"1"')
    assert "no strong ETag" in stfs("fetch", "--pin", url, status=1)


@contextlib.contextmanager
def small_disk(place, size):
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", place], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"needs root: no mount of tmpfs: {made.stderr}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def make_old(cache, server, minute=1000):
    table = Table(cached_file(cache), server.pages["/m.safetensors"].size)
    for block in table.blocks():
        table.set_used_at(block, minute + block)
    return table


def test_the_least_recent_blocks_go_when_the_limit_is_reached(url, server, cache):
    stfs("fetch", "--pin", url, "h.1.w")
    stfs("fetch", url)
    table = make_old(cache, server)
    before = table.blocks()
    pinned = [block for block in before if table[block][2]]
    assert before == list(range(table.count)) and pinned == [0, 2]
    assert stfs("cache", "--limit", "2M").decode().startswith("dropped ")
    assert len(table.blocks()) <= 8
    other = server.add("/other.safetensors", safetensors.numpy.save({"a": np.ones(10, "u1")}), OTHER_DIGEST)
    stfs("cat", other, "a")
    left = table.blocks()
    assert set(pinned) <= set(left) and len(left) <= 8
    assert left[2:] == list(range(left[2], table.count)), "the oldest went"
    assert stfs("cat", url, "embed") == arrays()["embed"].tobytes()


def test_a_nearly_full_disk_gives_old_blocks_up(url, server, tmp_path, monkeypatch):
    with small_disk(tmp_path / "disk", "8m") as disk:
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        cache = disk / "safetensorsfs" / "blocks"
        stfs("fetch", url)
        table = make_old(cache, server)
        (disk / "other").write_bytes(bytes(os.statvfs(disk).f_bavail * 4096 - (200 << 10)))
        other = server.add("/other.safetensors", safetensors.numpy.save({"a": np.ones(600_000, "u1")}), OTHER_DIGEST)
        assert stfs("cat", other, "a") == bytes([1]) * 600_000
        assert len(table.blocks()) < table.count
        del server.requests[:]
        assert stfs("cat", other, "a") == bytes([1]) * 600_000
        assert [wanted for _, wanted, _ in server.requests] == ["bytes=0-0"], "there was room for it"


def test_the_cache_is_listed_and_dropped_by_names(url, server, cache):
    stfs("fetch", "--pin", url, "h.1.w")
    shown = stfs("cache").decode()
    assert url in shown and "by TLS only" in shown and "1 file, " in shown
    assert "nothing of this name" in stfs("cache", "--drop", "https://other", status=1)
    assert "nothing of this name" in stfs("cache", "--drop", url[:-1], status=1)
    assert "no size" in stfs("cache", "--limit", "much", status=2)
    stfs("cache", "--unpin", url)
    (row,) = json.loads(stfs("cache", "--json"))["files"]
    assert row["name"] == url and row["pinned_bytes"] == 0 and row["kept_bytes"] > 0 and row["used_at"] and not row["in_use"]
    assert "dropped" in stfs("cache", "--drop", server.address).decode()
    assert not list(cache.glob("?" * 32))
    assert stfs("cache").decode() == "nothing is kept\n"


def test_a_whole_file_of_the_hub_is_proven_by_its_digest(hub, cache):
    name = "hf://org/model"
    stfs("fetch", name, "h.*")
    assert "`stfs fetch` brings the rest" in stfs("cache", "--prove", name, status=1)
    assert "partly" in stfs("cache").decode()
    stfs("fetch", name)
    assert "proven" in stfs("cache", "--prove", name).decode()
    assert " proven " in stfs("cache").decode()
    Table(cached_file(cache), len(safetensors.numpy.save(arrays()))).flip(2)
    assert "1 of 14 blocks were damaged: `stfs fetch` brings them again" in stfs("cache", "--prove", name, status=1)
    assert "partly" in stfs("cache").decode()
    stfs("fetch", name)
    assert "proven" in stfs("cache", "--prove", name).decode()


def test_a_file_of_the_hub_with_other_bytes_than_its_digest_is_dropped(hub, cache):
    """The server has sent them, so each block fits its hash."""
    data = safetensors.numpy.save(arrays())
    (path,) = [path for path in hub.cdn.pages if path.endswith(hashlib.sha256(data).hexdigest())]
    stfs("fetch", "hf://org/model", "h.0.w")
    hub.cdn.pages[path] = Page.of(safetensors.numpy.save(arrays(2)), '"cdn"')
    stfs("fetch", "hf://org/model")
    assert "the Hub lists" in stfs("cache", "--prove", "hf://org/model", status=1)
    assert stfs("cache").decode().endswith("1 file, 0 B kept\n")


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


def shown_offline(source, mounts, note, server):
    """What is here is shown, what is not here fails at once."""
    command = subprocess.run([STFS, "cat", source, "h.0.w"], capture_output=True)
    assert command.returncode == 0 and command.stdout == arrays()["h.0.w"].tobytes()
    assert note in command.stderr.decode()
    mount = mounts(source)
    assert note in mount.log()
    assert (mount / "h.0.w").read_bytes() == arrays()["h.0.w"].tobytes()
    assert errno_of((mount / "embed").read_bytes) == errno.ENETUNREACH
    return mount


def test_without_a_network_the_cached_version_is_shown_and_a_note_says_so(mounts, cache):
    with served() as server:
        url = server.add("/m.safetensors", safetensors.numpy.save(arrays()), DIGEST)
        stfs("fetch", "--pin", url, "h.*")
    shown_offline(url, mounts, "can't be reached: shows the versions that this machine keeps", server)
    assert stfs("fetch", "-n", url, "h.*").decode().endswith("all bytes are on this machine\n")


def test_without_a_network_a_model_of_the_hub_is_shown_as_it_was(hub, mounts):
    stfs("fetch", "--pin", "hf://org/model", "h.*")
    hub.close()
    hub.cdn.close()
    shown_offline("hf://org/model", mounts, "the Hub can't be reached: shows commit ", hub)


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_the_hub_is_not_asked(hub, mounts, monkeypatch, name):
    stfs("fetch", "--pin", "hf://org/model", "h.*")
    monkeypatch.setenv(name, "1")
    del hub.requests[:]
    shown_offline("hf://org/model", mounts, "", hub)
    assert not hub.requests
    assert "org/other" in stfs("ls", "hf://org/other", status=1)


def test_a_planted_list_of_the_hub_is_not_read(hub, tmp_path, monkeypatch):
    stfs("fetch", "--pin", "hf://org/model", "h.*")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (lists,) = (tmp_path / "cache" / "safetensorsfs" / "hub" / "lists").iterdir()
    data = lists.read_bytes()
    lists.write_bytes(data.replace(b"org/model", b"org/other", 1))  # of another question
    assert "HF_HUB_OFFLINE is set" in stfs("ls", "hf://org/model", status=1)
    lists.write_bytes(data[:len(data) // 2])
    assert "HF_HUB_OFFLINE is set" in stfs("ls", "hf://org/model", status=1)
    lists.unlink()
    (tmp_path / "elsewhere").write_bytes(data)
    lists.symlink_to(tmp_path / "elsewhere")
    assert "HF_HUB_OFFLINE is set" in stfs("ls", "hf://org/model", status=1)


def test_pinned_tensors_stay_whatever_the_limit_is(url, server, cache):
    stfs("fetch", "--pin", url)
    table = make_old(cache, server)
    stfs("cache", "--limit", "1M")
    assert len(table.blocks()) == table.count
    stfs("cache", "--unpin", url)
    assert stfs("cache", "--limit", "1M").decode().startswith("dropped ")


def test_a_pin_survives_damage(url, server, cache):
    stfs("fetch", "--pin", url)
    table = Table(cached_file(cache), server.pages["/m.safetensors"].size)
    table.flip(5)
    stfs("fetch", url)
    assert all(table[block][2] for block in range(table.count))


@pytest.mark.parametrize("words", [(), ("--pin",)])
def test_fetch_fails_if_the_disk_has_no_room_for_all(server, tmp_path, monkeypatch, words):
    with small_disk(tmp_path / "disk", "4m") as disk:
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        url = server.add("/m.safetensors", safetensors.numpy.save({"a": np.ones(9_000_000, "u1")}), DIGEST)
        assert "less than a twentieth is free" in stfs("fetch", *words, url, status=1)
        assert stfs("cat", url, "a") == bytes([1]) * 9_000_000


def test_without_a_network_an_address_with_another_query_shows_nothing(cache):
    with served() as server:
        url = server.add("/m.safetensors", safetensors.numpy.save(arrays()), DIGEST)
        stfs("fetch", url + "?id=1")
    assert "Failed to connect" in stfs("ls", url + "?id=2", status=1)


def test_a_file_without_a_sound_header_goes(url, cache):
    stfs("fetch", url)
    path = cached_file(cache)
    with open(path, "r+b") as file:
        file.write(b"\0" * HEADER)
    assert stfs("cache").decode() == "nothing is kept\n"
    assert not path.exists()


def test_a_server_of_whole_files_is_asked_again_for_a_dropped_block(server, cache):
    data = safetensors.numpy.save({"a": np.ones(100_000, "u1")})
    url = server.add("/m.safetensors", data, DIGEST)
    server.fault_of = lambda *_: "whole"
    assert stfs("cat", url, "a") == bytes([1]) * 100_000
    Table(cached_file(cache), len(data)).flip(0)
    assert stfs("cat", url, "a") == bytes([1]) * 100_000


def test_offline_a_private_model_stays_private(hub, mounts, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    stfs("fetch", "hf://org/model")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert (mounts("hf://org/model") / "embed").stat().st_mode & 0o777 == 0o400


def test_files_behind_a_signature_are_for_this_user_alone(server, mounts):
    url = server.add("/m.safetensors", safetensors.numpy.save(arrays()), DIGEST)
    assert (mounts(url + "?sig=x") / "embed").stat().st_mode & 0o777 == 0o400


def test_two_addresses_that_differ_in_their_query_are_two_files(server):
    """As versions of an object in S3 are."""
    for number, etag in ((1, DIGEST), (2, OTHER_DIGEST)):
        server.add(f"/{number}.safetensors", safetensors.numpy.save(arrays(number)), etag)
    server.add("/m.safetensors", b"")
    answer = server.answer

    def by_query(request):
        request.path = request.path.replace("/m.safetensors?id=", "/").replace("=", "") + (".safetensors" if "id=" in request.path else "")
        return answer(request)

    server.answer = by_query
    url = f"{server.address}/m.safetensors"
    assert stfs("cat", url + "?id=2", "embed") == arrays(2)["embed"].tobytes()
    assert "is open with another query, as another file" in stfs("diff", url + "?id=1", url + "?id=2", status=1)


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


def test_offline_the_kept_list_counts_before_an_incomplete_hugging_face_cache(hub, tmp_path, monkeypatch):
    stfs("fetch", "--pin", "hf://org/model", "h.*")
    place = tmp_path / "cache" / "huggingface" / "hub" / "models--org--model"
    commit = commit_of("org/modelmain")
    for name in ("blobs", "refs", f"snapshots/{commit}"):
        (place / name).mkdir(parents=True)
    (place / "refs" / "main").write_text(commit)
    (place / "blobs" / digest_of(b"{}")).write_bytes(b"{}")
    (place / "snapshots" / commit / "config.json").symlink_to(f"../../blobs/{digest_of(b'{}')}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert stfs("cat", "hf://org/model", "h.0.w") == arrays()["h.0.w"].tobytes()
