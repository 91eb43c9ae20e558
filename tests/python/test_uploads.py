# Uploads to the CPU, the device that is always there. tests/tools/upload tests the engine; this file tests the Python
# interface: bytes, types, shapes, lifetimes, progress, cancelling, errors.
import errno
import gc
import os
import threading

import ml_dtypes
import numpy as np
import pytest

import stfs
from archive_file import random_array, random_bytes, save_with_reference, write_raw
from managed_tensor import TAKES_WRITABLE, Taken
from sharded_model import ShardedModel


@pytest.fixture
def large(tmp_path):
    """256 MiB in 8 tensors: takes long enough to be watched."""
    block = np.frombuffer(random_bytes(1 << 20, 3), np.uint8)
    return write_raw(tmp_path / "large.safetensors",
                     [(f"t{at}", "U8", [32 << 20], np.roll(block, at).tobytes() * 32) for at in range(8)])


def test_every_tensor_arrives(model, tensors):
    weights = model.upload(device="cpu", verify=True)
    assert set(weights) == set(tensors) and len(weights) == len(tensors)
    for name, tensor in weights.items():
        assert (tensor.name, tensor.dtype, tensor.shape) == (name, model[name].dtype, model[name].shape)
        assert tensor.tobytes() == bytes(tensor) == tensors[name].tobytes()
        assert tensor.device == "cpu" and not tensor.is_mapped and not tensor.is_read_only
        assert (tensor.archive, tensor.offset) == (model[name].archive, model[name].offset)
        if tensor.nbytes:
            assert tensor.address % 256 == 0 and tensor.address != model[name].address
    total = sum(array.nbytes for array in tensors.values())
    assert weights.report.read_bytes == total and weights.report.verified_bytes == total
    assert weights.report.seconds > 0 and weights.report.overflows == 0
    assert weights.devices == ["cpu"] and set(weights.on("cpu")) == set(weights) and weights.left_out == []
    assert repr(weights) == f"<stfs.Resident {len(tensors)} tensors on cpu>"
    with pytest.raises(KeyError):
        weights.on("cuda:0")
    with pytest.raises(KeyError):
        weights["none"]


def test_names_patterns_and_slices(model, tensors):
    assert list(model.upload("odd", device="cpu")) == ["odd"]
    some = model.upload(["layers.*.weight", "embed[10:20, ::2]"], device="cpu")
    assert set(some) >= {"layers.0.weight", "layers.1.weight"} and len(some) == 3
    part = next(tensor for name, tensor in some.items() if name.startswith("embed"))
    assert part.shape == (10, 150) and part.tobytes() == tensors["embed"][10:20, ::2].tobytes()
    with pytest.raises(OSError, match="layers.9") as caught:
        model.upload("layers.9.*", device="cpu")
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(ValueError, match="nothing"):
        model.upload([], device="cpu")


def test_rules(model, tensors):
    rules = "# first come, first served\nlayers.0.weight cpu shard(0,2/4)\nlayers.* cpu\n"
    weights = model.upload(rules=rules)
    assert set(weights) == {"layers.0.weight", "layers.1.weight", "layers.0.bias"}
    assert weights["layers.0.weight"].tobytes() == tensors["layers.0.weight"][64:128].tobytes()
    assert weights["layers.0.weight"].shape == (64, 301)
    assert set(weights.left_out) == set(tensors) - set(weights)
    with pytest.raises(ValueError, match="line 2"):
        model.upload(rules="* cpu\nodd nowhere\n")


def test_types_are_converted(tmp_path):
    numbers = np.random.default_rng(4)
    tensors = {"f": numbers.standard_normal((300, 40)).astype("f4"), "b": numbers.standard_normal(999).astype(ml_dtypes.bfloat16),
               "h": numbers.standard_normal(50).astype("f2"), "i": np.arange(9, dtype="i4")}
    path = save_with_reference(tmp_path / "m.safetensors", tensors)
    with stfs.open(path) as model:
        weights = model.upload(device="cpu", dtype="BF16", verify=True)
        assert {name: tensor.dtype for name, tensor in weights.items()} == {"f": "BF16", "b": "BF16", "h": "BF16", "i": "I32"}
        for name, tensor in weights.items():
            due = tensors[name] if name == "i" else tensors[name].astype("f4").astype(ml_dtypes.bfloat16)
            assert tensor.numpy().tobytes() == due.tobytes() and tensor.shape == due.shape
        for spelling in ("bf16", "Bf16"):
            assert model.upload("f", device="cpu", dtype=spelling)["f"].tobytes() == weights["f"].tobytes()
        widened = model.upload(["b", "h"], device="cpu", dtype="F32")
        for name, tensor in widened.items():
            assert tensor.numpy().tobytes() == tensors[name].astype("f4").tobytes()
        with pytest.raises(ValueError, match="I3"):
            model.upload(device="cpu", dtype="I3")
        with pytest.raises(ValueError, match="I32"):
            model.upload(device="cpu", dtype="I32")


