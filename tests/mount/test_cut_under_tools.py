# An archive is cut short while a verb of stfs or a program in Python reads it: the right bytes or a failure that
# says so, no zeros, no signal.
import json
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import lease_client
import mounted
import numpy as np
import pytest
from cut_archive import (ROUNDS, TENSOR_BYTES, CutArchive, cut_archive,  # noqa: F401
                         is_same, run_verb)
from lease_client import STFS

pytestmark = pytest.mark.sequential


def test_cat_of_an_archive_that_is_cut(cut_archive):
    run_verb(cut_archive, [STFS, "cat", cut_archive.path, "a", "b", "c"],
             is_same(b"".join(cut_archive.contents.values())))


@pytest.mark.parametrize("selected", ["b[:, ::3]", "b[::2]", "b[100:900]"])
def test_slice_of_an_archive_that_is_cut(cut_archive, selected):
    array = np.frombuffer(cut_archive.contents["b"], "<u2").reshape(1024, -1)
    due = eval("array" + selected[1:], {"array": array}).tobytes()
    run_verb(cut_archive, [STFS, "slice", cut_archive.path, selected], is_same(due))


def sums_of(out):
    return {tensor["name"]: tensor["checksum"] for tensor in json.loads(out)["tensors"]}


def verified(path):
    return subprocess.run([STFS, "verify", "--json", path], check=True, capture_output=True).stdout


def test_verify_of_an_archive_that_is_cut(cut_archive):
    due = sums_of(verified(cut_archive.path))

    def judge(out):
        assert sums_of(out) == due

    run_verb(cut_archive, [STFS, "verify", "--json", cut_archive.path], judge)


def test_diff_of_an_archive_that_is_cut(cut_archive, tmp_path):
    """Zeros in place of missing bytes would be a difference."""
    whole = tmp_path / "whole.safetensors"
    whole.write_bytes(cut_archive.content)
    for models in ([cut_archive.path, whole], [whole, cut_archive.path]):
        run_verb(cut_archive, [STFS, "diff", *models], is_same(b"compared 3 tensors, 12.0 MiB: equal\n"))


def test_repack_of_an_archive_that_is_cut(cut_archive, tmp_path):
    """All tensors are written, or none."""
    due = sums_of(verified(cut_archive.path))
    out = tmp_path / "out.safetensors"

    def judge(_):
        assert sums_of(verified(out)) == due
        out.unlink()

    run_verb(cut_archive, [STFS, "repack", cut_archive.path, out], judge)
    assert [path.name for path in tmp_path.iterdir()] == ["cut.safetensors"]


@pytest.mark.parametrize("verb", [["ls"], ["info"]])
def test_what_tells_of_an_archive_that_is_cut(cut_archive, verb):
    due = subprocess.run([STFS, *verb, cut_archive.path], check=True, capture_output=True).stdout
    run_verb(cut_archive, [STFS, *verb, cut_archive.path], is_same(due))


@pytest.mark.parametrize("verb", ["put", "apply"])
def test_a_change_from_an_archive_that_is_cut_is_whole_or_none(cut_archive, tmp_path, verb):
    target = CutArchive(tmp_path / "target.safetensors")
    old = bytes(reversed(target.content[target.data_at:]))
    new = target.content[target.data_at:]
    if verb == "put":
        command = [STFS, "put", "--durability", "process", target.path, "b", cut_archive.path]
        new = old[:TENSOR_BYTES] + new[TENSOR_BYTES:2 * TENSOR_BYTES] + old[2 * TENSOR_BYTES:]
    else:
        command = [STFS, "apply", "--durability", "process", target.path, cut_archive.path]

    def put_back():
        with open(target.path, "r+b") as file:
            file.seek(target.data_at)
            file.write(old)

    def content():
        with open(target.path, "rb") as file:
            return file.read()[target.data_at:]

    def judge(out):
        assert content() == new
        put_back()

    put_back()
    run_verb(cut_archive, command, judge)
    assert content() == old


