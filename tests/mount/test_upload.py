# `stfs upload` from mounts and shards, of archives that change during the upload, and interrupted uploads.
import json
import os
import shutil
import signal
import subprocess
import time

import archive_file
import mounted
import pytest
from sharded_model import ShardedModel
from test_tools_on_mounts import check_memory, sparse_archive, stfs

STFS = mounted.BUILD / "stfs"


def uploaded(*arguments):
    """The JSON of an upload to the CPU that was verified."""
    return json.loads(stfs("upload", *arguments, "--device", "cpu", "--verify", "--json").stdout)


def check_plan(report, tensors):
    """Checks that each tensor is there once, with its size, without overlaps, and with the archive's bytes."""
    assert sorted(tensor["name"] for tensor in report["tensors"]) == sorted(tensors)
    end = 0
    for tensor in sorted(report["tensors"], key=lambda tensor: tensor["offset"]):
        assert tensor["offset"] % 256 == 0 and tensor["offset"] >= end
        assert tensor["size_bytes"] == tensors[tensor["name"]].nbytes
        assert tensor["shape"] == list(tensors[tensor["name"]].shape)
        end = tensor["offset"] + tensor["size_bytes"]
    total = sum(array.nbytes for array in tensors.values())
    assert report["read_bytes"] == report["verified_bytes"] == total


def test_a_mount_and_its_archive_upload_alike(archive_path, mounts):
    tensors = archive_file.sample_tensors()
    mount = mounts(archive_path)
    check_plan(uploaded(archive_path), tensors)
    check_plan(uploaded(mount.path), tensors)
    named = ["embed", "scalar", "layers.0.weight"]
    check_plan(uploaded(*(mount / name for name in named)), {name: tensors[name] for name in named})


def test_tensors_of_a_mount_come_in_their_archives_order_and_with_slices(archive_path, mounts):
    mount = mounts(archive_path)
    report = uploaded(mount / "embed", mount / "layers.0.weight", "--select", "[1:3, ::100]")
    assert {tensor["name"]: tensor["shape"] for tensor in report["tensors"]} == {
        "embed": [2, 3], "layers.0.weight": [2, 4]}
    offsets = [int(mount.attribute(tensor["name"], "offset")) for tensor in report["tensors"]]
    assert offsets == sorted(offsets)


def test_no_byte_passes_through_the_mount(archive_path, mounts):
    big = sparse_archive(archive_path.parent / "big.safetensors", 256 << 20)
    mount = mounts(big)
    before = int(open(f"/proc/{mount.pid}/io").read().split("rchar: ")[1].split()[0])
    report = uploaded(mount / "t")
    after = int(open(f"/proc/{mount.pid}/io").read().split("rchar: ")[1].split()[0])
    assert report["read_bytes"] == 256 << 20
    assert after - before < 1 << 20


def test_shards_upload_as_one_model(tmp_path, mounts):
    model = ShardedModel(tmp_path / "model")
    mount = mounts(model.index)
    for source in (model.directory, model.index, mount.path):
        check_plan(uploaded(source), model.tensors)
    (tmp_path / "loose").mkdir()
    for shard in model.names:
        shutil.copy(model.directory / shard, tmp_path / "loose")
    check_plan(uploaded(tmp_path / "loose"), model.tensors)


def test_a_model_that_disagrees_with_itself_uploads_in_parts_only(tmp_path):
    model = ShardedModel(tmp_path / "model")
    os.remove(model.directory / model.names[1])
    whole = next(name for name, shard in model.weight_map.items() if shard == model.names[0])
    failed = stfs("upload", model.directory, "--device", "cpu", wanted=1)
    assert model.names[1] in failed.stderr.decode()
    assert len(uploaded(model.directory, "--select", whole)["tensors"]) == 1


def test_a_replaced_archive_uploads_as_it_is_now(archive_path, mounts):
    mount = mounts(archive_path)
    uploaded(mount.path)
    tensors = {"embed": archive_file.random_array("f4", (9, 9), 7)}
    archive_file.save_with_reference(archive_path.parent / "new", tensors)
    os.rename(archive_path.parent / "new", archive_path)
    check_plan(uploaded(archive_path), tensors)
    assert mounted.eventually(lambda: not (mount / "odd").exists())
    check_plan(uploaded(mount.path), tensors)
    check_plan(uploaded(mount / "embed"), tensors)


