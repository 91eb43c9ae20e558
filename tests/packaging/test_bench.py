# tests/bench/run and tests/bench/compare without measurements: the list of rows, what a row's rounds make of its ways, the
# comparison of two results, and the pictures. tests/mount/test_bench_run.py runs rows.
import copy
import dataclasses
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as tree
from pathlib import Path
from types import SimpleNamespace

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BENCH = REPOSITORY / "tests" / "bench"
sys.path.insert(0, str(BENCH))
import bench_charts  # noqa: E402
import bench_rounds  # noqa: E402
import bench_text  # noqa: E402
from bench_row import QUICK, Goal, Plan, Row, limit, missing, ours, peer, twin  # noqa: E402


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


# ---- rows ----

class Session(SimpleNamespace):
    def __init__(self, rounds=3, repeats=0, slow_seconds=1000.0):
        super().__init__(rounds=rounds, repeats=repeats, is_late=lambda: False, sizes=dataclasses.replace(QUICK, slow_seconds=slow_seconds))


def measured(ways, goals=(), *, higher=True, grows=False, session=None):
    row = Row("read", "read", "reading a tensor", "GB/s", higher, goals, grows, None)
    return bench_rounds.measure(row, Plan(ways), session or Session())


@pytest.fixture
def quiet(monkeypatch):
    monkeypatch.setattr(bench_rounds, "busy_cores", lambda: 0.0)


def values(*numbers):
    """A way that returns these figures, the first one in the round that warms up."""
    return iter(numbers).__next__


def test_ways_alternate_and_the_first_round_only_warms_up(quiet):
    order = []

    def way(name, figures):
        def work():
            order.append(name)
            return figures.pop(0)
        return work
    row = measured({"plain": twin(way("plain", [100, 10, 20, 40])), "mount": ours(way("mount", [1, 5, 20, 10]))})
    assert order == ["plain", "mount"] * 4
    plain, mount = row["ways"]
    assert (plain["median"], plain["low"], plain["high"]) == (20, 10, 40) and "ratio" not in plain
    assert (mount["median"], mount["ratio"], mount["ratio_low"], mount["ratio_high"]) == (10, 0.5, 0.25, 1)


def test_a_ratio_is_above_one_if_a_way_is_better_in_either_direction(quiet):
    for higher, ratio in ((True, 0.5), (False, 2)):
        row = measured({"plain": twin(lambda: 4), "mount": ours(lambda: 2)}, higher=higher)
        assert row["ways"][1]["ratio"] == ratio


def test_goals_are_ratios_to_a_way_or_highest_figures(quiet):
    goals = (Goal("mount", 0.5), Goal("mount", 0.6), Goal("mount", 3, of="other"), Goal("mount", 2, is_at_most=True),
             Goal("mount", 1, of="absent"))
    row = measured({"plain": twin(lambda: 4), "mount": ours(lambda: 2), "other": peer(lambda: 0.5),
                    "absent": missing("peer", "not installed")}, goals)
    assert [(goal["figure"], goal["is_met"]) for goal in row["goals"]] == [(0.5, True), (0.5, False), (4, True), (2, True)]


def test_a_peer_that_is_missing_or_fails_is_named_and_ours_must_not_fail(quiet):
    def fail():
        raise OSError("no such device")
    row = measured({"plain": twin(lambda: 4), "a": missing("peer", "a: not installed"), "b": peer(fail)})
    assert [way.get("missing") for way in row["ways"]] == [None, "a: not installed", "fails: no such device"]
    assert "a: not installed" in bench_text.row_text(row) and "fails: no such device" in bench_text.row_text(row)
    with pytest.raises(OSError, match="no such device"):
        measured({"plain": twin(lambda: 4), "mount": ours(fail)})


def test_a_slow_peer_runs_once_and_so_does_a_way_that_says_so(quiet):
    row = measured({"plain": twin(values(9, 1, 2, 3)), "slow": peer(values(7, 8)), "once": ours(values(5), is_once=True)},
                   session=Session(slow_seconds=-1))
    assert [way["values"] for way in row["ways"]] == [[1, 2, 3], [7], [5]]


def test_a_row_beside_busy_programs_is_measured_again_and_marked(monkeypatch):
    def measure(*busy, repeats):
        monkeypatch.setattr(bench_rounds, "busy_cores", iter(busy).__next__)
        return measured({"plain": twin(iter(range(100)).__next__)}, session=Session(rounds=1, repeats=repeats))
    again = measure(0, 1.5, 0, 0.1, repeats=2)
    assert (again["tries"], again["is_busy"], again["ways"][0]["values"]) == (2, False, [3])
    always = measure(2, 2, 0, 1, 3, 3, repeats=2)
    assert (always["tries"], always["is_busy"], always["busy_cores"], always["ways"][0]["values"]) == (3, True, 1, [3])
    assert "BUSY" in bench_text.row_text(always) and "BUSY" not in bench_text.row_text(again)


