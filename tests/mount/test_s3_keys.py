# The keys that sign requests to S3: where they come from, when they are replaced, and where they never are.
import datetime
import errno
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from mirror_mount import mirror_mount
from mounted import errno_of
from s3_server import ACCESS, SECRET, S3Server, closed_at_the_end
from s3_store import archive_of, arrays, libcurl, own_settings, reads, services, set_keys, stfs, store, unset_keys, url  # noqa: F401
from web_server import make_certificate, served

BUILD = Path(os.environ.get("STFS_BUILD_DIR", "build/release")).resolve()


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


@pytest.mark.parametrize("kind", ["a file as a token", "an endpoint with keys of the user", "a token to an endpoint"])
def test_a_profile_that_others_may_write_leads_nothing_elsewhere(store, url, unset_keys, services, tmp_path, monkeypatch, kind):
    (tmp_path / "private").write_text("the-secret")
    text = f"endpoint_url = {services.address}\n"
    if kind == "a file as a token":
        text += f"web_identity_token_file = {tmp_path / 'private'}\nrole_arn = r\n"
    elif kind == "an endpoint with keys of the user":
        set_keys(monkeypatch)
        monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    else:
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "private"))
        monkeypatch.setenv("AWS_ROLE_ARN", "r")
    write_profile(tmp_path, "[default]\n" + text)
    (tmp_path / "home" / ".aws" / "config").chmod(0o666)
    assert "is not used, because others may write the file" in stfs("ls", url, status=1)
    assert services.requests == [] and store.checked == 0


@pytest.mark.needs_root
def test_a_program_in_a_file_in_another_users_mount_is_not_run(store, url, unset_keys, tmp_path):
    """The mount's server reports root as the owner of the file."""
    ran = tmp_path / "ran"
    write_profile(tmp_path, f"[default]\ncredential_process = touch {ran}\n")
    directory = tmp_path / "home" / ".aws"
    directory.rename(tmp_path / "mirrored")
    directory.mkdir()
    with mirror_mount(directory, 45678, tmp_path / "mirrored"):
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


@pytest.fixture
def no_libcurl(tmp_path, monkeypatch):
    for name in ("libcurl.so.4", "libcurl-gnutls.so.4", "libcurl-nss.so.4"):
        (tmp_path / name).write_bytes(b"")  # the loader refuses it, and looks no further
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))


def test_without_libcurl_no_key_is_looked_for(store, url, unset_keys, tmp_path, monkeypatch, no_libcurl):
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/container")
    ran = tmp_path / "ran"
    write_profile(tmp_path, f"[default]\ncredential_process = touch {ran}\n")
    assert "remote archives need libcurl" in stfs("ls", url, status=1)
    assert not ran.exists()


def test_addresses_are_compared_without_libcurl(no_libcurl):
    tests = BUILD / "tests" / "core_tests"
    if not tests.exists():
        pytest.skip("core_tests is not built")
    done = subprocess.run([tests, "the services of a cloud are near, unless there is no libcurl"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


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


def test_a_session_token_is_not_sent_in_plain(monkeypatch):
    set_keys(monkeypatch)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.example:1")
    refused = stfs("ls", "s3://bucket/x.safetensors", status=1)
    assert "AWS_ENDPOINT_URL=http://store.example:1: a session token is sent over https only" in refused


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
    views = [path for path in (mount / ".safetensors").iterdir() if path.is_file() and path.stat().st_size < 1 << 20]
    shown += [path.read_text(errors="replace") for path in views]
    store.denied.add("m/model.safetensors")
    assert errno_of((mount / "embed").read_bytes) in (errno.EACCES, errno.EIO)
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
