# Millions of look-ups of names that do not exist, as by a program that searches a path, or by a crawler. The daemon must keep
# nothing of these names.
import json
import os

import pytest
from mounted import is_sanitized

PROCESSES = 4
WARM_UP = 40_000
MIB = 1 << 20


def resident_bytes(process):
    with open(f"/proc/{process.pid}/status") as status:
        pages = {line.split()[0]: int(line.split()[1]) for line in status if line.startswith("RssAnon")}
    return pages["RssAnon:"] * 1024


def look_for(mount, first, end):
    """Each name is new, so the kernel can't answer from its cache. Several processes look up names in each kind of
    directory."""
    places = [("", "gone.{}.weight"), ("", ".{}"), (".safetensors", "gone{}"), (".safetensors/npy", "gone.{}.npy"),
              (".safetensors/npy", "odd{}"), (".safetensors/float32", "gone.{}.npy"),
              (".safetensors/slice", "gone.{}[0:1]"), (".safetensors/slice", "odd[{}:"),
              (".safetensors/slice", "odd[99999{}]"), (".safetensors/transactions", "T{}"),
              (".safetensors/committed", "T{}")]
    children = []
    for process in range(PROCESSES):
        child = os.fork()
        if child == 0:
            found = 0
            directories = [os.open(mount / place, os.O_RDONLY) for place, _ in places]
            for number in range(first + process, end, PROCESSES):
                at = number % len(places)
                found += os.access(places[at][1].format(number), os.F_OK, dir_fd=directories[at])
            os._exit(min(found, 100))
        children.append(child)
    found = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert found == [0] * PROCESSES


def asked(mount):
    return json.loads((mount / ".safetensors" / "stats.json").read_text())["requests"]["lookup"]


@pytest.mark.parametrize(("layout", "lookups"), [("flat", 200_000), ("tree", 100_000)])
def test_names_that_are_not_there_leave_no_trace(archive, mounts, layout, lookups):
    # A sanitizer keeps freed memory for a while, so the test then relies on its reports and does not measure memory.
    lookups = lookups // 10 if is_sanitized() else lookups * 5 if "STFS_LONG" in os.environ else lookups
    mount = mounts(archive.path, f"layout={layout}")
    look_for(mount, 0, WARM_UP)
    before, asked_before = resident_bytes(mount.process), asked(mount)
    look_for(mount, WARM_UP, WARM_UP + lookups)
    assert asked(mount) - asked_before >= lookups
    grown = resident_bytes(mount.process) - before
    assert grown < 4 * MIB or is_sanitized(), f"{before} bytes at first, {grown} more behind {lookups} names"
    for name in ("scalar", "odd"):
        assert (mount / name).read_bytes() == archive.tensor(name)