def test_quantized_values_are_not_converted_without_their_scales(tmp_path):
    tensors = {"a.weight": np.array([[1, 0.5]], ml_dtypes.float8_e4m3fn), "a.weight_scale_inv": np.array([[2]], "f4")}
    path = save_with_reference(tmp_path / "m.safetensors", tensors)
    with stfs.open(path) as model:
        with pytest.raises(ValueError, match="a.weight is F8_E4M3 and needs its scales a.weight_scale_inv"):
            model.upload(device="cpu", dtype="BF16")
        weights = model.upload(device="cpu", dtype="BF16", cast=True)
        assert {name: tensor.dtype for name, tensor in weights.items()} == {"a.weight": "BF16", "a.weight_scale_inv": "F32"}


def test_overflows_are_counted(tmp_path):
    path = save_with_reference(tmp_path / "m.safetensors", {"f": np.array([1.0, 1e30, -1e30, 65504.0, 7.0], "f4")})
    with stfs.open(path) as model:
        assert model.upload(device="cpu", dtype="F16").report.overflows == 2
        assert model.upload(device="cpu", dtype="BF16").report.overflows == 0


def test_resident_tensors_are_lent_as_they_are(model, tensors):
    tensor = model.upload("layers.0.weight", device="cpu")["layers.0.weight"]
    for version in (None, (1, 0)):
        taken = Taken(tensor.__dlpack__(max_version=version))
        assert taken.data == tensor.address and taken.device == (1, 0) and not taken.flags
        taken.free()
    array = np.from_dlpack(tensor)
    assert array.flags.writeable == TAKES_WRITABLE and array.ctypes.data == tensor.address
    if TAKES_WRITABLE:
        array[0] = 0
        assert tensor.tobytes()[:1204] == bytes(1204)
    assert model["layers.0.weight"].tobytes() == tensors["layers.0.weight"].tobytes()
    rows = tensor[3:9, ::-2]
    assert rows.tobytes() == np.from_dlpack(rows).tobytes() == tensors["layers.0.weight"][3:9, ::-2].tobytes()
    assert rows.address == tensor.address + 3 * 1204 + 300 * 4 and rows.strides == (1204, -8)


def test_a_tensor_keeps_its_devices_memory(tmp_path):
    def resident_bytes():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    path = save_with_reference(tmp_path / "m.safetensors", {"a": random_array("u1", (64 << 20,), 1), "b": random_array("f4", (9,), 2)})
    due = random_array("f4", (9,), 2).tobytes()
    gc.collect()
    with stfs.open(path) as model:
        weights = model.upload(device="cpu")
    # Closing the model has unmapped the archive; only the arena is left in memory.
    one = weights["b"]
    array = np.from_dlpack(one)
    with_arena = resident_bytes()
    del weights, one
    gc.collect()
    assert array.tobytes() == due and abs(resident_bytes() - with_arena) < (16 << 20)
    del array
    gc.collect()
    assert with_arena - resident_bytes() > (48 << 20)


def test_progress(large, tensors):
    with stfs.open(large) as model:
        said = []
        model.upload(device="cpu", progress=lambda done, total: said.append((done, total)))
        total = sum(tensor.nbytes for tensor in model.values())
        assert said[-1] == (total, total) and {pair[1] for pair in said} == {total}
        assert [pair[0] for pair in said] == sorted(pair[0] for pair in said)


