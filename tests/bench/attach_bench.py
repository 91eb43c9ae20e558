"""How long a process takes to attach to what `stfs serve` keeps, beside loading the same archive with the reference
library: each time in a fresh process that has imported what it needs.

    .venv/bin/python tests/bench/attach_bench.py [--size-gib 1] [--tensors 300] [--runs 10]
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STFS_BUILD_DIR", REPOSITORY / "build" / "release")).resolve()

ATTACH = """
import sys, time
sys.path.insert(0, sys.argv[1])
import stfs
def own():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096
before = own()
began = time.perf_counter()
lease = stfs.attach(sys.argv[2])
took = time.perf_counter() - began
print(took, own() - before, len(lease))
"""

LOAD = """
import sys, time
from safetensors.numpy import load_file
began = time.perf_counter()
tensors = load_file(sys.argv[1])
print(time.perf_counter() - began)
"""


def run(code, *arguments):
    result = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True)
    return [float(word) for word in result.stdout.split()]


def write_archive(path, size_bytes, count):
    each = size_bytes // count // 8 * 8
    header = json.dumps({f"model.layers.{at}.weight": {"dtype": "U8", "shape": [each], "data_offsets": [at * each, (at + 1) * each]}
                         for at in range(count)}).encode()
    numbers = np.random.default_rng(1)
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _ in range(count):
            file.write(numbers.bytes(each))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-gib", type=float, default=1)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stfs-bench-") as directory:
        archive, socket = Path(directory) / "m.safetensors", Path(directory) / "s"
        write_archive(archive, int(options.size_gib * 2**30), options.tensors)
        server = subprocess.Popen([BUILD / "stfs", "serve", archive, "--device", "cpu", "--socket", socket, "--json"],
                                  stdout=subprocess.PIPE, text=True)
        try:
            event = json.loads(server.stdout.readline())
            print(f"served: {event['size_bytes'] / 2**30:.2f} GiB in {event['tensors']} tensors, uploaded in {event['seconds']:.2f} s")
            attached = [run(ATTACH, BUILD / "python", socket) for _ in range(options.runs)]
        finally:
            server.terminate()
            server.wait()
        loaded = [run(LOAD, archive)[0] for _ in range(3)]
    milliseconds = [1000 * took for took, *_ in attached]
    print(f"attach: median {statistics.median(milliseconds):.2f} ms, worst {max(milliseconds):.2f} ms of {options.runs}; "
          f"own memory grew by {max(grown for _, grown, _ in attached) / 2**20:.1f} MiB at most")
    print(f"load_file of the reference library, page cache warm: {1000 * statistics.median(loaded):.0f} ms")


if __name__ == "__main__":
    main()
