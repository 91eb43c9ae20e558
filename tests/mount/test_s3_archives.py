# Archives in S3 and in stores that speak its protocol: s3://BUCKET/KEY is signed, read by ranges, and found by its prefix.
import datetime
import errno
import json
import os
import stat
from pathlib import Path

import mounted
import numpy as np
import pytest
import safetensors.numpy
from mounted import MountFailed, errno_of
from s3_server import ACCESS, SECRET
from s3_store import ODD_KEY, archive_of, arrays, libcurl, own_settings, reads, set_keys, stfs, store, unset_keys, url  # noqa: F401
from web_server import served

BUILD = Path(os.environ.get("STFS_BUILD_DIR", "build/release")).resolve()


# --- verbs and mounts -----------------------------------------------------------------------------------------


def test_each_reading_verb_takes_an_object(store, url, tmp_path):
    here = tmp_path / "m.safetensors"
    here.write_bytes(archive_of())
    for words in (["ls"], ["ls", "--json"], ["info"], ["cat", "embed"], ["slice", "h.0.w[3:7, 10]"], ["verify"]):
        shown = stfs(words[0], here, *words[1:]).replace(str(here).encode(), url.encode())
        assert stfs(words[0], url, *words[1:]) == shown
    assert stfs("diff", here, url) == stfs("diff", here, here)
    assert store.checked > 8


def test_only_the_bytes_that_are_used_cross_the_network(store):
    big = {"a": np.zeros(30_000_000, "u1"), "b": np.ones(9, "u1")}
    assert stfs("cat", store.put("big.safetensors", safetensors.numpy.save(big)), "b") == bytes([1] * 9)
    assert store.sent_bytes < 2 << 20


def test_an_object_is_changed_by_no_verb(url, tmp_path):
    np.save(tmp_path / "z.npy", np.zeros(3, "u1"))
    assert "is on a web server, so it can only be read" in stfs("put", url, "embed", tmp_path / "z.npy", status=1)
    assert "is on a web server, so no commit was left there" in stfs("recover", url, status=1)


def test_a_mount_shows_the_name_and_the_tensors(store, url, mounts):
    mount = mounts(url)
    for name, array in arrays().items():
        assert (mount / name).read_bytes() == array.tobytes()
    assert errno_of(os.unlink, mount / "embed") == errno.EROFS
    assert stfs("ls", "--json", mount.path) == stfs("ls", "--json", url)
    table = [line for line in open("/proc/self/mounts") if f" {mount.path} " in line]
    assert len(table) == 1 and table[0].startswith(url + " ")


def test_an_index_names_its_shards(store, mounts):
    names = {}
    for number, (name, array) in enumerate(arrays().items()):
        names[name] = f"model-{number + 1:05}-of-00003.safetensors"
        store.put("sharded/" + names[name], safetensors.numpy.save({name: array}))
    url = store.put("sharded/model.safetensors.index.json", json.dumps({"metadata": {}, "weight_map": names}).encode())
    for given in (url, "s3://bucket/sharded/"):
        reads(given, "h.0.w")
    mount = mounts("s3://bucket/sharded")
    assert (mount / "embed").read_bytes() == arrays()["embed"].tobytes()


def test_a_delta_keeps_the_changes_of_an_object(store, url, mounts, tmp_path):
    options = f"delta={tmp_path / 'delta.safetensors'}"
    mount = mounts(url, options)
    (mount / "h.1.w").write_bytes(b"\1" * 102)
    assert mount.unmount() == 0
    store.sent_bytes = 0
    mount = mounts(url, options)
    assert (mount / "h.1.w").read_bytes() == b"\1" * 102
    assert store.sent_bytes < 2 << 20  # the base is compared by its ETag
    assert (mount / "h.0.w").read_bytes() == arrays()["h.0.w"].tobytes()
    assert mount.unmount() == 0
    assert "web server" in stfs("commit", "--base", url, tmp_path / "delta.safetensors", status=1)


def test_a_delta_refuses_another_version_of_its_base(store, url, mounts, tmp_path):
    options = f"delta={tmp_path / 'delta.safetensors'}"
    mount = mounts(url, options)
    (mount / "h.1.w").write_bytes(b"\1" * 102)
    assert mount.unmount() == 0
    store.put("m/model.safetensors", archive_of(2))
    with pytest.raises(MountFailed):
        mounts(url, options)


