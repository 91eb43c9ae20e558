"""Our slices and NumPy's basic indexing must select the same bytes, and refuse the same texts.

Where they don't, ours is the stricter one, or the more lenient in the spelling of a number; nothing else may differ:
- None, booleans, lists, parentheses, +1, 1_000 and 0x10 are no part of a slice to us.
- Elements of less than a byte, which NumPy does not have, are selected where the result is made of whole bytes.
"""

import json
import os
import random
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import xxhash

ROOT = Path(__file__).resolve().parents[2]
CHECKER = Path(os.environ.get("STFS_BUILD_DIR", ROOT / "build" / "release")) / "tests" / "slice_check"
ROUNDS = int(os.environ.get("STFS_SLICES", "10000"))

NUMPY_TYPES = {"U8": "u1", "BOOL": "u1", "F8_E4M3": "u1", "BF16": "<u2", "F16": "<f2", "I32": "<i4", "F64": "<f8", "C64": "<c8"}
# The number of elements that fill whole bytes, and the number of these bytes.
PACKED = {"F4": (2, 1), "F6_E2M3": (4, 3), "F6_E3M2": (4, 3)}


def our_verdicts(requests):
    """Returns slice_check's verdict on each (shape, dtype, text)."""
    if not CHECKER.exists():
        pytest.fail(f"{CHECKER} is not built", pytrace=False)
    lines = [f"{','.join(map(str, shape))};{dtype};{text}\n" for shape, dtype, text in requests]
    done = subprocess.run([CHECKER], input="".join(lines), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, f"slice_check ended with {done.returncode}: {done.stderr}"
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(verdicts) == len(requests)
    return verdicts


def tensor_bytes(size):
    """Returns the bytes that slice_check gives a tensor."""
    return ((np.arange(size, dtype=np.uint64) * 2654435761 & 0xFFFFFFFF) >> 24).astype(np.uint8)


def numpy_verdict(shape, dtype, text):
    """Returns shape and bytes of NumPy's slice, or NumPy's exception."""
    count = int(np.prod(shape, dtype=np.int64))
    if dtype in PACKED:
        array = np.arange(count).reshape(shape)
    else:
        item = np.dtype(NUMPY_TYPES[dtype])
        array = tensor_bytes(count * item.itemsize).view(item).reshape(shape)
    try:
        selected = eval(f"array[{text}]", {"__builtins__": {}}, {"array": array})
    except (AttributeError, IndexError, NameError, OverflowError, SyntaxError, TypeError, ValueError) as error:
        return error
    selected = np.ascontiguousarray(selected).reshape(np.shape(selected))
    if dtype not in PACKED:
        return selected.shape, selected.tobytes()
    # The positions of the elements, in groups of whole bytes. Each group must be a group of the tensor.
    elements, size = PACKED[dtype]
    positions = selected.reshape(-1)
    if len(positions) % elements:
        return selected.shape, None
    groups = positions.reshape(-1, elements)
    if (groups[:, :1] % elements != 0).any() or (groups != groups[:, :1] + np.arange(elements)).any():
        return selected.shape, None
    data = tensor_bytes(count // elements * size).reshape(-1, size)
    return selected.shape, data[groups[:, 0] // elements].tobytes()


def disagreement(request, ours):
    """Returns the reason if our verdict is wrong, or None."""
    theirs = numpy_verdict(*request)
    if isinstance(theirs, Exception):
        return None if not ours["ok"] else f"NumPy refuses it: {theirs!r}"
    shape, data = theirs
    if data is None:
        return None if not ours["ok"] and "whole byte" in ours["message"] else "the result is not whole bytes"
    if not ours["ok"]:
        return "NumPy accepts it"
    if tuple(ours["shape"]) != shape or ours["size"] != len(data):
        return f"the shape is {shape}, and {len(data)} bytes"
    if ours["hash"] != xxhash.xxh128(data).hexdigest():
        return "other bytes"
    return None if ours["consistent"] else "the ways to read it differ"


def report(requests):
    """Fails with the first requests that differ. @return the number of accepted requests."""
    verdicts = our_verdicts(requests)
    wrong = []
    for request, ours in zip(requests, verdicts):
        why = disagreement(request, ours)
        if why:
            wrong.append(f"{request}: {why}, ours: {ours}")
    assert not wrong, f"{len(wrong)} differ\n" + "\n".join(wrong[:10])
    return sum(ours["ok"] for ours in verdicts)


def number(rng, size):
    if rng.random() < 0.02:
        return rng.choice([2**31, 2**63 - 1, 2**63, 2**64, 10**30]) * rng.choice([1, -1])
    return rng.randint(-size - 2, size + 2)


def item(rng, size):
    if rng.random() < 0.25:
        return str(rng.randrange(-size, size) if size and rng.random() < 0.97 else number(rng, size))
    start, stop = ("" if rng.random() < 0.5 else str(number(rng, size)) for _ in range(2))
    if rng.random() < 0.5:
        return f"{start}:{stop}"
    step = rng.choice(["", "1", "2", "3", "-1", "-2", "-3", "7", str(10**20), str(-(10**20)), str(-(2**63))])
    return f"{start}:{stop}:{'0' if rng.random() < 0.01 else step}"


def random_request(rng):
    shape = [0 if rng.random() < 0.02 else rng.randint(1, 7) for _ in range(rng.randint(0, 6))]
    dtype = rng.choice([*NUMPY_TYPES, *PACKED])
    if dtype in PACKED:
        elements = PACKED[dtype][0]
        shape = shape or [elements]
        shape[-1] = elements * rng.randint(1, 3)
    items = [item(rng, size) for size in shape]
    begin, end = sorted(rng.randint(0, len(items)) for _ in range(2))
    style = rng.random()
    if style < 0.3:
        items[begin:end] = ["..."]
    elif style < 0.5:
        del items[begin:]
    elif style < 0.52:
        items.append(rng.choice(["0", ":", "...", "..."]))
    space = rng.choice(["", "", "", " "])
    text = f"{space},{space}".join(items) or "..."
    return shape, dtype, text + rng.choice(["", "", "", ","])


def seeded():
    seed = int(os.environ.get("STFS_SEED", random.SystemRandom().randrange(2**32)))
    print(f"STFS_SEED={seed}")  # pytest prints it if the test fails
    return random.Random(seed)


def test_random_slices_are_numpys():
    rng = seeded()
    requests = [random_request(rng) for _ in range(ROUNDS)]
    accepted = report(requests)
    assert ROUNDS / 2 < accepted < ROUNDS, "all of one kind tries too little"


PIECES = [*"0123:::,,.- x;", "...", "-1", "::2", "  ", "1.0", "9" * 25]
# Arithmetic, hexadecimal numbers and leading zeros, which Python handles in another way.
EXPRESSION = re.compile(r"-(?!\d)|\d\s*-|(?<!\d)0[\dx]")


def test_random_texts_are_accepted_where_numpy_accepts_them():
    rng = seeded()
    requests = []
    while len(requests) < ROUNDS:
        text = "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 8)))
        if not EXPRESSION.search(text):
            requests.append(([4, 5, 3], "U8", text))
    accepted = report(requests)
    assert ROUNDS / 50 < accepted < ROUNDS / 2, "all of one kind tries too little"


@pytest.mark.parametrize(
    "text",
    ["None", "True", "np.newaxis", "[0]", "(0)", "()", "+1", "1_0", "0x1", "1.0", "1e0", "''", "0;1", "::0", "0:1:0", "", ",", "0,,1"]
    + ["4", "-5", ":,5", "0,0,0,0", "...,...", "0:10:2:3", "a", "0 1", "..", "....", "--1", "-", "٣", "0:1\u00a0", "\t0", "0\r"],
)
def test_what_is_no_slice_is_refused_with_its_place(text):
    (ours,) = our_verdicts([([4, 5, 3], "U8", text)])
    assert not ours["ok"], ours
    assert ours["message"].startswith("byte ") and len(ours["message"]) < 200


def test_examples_of_the_documentation():
    assert report([([16, 2, 5], "BF16", text) for text in ["0:10,:,3", "...", "-1", "::-1", "..., ::2", "3:1", ":,-1,1:-1"]]) == 7
