# Archives on a web server: `stfs` and mounts read them by ranges, see one version, and survive the network.
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
import safetensors.numpy
from delta_variants import STFS
from mounted import MountFailed, errno_of, eventually, start_python, wait_ready
from remote_cache import BLOCK, cache, libcurl, server, stfs  # noqa: F401
from web_server import Page, make_certificate, served


def arrays(seed=1):
    rng = np.random.default_rng(seed)
    return {"embed": rng.integers(0, 256, 3_000_000, "u1"), "h.0.w": rng.normal(size=(300, 500)).astype("f4"),
            "h.1.w": rng.normal(size=(17, 3)).astype("f2"), "none": np.zeros((0, 4), "f4")}


@pytest.fixture
def archive(tmp_path, server):
    """The same archive on this disk and on the server."""
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file(arrays(), path, {"format": "np"})
    server.add("/dir/m.safetensors", path.read_bytes())
    return path


@pytest.fixture
def url(archive, server):
    return f"{server.address}/dir/m.safetensors"


def same(archive, url, *words):
    """What a verb prints for the local archive, with the address in place of the path."""
    here, there = stfs(words[0], archive, *words[1:]), stfs(words[0], url, *words[1:])
    assert there == here.replace(str(archive).encode(), url.encode())


def test_each_reading_verb_takes_an_address(archive, url):
    same(archive, url, "ls")
    same(archive, url, "ls", "--json")
    same(archive, url, "info")
    same(archive, url, "cat", "embed")
    same(archive, url, "slice", "h.0.w[3:7, 10]")
    same(archive, url, "verify")
    assert b"equal" in stfs("diff", archive, url) or stfs("diff", archive, url) == stfs("diff", archive, archive)


@pytest.mark.parametrize("words", [("cat", "embed"), ("slice", "embed[100:2_900_000]".replace("_", "")), ("slice", "embed[100:2900000:2]")])
def test_a_read_that_fails_in_the_middle_is_a_failure(archive, url, server, words):
    server.fault_of = lambda path, first, last: 403 if last > BLOCK else None
    assert "status 403" in stfs(words[0], url, *words[1:], status=1)


def test_an_index_on_a_server_names_its_shards(tmp_path, server):
    names = {}
    for number, (name, array) in enumerate(arrays().items()):
        shard = f"model-{number + 1:05}-of-00004.safetensors"
        names[name] = shard
        server.add(f"/r/{shard}", safetensors.numpy.save({name: array}))
    address = server.add("/r/model.safetensors.index.json", json.dumps({"weight_map": names}).encode())
    assert stfs("cat", address, "h.0.w") == arrays()["h.0.w"].tobytes()
    assert len(json.loads(stfs("ls", "--json", address))["tensors"]) == 4


@pytest.mark.parametrize("shard", ["../secret.safetensors", "https://127.0.0.1:1/x.safetensors", "/etc/passwd"])
def test_an_index_names_no_file_elsewhere(server, shard):
    server.add("/secret.safetensors", safetensors.numpy.save({"a": np.zeros(3, "u1")}))
    address = server.add("/r/m.safetensors.index.json", json.dumps({"weight_map": {"a": shard}}).encode())
    stfs("ls", address, status=1)
    assert [path for path, _, _ in server.requests] == ["/r/m.safetensors.index.json"]


def test_a_mount_shows_the_tensors_and_changes_nothing(archive, url, mounts):
    mount = mounts(url)
    for name, array in arrays().items():
        assert (mount / name).read_bytes() == array.tobytes()
        assert mount.attribute(name, "shape").replace(" ", "") == str(list(array.shape)).replace(" ", "")
    whole = mount / ".safetensors" / "archive.safetensors"
    shown = safetensors.numpy.load(whole.read_bytes())
    assert all((shown[name] == array).all() for name, array in arrays().items())
    assert errno_of(open, mount / "embed", "r+b") == errno.EROFS
    assert errno_of(os.unlink, mount / "embed") == errno.EROFS
    assert errno_of(os.mkdir, mount / ".safetensors" / "transactions" / "t") in (errno.EROFS, errno.EPERM)
    assert sorted(os.listdir(mount.path)) == sorted(arrays())


