"""What `stfs repack` writes, the safetensors library reads: every dtype, in every order, whole and in shards, and
converted as ml_dtypes converts.
"""

import json
import os
import resource
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from parsed_archive import parsed

ROOT = Path(__file__).resolve().parents[2]
STFS = Path(os.environ.get("STFS_BUILD_DIR", ROOT / "build" / "release")) / "stfs"


def stfs(*words):
    done = subprocess.run([STFS, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """A model with all dtypes, scalars, empty tensors, and names of every kind."""
    path = tmp_path_factory.mktemp("repack") / "model.safetensors"
    stfs("sample", "--odd", path)
    return path


@pytest.mark.parametrize("options", [[], ["--order", "name"], ["--order", "reference"], ["--align", "2M", "--slack", "0"]])
def test_the_reference_reads_what_repack_writes(sample, tmp_path, options):
    stfs("repack", *options, sample, tmp_path / "out.safetensors")
    assert parsed(tmp_path / "out.safetensors") == parsed(sample)


def test_the_order_of_the_reference_is_that_of_the_reference(tmp_path):
    arrays = {f"{name}.{number}": np.zeros(3, dtype) for number in (2, 10) for name, dtype in
              {"a": "u1", "b": "i8", "c": "f4", "d": "f2", "e": ml_dtypes.bfloat16, "f": "f8", "g": "?", "h": "u4"}.items()}
    safetensors.numpy.save_file(arrays, tmp_path / "reference.safetensors")
    stfs("repack", "--order", "name", tmp_path / "reference.safetensors", tmp_path / "named.safetensors")
    stfs("repack", "--order", "reference", tmp_path / "named.safetensors", tmp_path / "out.safetensors")
    due, named, found = (stfs("ls", "--names", tmp_path / f"{name}.safetensors") for name in ("reference", "named", "out"))
    assert found == due != named


def test_shards_are_each_an_archive_and_join_to_the_same(sample, tmp_path):
    index = tmp_path / "split.safetensors.index.json"
    stfs("repack", "--shard-size", "64K", sample, index)
    tensors, metadata = parsed(sample)
    document = json.loads(index.read_text())
    assert document["metadata"]["total_size"] == sum(len(data) for _, _, data in tensors.values())
    shards = set(document["weight_map"].values())
    assert len(shards) > 2
    joined = {}
    for shard in shards:
        part, its_metadata = parsed(tmp_path / shard)
        assert its_metadata == metadata
        assert {document["weight_map"][name] for name in part} == {shard}
        joined |= part
    assert joined == tensors
    stfs("repack", index, tmp_path / "joined.safetensors")
    assert parsed(tmp_path / "joined.safetensors") == (tensors, metadata)


TARGETS = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn,
           "F8_E5M2": ml_dtypes.float8_e5m2}


@pytest.mark.parametrize("target", TARGETS)
def test_numbers_are_converted_as_ml_dtypes_does(tmp_path, target):
    random = np.random.default_rng(5)
    # More than a piece of 4 MiB, with values of all magnitudes.
    wide = (random.standard_normal(1_200_003) * 10.0 ** random.integers(-12, 12, 1_200_003)).astype(np.float32)
    arrays = {"f32": wide, "bf16": wide[:1000].astype(ml_dtypes.bfloat16), "f64": wide[:1000].astype(np.float64),
              "i32": np.arange(7, dtype=np.int32)}
    safetensors.numpy.save_file(arrays, tmp_path / "m.safetensors")
    said = json.loads(stfs("repack", "--json", "--threads", 3, "--dtype", target, tmp_path / "m.safetensors", tmp_path / "out.safetensors"))
    tensors, _ = parsed(tmp_path / "out.safetensors")
    assert tensors.pop("i32") == ("I32", [7], arrays["i32"].tobytes())
    overflows = 0
    for name, (dtype, shape, data) in tensors.items():
        with np.errstate(over="ignore"):
            due = arrays[name].astype(TARGETS[target])
        assert (dtype, shape) == (target, [len(due)])
        found = np.frombuffer(data, TARGETS[target])
        is_nan = np.isnan(due.astype(np.float32))
        assert (np.isnan(found.astype(np.float32)) == is_nan).all()
        assert (found.view(np.uint8).reshape(len(due), -1)[~is_nan] == due.view(np.uint8).reshape(len(due), -1)[~is_nan]).all()
        overflows += int((~np.isfinite(due.astype(np.float32))).sum())
    assert said["overflows"] == overflows



def save(path, tensors):
    """Writes {name: (dtype, shape, bytes)}, because the reference library's NumPy part lacks some dtypes."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def spread(scales, shape, blocks):
    """Returns the scale of each element."""
    for axis, block in enumerate(blocks):
        scales = np.repeat(scales, block, axis=axis)
    return scales[tuple(slice(size) for size in shape)]


@pytest.mark.parametrize("target", ["F32", "BF16", "F16"])
def test_scales_are_applied_as_their_quantizers_do(tmp_path, target):
    random = np.random.default_rng(7)
    fp8 = ml_dtypes.float8_e4m3fn
    tensors, due = {}, {}

    def add(name, shape, end, scale_shape, blocks, dtype="F32"):
        values = random.standard_normal(shape).astype(fp8)
        scales = np.exp(random.standard_normal(scale_shape)).astype(np.float32)
        if dtype == "BF16":
            scales = scales.astype(ml_dtypes.bfloat16)
        tensors[name] = ("F8_E4M3", shape, values.tobytes())
        tensors[name + end] = (dtype, scale_shape, scales.tobytes())
        due[name] = values.astype(np.float32) * spread(scales.astype(np.float32), shape, blocks)

    add("deepseek.weight", (1300, 2000), "_scale_inv", (11, 16), (128, 128))
    add("experts.up", (3, 130, 300), "_scale_inv", (3, 2, 3), (1, 128, 128))
    add("channels.weight", (40, 70), "_scale", (40, 1), (1, 70), "BF16")
    add("tensor.weight", (40, 70), "_scale", (1, 1), (40, 70))
    values = random.integers(0, 16, (6, 64), dtype=np.uint8)
    exponents = random.integers(120, 134, (6, 2), dtype=np.uint8)
    tensors["mx"] = ("F4", (6, 64), (values[:, ::2] | values[:, 1::2] << 4).tobytes())
    tensors["mx_scales"] = ("F8_E8M0", (6, 2), exponents.tobytes())
    numbers = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)[values]
    due["mx"] = numbers * spread(np.exp2(exponents.astype(np.float32) - 127), (6, 64), (1, 32))
    save(tmp_path / "m.safetensors", tensors)

    stfs("repack", "--dtype", target, "--dequantize", "--threads", 3, tmp_path / "m.safetensors", tmp_path / "out.safetensors")
    found, _ = parsed(tmp_path / "out.safetensors")
    assert set(found) == set(due)
    for name, array in due.items():
        dtype, shape, content = found[name]
        assert (dtype, list(shape)) == (target, list(array.shape))
        assert content == array.astype(TARGETS[target]).tobytes(), name


def test_more_shards_than_a_shell_lets_be_open(tmp_path):
    arrays = {f"layer.{number}": np.full(4, number, np.uint8) for number in range(100)}
    safetensors.numpy.save_file(arrays, tmp_path / "m.safetensors")
    index = tmp_path / "m.safetensors.index.json"
    stfs("repack", "--shard-size", "4", tmp_path / "m.safetensors", index)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    done = subprocess.run([STFS, "ls", "--names", index], capture_output=True, text=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard)))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(arrays)
