# `stfs serve` and its clients as processes: leases, permissions of clients, and the death of either side.
# tests/tools/serve/serve_socket_test.cc tests other listeners at a socket, and lease_peers_test.cc tests hostile peers.
import errno
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import lease_client
import mounted
import pytest
from lease_client import NEWER, STFS, Gone, Lease, query
from mounted import eventually
from served_archive import TENSORS, change_b, directory, path, serve, source, stfs  # noqa: F401
from written_tensor import T

PYTHON = mounted.BUILD / "python"
ATTACH = "import sys; sys.path.insert(0, sys.argv[1]); import stfs; stfs.attach(sys.argv[2])"


def test_clients_map_the_archives_bytes(serve, source, path):
    server = serve(source)
    event = server.event()
    assert (event["event"], event["generation"], event["tensors"]) == ("serving", 1, 3)
    assert event["pid"] == server.pid
    leases = [Lease(path) for _ in range(3)]
    for lease in leases:
        assert lease.manifest["sources"] == [str(source)]
        assert [arena["device"] for arena in lease.manifest["arenas"]] == ["cpu"]
        for name, array in TENSORS.items():
            assert lease[name] == array.tobytes()
            assert lease.tensors[name]["shape"] == list(array.shape)
            assert lease.tensors[name]["offset"] % 256 == 0
    # The same memory, not three copies.
    assert len({os.fstat(lease.descriptors[0]).st_ino for lease in leases}) == 1
    report = query(path)
    assert [lease["pid"] for lease in report["leases"]] == [os.getpid()] * 3
    assert report["generations"][0]["leases"] == 3
    leases.pop().close()
    assert eventually(lambda: len(query(path)["leases"]) == 2)


