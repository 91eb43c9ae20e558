# The disk fails under what a tool or a Python program reads or changes: exit status 1 with the path, OSError in Python,
# the target as it was. A change that is committed already says so, and is finished when the disk is whole again.
import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import archive_file
import lease_client
import mounted
import pytest
from cut_archive import TENSOR_BYTES, CutArchive
from failing_disk import NEEDS_LOOP_DISKS, ROUNDS, disk, disk_for_writers  # noqa: F401
from lease_client import STFS
from test_cut_under_tools import PYTHON

pytestmark = [NEEDS_LOOP_DISKS, pytest.mark.sequential]
LIMIT = 60 * mounted.PATIENCE


def data_of(path):
    with open(path, "rb") as file:
        return file.read()[-3 * TENSOR_BYTES:]


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=LIMIT)


# ---- reads fail ----

@pytest.mark.parametrize("verb", ["put", "put --raw", "apply"])
def test_a_change_from_a_failing_disk_is_whole_or_none(disk, tmp_path, verb):  # noqa: F811
    target = CutArchive(tmp_path / "target.safetensors")
    old = bytes(reversed(target.content[target.data_at:]))
    new = target.content[target.data_at:]
    command = [STFS, "apply", target.path, disk.path]
    if verb != "apply":
        new = old[:TENSOR_BYTES] + new[TENSOR_BYTES:2 * TENSOR_BYTES] + old[2 * TENSOR_BYTES:]
        command = [STFS, "put", target.path, "b", disk.path]
    if verb == "put --raw":
        new = Path(disk.path).read_bytes()
        old = b"\1" * len(new)
        archive_file.write_bytes_tensors(target.path, {"whole": old})
        command = [STFS, "put", "--raw", target.path, "whole", disk.path]
    head = Path(target.path).read_bytes()[:-len(old)]
    codes = []
    for _ in range(ROUNDS):
        Path(target.path).write_bytes(head + old)
        disk.cut()
        done = run(*command, "--durability", "process")
        disk.restore()
        codes.append(done.returncode)
        if done.returncode == 0:
            assert Path(target.path).read_bytes() == head + new
            continue
        assert done.returncode == 1 and disk.path in done.stderr and "Input/output error" in done.stderr, done
        assert Path(target.path).read_bytes() == head + old
        assert not list(tmp_path.glob(".*.stj.*"))
    assert set(codes) == {0, 1}, codes


def test_a_repack_of_a_failing_disk_is_whole_or_none(disk, tmp_path):  # noqa: F811
    out = tmp_path / "out.safetensors"
    codes = []
    for _ in range(ROUNDS):
        disk.cut()
        done = run(STFS, "repack", disk.path, out)
        disk.restore()
        codes.append(done.returncode)
        if done.returncode == 0:
            assert data_of(out) == data_of(disk.path)
            out.unlink()
            continue
        assert done.returncode == 1 and disk.path in done.stderr and "Input/output error" in done.stderr, done
        assert not out.exists() and not list(tmp_path.glob(".stfs-*"))
    assert set(codes) == {0, 1}, codes


def test_a_diff_of_a_failing_disk_is_right_or_says_why_not(disk, tmp_path):  # noqa: F811
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(Path(disk.path).read_bytes())
    codes = []
    for _ in range(ROUNDS):
        disk.cut()
        done = run(STFS, "diff", copy, disk.path)
        disk.restore()
        codes.append(done.returncode)
        if done.returncode == 0:
            assert done.stdout.endswith(": equal\n") and not done.stderr, done
            continue
        assert done.returncode == 1 and disk.path in done.stderr and "Input/output error" in done.stderr, done
        # The tool does not report a difference in bytes that it could not read.
        assert not done.stdout or done.stdout.endswith(" unreadable\n"), done
    assert set(codes) == {0, 1}, codes


def test_serve_from_a_failing_disk_serves_what_is_right_or_says_why_not(disk):  # noqa: F811
    codes = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory(prefix="stfs-failing-") as directory:
            path = Path(directory) / "s"
            disk.cut()
            server = lease_client.Server(path, disk.path)
            try:
                event = server.event()
                if event is not None:
                    assert event["event"] == "serving", event
                    lease = lease_client.Lease(path)
                    for name, data in disk.contents.items():
                        assert lease[name] == data, name
                    lease.close()
                else:
                    server.wait()
                    assert server.process.returncode == 1 and disk.path in server.errors, server.errors
                codes.append(event is None)
            finally:
                wrong = server.finish()
                disk.restore()
            assert wrong is None, wrong
    assert set(codes) == {False, True}, codes


def test_serve_whose_disk_fails_under_a_newer_state_keeps_the_old_one_and_says_why(disk_for_writers, tmp_path):  # noqa: F811
    new = bytes(reversed(disk_for_writers.contents["b"]))
    (tmp_path / "new").write_bytes(new)
    with tempfile.TemporaryDirectory(prefix="stfs-failing-") as directory, disk_for_writers.use() as (path, fail):
        server = lease_client.Server(Path(directory) / "s", path)
        try:
            lease = lease_client.Lease(server.ready().path)
            os.kill(server.pid, signal.SIGSTOP)
            assert run(STFS, "put", path, "b", tmp_path / "new").returncode == 0
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            fail(disk_for_writers.archive_at & -4096)
            os.kill(server.pid, signal.SIGCONT)
            kind, why = lease.wait_news()
            assert kind == lease_client.STUCK and path in why and "Input/output error" in why, (kind, why)
            again = lease_client.Lease(server.path)
            for name, data in disk_for_writers.contents.items():
                assert lease[name] == again[name] == data, name
            lease.close()
            again.close()
        finally:
            wrong = server.finish()
        assert wrong is None, wrong
        # SIGTERM ended a server that was still retrying.
        assert server.process.returncode in (0, -signal.SIGTERM), server.errors