def test_an_object_that_is_replaced_gives_estale(store, url, mounts):
    mount = mounts(url)
    assert (mount / "h.1.w").read_bytes() == arrays()["h.1.w"].tobytes()
    store.put("m/model.safetensors", archive_of(2))
    assert errno_of((mount / "embed").read_bytes) == errno.ESTALE


def test_python_and_the_diff_of_two_objects(store, url):
    if not list((BUILD / "python" / "stfs").glob("_stfs.*so")) or mounted.is_sanitized():
        pytest.skip("the Python module is not built, or can't be loaded into a Python without a sanitizer")
    other = store.put("other.safetensors", archive_of(2))
    code = ("import sys, stfs\nwith stfs.open(sys.argv[1]) as m: print(bytes(m['h.1.w']).hex())\n"
            "print(len(stfs.diff(*sys.argv[1:]).changed))")
    done = mounted.run_python(code, url, other, env={**os.environ, "PYTHONPATH": str(BUILD / "python")})
    assert done.stdout.split() == [arrays()["h.1.w"].tobytes().hex(), "3"], done.stderr


# --- names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [ODD_KEY, "a//b.safetensors", "x?y#z.safetensors", "'*:;$,[]{}\"<>^`|\\.safetensors"])
def test_a_key_has_any_characters(store, key):
    reads(store.put(key, archive_of()))


def test_a_key_without_a_known_ending_is_an_object_or_a_prefix(store):
    reads(store.put("weights/latest", archive_of()))
    store.put("v1/model.safetensors", archive_of(2))
    reads("s3://bucket/v1", seed=2)
    assert "s3://bucket/none/: has no objects" in stfs("ls", "s3://bucket/none", status=1)


@pytest.mark.parametrize("keys, chosen", [
    (["m/model.safetensors", "m/a.safetensors"], "m/model.safetensors"),
    (["m/only.safetensors", "m/config.json", "m/sub/model.safetensors"], "m/only.safetensors"),
    (["m/a&b <1>.safetensors"], "m/a&b <1>.safetensors"),
])  # fmt: skip
@pytest.mark.parametrize("page_size", [1, 1000])
def test_a_prefix_means_the_archive_that_a_library_would_load(store, keys, chosen, page_size):
    store.page_size = page_size
    for key in keys:
        store.put(key, archive_of(2) if key == chosen else archive_of())
    reads("s3://bucket/m/", seed=2)
    assert f"s3://bucket/{chosen}" in stfs("info", "s3://bucket/m/").decode()


def test_a_bucket_with_several_archives_lists_them(store):
    store.put("b.safetensors", archive_of())
    reads("s3://bucket")
    store.put("a.safetensors", archive_of())
    refused = stfs("ls", "s3://bucket", status=1)
    assert "name one as s3://bucket/KEY: a.safetensors, b.safetensors" in refused


def test_a_bucket_without_an_archive_lists_its_directories(store):
    store.put("v1/model.safetensors", archive_of())
    store.put("v2/model.safetensors", archive_of())
    assert "has no .safetensors archive, but v1/, v2/" in stfs("ls", "s3://bucket", status=1)


@pytest.mark.parametrize("name", ["s3://", "s3:///key", "s3://bucket/../x", "s3://b:c/x", "s3://-b/x"])
def test_a_name_that_is_none_is_refused(store, name):
    assert "names no" in stfs("ls", name, status=1)
    assert store.requests == []


# --- refusals -------------------------------------------------------------------------------------------------


def test_an_object_that_is_not_there_is_enoent(store, mounts):
    assert "it has no such file" in stfs("ls", "s3://bucket/none.safetensors", status=1)
    assert "the store has no bucket other (status 404, NoSuchBucket)" in stfs("ls", "s3://other/x.safetensors", status=1)
    with pytest.raises(MountFailed) as failed:
        mounts("s3://other/prefix/")
    assert "NoSuchBucket" in failed.value.log