def test_a_delta_keeps_the_changes_of_an_archive_on_a_server(archive, url, mounts, tmp_path):
    before = archive.read_bytes()
    options = f"delta={tmp_path / 'delta.safetensors'}"
    mount = mounts(url, options)
    (mount / "h.1.w").write_bytes(b"\1" * 102)
    os.rename(mount / "h.0.w", mount / "renamed")
    os.unlink(mount / "none")
    assert mount.unmount() == 0
    mount = mounts(url, options)
    assert sorted(os.listdir(mount.path)) == ["embed", "h.1.w", "renamed"]
    assert (mount / "h.1.w").read_bytes() == b"\1" * 102
    assert (mount / "renamed").read_bytes() == arrays()["h.0.w"].tobytes()
    assert archive.read_bytes() == before
    assert "watch for changes" not in mount.log()


def test_an_archive_on_a_server_has_nothing_to_recover(url):
    assert stfs("recover", url, status=1) == f"stfs recover: {url}: is on a web server, so no commit was left there\n"


def sparse_archive(sizes):
    """A Page of U8 tensors of zeros, except for the first bytes of each: its number."""
    header, at = {}, 0
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    marks = {len(head) + header[name]["data_offsets"][0]: number for number, name in enumerate(sizes)}

    def read(offset, size):
        data = bytearray(head[offset:offset + size].ljust(size, b"\0"))
        for place, number in marks.items():
            if offset <= place < offset + size:
                data[place - offset] = number
        return bytes(data)

    return Page(len(head) + at, read, '"sparse"')


@pytest.mark.parametrize("way", ["mount", "stfs"])
def test_one_tensor_of_a_large_model_costs_its_bytes_and_a_block(server, mounts, way):
    sizes = {f"t{number:03}": 64 << 20 for number in range(320)}  # 20 GiB
    server.pages["/big.safetensors"] = sparse_archive(sizes)
    address = f"{server.address}/big.safetensors"
    if way == "mount":
        data = (mounts(address) / "t007").read_bytes()
    else:
        data = stfs("cat", address, "t007")
    assert len(data) == 64 << 20 and data[0] == 7 and not any(data[1:1000])
    assert server.sent_bytes <= (64 << 20) + 4 * BLOCK
    if way == "stfs":
        assert len(server.requests) <= 12


def test_a_small_read_fetches_its_tensor_once(server, mounts):
    server.pages["/m.safetensors"] = sparse_archive({f"t{number}": 3 << 20 for number in range(100)})
    mount = mounts(f"{server.address}/m.safetensors")
    with open(mount / "t50", "rb", buffering=0) as file:
        assert os.pread(file.fileno(), 1, 0) == b"\x32"
        for at in range(0, 3 << 20, 40_000):
            os.pread(file.fileno(), 4096, at)
    assert eventually(lambda: server.sent_bytes > 3 << 20)
    assert server.sent_bytes <= (3 << 20) + 5 * BLOCK
    requests = len(server.requests)
    assert (mount / "t50").read_bytes().startswith(b"\x32")
    assert len(server.requests) == requests


FAULTS = {"a server error": [500], "unavailable": [503, 503], "too many requests": [429], "a timeout": [408],
          "a cut": [("cut", 100_000), ("cut", 1), ("cut", 0)], "a reset": [("reset", 5000), ("reset", 0)]}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("when", ["at the header", "at the data"])
def test_a_failure_that_passes_is_tried_again(server, url, fault, when):
    server.fault_headers = {"Retry-After": "0"}
    server.faults = ([] if when == "at the header" else [None]) + FAULTS[fault]
    assert stfs("cat", url, "embed") == arrays()["embed"].tobytes()
    assert not server.faults


