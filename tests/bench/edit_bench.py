#!/usr/bin/env python3
"""Edits of an archive's structure, beside the reference library's way: load all, change the dictionary, save all.

rename, delete, retype and metadata are one edit each, by the command, its start included. The archive is sparse. The
reference reads and writes all of it in each round, so it runs once, and each edit is compared with that.

    tests/bench/edit_bench.py [--size 16G] [--rounds 5] [--json FILE]
"""
from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from pathlib import Path

from bench_session import Session, parse_size, parser_for, wanted
from bench_table import Found, Goal, Way
from mounts import STFS

MEASURES = ("edit",)
REFERENCE = "reference: load_file, save_file"
GOAL = Goal(1000, REFERENCE)
SLACK = 64 << 10
RESAVE = """
import sys, time
from safetensors.numpy import load_file, save_file
path = sys.argv[1]
with open("/proc/self/oom_score_adj", "w") as file:
    file.write("1000")  # the first to die where memory runs out
started = time.perf_counter()
tensors = load_file(path)
tensors["renamed"] = tensors.pop("large.0")
save_file(tensors, path + ".saved")
print(time.perf_counter() - started)
"""


def write_sparse(path: Path, size_bytes: int) -> None:
    each = size_bytes // 16
    header = {f"large.{at}": {"dtype": "F32", "shape": [each // 4], "data_offsets": [at * each, (at + 1) * each]}
              for at in range(16)}
    text = json.dumps(header).encode()
    text += b" " * (SLACK - 8 - len(text))
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(SLACK + 16 * each)


def measure_edit(session: Session, size_bytes: int) -> None:
    path, small = session.path("model.safetensors"), session.path("small")
    write_sparse(path, size_bytes)
    small.write_bytes(bytes(4096))
    done = subprocess.run([sys.executable, "-c", RESAVE, path], check=True, capture_output=True, text=True)
    reference = Found([float(done.stdout) * 1e3])
    Path(f"{path}.saved").unlink()
    state = {"flip": 0}

    def stfs(*words: str) -> None:
        subprocess.run([STFS, *map(str, words)], check=True, stdout=subprocess.DEVNULL)

    def timed(*words: str) -> float:
        started = time.perf_counter()
        stfs(*words)
        return (time.perf_counter() - started) * 1e3

    def rename() -> float:
        state["flip"] ^= 1
        return timed("mv", path, *(("large.1", "other") if state["flip"] else ("other", "large.1")))

    def delete() -> float:
        stfs("put", "--create", "--dtype", "U8", path, "goes", small)
        return timed("rm", path, "goes")

    def retype() -> float:
        state["type"] = "I32" if state.get("type") != "I32" else "F32"
        return timed("set", path, "large.2", "--dtype", state["type"])

    def metadata() -> float:
        state["value"] = state.get("value", 0) + 1
        return timed("set", path, "--metadata", f"key={state['value']}")

    for name, run in (("rename", rename), ("delete", delete), ("retype", retype), ("metadata", metadata)):
        found = session.table.find({"stfs": Way(run)})["stfs"]
        session.table.add(f"{name}, in {size_bytes >> 30} GiB", "ms", {
            REFERENCE: reference, "stfs": Found(found.values, REFERENCE, (GOAL,))}, higher_is_better=False)


def main() -> int:
    parser = parser_for(__doc__, MEASURES)
    parser.add_argument("--size", default="16G", help="of the archive (default 16G); the reference holds all in memory")
    arguments = parser.parse_args()
    wanted(parser, arguments, MEASURES)
    size_bytes = parse_size(arguments.size)
    with Session(arguments.rounds or 5, arguments.directory) as session:
        session.run("edit", lambda: measure_edit(session, size_bytes))
        return session.finish(arguments.json, {"size_bytes": size_bytes})


if __name__ == "__main__":
    sys.exit(main())