def test_a_refusal_names_its_code_and_the_source_of_the_keys(store, url, monkeypatch):
    store.denied.add("m/model.safetensors")
    refused = stfs("ls", url, status=1)
    assert "403 AccessDenied" in refused and "credentials of AWS_ACCESS_KEY_ID may not read it" in refused
    set_keys(monkeypatch, "AKOTHER")
    refused = stfs("ls", url, status=1)
    assert "403 InvalidAccessKeyId" in refused and "does not accept the credentials of AWS_ACCESS_KEY_ID" in refused
    set_keys(monkeypatch, ACCESS, "wrong-secret")
    refused = stfs("ls", url, status=1)
    assert "403 SignatureDoesNotMatch" in refused and "wrong-secret" not in refused


def test_without_keys_requests_are_not_signed(store, url, unset_keys):
    assert "no credentials were found" in stfs("ls", url, status=1)
    store.public.add("bucket")
    reads(url)
    reads("s3://bucket/m/")
    assert not any("Authorization" in headers for _, _, headers in store.requests)


def test_files_that_need_keys_are_for_their_user_alone(store, url, mounts, monkeypatch, tmp_path):
    mount = mounts(url)
    assert stat.S_IMODE(os.stat(mount / "embed").st_mode) & 0o077 == 0
    assert mount.unmount() == 0
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    store.public.add("bucket")
    mount = mounts(url)
    assert stat.S_IMODE(os.stat(mount / "embed").st_mode) & 0o044 == 0o044


def test_an_answer_that_is_no_list_is_refused(monkeypatch):
    set_keys(monkeypatch)
    with served() as page:
        page.add("/bucket", b"<html>")
        monkeypatch.setenv("AWS_ENDPOINT_URL", page.address)
        assert "the answer is no list of a bucket" in stfs("ls", "s3://bucket", status=1)


@pytest.mark.parametrize("status", [500, 503])
def test_a_busy_store_is_asked_again(store, url, status):
    store.faults = [status]
    reads(url)


# --- regions, clocks, redirects -------------------------------------------------------------------------------


@pytest.mark.parametrize("says_region", [True, False])
@pytest.mark.parametrize("name", ["s3://bucket/m/model.safetensors", "s3://bucket/m/", "s3://bucket/m"])
def test_a_bucket_of_another_region_is_asked_there_once(store, url, says_region, name):
    store.region, store.says_region = "eu-north-1", says_region
    reads(name)
    wrong = [headers for _, _, headers in store.requests if "/us-east-1/" in headers["Authorization"]]
    assert len(wrong) == 1


def test_the_region_of_the_user_is_used(store, url, monkeypatch):
    store.region = "ap-south-1"
    monkeypatch.setenv("AWS_REGION", "ap-south-1")
    reads(url)
    assert all("/ap-south-1/" in headers["Authorization"] for _, _, headers in store.requests)


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_wrong_clock_is_corrected_once(store, url, mounts, hours):
    store.ahead = datetime.timedelta(hours=hours)
    reads(url)
    mount = mounts(url)
    store.ahead = datetime.timedelta()
    assert (mount / "embed").read_bytes() == arrays()["embed"].tobytes()


def test_a_redirect_to_another_server_gets_no_keys(store, url, monkeypatch):
    store.keys[ACCESS] = (SECRET, "session-token")
    set_keys(monkeypatch, token="session-token")
    with served() as other:
        store.sends_elsewhere["m/model.safetensors"] = other.add("/x", archive_of(), '"0123456789abcdef0123456789abcdef"')
        reads(url)
        assert other.requests
        for _, _, headers in other.requests:
            names = {name.lower() for name in headers}
            assert not names & {"authorization", "x-amz-security-token", "x-amz-date"}
            assert headers["Host"] == other.address.removeprefix("http://")
            assert "session-token" not in str(headers)


def test_a_redirect_to_the_same_server_gets_no_keys(store, url):
    store.public.add("public")
    store.put("x.safetensors", archive_of(), "public")
    store.sends_elsewhere["m/model.safetensors"] = f"{store.address}/public/x.safetensors"
    reads(url)
    assert not any("Authorization" in headers for path, _, headers in store.requests if path.startswith("/public/"))
