"""The statistics of `stfs diff` must be the same as NumPy computes in double, for every dtype.

Each dtype has two tensors of random bits, with NaNs and infinities, and two of similar numbers, as after a fine-tuning. Sums
may differ in their last digits, because NumPy adds in another order.
"""

import json
import os
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
STFS = Path(os.environ.get("STFS_BUILD_DIR", ROOT / "build" / "release")) / "stfs"
COUNT = 100_004  # elements: more than a piece of any dtype, and not a multiple of a block

DTYPES = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32, "I32": np.int32,
    "U64": np.uint64, "I64": np.int64, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32, "F64": np.float64,
    "C64": np.complex64, "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu, "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz, "F4": ml_dtypes.float4_e2m1fn, "F6_E2M3": ml_dtypes.float6_e2m3fn,
    "F6_E3M2": ml_dtypes.float6_e3m2fn,
}
PACKED = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


def any_bits(name, random):
    dtype = np.dtype(DTYPES[name])
    if name == "BOOL":
        return random.integers(0, 2, COUNT).astype(bool)
    # In ml_dtypes an element of less than a byte takes a whole byte.
    limit = 1 << PACKED[name] if name in PACKED else 256
    array = random.integers(0, limit, COUNT * dtype.itemsize, dtype=np.uint16).astype(np.uint8).view(dtype)
    if name == "F64":  # its squares must fit
        array = np.where(np.isfinite(array) & (np.abs(array) > 1e100), random.standard_normal(COUNT), array)
    return array


def two_of_any_bits(name, random):
    a, b = any_bits(name, random), any_bits(name, random)
    is_same = random.random(COUNT) < 0.3
    return a, np.where(is_same, a, b)


def two_similar(name, random):
    dtype = np.dtype(DTYPES[name])
    if name == "BOOL":
        return two_of_any_bits(name, random)
    if dtype.kind in "iu":
        a = random.integers(0, 100, COUNT).astype(dtype)
        return a, (a + (random.random(COUNT) < 0.1)).astype(dtype)
    a, change = random.standard_normal(COUNT), random.standard_normal(COUNT) * 0.01
    if dtype.kind == "c":
        a = a + 1j * random.standard_normal(COUNT)
    with np.errstate(invalid="ignore"):
        return a.astype(dtype), (a + change).astype(dtype)


def data_of(name, array):
    if name not in PACKED:
        return array.tobytes()
    bits = np.unpackbits(array.view(np.uint8)[:, None], axis=1, bitorder="little")[:, :PACKED[name]]
    return np.packbits(bits.reshape(-1), bitorder="little").tobytes()


def write(path, arrays):
    header, data = {}, b""
    for label, (name, array) in arrays.items():
        content = data_of(name, array)
        header[label] = {"dtype": name, "shape": [COUNT], "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def wide(array):
    """Returns exact values: Python's integers for types that double can't hold, and doubles for the others."""
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        return array.astype(object)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def computed(a, b):
    bits = f"V{a.dtype.itemsize}"
    a_bits, b_bits = (np.frombuffer(array.tobytes(), bits) for array in (a, b))
    different = int((a_bits != b_bits).sum())
    with np.errstate(invalid="ignore"):
        a, b = wide(a), wide(b)
        is_number = np.ones(len(a), bool) if a.dtype == object else np.isfinite(a) & np.isfinite(b)
    a, b = a[is_number], b[is_number]
    apart = np.abs(a - b).astype(np.float64)
    larger = np.maximum(np.abs(a), np.abs(b)).astype(np.float64)
    a, b = (array.astype(np.float64) if array.dtype == object else array for array in (a, b))
    norm_a, norm_b = np.linalg.norm(a), np.linalg.norm(b)
    return {
        "different": different,
        "not_finite": int((~is_number).sum()),
        "largest_difference": apart.max(),
        "largest_relative_difference": (apart[apart > 0] / larger[apart > 0]).max(),
        "cosine": np.vdot(b, a).real / norm_a / norm_b,
        "norm_a": norm_a,
        "norm_b": norm_b,
        "norm_difference": np.linalg.norm(apart),
    }


@pytest.mark.parametrize("make", [two_of_any_bits, two_similar])
def test_statistics_are_those_of_numpy(tmp_path, make):
    if not STFS.exists():
        pytest.fail(f"{STFS} is not built", pytrace=False)
    random = np.random.default_rng(20261124)
    pairs = {name: make(name, random) for name in DTYPES}
    for number, file in enumerate("ab"):
        write(tmp_path / file, {name: (name, pair[number]) for name, pair in pairs.items()})
    done = subprocess.run([STFS, "diff", "--json", tmp_path / "a", tmp_path / "b"], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, b"")
    rows = {row["name"]: row["statistics"] for row in json.loads(done.stdout)["differences"]}
    assert sorted(rows) == sorted(DTYPES)
    for name, (a, b) in pairs.items():
        expected = computed(a, b)
        assert list(rows[name]) == list(expected)
        for member, value in expected.items():
            exact = isinstance(value, int)
            assert rows[name][member] == (value if exact else pytest.approx(value, rel=1e-11, abs=1e-13)), (name, member)


def test_the_tensors_differ_and_have_nans():
    """Random tensors of every dtype differ, and have NaNs if the dtype has any."""
    random = np.random.default_rng(1)
    for name in DTYPES:
        found = computed(*two_of_any_bits(name, random))
        assert found["different"] > COUNT // 4
        has_nan = name not in PACKED and np.dtype(DTYPES[name]).kind not in "iub"
        assert (found["not_finite"] > 0) == has_nan, name