def test_a_write_through_the_mount_is_uploaded(archive_path, mounts):
    mount = mounts(archive_path)
    with open(mount / "odd", "r+b") as file:
        file.write(b"\0" * 12345)
    check_plan(uploaded(mount / "odd"), {"odd": archive_file.sample_tensors()["odd"]})


def start_upload(path, *more):
    """An upload that has begun to move bytes."""
    process = subprocess.Popen([STFS, "upload", path, "--device", "cpu", *more], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)

    def resident_kib():
        with open(f"/proc/{process.pid}/status") as status:
            return int((status.read().split("VmRSS:") + ["0 kB"])[1].split()[0])

    assert mounted.eventually(lambda: process.poll() is not None or resident_kib() > 200 << 10, 30)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cancels_and_is_told(tmp_path, number):
    path = sparse_archive(tmp_path / "m.safetensors", 4 << 30)
    process = start_upload(path, "--verify")
    process.send_signal(number)
    started = time.monotonic()
    out, errors = process.communicate(timeout=30 * mounted.PATIENCE)
    assert time.monotonic() - started < 5 * mounted.PATIENCE
    # As every verb here: it says so, cleans up, and ends by the signal, so that a shell's loop ends too.
    assert process.returncode == -number
    assert (out, errors) == (b"", b"stfs upload: cancelled: nothing is kept\n")
    assert os.listdir(tmp_path) == ["m.safetensors"]


@pytest.mark.once
def test_an_archive_that_changes_meanwhile_fails_the_upload(tmp_path):
    path = sparse_archive(tmp_path / "m.safetensors", 2 << 30)
    for change in ("write", "cut", "replace"):
        process = start_upload(path, "--verify")
        process.send_signal(signal.SIGSTOP)  # however long the change takes, it comes in the middle
        if change == "write":
            with open(path, "r+b") as file:
                file.seek(-4, os.SEEK_END)
                file.write(b"1234")
        elif change == "cut":
            os.truncate(path, 1 << 30)
        else:
            sparse_archive(tmp_path / "new", 4096)
            os.rename(tmp_path / "new", path)
        process.send_signal(signal.SIGCONT)
        out, errors = process.communicate(timeout=mounted.LIMIT)
        assert process.returncode == 1, (change, out, errors)
        assert b"since the upload was planned" in errors, (change, errors)
        assert out == b""
        sparse_archive(path, 2 << 30)


def test_more_than_fits_is_said_before_a_byte_moves(tmp_path):
    path = sparse_archive(tmp_path / "m.safetensors", 1 << 40)
    started = time.monotonic()
    failed = stfs("upload", path, "--device", "cpu", wanted=1)
    assert time.monotonic() - started < 5 * mounted.PATIENCE
    assert failed.stderr.startswith(b"stfs upload: cpu: 1.0 TiB (1099511627776 bytes) are needed and ")
    assert stfs("upload", path, "--device", "cpu", "--dry-run", wanted=1).stdout.startswith(b"name")


def test_memory_besides_the_arena_is_bounded(tmp_path):
    """An eighth of the bytes as an arena, so that what the process needs besides shows."""
    path = sparse_archive(tmp_path / "m.safetensors", 1 << 30)
    check_memory(128 + 64, "upload", path, "--device", "cpu", "--select", "t[::8]")


def test_the_benchmark_measures_the_ceiling_and_the_tool_does_not(tmp_path):
    path = sparse_archive(tmp_path / "m.safetensors", 128 << 20)
    assert b"%" not in stfs("upload", path, "--device", "cpu").stdout
    assert not [key for key in uploaded(path) if "ceiling" in key]
    ceiling = mounted.BUILD / "tests" / "upload_ceiling"
    assert float(subprocess.run([ceiling, "cpu"], capture_output=True, check=True).stdout) > 1e8
    absent = subprocess.run([ceiling, "cuda:900"], capture_output=True, text=True)
    assert absent.returncode == 1 and absent.stderr.startswith("upload_ceiling: cuda:900: ")