def test_upload_of_an_archive_that_is_cut(cut_archive):
    run_verb(cut_archive, [STFS, "upload", cut_archive.path, "--device", "cpu", "--verify"], lambda out: None)


def test_serve_of_an_archive_that_is_cut(cut_archive):
    """It serves what it could read whole, and nothing else."""
    events = []
    for number in range(ROUNDS):
        with tempfile.TemporaryDirectory(prefix="stfs-cut-") as directory:
            path = Path(directory) / "s"
            server = lease_client.Server(path, cut_archive.path)
            try:
                time.sleep(cut_archive.random.uniform(0, 0.02))
                cut_archive.cut()
                event = server.event()
                cut_archive.restore()
                events.append(event and event["event"])
                if events[-1] == "serving":
                    lease = lease_client.Lease(path)
                    for name, data in cut_archive.contents.items():
                        assert lease[name] == data, name
                    lease.close()
            finally:
                wrong = server.finish()
            assert wrong is None, wrong
            # SIGTERM ended a server that was still retrying.
            assert server.process.returncode in (0, 1, -signal.SIGTERM), server.errors
    assert set(events) <= {"serving", None}


# ---- Python ----

PYTHON = mounted.BUILD / "python"
READ_ON = """
import errno, json, os, select, sys
sys.path.insert(0, sys.argv[1])
import stfs
read, due = eval(sys.argv[4]), open(sys.argv[3], "rb").read()
outcomes = {"right": 0, "EIO": 0, "wrong": 0}
model = stfs.open(sys.argv[2])
print("ready")
while not select.select([sys.stdin], [], [], 0)[0]:
    try:
        outcomes["right" if read(model["b"]) == due else "wrong"] += 1
    except stfs.FormatError:  # an upload opens the archive anew, while it is cut
        outcomes["EIO"] += 1
    except OSError as error:
        # An upload says of an archive that was written to since it was planned that it is another one now.
        if error.errno not in (errno.EIO, errno.ESTALE):
            raise
        outcomes["EIO"] += 1
print(json.dumps(outcomes))
"""
PYTHON_READERS = {
    "tobytes": ("lambda t: t.tobytes()", "[:]"),
    "copy": ("lambda t: bytes(memoryview(t.copy()).cast('B'))", "[:]"),
    "tobytes of short runs": ("lambda t: t[:, ::3].tobytes()", "[:, ::3]"),
    "copy of long runs": ("lambda t: t[::2].copy().tobytes()", "[::2]"),
    "upload": ("lambda t: model.upload(['b'], device='cpu')['b'].tobytes()", "[:]"),
}


@pytest.mark.skipif(not list((PYTHON / "stfs").glob("_stfs.*so")), reason="the module stfs is not built")
@pytest.mark.skipif(mounted.is_sanitized(), reason="a module with a sanitizer can't be loaded into a Python without")
@pytest.mark.parametrize("reader", PYTHON_READERS)
def test_what_python_copies_of_an_archive_that_is_cut_is_right_or_oserror(cut_archive, tmp_path, reader):
    """A program that reads missing pages of a map itself gets SIGBUS, as packaging/doc/python-and-c.md documents."""
    code, selected = PYTHON_READERS[reader]
    array = np.frombuffer(cut_archive.contents["b"], "<u2").reshape(1024, -1)
    (tmp_path / "due").write_bytes(eval("array" + selected, {"array": array}).tobytes())
    program = mounted.start_python(READ_ON, PYTHON, cut_archive.path, tmp_path / "due", code)
    mounted.wait_ready(program)
    # An upload takes some time, and is refused where the archive has changed since it was opened.
    cut_archive.cut_while(ROUNDS, lambda: True)
    time.sleep(0.05)
    out, err = program.communicate("end\n", timeout=60)
    assert program.returncode == 0, (program.returncode, err)
    outcomes = json.loads(out.splitlines()[-1])
    assert outcomes["wrong"] == 0 and outcomes["right"] + outcomes["EIO"] > 0, outcomes