def test_the_exponent_of_growth_is_that_of_the_figures(quiet):
    """Constant costs hide the growth of small numbers, so that the two largest decide."""
    row = measured({f"{count:,} tensors": ours(lambda count=count: max(1e6, 3.0 * count ** 1.5)) for count in (1000, 10_000, 100_000)},
                   grows=True)
    assert row["exponent"] == pytest.approx(1.5)


# ---- the list ----

def test_the_list_has_each_row_with_its_group_and_goal():
    lines = run(BENCH / "run", "--list").stdout.splitlines()
    assert len({line.split()[0] for line in lines}) == len(lines) > 40
    random = next(line for line in lines if line.startswith("random-4 "))
    assert random.split()[1] == "read" and "4 KiB at random places" in random and "safetensorsfs >= 0.9" in random
    assert "overwrite 1 GiB at" in "".join(lines) and "overwrite 64 MiB at" in run(BENCH / "run", "--list", "--quick").stdout
    some = run(BENCH / "run", "--list", "--only", "edit-1000,scale,save-*").stdout
    assert {line.split()[1] for line in some.splitlines()} == {"edit", "scale", "save"} and "edit-10000 " not in some


@pytest.mark.parametrize("words", [["--only", "no-such-row"], ["--rounds", "0"], ["--no-such-option"]])
def test_a_wrong_command_line_is_explained(words):
    done = run(BENCH / "run", *words)
    assert done.returncode == 2 and words[-1] in done.stderr + "0" and "Try: tests/bench/run --help" in done.stderr


@pytest.mark.parametrize("program", [BENCH / "run", BENCH / "compare"])
def test_help_explains_usage_and_exit_status(program):
    done = run(program, "--help")
    assert done.returncode == 0 and "Usage: tests/bench/" in done.stdout and "Exit status:" in done.stdout


# ---- the comparison ----

def result_of(**rows):
    machine = {"kernel": "6.18", "processor": "a processor", "cores": 2, "file_system": "ext4", "commit": "0123456789abcdef"}
    return {"format": 1, "began": "2026-01-02T03:04:05Z", "seconds": 1.0, "is_quick": False, "rounds": 3, "sizes": dataclasses.asdict(QUICK),
            "machine": machine, "notes": [], "rows": [row | {"name": name.replace("_", "-")} for name, row in rows.items()]}


@pytest.fixture
def old(quiet):
    return result_of(
        read=measured({"plain": twin(lambda: 4), "mount": ours(lambda: 2), "peer": peer(lambda: 1)}, (Goal("mount", 0.4),)),
        edit=measured({"plain": twin(lambda: 1), "mount": ours(lambda: 2)}, higher=False),
        memory=measured({"daemon": ours(lambda: 50)}, higher=False))


@pytest.fixture
def compared(tmp_path):
    def compare(old, new):
        for name, result in (("old", old), ("new", new)):
            (tmp_path / f"{name}.json").write_text(json.dumps(result))
        return run(BENCH / "compare", tmp_path / "old.json", tmp_path / "new.json")
    return compare


def changed(result, row, factor, *, twin_factor=1.0, better="higher"):
    """The result with other figures of our first way of a row, and of the row's twin."""
    result = copy.deepcopy(result)
    found = next(one for one in result["rows"] if one["name"] == row)
    mine = next(way for way in found["ways"] if way["kind"] == "ours")
    mine["median"] *= factor
    if "ratio" in mine:
        mine["ratio"] *= factor / twin_factor if better == "higher" else twin_factor / factor
    return result


def test_equal_results_are_not_worse(compared, old):
    done = compared(old, old)
    assert (done.returncode, done.stdout) == (0, "0 of 3 ways got worse by 10 % or more\n")


def test_a_row_that_got_worse_by_a_tenth_is_named_and_no_other(compared, old):
    done = compared(old, changed(old, "read", 0.89))
    assert done.returncode == 1
    assert done.stdout == "worse: read: mount: 0.5 -> 0.445 of plain GB/s, -11%\n1 of 3 ways got worse by 10 % or more\n"
    assert compared(old, changed(old, "read", 0.91)).returncode == 0


def test_a_slower_machine_is_not_worse_where_the_twin_is_as_slow(compared, old):
    assert compared(old, changed(old, "read", 0.5, twin_factor=0.5)).returncode == 0


def test_a_higher_figure_is_worse_where_lower_is_better(compared, old):
    assert "worse: edit: mount" in compared(old, changed(old, "edit", 1.2, better="lower")).stdout
    assert "worse: memory: daemon: 50 -> 60" in compared(old, changed(old, "memory", 1.2, better="lower")).stdout
    assert "better: memory: daemon" in compared(old, changed(old, "memory", 0.5, better="lower")).stdout


