# `stfs slice`, `stfs verify` and `stfs diff` on archives, sharded models and mounts of both, against NumPy and the attributes.
import io
import json
import os
import random
import signal
import subprocess
from pathlib import Path

import archive_file
import ml_dtypes
import mounted
import numpy as np
import pytest
from sharded_model import ShardedModel
from test_slices import random_index

pytestmark = pytest.mark.sequential

STFS = mounted.BUILD / "stfs"
SLICES = 8


def stfs(*arguments, wanted=0):
    result = subprocess.run([STFS, *map(str, arguments)], capture_output=True, timeout=60 * mounted.PATIENCE)
    assert result.returncode == wanted, (arguments, result.stderr.decode())
    return result


def values():
    """Tensors of several ranks and sizes of element, with NaNs and infinities where there are any."""
    numbers = np.random.default_rng(5)
    tensors = {
        "a.f32": numbers.standard_normal((40, 30, 20), np.float32), "a.f16": numbers.standard_normal((700, 33)).astype("f2"),
        "a.bf16": numbers.standard_normal((64, 65)).astype(ml_dtypes.bfloat16), "a.i64": numbers.integers(-9, 9, (5, 6, 7, 8)),
        "a.e4m3": numbers.standard_normal((31, 17)).astype(ml_dtypes.float8_e4m3fn),
        "a.e5m2": numbers.standard_normal((31, 17)).astype(ml_dtypes.float8_e5m2), "a.bool": numbers.random((9, 11)) < 0.5,
        "a.c64": (numbers.standard_normal((12, 3)) + 1j).astype("c8"), "a.f64": numbers.standard_normal((3, 999)),
        "scalar": np.array(7, "u2"), "empty": np.zeros((0, 4), "f4")}
    for name in ("a.f32", "a.f16", "a.bf16", "a.e5m2", "a.f64"):
        flat = tensors[name].reshape(-1)
        flat[numbers.integers(0, flat.size, 5)] = np.nan
        flat[numbers.integers(0, flat.size, 3)] = np.inf
        flat[-1] = -np.inf
    tensors["a.e4m3"][3, 3] = np.nan
    tensors["a.c64"][2, 1] = complex(np.nan, np.inf)
    return tensors


@pytest.fixture(params=["archive", "mount", "index", "directory", "sharded mount"])
def model(request, tmp_path, mounts):
    """What to name, its tensors, and the mount's root where it is one."""
    tensors = values()
    if request.param in ("archive", "mount"):
        path = archive_file.save_with_reference(tmp_path / "m.safetensors", tensors)
        mount = mounts(path) if request.param == "mount" else None
    else:
        sharded = ShardedModel(tmp_path / "sharded", tensors=tensors)
        path = sharded.directory if request.param == "directory" else sharded.index
        mount = mounts(path) if request.param == "sharded mount" else None
    return (mount.path if mount else path), tensors, mount


@pytest.mark.once
def test_slices_are_numpys(model, tmp_path):
    target, tensors, mount = model
    choices = random.Random(int(os.environ.get("STFS_SEED", "9")))
    output = tmp_path / "out.npy"
    for round_ in range(SLICES):
        name, array = choices.choice(list(tensors.items()))
        text, index = random_index(choices, array.shape)
        wanted = np.asarray(array[index])
        # A tensor's file in a mount needs no name.
        at = [mount / name, f"[{text}]"] if mount and round_ % 2 else [target, f"{name}[{text}]"]
        assert stfs("slice", *at).stdout == wanted.tobytes(), (name, text)
        stfs("slice", *at, "--force", "-o", output)
        loaded = np.load(output)
        assert loaded.shape == wanted.shape, (name, text)
        assert loaded.tobytes() == wanted.tobytes(), (name, text)
        assert np.load(io.BytesIO(stfs("slice", "--npy", *at).stdout)).tobytes() == wanted.tobytes()


def test_what_verify_says_is_what_numpy_and_the_attributes_say(model):
    target, tensors, mount = model
    document = json.loads(stfs("verify", "--json", target).stdout)
    assert document["problems"] == []
    assert sorted(row["name"] for row in document["tensors"]) == sorted(tensors)
    for row in document["tensors"]:
        array = tensors[row["name"]]
        assert (row["shape"], row["size_bytes"]) == (list(array.shape), array.nbytes)
        if row["nan"] is None:
            assert array.dtype.kind in "biu", row
        else:
            assert row["nan"] == np.isnan(array).sum(), row
            assert (row["infinite"] or 0) == np.isinf(array).sum(), row
        if mount:
            assert row["checksum"] == mount.attribute(row["name"], "checksum"), row
    assert stfs("verify", "--finite", target, wanted=1).stderr.count(b": not finite: ") == 7


