"""Our conversion to float32 and the conversion of ml_dtypes, which the reference library uses, must be the same.

NaNs only have to be NaNs in both: ml_dtypes does not keep their bits and, for some types, not their sign.
"""

import os
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
CONVERTER = Path(os.environ.get("STFS_BUILD_DIR", ROOT / "build" / "release")) / "tests" / "float32_check"

BYTES = {
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}
# In memory of ml_dtypes each element takes a whole byte.
PACKED = {
    "F4": (4, ml_dtypes.float4_e2m1fn),
    "F6_E2M3": (6, ml_dtypes.float6_e2m3fn),
    "F6_E3M2": (6, ml_dtypes.float6_e3m2fn),
}
SHORTS = {"F16": np.float16, "BF16": ml_dtypes.bfloat16}


def converted(dtype, data, count):
    """Returns the values that float32_check prints for these bytes."""
    if not CONVERTER.exists():
        pytest.fail(f"{CONVERTER} is not built", pytrace=False)
    done = subprocess.run([CONVERTER, dtype, str(count)], input=data, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return np.frombuffer(done.stdout, np.float32)


def assert_same(ours, theirs):
    assert ours.shape == theirs.shape
    different = (ours.view(np.uint32) != theirs.view(np.uint32)) & ~(np.isnan(ours) & np.isnan(theirs))
    assert not different.any(), [(int(i), ours[i], theirs[i]) for i in np.flatnonzero(different)[:10]]


@pytest.mark.parametrize("dtype", BYTES)
def test_every_value_of_one_byte(dtype):
    patterns = np.arange(256, dtype=np.uint8)
    assert_same(converted(dtype, patterns.tobytes(), 256), patterns.view(BYTES[dtype]).astype(np.float32))


@pytest.mark.parametrize("dtype", SHORTS)
def test_every_value_of_two_bytes(dtype):
    patterns = np.arange(65536, dtype="<u2")
    with np.errstate(invalid="ignore"):
        theirs = patterns.view(SHORTS[dtype]).astype(np.float32)
    assert_same(converted(dtype, patterns.tobytes(), 65536), theirs)


@pytest.mark.parametrize("dtype", PACKED)
def test_every_value_of_less_than_a_byte(dtype):
    bits, numpy_type = PACKED[dtype]
    # Every pair of values is adjacent once.
    values = np.arange(2**bits)
    patterns = np.stack(np.meshgrid(values, values)).reshape(-1).astype(np.uint8)
    stream = np.unpackbits(patterns[:, None], axis=1, bitorder="little")[:, :bits].reshape(-1)
    data = np.packbits(stream, bitorder="little").tobytes()
    assert_same(converted(dtype, data, len(patterns)), patterns.view(numpy_type).astype(np.float32))


def test_f64_is_rounded_as_numpy_does():
    rng = np.random.default_rng(20261121)
    doubles = np.concatenate(
        [
            rng.integers(0, 2**64, 100_000, dtype=np.uint64).view(np.float64),
            rng.standard_normal(100_000) * 10.0 ** rng.integers(-50, 50, 100_000),
            np.float64([0.0, -0.0, np.inf, -np.inf, np.nan, 1 + 2**-24, 1 + 3 * 2**-24, 2**-149, 2**-150, 3 * 2**-150]),
        ]
    )
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        theirs = doubles.astype(np.float32)
    assert_same(converted("F64", doubles.tobytes(), len(doubles)), theirs)


def test_f32_is_copied_to_the_bit():
    data = np.random.default_rng(7).integers(0, 2**32, 100_000, dtype=np.uint64).astype("<u4")
    assert converted("F32", data.tobytes(), len(data)).tobytes() == data.tobytes()
