"""An upload must convert values as ml_dtypes does, NumPy's own types included.

NaNs only have to be NaNs in both. From float64, ml_dtypes converts to float32 first and so rounds twice. Float64 is
therefore compared only with values that float32 holds exactly.
"""

import os
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
CONVERTER = Path(os.environ.get("STFS_BUILD_DIR", ROOT / "build" / "release")) / "tests" / "conversion_check"

TARGETS = {
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
}
SOURCES = TARGETS | {"F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu), "F64": np.dtype(np.float64)}


def values(source):
    """Returns every value of a small type. For a large type, returns the values of float16 and bfloat16, values beside
    them, and noise."""
    dtype = SOURCES[source]
    if dtype.itemsize <= 2:
        return np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype)
    shorts = np.arange(1 << 16, dtype="u2")
    with np.errstate(invalid="ignore"):
        exact = np.concatenate([shorts.view(np.float16).astype("f4"), shorts.view(ml_dtypes.bfloat16).astype("f4")])
    bits = exact.view("u4")
    noise = np.random.default_rng(3).integers(0, 1 << 32, 200_000, dtype="u4")
    # The middle between two values of a short type, and a value on each side of it, to test ties and the values beside them.
    bits = np.concatenate([bits, bits ^ 0x1000, bits ^ 0x8000, bits ^ 0x7FFF, bits ^ 0x8001, bits ^ 0x0FFF, noise])
    with np.errstate(invalid="ignore"):
        return bits.view("f4").astype(dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_conversions_are_those_of_ml_dtypes(source, target):
    if not CONVERTER.exists():
        pytest.fail(f"{CONVERTER} is not built", pytrace=False)
    given = values(source)
    done = subprocess.run([CONVERTER, source, target], input=given.tobytes(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    ours = np.frombuffer(done.stdout, TARGETS[target])
    with np.errstate(invalid="ignore", over="ignore"):
        exact = given.astype("f4")
        theirs = exact.astype(TARGETS[target])
        is_nan = np.isnan(theirs.astype("f4"))
        assert (np.isnan(ours.astype("f4")) == is_nan).all()
        bits = f"u{TARGETS[target].itemsize}"
        different = (ours.view(bits) != theirs.view(bits)) & ~is_nan
        assert not different.any(), [(exact[i], ours[i], theirs[i]) for i in np.flatnonzero(different)[:10]]
        # A value is lost if it was no NaN and is now NaN or infinite. Infinity that stays infinity is not lost.
        lost = ~np.isnan(exact) & ~np.isfinite(theirs.astype("f4"))
        lost &= ~(np.isinf(exact) & np.isinf(theirs.astype("f4")))
    assert int(done.stderr) == int(lost.sum())