def test_a_row_that_fails_now_is_worse_and_one_that_was_not_measured_is_noted(compared, old):
    new = copy.deepcopy(old)
    new["rows"][0] = {"name": "read", "group": "read", "title": "reading", "failed": "no such device"}
    del new["rows"][1]
    done = compared(old, new)
    assert done.returncode == 1
    assert "worse: read: mount: no such device" in done.stdout and "note: edit: mount: is not in the new results" in done.stdout


def test_another_machine_and_busy_programs_are_said(compared, old):
    new = changed(old, "read", 0.5)
    new["machine"]["cores"] = 8
    new["rows"][0]["is_busy"] = True
    done = compared(old, new)
    assert "note: another machine: cores was 2, is 8" in done.stdout and "(other programs were busy)" in done.stdout


def test_compare_needs_two_results(tmp_path):
    assert run(BENCH / "compare", "one").returncode == 2
    (tmp_path / "broken").write_text("{")
    assert run(BENCH / "compare", tmp_path / "broken", tmp_path / "none").returncode == 2


# ---- pictures ----

@pytest.fixture
def full(old, quiet):
    """All kinds of rows and ways, and texts that are too long or have marks of XML."""
    old["rows"].append(measured({"<plain> & simple": twin(lambda: 4), "a mount with a very long name " * 3: ours(lambda: 2),
                                 "limit": limit(lambda: 5), "peer": missing("peer", "not installed, for a long reason " * 5)},
                                (Goal("a mount with a very long name " * 3, 0.9),)) | {"title": "a title " * 20})
    old["rows"].append(measured({f"{count:,} tensors": ours(lambda count=count: count / 7, of=None) for count in (1000, 10_000, 100_000)},
                                grows=True) | {"name": "scale", "group": "scale"})
    old["rows"] += [{"name": "a", "group": "read", "title": "a", "skipped": "needs root"},
                    {"name": "b", "group": "read", "title": "b", "failed": "x < y"}]
    return old


def test_pictures_are_xml_of_both_schemes_and_no_text_is_cut(full, tmp_path):
    bench_charts.write_charts(full, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"read.svg", "scale.svg", "summary.svg"}
    for path in tmp_path.iterdir():
        root = tree.parse(path).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg" and root.get("width") == "700"
        assert "prefers-color-scheme: dark" in path.read_text()
        for text in root.iter("{http://www.w3.org/2000/svg}text"):
            kind, x, width = text.get("class", ""), float(text.get("x")), 5.6 * len(text.text)
            begin = x - width if "end" in kind else x - width / 2 if "middle" in kind else x
            assert begin > -4 and begin + width < 704, text.text


def test_a_picture_has_each_way_and_names_a_missing_one(full):
    words = bench_charts.group_picture(full, "read")
    assert "&lt;plain&gt; &amp; simple" in words and "not installed" in words and "skipped: needs root" in words
    growth = bench_charts.group_picture(full, "scale")
    assert "100,000 tensors" in growth and "power of 1.00" in growth and "polyline" in growth


def test_a_much_slower_peer_does_not_hide_the_other_bars(quiet):
    row = measured({"plain": twin(lambda: 1), "mount": ours(lambda: 2), "slow": peer(lambda: 1000)}, higher=False)
    picture = bench_charts.group_picture(result_of(read=row), "read")
    widths = {kind: [float(width) for width in re.findall(rf'width="([\d.]+)" height="14" rx="1" class="{kind}"', picture)]
              for kind in ("twin", "ours", "peer")}
    assert widths["ours"] == [pytest.approx(bench_charts.BAR_WIDTH / 3, abs=0.1)] and len(widths["peer"]) == 2
    assert max(widths["peer"]) <= bench_charts.BAR_WIDTH


def test_the_picture_of_the_readme_needs_full_sizes(full, tmp_path):
    results, out = tmp_path / "results.json", tmp_path / "speed.svg"
    full["rows"][0]["name"] = "read-again"
    full["rows"][0]["is_busy"] = True
    results.write_text(json.dumps(full))
    done = run(REPOSITORY / "packaging" / "draw_speed", results, out)
    assert done.returncode == 0 and "read-again: other programs were busy" in done.stderr
    assert "reading a tensor" in out.read_text() and "a title" not in out.read_text()
    full["is_quick"] = True
    results.write_text(json.dumps(full))
    out.unlink()
    done = run(REPOSITORY / "packaging" / "draw_speed", results, out)
    assert done.returncode == 1 and "--quick" in done.stderr and not out.exists()


# ---- documentation ----

def test_pages_name_rows_and_groups_that_exist():
    rows = {word for line in run(BENCH / "run", "--list").stdout.splitlines() for word in line.split()[:2]}
    for page in ("tests/README.md", "packaging/doc/costs.md", "packaging/doc/weight-sync.md", "CONTRIBUTING.md", "tests/gpu/run"):
        for names in re.findall(r"bench/run --only ([\w,-]+)", (REPOSITORY / page).read_text()):
            assert set(names.split(",")) <= rows | {"ROW"}, page
