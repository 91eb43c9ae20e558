# `stfs fetch` and `stfs cache`: tensors come in advance, stay or go, and are proven.
import hashlib
import json
import os

import numpy as np
import pytest
import safetensors.numpy
from remote_cache import (  # noqa: F401
    BLOCK, DIGEST, HEADER, OTHER_DIGEST, arrays, cache, cached_file, hub, libcurl, make_old, server, small_disk, stfs, Table,
    url
)
from web_server import Page


def fetched(*words):
    document = json.loads(stfs("fetch", "--json", *words))
    assert next(iter(document.items())) == ("schema", 1)
    return document


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
    assert "write 0, or a unit as in 200G" in stfs("cache", "--limit", "200", status=2)
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


def test_a_file_without_a_sound_header_goes(url, cache):
    stfs("fetch", url)
    path = cached_file(cache)
    with open(path, "r+b") as file:
        file.write(b"\0" * HEADER)
    assert stfs("cache").decode() == "nothing is kept\n"
    assert not path.exists()
