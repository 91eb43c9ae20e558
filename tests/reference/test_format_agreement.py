"""Our reader and the reference library must agree on what is an archive.

Where they don't, ours is the stricter one, and that is listed here: nothing else may differ.
- Duplicate names of tensors (DuplicateKey): the format's text forbids them; the reference lets the last win.
- The array form of an entry and the map form of a dtype: accidents of serde that no writer produces.
- A number of more than a million digits in a field that nobody asked for.
If two tensors have one range, the reference checks them in the order of its hash map. The code of its error may therefore
differ each time.
"""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import corpus  # noqa: E402

CHECKER = Path(os.environ.get("STFS_BUILD_DIR", ROOT / "build" / "release")) / "tests" / "header_check"
MUTATIONS = int(os.environ.get("STFS_MUTATIONS", "4000"))


def our_verdicts(paths):
    """Returns header_check's verdict on each file, in order."""
    if not CHECKER.exists():
        pytest.fail(f"{CHECKER} is not built", pytrace=False)
    verdicts = []
    for at in range(0, len(paths), 500):
        done = subprocess.run([CHECKER, *paths[at : at + 500]], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"header_check ended with {done.returncode}: {done.stderr}"
        verdicts += [json.loads(line) for line in done.stdout.splitlines()]
    assert len(verdicts) == len(paths)
    return verdicts


def reference_verdict(content):
    """Returns "ok" or the reference library's message."""
    try:
        safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        return str(error)
    return "ok"


def reference_code(message):
    """Returns the name of the reference library's error with this message."""
    return next((code for code, text in corpus.REFERENCE.items() if text in message), message)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    directory = tmp_path_factory.mktemp("corpus")
    cases = corpus.write(directory)
    paths = [directory / case["file"] for case in cases]
    return list(zip(cases, paths, our_verdicts(paths)))


def test_ours_says_what_the_manifest_says(manifest):
    wrong = []
    for case, _, ours in manifest:
        verdict = "ok" if ours["ok"] else ours["code"]
        if verdict != case["ours"] or (ours["ok"] and ours["tensors"] != len(case["tensors"])):
            wrong.append(f"{case['file']} ({case['why']}): {case['ours']} is due, but it is {ours}")
    assert not wrong, "\n".join(wrong)


def test_the_reference_says_what_the_manifest_says(manifest):
    wrong = []
    for case, path, _ in manifest:
        verdict = reference_verdict(path.read_bytes())
        if verdict != case["reference"] and (case["reference"] == "ok" or case["reference"] not in verdict):
            wrong.append(f"{case['file']} ({case['why']}): {case['reference']} is due, but it is {verdict}")
    assert not wrong, "\n".join(wrong)


def test_the_reference_opens_what_it_deserializes(manifest):
    """safe_open works in another way than deserialize, and must give the same names."""
    for case, path, _ in manifest:
        if case["reference"] == "ok" and case["ours"] == "ok":
            with safetensors.safe_open(path, framework="np") as opened:
                assert sorted(opened.keys()) == sorted(case["tensors"]), case["file"]


def test_every_refusal_says_where_and_why(manifest):
    for case, _, ours in manifest:
        if not ours["ok"]:
            assert 10 < len(ours["message"]) < 400, ours
            assert "json.exception" not in ours["message"], ours
            assert not re.search(r"[\x00-\x1f\x7f]", ours["message"]), ours


# Valid headers with a sample of everything. The tests damage them at random.
SEEDS = [
    case.content
    for case in corpus.cases()
    if case.ours == "ok" and len(case.content) < 3000
] + [
    corpus.archive(
        '{"__metadata__":{"format":"pt","k":"v"},"a":%s,"b":%s,"c":%s}  '
        % (corpus.entry("F32", (2, 3), (0, 24)), corpus.entry("BF16", (), (24, 26)), corpus.entry("F4", (0,), (26, 26))),
        bytes(26),
    )
]
PIECES = [
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u", b"\\ud800", b"\0", b" ", b"\n", b"0", b"-", b"-0", b"1.0", b"1e2",
    b"null", b"true", b"{}", b"[]", b'"a"', b'"__metadata__"', b'"dtype"', b'"shape"', b'"data_offsets"', b'"U8"', b"\xff",
    b"\xc3\xa9", b"\xef\xbb\xbf", b"18446744073709551615", b"18446744073709551616", b"9223372036854775808", b"/**/",
]


def mutate(rng, content):
    header = bytearray(content[8:])
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        at = rng.randrange(len(header) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(header):
            header[at] = rng.randrange(256)
        elif kind == 1:
            del header[at : at + rng.randrange(1, 6)]
        elif kind == 2:
            header[at:at] = rng.choice(PIECES)
        elif kind == 3:
            header[at : at + rng.randrange(1, 4)] = rng.choice(PIECES)
        elif kind == 4:
            other = rng.randrange(len(header) + 1)
            header[at:at] = header[other : other + rng.randrange(1, 40)]
        else:
            digits = [match for match in re.finditer(rb"\d+", bytes(header))]
            if digits:
                match = rng.choice(digits)
                header[match.start() : match.end()] = str(int(match.group()) + rng.choice([-1, 1, 8, 2**61])).encode()
    # In most cases the length still fits the header, so that the checks after check 3 are also reached.
    length = int.from_bytes(content[:8], "little") + len(header) - (len(content) - 8)
    if rng.random() < 0.1:
        length = max(0, length + rng.choice([-1, 1, 7, 2**63]))
    damaged = max(0, length).to_bytes(8, "little") + bytes(header)
    # In some cases the file ends anywhere, also within the length.
    return damaged[: rng.randrange(min(len(damaged), 65))] if rng.random() < 0.05 else damaged


def tensors_of(content):
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return [value for name, value in header.items() if name != "__metadata__"]


def ours_is_stricter(content, ours):
    return ours["code"] == "DuplicateKey" or any(
        isinstance(value, list) or isinstance(value["dtype"], dict) for value in tensors_of(content)
    )


def same_refusal(content, ours, theirs):
    if ours["code"] in (reference_code(theirs), "DuplicateKey"):
        return True
    if {ours["code"], reference_code(theirs)} <= {"InvalidOffset", "ValidationOverflow", "MisalignedSlice", "TensorInvalidInfo"}:
        ranges = [tuple(value["data_offsets"]) for value in tensors_of(content)]
        return len(set(ranges)) < len(ranges)
    return False


def test_random_damage_is_judged_alike(tmp_path):
    seed = int(os.environ.get("STFS_SEED", random.SystemRandom().randrange(2**32)))
    rng = random.Random(seed)
    contents = [mutate(rng, rng.choice(SEEDS)) for _ in range(MUTATIONS)]
    paths = []
    for i, content in enumerate(contents):
        paths.append(tmp_path / f"{i}.safetensors")
        paths[-1].write_bytes(content)
    wrong = []
    accepted = 0
    for content, ours in zip(contents, our_verdicts(paths)):
        theirs = reference_verdict(content)
        accepted += ours["ok"]
        if ours["ok"]:
            alike = theirs == "ok"
        else:
            alike = ours_is_stricter(content, ours) if theirs == "ok" else same_refusal(content, ours, theirs)
        if not alike:
            wrong.append(f"ours {ours}\nreference {theirs}\n{content[:600]!r}")
    assert not wrong, f"STFS_SEED={seed}: {len(wrong)} differ\n" + "\n\n".join(wrong[:5])
    assert accepted > MUTATIONS / 50, "the damage is too great to try anything but errors"
