# tests/bench/run with real mounts, in sizes that say nothing about speed.
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mounted import PATIENCE, REPOSITORY, eventually

RUN = REPOSITORY / "tests" / "bench" / "run"
SMALL = ["--quick", "--rounds", "1", "--repeats", "0", "--size", "1M"]


def start(directory, *words, **more):
    return subprocess.Popen([sys.executable, RUN, *SMALL, "--directory", directory, *map(str, words)], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, **more)


def finish(process):
    return process.communicate(timeout=60 * PATIENCE)[0], process.returncode


def documented(place):
    """The names of fields that the table of tests/README.md has for a place."""
    page = (REPOSITORY / "tests" / "README.md").read_text()
    line = re.search(rf"^\| {re.escape(place)} \| (.*) \|$", page, re.M)[1]
    return set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", line)))


@pytest.fixture(scope="module")
def two_rows(tmp_path_factory):
    """The output and the results of two rows."""
    directory = tmp_path_factory.mktemp("bench")
    data = directory / "data"
    data.mkdir()
    output, status = finish(start(data, "--only", "read-again,edit-1000", "--json", directory / "r.json", "--charts", directory / "charts"))
    assert status == 0, output
    assert os.listdir(data) == []
    return output, json.loads((directory / "r.json").read_text()), directory


def test_two_rows_have_figures_and_the_documented_fields(two_rows):
    _, result, _ = two_rows
    assert [row["name"] for row in result["rows"]] == ["read-again", "edit-1000"]
    assert set(result) == documented("the result") and set(result["machine"]) == documented("`machine`")
    rows = documented("a row") - {"exponent", "skipped", "failed"}
    goals, ways, absent = set(), set(), set()
    for row in result["rows"]:
        assert set(row) == rows
        assert any(way["kind"] == "ours" and way["median"] > 0 and len(way["values"]) == 1 for way in row["ways"])
        goals.update(*row["goals"])
        ways.update(*(way for way in row["ways"] if "missing" not in way))
        absent.update(*(way for way in row["ways"] if "missing" in way))
    assert goals == documented("a goal") and ways == documented("a way") - {"missing"}
    assert absent <= {"name", "kind", "missing"}
    assert result["is_quick"] and result["rounds"] == 1 and result["sizes"]["large_bytes"] == 1 << 20
    assert re.fullmatch(r"[0-9a-f]{40}|unknown", result["machine"]["commit"]) and result["machine"]["memory_bytes"] > 1 << 28


def test_the_table_has_each_way_with_its_ratio_and_goal(two_rows):
    output, result, _ = two_rows
    again = next(row for row in result["rows"] if row["name"] == "read-again")
    for way in again["ways"]:
        assert re.search(rf"^  {re.escape(way['name'])} ", output, re.M), output
    assert re.search(r"^  safetensorsfs, ro +[\d.]+ .* (met|MISSED)", output, re.M)
    assert re.search(r"^goals: \d+ met, \d+ missed$", output, re.M)


def test_results_are_shown_and_drawn_again_without_measuring(two_rows):
    output, _, directory = two_rows
    shown = subprocess.run([sys.executable, RUN, "--from", directory / "r.json", "--charts", directory / "again", "--only", "read"],
                           capture_output=True, text=True, timeout=60 * PATIENCE)
    assert shown.returncode == 0 and "edit-1000" not in shown.stdout
    assert shown.stdout.splitlines()[2:5] == output.splitlines()[2:5]
    assert (directory / "again" / "read.svg").read_text() == (directory / "charts" / "read.svg").read_text()


def test_other_programs_that_are_not_installed_are_named(tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("umount", "fusermount3", "sh", "true"):
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    (tmp_path / "data").mkdir()
    output, status = finish(start(tmp_path / "data", "--only", "mapped", env={**os.environ, "PATH": str(programs)}))
    assert status == 0, output
    for name in ("squashfuse_ll", "fuse-zip", "bindfs"):
        assert re.search(rf"^  {name} +{name}: not installed$", output, re.M), output
        assert f"missing: {name}: {name}: not installed" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["interrupted", "terminated"])
def test_a_run_that_is_stopped_leaves_no_mount_and_no_file(tmp_path, number):
    process = start(tmp_path, "--only", "scale-list,read", start_new_session=True)

    def mounted_points():
        return [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines() if str(tmp_path) in line.split()[1]]
    assert eventually(mounted_points) or process.poll() is None
    os.kill(process.pid, number)
    output, status = finish(process)
    assert status == 128 + number, output
    assert mounted_points() == [] and os.listdir(tmp_path) == []