def test_what_is_said_to_people(source, path):
    process = subprocess.Popen([STFS, "serve", source, "--device", "cpu", "--socket", path], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    line = process.stdout.readline()
    assert line.startswith(f"serving 3 tensors, ") and f" on {path}: generation 1, uploaded in " in line
    lease = Lease(path)
    status = stfs("serve", "--status", path).stdout
    assert f"process     {process.pid}, for 0 s\n" in status
    assert f"source      {source}\n" in status
    assert "generation  1: 3 tensors, " in status and " on cpu, 1 lease\n" in status
    assert f"lease  {os.getpid()}  " in status
    assert json.loads(stfs("serve", "--status", path, "--json").stdout)["leases"][0]["generation"] == 1
    lease.close()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[1] == ""
    assert "no server uses this socket: start `stfs serve" in stfs("serve", "--status", path, wanted=1).stderr


def status_of_another(path, report, descriptors=()):
    """What `stfs serve --status` says of a server that answers with this report and these descriptors."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        asking = subprocess.Popen([STFS, "serve", "--status", path, "--json"], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE)  # fmt: skip
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(100) == lease_client.packet(lease_client.QUERY)
            header = lease_client.HEADER.pack(lease_client.MAGIC, lease_client.VERSION, lease_client.REPORT, 0, len(report),
                                              len(descriptors), 0, len(report), 0)  # fmt: skip
            socket.send_fds(connection, [header + report], descriptors)
            said, errors = asking.communicate(timeout=60)
    return asking.returncode, said, errors


@pytest.mark.parametrize("report, shown", [(b'{"a": "\x1b[2J\xc2\x9b"}', r'{"a":"\u001b[2J\u009b"}'), (b"\x1b[2J", None)])
def test_another_users_report_is_written_anew(path, report, shown):
    report = report.replace(b"\x1b", b"\\u001b") if shown else report
    code, said, errors = status_of_another(path, report)
    if shown:
        assert (said, errors, code) == (shown + "\n", "", 0)
    else:
        assert (said, code) == ("", 1) and errors.endswith(f"{path}: the report is no JSON\n")


def test_a_file_of_a_stopped_mount_that_comes_with_a_report_holds_nobody(path, mount):
    # A process that closes such a file waits for the mount, and no signal ends the wait.
    with open(mount / T, "rb") as file:
        os.kill(mount.pid, signal.SIGSTOP)
        try:
            code, said, errors = status_of_another(path, b"{}", [file.fileno()])
        finally:
            os.kill(mount.pid, signal.SIGCONT)
    assert (code, said) == (1, "") and "descriptors are missing or too many" in errors


def test_select_dtype_and_rules(serve, source, path, directory):
    serve(source, "--select", "[w]*", "--select", "b", "--dtype", "F16", "--verify").ready()
    lease = Lease(path)
    assert set(lease.tensors) == {"w", "b"}
    assert lease.tensors["w"]["dtype"] == "F16"
    assert lease["w"] == TENSORS["w"].astype("f2").tobytes()
    assert lease["b"] == TENSORS["b"].tobytes()
    lease.close()

    rules = directory / "rules"
    rules.write_text("w cpu shard(0,1/2)\n")
    other = directory / "t"
    process = subprocess.Popen([STFS, "serve", source, "--device", f"@{rules}", "--socket", other],
                               stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        lease = Lease(other)
        assert set(lease.tensors) == {"w"}
        assert lease["w"] == TENSORS["w"][:1500].tobytes()
        lease.close()
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_nothing_is_left(serve, source, path, directory, number):
    server = serve(source).ready()
    assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
    lease = Lease(path)
    assert server.end(number) == -number
    assert sorted(os.listdir(directory)) == ["m.safetensors"]
    assert lease["w"] == TENSORS["w"].tobytes()
    with pytest.raises(Gone):
        lease.wait_news()
    assert server.errors == ""


def test_clients_outlive_a_killed_server_and_its_socket_is_taken_over(serve, source, path, directory):
    server = serve(source).ready()
    lease = Lease(path)
    server.kill()
    with pytest.raises(Gone):
        lease.wait_news()
    assert lease["w"] == TENSORS["w"].tobytes()
    assert os.path.exists(path)
    error = stfs("serve", "--status", path, wanted=1).stderr
    assert "the server of this socket has died: start `stfs serve` again" in error
    serve(source).ready()
    newer = Lease(path)
    assert newer["w"] == lease["w"]
    assert newer.generation == 1


@pytest.mark.needs_root
def test_other_users_are_refused(serve, source, path, directory, nobody):
    program = nobody.directory / "stfs"
    shutil.copy2(STFS, program)
    os.chmod(directory, 0o755)
    serve(source).ready()
    ask = [program, "serve", "--status", path]
    refused = subprocess.run([*nobody.before, *ask], capture_output=True, text=True)
    assert refused.returncode == 1 and "the server belongs to another user" in refused.stderr
    # If the socket's mode admits all users, the server still checks its peers, and the client checks the server.
    os.chmod(path, 0o666)
    code = ("import sys; sys.path.insert(0, sys.argv[1]); import lease_client\n"
            "try: lease_client.Lease(sys.argv[2])\n"
            "except lease_client.Refused as refused: print(refused.errno, refused)\n")
    readable = nobody.directory / "python"
    readable.mkdir()
    for name in ("lease_client.py", "mounted.py", "mount_namespace.py"):
        shutil.copy2(Path(__file__).parent / name, readable)
        os.chmod(readable / name, 0o644)
    os.chmod(readable, 0o755)
    refused = subprocess.run([*nobody.before, "/usr/bin/python3", "-B", "-c", code, readable, path],
                             capture_output=True, text=True)
    assert refused.stdout == f"{errno.EPERM} {path}: serves another user\n", refused.stderr
    # In a user namespace that lacks both users, both have one number.
    in_namespace = subprocess.run([*nobody.before, "unshare", "-U", *ask], capture_output=True, text=True)
    assert in_namespace.returncode == 1 and "is served by another user (uid 65534)" in in_namespace.stderr
    assert query(path)["leases"] == []


@pytest.mark.needs_root
@pytest.mark.skipif(not list((PYTHON / "stfs").glob("_stfs.*so")), reason="the module stfs is not built")
@pytest.mark.skipif(mounted.is_sanitized(), reason="a module with a sanitizer can't be loaded into a Python without")
def test_root_attaches_to_no_server_that_another_user_has_put_in_a_common_directory(source, directory, nobody):
    program = shutil.copy2(STFS, nobody.directory / "stfs")
    os.chmod(directory, 0o1777)
    for there, due in ((directory, f"is served by another user (uid {nobody.uid}), in a directory"), (nobody.directory, None)):
        model = nobody.own(shutil.copy2(source, nobody.directory / "model.safetensors"))
        path = there / "planted"
        server = subprocess.Popen([*nobody.before, program, "serve", model, "--device", "cpu", "--socket", path, "--json"],
                                  stdout=subprocess.PIPE)
        try:
            assert b"serving" in server.stdout.readline()
            attached = subprocess.run([sys.executable, "-c", ATTACH, PYTHON, path], capture_output=True, text=True)
            assert (attached.returncode == 0) == (due is None), attached.stderr
            assert due is None or due in attached.stderr
            assert query(path)["leases"] == []  # for its status, root asks everybody
        finally:
            server.terminate()
            server.communicate()


@pytest.mark.needs_root
def test_a_planted_lock_is_called_by_its_owner(source, directory, nobody):
    os.chmod(directory, 0o1777)
    path = directory / "s"
    planted = directory / "s.lock"
    planted.touch()
    nobody.own(planted)
    for who in (["sh", "-c", 'exec flock "$0" "$@"', planted], []):
        refused = subprocess.run([*who, STFS, "serve", source, "--device", "cpu", "--socket", path],
                                 capture_output=True, text=True)
        assert refused.returncode == 1
        assert f"{planted}: belongs to another user (uid {nobody.uid})" in refused.stderr
    assert planted.exists()


@pytest.mark.needs_root
def test_root_may_attach_to_a_users_server(serve, source, nobody):
    program = nobody.directory / "stfs"
    shutil.copy2(STFS, program)
    shutil.copy2(source, nobody.directory / "m.safetensors")
    os.chmod(nobody.directory / "m.safetensors", 0o644)
    at = nobody.directory / "s"
    serve(nobody.directory / "m.safetensors", at=at, before=nobody.before, program=program).ready()
    assert os.lstat(at).st_uid == nobody.uid
    assert query(at)["leases"] == []
    lease = Lease(at)
    assert f"uid {os.geteuid()}" in stfs("serve", "--status", at).stdout
    assert lease["b"] == TENSORS["b"].tobytes()
    assert query(at)["leases"][0]["uid"] == 0


def test_a_start_can_be_cancelled(serve, directory, path):
    source = directory / "m.safetensors"
    # The source can't be read faster than this; a client that waits is told that nothing comes.
    size = 8 << 30
    header = json.dumps({"t": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with open(source, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    server = serve(source)

    def connect():
        try:
            return lease_client.Connection(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return None  # a socket gets its name before its server listens

    waiting = eventually(connect)
    assert waiting, server.errors
    waiting.socket.send(lease_client.packet(lease_client.ATTACH))
    time.sleep(0.3)
    if server.process.poll() is not None:
        assert eventually(lambda: "are needed and " in server.errors), server.errors
        pytest.skip("no room for 8 GiB here")
    assert query(path)["generation"] == 0
    began = time.monotonic()
    assert server.end(signal.SIGINT) == -signal.SIGINT
    assert time.monotonic() - began < 10 * mounted.PATIENCE
    with pytest.raises(Gone):
        waiting.receive()
    assert os.listdir(directory) == ["m.safetensors"]


def test_a_start_that_fails_says_why_and_leaves_nothing(serve, directory, path):
    server = serve(directory / "none.safetensors")
    assert server.wait() == 1
    assert server.errors.count("\n") == 1 and "none.safetensors" in server.errors
    assert os.listdir(directory) == []
    for arguments, what in ((["--device", "cpu"], "--socket is required"),
                            (["--socket", path], "--device is required")):
        assert what in stfs("serve", directory, *arguments, wanted=2).stderr
    assert "SOURCE is required" in stfs("serve", "--device", "cpu", "--socket", path, wanted=2).stderr
    assert "--status takes no SOURCE" in stfs("serve", directory, "--status", path, wanted=2).stderr


def test_a_reader_of_its_output_that_goes_is_no_reason_to_end(source, path, directory):
    process = subprocess.Popen([STFS, "serve", source, "--device", "cpu", "--socket", path],
                               stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        process.stdout.close()
        lease = Lease(path)
        change_b(source, directory)
        assert lease.wait_news() == (NEWER, 2)
        assert Lease(path)["b"] == b"changed"
    finally:
        process.terminate()
        assert process.wait(30) != -signal.SIGPIPE


def test_an_output_that_is_full_is_said_once_and_is_no_reason_to_end(source, path, directory):
    with open("/dev/full", "w") as full:
        process = subprocess.Popen([STFS, "serve", source, "--device", "cpu", "--socket", path, "--json"],
                                   stdout=full, stderr=subprocess.PIPE, text=True)
    try:
        assert "standard output cannot be written" in process.stderr.readline()
        lease = Lease(path)
        change_b(source, directory)
        assert lease.wait_news() == (NEWER, 2)
    finally:
        process.terminate()
        assert process.wait(30) == -signal.SIGTERM
        assert process.stderr.read() == ""