def test_bytes_that_have_come_are_not_asked_for_again(server, url):
    server.faults = [None, ("cut", 1_000_000)]
    assert stfs("cat", url, "embed") == arrays()["embed"].tobytes()
    whole = server.pages["/dir/m.safetensors"].size
    assert server.sent_bytes <= whole + BLOCK


REFUSALS = {
    "whole": "the server gives no ranges, only the whole file",
    "no range": "the server does not say which bytes it sends",
    "compressed": "the server compresses the file, so it has no ranges",
    404: "the server answers with status 404: it has no such file",
    403: "the server answers with status 403: it refuses the file",
    401: "the server answers with status 401: it refuses the file",
    400: "the server answers with status 400",
    "more": "the server sends more than it was asked for",
    "headers": "the server sends more than it was asked for",
}


@pytest.mark.parametrize("fault", REFUSALS)
def test_a_server_that_does_not_serve_is_refused_at_once(server, fault):
    server.pages["/big.safetensors"] = sparse_archive({f"t{number}": 64 << 20 for number in range(16)})
    address = f"{server.address}/big.safetensors"
    server.fault_of = lambda *_: fault
    assert stfs("ls", address, status=1) == f"stfs ls: {address}: {REFUSALS[fault]}\n"
    assert server.sent_bytes < 64 << 20
    assert len(server.requests) == 1


def test_a_file_of_any_size_that_a_server_claims_takes_no_memory(server):
    server.pages["/huge.safetensors"] = Page(1 << 55, lambda offset, size: bytes(size), '"1"')
    address = f"{server.address}/huge.safetensors"
    assert stfs("ls", address, status=1) == (f"stfs ls: {address}: the server says that the file has {1 << 55} bytes, "
                                             f"at most {32 << 40} are possible\n")  # fmt: skip


def test_a_range_that_was_not_asked_for_is_never_taken(server, url):
    server.faults = [None]
    server.fault_of = lambda path, first, last: ("flip", 1)
    assert "sends bytes" in stfs("cat", url, "h.0.w", status=1)


def test_a_small_file_is_taken_whole_from_a_server_without_ranges(server):
    address = server.add("/s.safetensors", safetensors.numpy.save({"a": np.arange(10, dtype="u1")}))
    server.fault_of = lambda *_: "whole"
    assert stfs("cat", address, "a") == bytes(range(10))


@pytest.mark.parametrize("change", ["another ETag", "another size", "removed"])
def test_a_changed_file_gives_estale_and_never_bytes_of_two_versions(server, url, archive, mounts, change):
    mount = mounts(url)
    old = arrays()["h.0.w"].tobytes()
    assert (mount / "h.1.w").read_bytes() == arrays()["h.1.w"].tobytes()
    new = archive.read_bytes().replace(arrays()["embed"].tobytes(), arrays(2)["embed"].tobytes())
    if change == "another ETag":
        server.add("/dir/m.safetensors", new, '"2"')
    elif change == "another size":
        server.add("/dir/m.safetensors", new + b"more")
    else:
        del server.pages["/dir/m.safetensors"]
    assert errno_of((mount / "embed").read_bytes) == errno.ESTALE
    why = {"another ETag": 'its version was "1", now "2"', "another size": "bytes, now ", "removed": "has been removed"}[change]
    assert eventually(lambda: why in mount.log())
    assert (mount / "h.1.w").read_bytes() == arrays()["h.1.w"].tobytes()  # fetched before
    assert errno_of((mount / "h.0.w").read_bytes) in (0, errno.ESTALE)
    assert errno_of((mount / "h.0.w").read_bytes) or (mount / "h.0.w").read_bytes() == old


