"""Crash states without a torn or lost tensor, by the hundred million."""

import os
import subprocess
from pathlib import Path

import pytest

BUILD = Path(os.environ.get("STFS_BUILD_DIR", Path(__file__).parents[2] / "build" / "release")).resolve()


def explore(kind: str, states: int, seed: int = 0) -> subprocess.CompletedProcess:
    command = [BUILD / "tests" / "crash_explorer", "--kind", kind, "--states", str(states), "--seed", str(seed)]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.skipif("STFS_LONG" not in os.environ, reason="long, runs with --long")
@pytest.mark.parametrize(
    ("kind", "states"),
    [("crashes", 10**8), ("random", 10**7), ("faults", 10**6), ("hosts", 10**6), ("journals", 10**7), ("edits", 10**6),
     ("edit-hosts", 10**6), ("pulls", 10**6)],
)
@pytest.mark.timeout(6 * 3600)
def test_nothing_is_torn_or_lost(kind: str, states: int):
    # Seeds that no run of the tests has used before.
    done = explore(kind, states, seed=1_000_000_000)
    assert done.returncode == 0, done.stdout
    print(done.stdout)


def test_explorer_says_how_many_states_it_has_seen():
    done = explore("crashes", 1000)
    assert done.returncode == 0, done.stdout
    assert "states, 0 torn, 0 lost" in done.stdout


def test_explorer_refuses_wrong_usage():
    command = [BUILD / "tests" / "crash_explorer", "--kind", "miracles"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 2