def test_diff_finds_a_model_equal_to_a_copy_and_tells_what_was_written(model, tmp_path):
    target, tensors, mount = model
    copy = archive_file.save_with_reference(tmp_path / "copy.safetensors", tensors)
    size_bytes = sum(array.nbytes for array in tensors.values())
    assert json.loads(stfs("diff", "--json", target, copy).stdout)["size_bytes"] == size_bytes
    changed = np.array(tensors["a.i64"])
    changed[4, 5, 6, 7] += 3
    if mount:
        (mount / "a.i64").write_bytes(changed.tobytes())
    else:
        archive_file.save_with_reference(copy, tensors | {"a.i64": changed})
    for models in ((target, copy), (copy, target)):
        (row,) = json.loads(stfs("diff", "--json", *models, wanted=1).stdout)["differences"]
        statistics = row["statistics"]
        assert (row["name"], statistics["different"], statistics["largest_difference"]) == ("a.i64", 1, 3)
        stfs("diff", *models, "a.f*")


def test_a_record_of_a_model_fits_a_mount_of_it_until_it_is_written_to(tmp_path, mounts):
    sharded = ShardedModel(tmp_path / "sharded", tensors=values())
    record = tmp_path / "sums.json"
    stfs("verify", sharded.index, "--record", record)
    mount = mounts(sharded.index)
    stfs("verify", mount.path, "--against", record)
    stfs("verify", mount / "a.i64", "--against", record)

    changed = np.array(sharded.tensors["a.i64"])
    changed[4, 5, 6, 7] += 1
    (mount / "a.i64").write_bytes(changed.tobytes())
    for target in (mount.path, sharded.directory, mount / "a.i64"):
        result = stfs("verify", target, "--against", record, wanted=1)
        assert result.stderr.decode().count("\n") == 1
        assert ": a.i64: other checksum: " in result.stderr.decode()
    stfs("verify", mount / "a.f32", "--against", record)
    assert stfs("slice", mount / "a.i64", "[-1, -1, -1, -1]").stdout == changed[-1, -1, -1, -1].tobytes()


def test_a_mount_of_several_models_names_them(tmp_path, mounts):
    (tmp_path / "models").mkdir()
    for name in ("b", "a"):
        archive_file.save_with_reference(tmp_path / "models" / f"{name}.safetensors", {"t": np.zeros(3, "f4")})
    mount = mounts(tmp_path / "models")
    for arguments in (["ls", mount.path], ["upload", mount.path, "--device", "cpu"]):
        assert "is a mount of several models: name the directory of one in it: a, b" in stfs(*arguments, wanted=1).stderr.decode()
    assert stfs("ls", "--names", mount.path / "a").stdout == b"t\n"


def test_no_slice_is_written_into_a_mount_or_over_the_model(tmp_path, mounts):
    path = archive_file.save_with_reference(tmp_path / "m.safetensors", values())
    before = path.read_bytes()
    mount = mounts(path)
    for output in (path, mount / "a.f32", mount / "new.npy"):
        stfs("slice", mount.path, "a.f32[0]", "-o", output, wanted=1)
    for command in (["slice", mount.path, "a.f32[0]", "-o", mount / "new.npy"], ["sample", mount / "new.safetensors"],
                    ["verify", mount.path, "--record", mount / "new.json"]):
        assert b"a mount of tensors holds no new files" in stfs(*command, wanted=1).stderr
    assert path.read_bytes() == before
    assert sorted(os.listdir(mount.path)) == sorted(values())


def test_slice_into_a_pipe_that_closes_ends_quietly(tmp_path):
    path = archive_file.save_with_reference(tmp_path / "m.safetensors", {"t": np.zeros((3000, 3000), "f4")})
    result = mounted.shell('"$1" slice "$2" "t[:, ::-1]" | head -c 10 | wc -c', STFS, path)
    assert (result.stdout.strip(), result.stderr) == ("10", "")