def test_without_a_server_the_reason_comes_at_once(url, server, mounts, tmp_path):
    server.close()
    begin = time.monotonic()
    assert f"stfs ls: {url}: " in stfs("ls", url, status=1)
    with pytest.raises(MountFailed) as failed:
        mounts(url)
    assert url in failed.value.log
    assert time.monotonic() - begin < 60


def test_a_lost_server_gives_enetunreach_and_what_came_stays(server, url, mounts):
    mount = mounts(url)
    assert (mount / "h.1.w").read_bytes() == arrays()["h.1.w"].tobytes()
    server.close()
    assert errno_of((mount / "embed").read_bytes) == errno.ENETUNREACH
    assert (mount / "h.1.w").read_bytes() == arrays()["h.1.w"].tobytes()


def test_an_address_of_another_scheme_is_refused(mounts):
    why = "gs://bucket/key: gs:// is not read: name an address that begins with https://, http://, hf:// or s3://"
    assert stfs("ls", "gs://bucket/key", status=1) == f"stfs ls: {why}\n"
    with pytest.raises(MountFailed) as failed:
        mounts("gs://bucket/key")
    assert why in failed.value.log


def test_an_address_is_no_place_to_write(url, tmp_path):
    zeros = tmp_path / "z.npy"
    np.save(zeros, np.zeros(3, "u1"))
    assert "is on a web server, so it can only be read" in stfs("put", url, "embed", zeros, status=1)
    assert "is on a web server, so it can only be read" in stfs("rm", url, "embed", status=1)


def test_an_address_with_a_password_is_refused_and_not_repeated(url, mounts):
    refused = stfs("ls", url.replace("http://", "http://me:secret@"), status=1)
    assert refused == f"stfs ls: {url}: an address with a password is refused\n"
    with pytest.raises(MountFailed) as failed:
        mounts(url.replace("http://", "http://me:secret@"))
    assert "is refused" in failed.value.log and "secret" not in failed.value.log


def test_the_query_of_an_address_is_sent_and_not_shown(server, url, mounts, tmp_path):
    """It may be a signature."""
    signed = f"{url}?signature=secret"
    mount = mounts(signed, f"delta={tmp_path / 'delta.safetensors'}")
    assert (mount / "embed").read_bytes() == arrays()["embed"].tobytes()
    assert all(path.endswith("?signature=secret") for path, _, _ in server.requests)
    shown = [mount.entry(), mount.log(), mount.attribute(None, "archive"), stfs("mounts").decode()]
    shown += [os.getxattr(tmp_path / "delta.safetensors", name).decode()
              for name in os.listxattr(tmp_path / "delta.safetensors") if name.startswith("user.")]
    assert not any("secret" in str(text) for text in shown), shown
    assert stfs("cat", signed, "h.1.w") == arrays()["h.1.w"].tobytes()


def test_a_header_is_of_one_version(server, archive, url):
    """The file is replaced while its first bytes come."""
    new = archive.read_bytes().replace(arrays()["embed"].tobytes(), arrays(2)["embed"].tobytes())

    def fault_of(*_):
        if len(server.requests) > 1:
            server.add("/dir/m.safetensors", new, '"2"')
        return ("cut", 1000) if len(server.requests) == 1 else None

    server.fault_of = fault_of
    assert "the file on the server has changed" in stfs("ls", url, status=1)


def test_a_strong_etag_decides_whatever_the_time_is(server, url):
    server.times = iter(f"Tue, 01 Dec 2026 05:0{number % 10}:00 GMT" for number in range(1000))
    assert stfs("cat", url, "embed") == arrays()["embed"].tobytes()


def test_a_redirect_is_followed_once_and_asked_for_again_when_it_expires(server, url):
    server.redirects["/moved.safetensors"] = "/dir/m.safetensors?signed=1"
    address = f"{server.address}/moved.safetensors"
    expired = iter([None, 403])

    def fault_of(path, first, last):
        return next(expired, None) if path == "/dir/m.safetensors" else None

    server.fault_of = fault_of
    assert stfs("cat", address, "embed") == arrays()["embed"].tobytes()
    paths = [path for path, _, _ in server.requests]
    assert paths[:2] == ["/moved.safetensors", "/dir/m.safetensors?signed=1"]
    assert 2 <= paths.count("/moved.safetensors") <= 4


