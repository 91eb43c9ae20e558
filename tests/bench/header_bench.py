"""Compares our reader of headers with the reference library's on one file, turn by turn in one run.

    .venv/bin/python tests/bench/header_bench.py [--tensors N] [--rounds N] [FILE]

Without FILE it writes one of a million tensors. Ours is build/release/tests/header_bench (STFS_BUILD_DIR names
another build), which has the file mapped before it starts; theirs is safetensors.safe_open, which maps it,
parses, and does no more until a tensor is asked for. Prints medians and the verdict as JSON.
"""

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import safetensors

ROOT = Path(__file__).resolve().parents[2]
BENCH = Path(os.environ.get("STFS_BUILD_DIR", ROOT / "build" / "release")) / "tests" / "header_bench"


def write_model(path, tensors):
    """A model of that many small tensors with names as a large model has them; a million just fit the limit."""
    parts = [
        '"model.%d.attn.q.weight":{"dtype":"BF16","shape":[1,1],"data_offsets":[%d,%d]}' % (i, 2 * i, 2 * i + 2)
        for i in range(tensors)
    ]
    header = ("{" + ",".join(parts) + "}").encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 2 * tensors)


def theirs(path):
    start = time.perf_counter()
    with safetensors.safe_open(path, framework="np"):
        return time.perf_counter() - start


def compare(path, rounds):
    Path(path).read_bytes()  # into the page cache, for both
    reference, ours = [], []
    for _ in range(rounds):
        reference.append(theirs(path))
        ours.append(json.loads(subprocess.run([BENCH, path, "1"], check=True, capture_output=True, text=True).stdout))
    last = ours[-1]
    median = statistics.median(row["median_s"] for row in ours)
    return {
        "tensors": last["tensors"],
        "header_bytes": last["header_bytes"],
        "rounds": rounds,
        "ours_s": round(median, 4),
        "reference_s": round(statistics.median(reference), 4),
        "times_as_fast": round(statistics.median(reference) / median, 2),
        "peak_per_header": round(max(row["peak_bytes"] for row in ours) / last["header_bytes"], 2),
        "index_bytes_per_tensor": round(last["index_bytes"] / max(1, last["tensors"]), 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?")
    parser.add_argument("--tensors", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = arguments.file or os.path.join(directory, "model.safetensors")
        if not arguments.file:
            write_model(path, arguments.tensors)
        result = compare(path, arguments.rounds)
    print(json.dumps(result))
    sys.exit(0 if result["times_as_fast"] >= 1 else 1)


if __name__ == "__main__":
    main()