def sparse_archive(path, size_bytes):
    """One tensor of zeros that takes no space."""
    header = json.dumps({"t": {"dtype": "F32", "shape": [size_bytes // 4], "data_offsets": [0, size_bytes]}}).encode()
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size_bytes)
    return path


def writes_in(process, directory, source):
    """Whether a process has a file in the directory open that is not its source."""
    try:
        opened = [os.readlink(link) for link in Path(f"/proc/{process.pid}/fd").iterdir()]
    except FileNotFoundError:  # it ended, or has closed one just now
        return False
    return any(name.startswith(f"{directory}/") and name != str(source) for name in opened)


def test_an_interrupt_leaves_nothing_behind(tmp_path):
    path = sparse_archive(tmp_path / "m.safetensors", 1 << 36)
    for verb in (["slice", path, "t[::-256]", "--raw", "-o"], ["verify", path, "--record"]):
        process = subprocess.Popen([STFS, *verb, tmp_path / "out"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        # The tool has to read 64 GiB, so it is still running.
        assert mounted.eventually(lambda: writes_in(process, tmp_path, path) or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=30 * mounted.PATIENCE)[1].decode()
        assert process.returncode == -signal.SIGINT, errors
        assert os.listdir(tmp_path) == ["m.safetensors"], errors


def check_memory(most_mib, *command, status=0):
    # A separate small process starts the command, because ru_maxrss begins with the memory of the starting process.
    measured = mounted.run_python(
        "import resource, subprocess, sys\n"
        "code = subprocess.run(sys.argv[2:], stdout=subprocess.DEVNULL).returncode\n"
        "assert code == int(sys.argv[1]), code\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n", str(status), STFS, *command)
    assert measured.returncode == 0, measured.stdout
    if not mounted.is_sanitized():
        assert int(measured.stdout) < most_mib << 10  # KiB


@pytest.mark.parametrize("options", [[], ["--out", "delta.safetensors"]], ids=["diff", "diff --out"])
def test_an_interrupt_ends_diff(tmp_path, options):
    path = sparse_archive(tmp_path / "m.safetensors", 1 << 36)
    process = subprocess.Popen([STFS, "diff", path, path, *options], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert mounted.eventually(lambda: len(os.listdir(f"/proc/{process.pid}/task")) > 1)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=30 * mounted.PATIENCE)
    assert (process.returncode, out, errors.decode()) == (-signal.SIGINT, b"", f"stfs diff: {path}: interrupted\n")
    assert os.listdir(tmp_path) == ["m.safetensors"]


def start_repack(tmp_path, path, out, *options):
    """A repack that has begun to write; stopped, so that what the caller does comes in the middle."""
    process = subprocess.Popen([STFS, "repack", "--dtype", "F16", *options, path, tmp_path / out],
                               stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert mounted.eventually(lambda: writes_in(process, tmp_path, path) or process.poll() is not None)
    process.send_signal(signal.SIGSTOP)
    assert process.poll() is None
    return process


@pytest.mark.parametrize("out, options", [("out.safetensors", []), ("out.safetensors.index.json", ["--shard-size", "64M"])])
def test_an_interrupt_of_repack_leaves_nothing_behind(tmp_path, out, options):
    path = sparse_archive(tmp_path / "m.safetensors", 2 << 30)
    process = start_repack(tmp_path, path, out, *options)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    written, errors = process.communicate(timeout=30 * mounted.PATIENCE)
    assert (process.returncode, written) == (-signal.SIGINT, b""), errors
    assert errors.decode() == f"stfs repack: {tmp_path / out}: interrupted, nothing is left\n"
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_a_source_that_changes_meanwhile_is_not_repacked(tmp_path):
    path = sparse_archive(tmp_path / "m.safetensors", 1 << 30)
    process = start_repack(tmp_path, path, "out.safetensors")
    with open(path, "r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"1234")
    process.send_signal(signal.SIGCONT)
    errors = process.communicate(timeout=60 * mounted.PATIENCE)[1].decode()
    assert process.returncode == 1
    assert errors == f"stfs repack: {path}: was changed during the command: {tmp_path / 'out.safetensors'} was not written\n"
    assert os.listdir(tmp_path) == ["m.safetensors"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a tmpfs")
@pytest.mark.parametrize("out, options", [("out.safetensors", []), ("out.safetensors.index.json", ["--shard-size", "1M"])])
def test_repack_on_a_full_disk_leaves_nothing(tmp_path, out, options):
    path = archive_file.save_with_reference(tmp_path / "m.safetensors", {f"t{at}": np.ones(1 << 18, "f4") for at in range(6)})
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", place], check=True)
    try:
        errors = stfs("repack", *options, path, place / out, wanted=1).stderr.decode()
        assert "No space left on device" in errors and str(place) in errors
        assert os.listdir(place) == []
    finally:
        subprocess.run(["umount", place], check=True)


def test_repack_of_a_mount_is_its_archive_in_other_order(tmp_path, mounts):
    sharded = ShardedModel(tmp_path / "sharded", tensors=values())
    mount = mounts(sharded.index)
    stfs("repack", "--order", "name", mount.path, tmp_path / "out.safetensors")
    stfs("diff", mount.path, tmp_path / "out.safetensors")
    inside = stfs("repack", mount.path, mount / "out.safetensors", wanted=1).stderr.decode()
    assert "a mount of tensors holds no new files: name a place outside of the mount" in inside
    single = stfs("repack", mount / "a.f32", tmp_path / "out2.safetensors", wanted=1).stderr.decode()
    assert "is a tensor's file: name the mount or the archive" in single


@pytest.mark.parametrize("verb", ["verify", "diff", "repack"])
def test_memory_does_not_grow_with_the_model(tmp_path, verb):
    path = sparse_archive(tmp_path / "m.safetensors", 256 << 20)
    if verb == "verify":
        check_memory(64, verb, path)
        return
    if verb == "repack":
        check_memory(64, verb, "--dtype", "F16", path, tmp_path / "out.safetensors")
        return
    other = sparse_archive(tmp_path / "other.safetensors", 256 << 20)
    with open(path, "r+b") as file:  # every part differs
        for at in range(1 << 20, 256 << 20, 1 << 20):
            file.seek(at)
            file.write(b"other")
    check_memory(64, verb, other, path, status=1)