READ_ONCE = """
import errno, os, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import stfs

def read_into(tensor):
    buffer = bytearray(tensor.nbytes)
    assert tensor.read_into(buffer) == len(buffer)
    return bytes(buffer)

path, read = sys.argv[2], eval(sys.argv[3])
try:
    model = stfs.open(path)
    sys.stdout.buffer.write(read(model, model["b"]))
except OSError as error:
    assert error.errno == errno.EIO and path in str(error), error
    print(error, file=sys.stderr)
    sys.exit(3)
"""
PYTHON_READERS = {
    "tobytes": "lambda model, tensor: tensor.tobytes()",
    "copy": "lambda model, tensor: bytes(memoryview(tensor.copy()).cast('B'))",
    "read_into": "lambda model, tensor: read_into(tensor)",
    "slice": "lambda model, tensor: tensor[:, ::3].tobytes()",
    "upload": "lambda model, tensor: model.upload(['b'], device='cpu')['b'].tobytes()",
    "upload, verified": "lambda model, tensor: model.upload(['b'], device='cpu', verify=True)['b'].tobytes()",
}


@pytest.mark.skipif(not list((PYTHON / "stfs").glob("_stfs.*so")), reason="the module stfs is not built")
@pytest.mark.skipif(mounted.is_sanitized(), reason="a module with a sanitizer can't be loaded into a Python without")
@pytest.mark.parametrize("reader", PYTHON_READERS)
def test_what_python_reads_of_a_failing_disk_is_right_or_oserror(disk, reader):  # noqa: F811
    command = [sys.executable, "-c", READ_ONCE, str(PYTHON), disk.path, PYTHON_READERS[reader]]
    due = subprocess.run(command, check=True, capture_output=True).stdout
    assert len(due) >= TENSOR_BYTES // 3
    codes = []
    for _ in range(ROUNDS):
        disk.cut()
        done = subprocess.run(command, capture_output=True, timeout=LIMIT)
        disk.restore()
        codes.append(done.returncode)
        assert done.returncode in (0, 3), done.stderr
        assert done.returncode == 3 or done.stdout == due
    assert set(codes) == {0, 3}, codes


# ---- writes fail ----

@pytest.fixture(params=["put", "apply"])
def change(request, disk_for_writers, tmp_path):  # noqa: F811
    """(command with None for the target's path, the target's data before it, and after it)"""
    old = b"".join(disk_for_writers.contents.values())
    tensor = bytes(reversed(disk_for_writers.contents["b"]))
    source = archive_file.write_raw(tmp_path / "source.safetensors",
                                    [("b", "BF16", (1024, TENSOR_BYTES // 2048), tensor)])
    command = [STFS, "apply", None, source] if request.param == "apply" else [STFS, "put", None, "b", source]
    return command, old, old[:TENSOR_BYTES] + tensor + old[2 * TENSOR_BYTES:]


def run_on(command, path):
    return run(*[path if word is None else word for word in command])


def test_a_change_on_a_failing_disk_is_refused_and_the_target_as_it_was(disk_for_writers, change):  # noqa: F811
    command, old, _ = change
    for _ in range(ROUNDS):
        with disk_for_writers.use() as (path, fail):
            fail()
            done = run_on(command, path)
        assert done.returncode == 1 and str(Path(path).parent) in done.stderr, done
        assert "Input/output error" in done.stderr and "is committed" not in done.stderr, done
        with disk_for_writers.repaired() as path:
            assert data_of(path) == old
            assert not list(Path(path).parent.glob(".*.stj.*"))


def test_a_change_whose_archive_fails_behind_the_commit_point_says_that_it_is_committed(disk_for_writers,  # noqa: F811
                                                                                        change):
    command, old, new = change
    with disk_for_writers.use() as (path, fail):
        data_of(path)  # the page cache has it, so that only writing fails
        fail(disk_for_writers.archive_at & -4096)
        done = run_on(command, path)
        (journal,) = Path(path).parent.glob(".*.stj.*")
        assert done.returncode == 1 and "sync: Input/output error" in done.stderr, done
        assert f"the change is committed in {journal}" in done.stderr, done
        assert f"`stfs recover {path}`" in done.stderr, done
        again = run(STFS, "recover", path)
        assert again.returncode == 1 and path in again.stderr, again
        assert journal.exists()
    with disk_for_writers.repaired() as path:
        assert data_of(path) == old
        done = run(STFS, "recover", path)
        assert done.returncode == 0, done
        assert data_of(path) == new
        assert not list(Path(path).parent.glob(".*.stj.*"))


def test_a_close_whose_archive_fails_behind_the_commit_point_is_eio_and_the_log_says_so(disk_for_writers,  # noqa: F811
                                                                                        mounts):
    new = bytes(reversed(disk_for_writers.contents["b"]))
    with disk_for_writers.use() as (path, fail):
        mount = mounts(path)
        data_of(path)
        fail(disk_for_writers.archive_at & -4096)
        with pytest.raises(OSError) as caught:
            with open(mount / "b", "r+b", buffering=0) as file:
                file.write(new)
                os.fsync(file.fileno())
        assert caught.value.errno == errno.EIO
        (journal,) = Path(path).parent.glob(".*.stj.*")
        assert f"the change is committed in {journal}" in mount.log()
        assert "not finished" in mount.log() and "not committed" not in mount.log()
        assert (mount / "b").read_bytes() == new  # out of the journal
        assert mount.unmount() == 0
    with disk_for_writers.repaired() as path:
        assert run(STFS, "recover", path).returncode == 0
        assert data_of(path)[TENSOR_BYTES:2 * TENSOR_BYTES] == new
