# Servers of other projects that speak the protocol of S3 and check signatures: moto and rclone.
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from s3_server import ACCESS, SECRET
from s3_store import ODD_KEY, archive_of, arrays, libcurl, own_settings, reads, set_keys, stfs  # noqa: F401

IAM = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/iam/aws4_request, SignedHeaders=host, Signature=x"
KEYS = [ODD_KEY, "m/model.safetensors", "m/other.safetensors"]
POLICY = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:*","Resource":"*"}]}'


LEAST_MOTO = (5, 2, 5)  # older ones check the signature of an address whose escapes they have decoded


def has_moto():
    try:
        return tuple(int(part) for part in importlib.metadata.version("moto").split(".")[:3]) >= LEAST_MOTO
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.fixture
def start():
    """Starts a server, and ends it after the test. Returns its address, which its log names."""
    started = []

    def run(*words, **environment):
        process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=os.environ | environment)
        started.append(process)
        log = []
        for line in process.stderr:
            log.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                return found[0]
        raise AssertionError("".join(log))

    yield run
    for process in started:
        process.terminate()
        process.communicate()


def send(address, method, data=None, authorization=None):
    # moto reads the body of another type as a form.
    headers = {"Authorization": authorization} if authorization else {"Content-Type": "application/octet-stream"}
    with urllib.request.urlopen(urllib.request.Request(address, data, headers, method=method), timeout=60) as answer:
        return answer.read().decode()


@pytest.fixture
def moto(start, monkeypatch):
    """It checks signatures after the requests that make a user, a bucket and the objects."""
    if not has_moto():
        pytest.skip("moto 5.2.5 or newer is not installed")
    steps = 4 + len(KEYS)
    address = start(sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0", INITIAL_NO_AUTH_ACTION_COUNT=str(steps))

    def iam(**values):
        return send(address, "POST", urllib.parse.urlencode({"Version": "2010-05-08", **values}).encode(), IAM)

    iam(Action="CreateUser", UserName="u")
    iam(Action="PutUserPolicy", UserName="u", PolicyName="p", PolicyDocument=POLICY)
    made = iam(Action="CreateAccessKey", UserName="u")
    send(f"{address}/bucket", "PUT")
    for key in KEYS:
        send(f"{address}/bucket/{urllib.parse.quote(key)}", "PUT", archive_of())
    set_keys(monkeypatch, *(re.search(f"<{name}>(.*?)</{name}>", made)[1] for name in ("AccessKeyId", "SecretAccessKey")))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
    return address


@pytest.fixture
def rclone(start, monkeypatch, tmp_path):
    rclone = shutil.which("rclone", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if rclone is None or subprocess.run([rclone, "serve", "s3", "--help"], capture_output=True).returncode != 0:
        pytest.skip("rclone with serve s3 is not installed")
    for key in KEYS:
        path = tmp_path / "buckets" / "bucket" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(archive_of())
    address = start(rclone, "serve", "s3", "--auth-key", f"{ACCESS},{SECRET}", "--addr", "127.0.0.1:0", str(tmp_path / "buckets"))
    set_keys(monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
    return address


@pytest.fixture(params=["moto", "rclone"])
def server(request):
    return request.getfixturevalue(request.param)


def test_a_server_of_another_project_accepts_the_signatures(server, monkeypatch):
    for key in KEYS:
        reads(f"s3://bucket/{key}", "embed")
    reads("s3://bucket/m/", "h.0.w")
    reads("s3://bucket/m", "h.0.w")
    assert "has no .safetensors archive, but d1/, m/" in stfs("ls", "s3://bucket", status=1)
    assert "s3://bucket/none.safetensors" in stfs("ls", "s3://bucket/none.safetensors", status=1)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert "SignatureDoesNotMatch" in stfs("ls", "s3://bucket/m/model.safetensors", status=1)


def test_a_mount_reads_from_a_server_of_another_project(server, mounts):
    mount = mounts(f"s3://bucket/{ODD_KEY}")
    for name, array in arrays().items():
        assert (mount / name).read_bytes() == array.tobytes()
