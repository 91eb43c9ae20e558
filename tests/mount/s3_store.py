"""What the tests of S3 share: settings of their own, a store that checks signatures, and archives in it."""
import os
import subprocess

import numpy as np
import pytest
import safetensors.numpy
from delta_variants import STFS
from s3_server import ACCESS, SECRET, KeyServices, S3Server, closed_at_the_end
from web_server import needs_libcurl

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
