# Archives in S3 and in stores that speak its protocol: s3://BUCKET/KEY is signed, read by ranges, and found by its prefix.
import datetime
import errno
import json
import os
import shutil
import stat
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
from delta_variants import STFS
from mounted import MountFailed, errno_of
from s3_server import ACCESS, SECRET, KeyServices, S3Server, closed_at_the_end
from web_server import make_certificate, needs_libcurl, served

ODD_KEY = "d1/a=b (1)!~@é+%&.safetensors"


@pytest.fixture(autouse=True, scope="module")
def libcurl():
    needs_libcurl(STFS)


@pytest.fixture(autouse=True)
def own_settings(tmp_path, monkeypatch):
    """Nothing of the settings of the person who runs the tests."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (tmp_path / "home" / ".aws").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def set_keys(monkeypatch, access=ACCESS, secret=SECRET, token=None):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", access)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)


@pytest.fixture
def store(own_settings, monkeypatch):
    with closed_at_the_end(S3Server()) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.address)
        set_keys(monkeypatch)
        yield server


@pytest.fixture
def services():
    with closed_at_the_end(KeyServices()) as server:
        yield server


@pytest.fixture
def unset_keys(store, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)


def arrays(seed=1):
    rng = np.random.default_rng(seed)
    return {"embed": rng.integers(0, 256, 3_000_000, "u1"), "h.0.w": rng.normal(size=(300, 500)).astype("f4"),
            "h.1.w": rng.normal(size=(17, 3)).astype("f2")}


def archive_of(seed=1):
    return safetensors.numpy.save(arrays(seed), {"format": "pt"})


@pytest.fixture
def url(store):
    return store.put("m/model.safetensors", archive_of())


def stfs(*words, status=0):
    result = subprocess.run([STFS, *map(str, words)], capture_output=True)
    assert result.returncode == status, (result.returncode, result.stderr)
    return result.stdout if status == 0 else result.stderr.decode()


def reads(name, tensor="h.1.w", seed=1):
    assert stfs("cat", name, tensor) == arrays(seed)[tensor].tobytes()


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


def test_python_opens_an_object(url, python_module):
    with python_module.open(url) as model:
        assert (np.asarray(model["h.1.w"]) == arrays()["h.1.w"]).all()


@pytest.fixture
def python_module():
    build = os.environ.get("STFS_BUILD_DIR", "build/release")
    sys.path.insert(0, os.path.join(build, "tools"))
    return pytest.importorskip("stfs", reason="the Python module is not built, or can't be loaded into a Python without a sanitizer")


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


# --- keys -----------------------------------------------------------------------------------------------------


def test_a_session_token_is_signed(store, url, monkeypatch):
    store.keys[ACCESS] = (SECRET, "session")
    assert "403 InvalidToken" in stfs("ls", url, status=1)
    set_keys(monkeypatch, token="session")
    reads(url)


def write_profile(tmp_path, text, name="config"):
    (tmp_path / "home" / ".aws" / name).write_text(text)


def test_keys_of_a_profile_are_used(store, url, unset_keys, tmp_path, monkeypatch):
    write_profile(tmp_path, f"[default]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n", "credentials")
    reads(url)
    write_profile(tmp_path, "[default]\naws_access_key_id = X\naws_secret_access_key = X\n", "credentials")
    write_profile(tmp_path, f"[profile p]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\nregion = r-1\n"
                  f"endpoint_url = {store.address}\n")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    monkeypatch.setenv("AWS_PROFILE", "p")
    store.region = "r-1"
    reads(url)
    monkeypatch.setenv("AWS_PROFILE", "q")
    assert "AWS_PROFILE=q: neither" in stfs("ls", url, status=1)


def credentials_text(access, secret, token, expires="2099-01-01T00:00:00Z"):
    return json.dumps({"Version": 1, "AccessKeyId": access, "SecretAccessKey": secret, "SessionToken": token, "Expiration": expires})


def test_a_program_gives_keys_and_new_ones_after_they_have_expired(store, url, unset_keys, tmp_path, mounts):
    keys = tmp_path / "the keys.json"
    keys.write_text(credentials_text("A1", "one-secret", "t1"))
    write_profile(tmp_path, f"[default]\ncredential_process = cat '{keys}'\n")
    store.keys = {"A1": ("one-secret", "t1"), "A2": ("two-secret", "t2")}
    mount = mounts(url)
    store.expired.add("A1")
    assert errno_of((mount / "h.0.w").read_bytes) in (errno.EACCES, errno.EIO)  # the program gives the same keys
    keys.write_text(credentials_text("A2", "two-secret", "t2"))
    for name, array in arrays().items():
        assert (mount / name).read_bytes() == array.tobytes()
    assert "profile default have expired: renew them" in mount.log()


def test_keys_that_expire_soon_are_replaced_before(store, url, unset_keys, services, monkeypatch):
    soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=4)
    services.expires = soon.strftime("%Y-%m-%dT%H:%M:%SZ")
    store.keys[ACCESS] = (SECRET, "session")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", services.address + "/container")
    reads(url)


def test_a_program_that_fails_is_named_without_its_output(store, url, unset_keys, tmp_path):
    write_profile(tmp_path, "[default]\ncredential_process = sh -c 'echo the-secret; exit 1'\n")
    refused = stfs("ls", url, status=1)
    assert "profile default: sh: failed" in refused and "the-secret" not in refused
    write_profile(tmp_path, "[default]\ncredential_process = /nonexistent/program\n")
    assert "/nonexistent/program" in stfs("ls", url, status=1)


def test_a_program_in_a_file_that_others_may_write_is_not_run(store, url, unset_keys, tmp_path):
    ran = tmp_path / "ran"
    write_profile(tmp_path, f"[default]\ncredential_process = touch {ran}\n")
    (tmp_path / "home" / ".aws" / "config").chmod(0o666)
    assert "is not run, because others may write the file" in stfs("ls", url, status=1)
    assert not ran.exists()


@pytest.mark.parametrize("text", ["sso_session = s", "role_arn = arn:aws:iam::1:role/x\nsource_profile = q"])
def test_a_profile_that_needs_a_login_says_how(store, url, unset_keys, tmp_path, text):
    write_profile(tmp_path, f"[default]\n{text}\n")
    assert "aws configure export-credentials --format process" in stfs("ls", url, status=1)


def test_a_role_is_given_to_the_bearer_of_a_token(store, url, unset_keys, services, monkeypatch, tmp_path):
    store.keys[ACCESS] = (SECRET, "session")
    (tmp_path / "token").write_text("a.b+c/d=\n")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/x")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", services.address)
    reads(url)
    assert {query for _, query, _ in services.requests} == {
        "Action=AssumeRoleWithWebIdentity&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fx&RoleSessionName=safetensorsfs"
        "&Version=2011-06-15&WebIdentityToken=a.b%2Bc%2Fd%3D"}  # fmt: skip
    services.refuses = "InvalidIdentityToken"
    refused = stfs("ls", url, status=1)
    assert "role/x: the token service answers with status 400 (InvalidIdentityToken)" in refused and "a.b+c" not in refused


@pytest.mark.parametrize("as_file", [True, False])
def test_a_container_has_keys(store, url, unset_keys, services, monkeypatch, tmp_path, as_file):
    store.keys[ACCESS] = (SECRET, "session")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", services.address + "/container")
    (tmp_path / "token").write_text("Bearer x\n")
    if as_file:
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    else:
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "Bearer x")
    reads(url)
    assert all(headers["Authorization"] == "Bearer x" for _, _, headers in services.requests)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://other.example/container")
    assert "must be an address of https" in stfs("ls", url, status=1)


def test_an_instance_has_keys(store, url, unset_keys, services, monkeypatch):
    store.keys[ACCESS] = (SECRET, "session")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", services.address)
    assert "no credentials were found" in stfs("ls", url, status=1)  # AWS_EC2_METADATA_DISABLED is set
    assert services.requests == []
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    reads(url)
    assert services.requests[0][0] == "PUT /latest/api/token"
    services.refuses = "x"  # no machine of AWS
    assert "no credentials were found" in stfs("ls", url, status=1)


def test_keys_are_not_sent_in_plain(monkeypatch):
    set_keys(monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.example:1")
    refused = stfs("ls", "s3://bucket/x.safetensors", status=1)
    assert "AWS_ENDPOINT_URL=http://store.example:1: credentials are sent over https only" in refused


def test_a_proxy_does_not_see_the_keys(store, url, monkeypatch):
    with served() as proxy:
        monkeypatch.setenv("http_proxy", proxy.address)
        reads(url)
        assert proxy.requests == []


def test_secrets_are_in_no_log_file_delta_or_attribute(store, url, mounts, monkeypatch, tmp_path):
    store.keys[ACCESS] = ("top/secret", "session-token")
    set_keys(monkeypatch, ACCESS, "top/secret", "session-token")
    mount = mounts(url, f"delta={tmp_path / 'd.safetensors'}")
    (mount / "h.1.w").write_bytes(bytes(102))
    shown = [mount.log(), stfs("info", url).decode(), stfs("mounts", "--json").decode(), open("/proc/self/mounts").read()]
    shown += [str(os.getxattr(mount / "embed", name)) for name in os.listxattr(mount / "embed")]
    shown += [path.read_text(errors="replace") for path in (mount / ".safetensors").iterdir() if path.is_file() and path.stat().st_size < 1 << 20]
    store.denied.add("m/model.safetensors")
    (mount / "embed").exists() and errno_of((mount / "embed").read_bytes)
    shown += [mount.log(), stfs("ls", url, status=1)]
    assert mount.unmount() == 0
    assert not any("top/secret" in text or "session-token" in text for text in shown)
    found = subprocess.run(["grep", "-r", "-a", "-l", "-e", "top/secret", "-e", "session-token", tmp_path], capture_output=True)
    assert found.stdout == b""


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_certificates_of_aws_ca_bundle_are_used(tmp_path, monkeypatch):
    tls = make_certificate(tmp_path)
    set_keys(monkeypatch)
    with closed_at_the_end(S3Server(tls)) as store:
        url = store.put("x.safetensors", archive_of())
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.address)
        stfs("ls", url, status=1)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tls[0]))
        reads(url)