def test_what_progress_raises_cancels_and_is_passed_on(large):
    class Enough(Exception):
        pass

    def stop(done, total):
        raise Enough

    with stfs.open(large) as model:
        threads = threading.active_count()
        with pytest.raises(Enough):
            model.upload(device="cpu", readers=1, progress=stop)
        assert threading.active_count() == threads
        assert len(model.upload("t0", device="cpu")) == 1, "the next one works"


def test_an_upload_under_way(large):
    with stfs.open(large) as model:
        with model.start_upload(device="cpu") as upload:
            assert 0 <= upload.done_bytes <= upload.total_bytes == 256 << 20
            weights = upload.wait()
            assert upload.is_done and upload.done_bytes == upload.total_bytes and upload.wait() is weights
            assert repr(upload) == f"<stfs.Upload {256 << 20} of {256 << 20} bytes, done>"
        del upload, model
        assert weights["t7"].tobytes()[:1 << 20] == np.roll(np.frombuffer(random_bytes(1 << 20, 3), np.uint8), 7).tobytes()


def test_cancelling(large):
    with stfs.open(large) as model:
        for how in ("at once", "by another thread", "by the context", "by dropping"):
            upload = model.start_upload(device="cpu", readers=1)
            if how == "by dropping":
                del upload
                continue
            if how == "by the context":
                with upload:
                    pass
            elif how == "at once":
                upload.cancel()
            else:
                threading.Timer(0.001, upload.cancel).start()
            try:
                weights = upload.wait()
            except OSError as error:
                assert error.errno == errno.ECANCELED
                with pytest.raises(ValueError, match="already"):
                    upload.wait()
            else:
                # If the last byte had arrived before the cancelling, the upload is complete.
                assert how != "at once" and weights["t0"].nbytes == 32 << 20


def test_many_at_a_time(model, tensors):
    uploads = [model.start_upload("layers.*", device="cpu", readers=2) for _ in range(8)]
    for upload in reversed(uploads):
        weights = upload.wait()
        assert weights["layers.1.weight"].tobytes() == tensors["layers.1.weight"].tobytes()
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        model.upload("odd", device="cpu")
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= files


def test_sharded_models_and_tensors_in_mounts(tmp_path, archive_path, tensors, mounts):
    sharded = ShardedModel(tmp_path / "sharded")
    with stfs.open(sharded.directory) as model:
        weights = model.upload(device="cpu", verify=True)
        assert {name: tensor.tobytes() for name, tensor in weights.items()} == {
            name: data for name, (_, _, data) in sharded.reference().items()}
    mount = mounts(archive_path)
    with stfs.open(mount / "embed") as one:
        weights = one.upload(device="cpu")
        assert list(weights) == ["embed"] and weights["embed"].tobytes() == tensors["embed"].tobytes()


def test_a_relative_path_still_holds_elsewhere(archive_path, tmp_path, monkeypatch):
    monkeypatch.chdir(archive_path.parent)
    model = stfs.open(archive_path.name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(model.upload("odd", device="cpu")) == 1
    model.close()
    with pytest.raises(ValueError, match="closed"):
        model.upload(device="cpu")


# Every spelling: tests/tools/device/device_rules_test.cc.
@pytest.mark.parametrize("device, error, words", [
    ("gpu", ValueError, "gpu"), ("cuda:99", OSError, "cuda:99"),
    ("cuda:GPU-00000000-0000-0000-0000-000000000000", OSError, "GPU-0000"), (["cpu", "cpu"], ValueError, "twice")])
def test_device_names_that_are_wrong(model, device, error, words):
    with pytest.raises(error, match=words) as caught:
        model.upload("odd", device=device)
    if error is OSError:
        assert caught.value.errno == errno.ENODEV


def test_a_device_has_to_be_named(model):
    for both in ({}, {"device": "cpu", "rules": "* cpu"}):
        with pytest.raises(ValueError, match="there is no default"):
            model.upload(**both)
    with pytest.raises(TypeError, match="come from a model"):
        import stfs._stfs
        stfs._stfs.Upload()


def test_devices():
    first, *gpus = stfs.devices()
    assert first.name == "cpu" and first.total_bytes > first.free_bytes > 0 and first.description
    assert bool(gpus) == (stfs.why_no_cuda() == "")
    for at, gpu in enumerate(gpus):
        assert gpu.name == f"cuda:{at}" and gpu.uuid.startswith("GPU-")