def test_redirects_without_an_end_are_refused(server):
    server.redirects["/a.safetensors"] = "/b.safetensors"
    server.redirects["/b.safetensors"] = "/a.safetensors"
    assert "redirects more than 5 times" in stfs("ls", f"{server.address}/a.safetensors", status=1)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_https_is_checked_and_never_left_for_http(server, url, archive, tmp_path):
    with served(make_certificate(tmp_path)) as safe:
        address = safe.add("/m.safetensors", archive.read_bytes())
        safe.redirects["/moved.safetensors"] = url
        trusted = {**os.environ, "CURL_CA_BUNDLE": str(tmp_path / "certificate.pem")}
        assert stfs("cat", address, "embed", env=trusted) == arrays()["embed"].tobytes()
        assert "certificate" in stfs("ls", address, status=1)  # at once
        refused = stfs("ls", f"{safe.address}/moved.safetensors", status=1, env=trusted)
        assert "redirects from https to http, which is refused" in refused
    assert not server.requests


@pytest.mark.parametrize("end", ["the reader is killed", "the mount ends"])
def test_a_stalled_server_holds_nobody(server, url, mounts, end):
    mount = mounts(url)
    server.fault_of = lambda *_: ("stall", 1000)
    reader = start_python("import sys; print('ready'); open(sys.argv[1], 'rb').read()", mount / "embed")
    wait_ready(reader)
    assert eventually(lambda: len(server.requests) > 1)
    if end == "the reader is killed":
        reader.send_signal(signal.SIGKILL)
        reader.wait(30)
        server.fault_of = lambda *_: None
        server.resume.set()
        assert (mount / "embed").read_bytes() == arrays()["embed"].tobytes()
    else:
        mount.process.send_signal(signal.SIGTERM)
        assert mount.wait(60) == 0
        reader.kill()
    reader.communicate()


def test_a_command_that_waits_for_a_server_ends_by_a_signal(server, url, tmp_path):
    server.faults = [None]
    server.fault_of = lambda *_: ("stall", 0)
    command = subprocess.Popen([STFS, "repack", url, tmp_path / "out.safetensors"], stderr=subprocess.PIPE)
    assert eventually(lambda: len(server.requests) > 1)
    command.send_signal(signal.SIGINT)
    assert command.wait(30) == -signal.SIGINT
    assert sorted(os.listdir(tmp_path)) == ["cache", "m.safetensors"]


def test_many_readers_get_the_same_bytes_and_share_the_requests(server, url, mounts):
    mount = mounts(url)
    code = "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())"
    readers = [subprocess.Popen(["python3", "-c", code, mount / "embed"], stdout=subprocess.PIPE) for _ in range(8)]
    assert all(reader.communicate()[0] == arrays()["embed"].tobytes() for reader in readers)
    assert server.sent_bytes <= server.pages["/dir/m.safetensors"].size + BLOCK


def test_no_byte_is_wrong_whatever_fails(server, url, mounts):
    """Half of all requests fail in some way. A read gives the right bytes or an error."""
    chance = random.Random(int(os.environ.get("STFS_DAY", "0")))
    wrong = [500, 503, 429, ("cut", 10), ("cut", 70_000), ("reset", 3000), ("reset", 0), 408, 502]
    server.fault_headers = {"Retry-After": "0"}
    server.fault_of = lambda *_: chance.choice(wrong) if chance.random() < 0.5 else None
    mount = mounts(url)
    for _ in range(3):
        for name, array in arrays().items():
            assert (mount / name).read_bytes() == array.tobytes()
