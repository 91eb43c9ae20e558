# Remote archives without a network: the mount shows the bytes that are here, and missing bytes fail.
import errno
import subprocess

import pytest
import safetensors.numpy
from delta_variants import STFS
from hub_server import commit_of, digest_of
from mounted import errno_of
from remote_cache import (  # noqa: F401
    DIGEST, arrays, cache, hub, libcurl, server, stfs, url
)
from web_server import served


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


def test_without_a_network_an_address_with_another_query_shows_nothing(cache):
    with served() as server:
        url = server.add("/m.safetensors", safetensors.numpy.save(arrays()), DIGEST)
        stfs("fetch", url + "?id=1")
    assert "Failed to connect" in stfs("ls", url + "?id=2", status=1)


def test_offline_a_private_model_stays_private(hub, mounts, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    stfs("fetch", "hf://org/model")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert (mounts("hf://org/model") / "embed").stat().st_mode & 0o777 == 0o400


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
