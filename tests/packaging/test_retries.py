"""tests/run --retries and .ci/run: a test that fails by chance passes in a retry, and is named."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The program fails as often as the number in its file.
CATCH_PROGRAM = r"""#!/bin/bash
[[ $* != *--list-test* ]] || exit 0
left=$(cat "{left}")
if ((left > 0)); then
  echo $((left - 1)) >"{left}"
  line=$(printf -- '-%.0s' {{1..79}})
  printf '%s\n' "$line" "a [case], with marks" "$line" "demo_test.cc:7" "" "demo_test.cc:9: FAILED:" "  REQUIRE( lucky )"
  echo "test cases: 3 | 2 passed | 1 failed"
  exit 1
fi
case "$*" in
  *'a \[case\]\, with marks*') echo "All tests passed (1 assertion in 1 test case)" ;;
  *) echo "All tests passed (9 assertions in 3 test cases)" ;;
esac
"""

PYTHON_TESTS = """
import pathlib

import pytest

LEFT = pathlib.Path({left!r})


@pytest.mark.parametrize("word", ["one", "an odd [word]"])
def test_luck(word):
    left = int(LEFT.read_text())
    if word != "one" and left > 0:
        LEFT.write_text(str(left - 1))
        raise ValueError("out of luck")
"""


class Checkout:
    """A checkout with our tests/run and .ci/run, which build and run only small scripts."""

    def __init__(self, directory, catch_failures=0, python_failures=0):
        self.root = directory
        for name in ("tests/run", ".ci/run", "tests/requirements.txt", "tests/pytest.ini"):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, directory / name)
        (directory / "tests/expected_skips").touch()
        (directory / "tests/support").mkdir()
        (directory / ".venv").symlink_to(ROOT / ".venv")
        self.add_script("packaging/dependencies", "exit 0")
        build = directory / "build/release"
        self.add_script("packaging/compile", f'mkdir -p "{build}" && touch "{build}/CMakeCache.txt"')
        self.catch_left, self.python_left = directory / "catch_left", directory / "python_left"
        self.catch_left.write_text(str(catch_failures))
        self.python_left.write_text(str(python_failures))
        self.add_script("build/release/demo_tests", CATCH_PROGRAM.format(left=self.catch_left), head="")
        (directory / "tests/demo").mkdir()
        (directory / "tests/demo/test_demo.py").write_text(PYTHON_TESTS.format(left=str(self.python_left)))

    def add_script(self, name, text, head="#!/bin/bash\n"):
        script = self.root / name
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(head + text)
        script.chmod(0o755)

    def run(self, *command):
        environment = {**os.environ, "STFS_BUILD_DIR": str(self.root / "build/release")}
        return subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture
def checkout(tmp_path):
    if not (ROOT / ".venv/bin/python").exists():
        pytest.skip("there is no .venv; tests/run makes it")
    return lambda **failures: Checkout(tmp_path / "checkout", **failures)


def last_line(run):
    return run.stdout.splitlines()[-1]


def test_a_failure_stays_one_without_retries(checkout):
    run = checkout(catch_failures=1, python_failures=1).run("tests/run")
    assert run.returncode == 1
    assert last_line(run) == "3 passed, 2 failed, 0 skipped"


def test_a_test_that_passes_again_counts_as_passed_and_is_named(checkout, tmp_path):
    counts = tmp_path / "counts"
    run = checkout(catch_failures=1, python_failures=2).run("tests/run", "--retries", "2", "--counts", str(counts))
    assert run.returncode == 0, run.stdout
    lines = counts.read_text().splitlines()
    assert lines[0] == "5 0 0"
    assert "flaky demo_tests: a [case], with marks (demo_test.cc:9)" in lines
    assert "flaky demo.test_demo::test_luck[an odd [word]]" in lines
    assert any(line.startswith("| ") and "REQUIRE( lucky )" in line for line in lines)
    assert any(line.startswith("| ") and "out of luck" in line for line in lines)


def test_a_test_that_fails_each_time_has_failed(checkout):
    run = checkout(catch_failures=9, python_failures=3).run("tests/run", "--retries", "2")
    assert run.returncode == 1
    assert last_line(run) == "3 passed, 2 failed, 0 skipped"
    assert "Flaky" not in run.stdout


@pytest.mark.parametrize(("most", "status"), [(3, 0), (0, 1)])
def test_ci_names_flaky_tests_and_fails_with_too_many(checkout, most, status):
    tree = checkout(python_failures=1)
    script = tree.root / ".ci/run"
    text = script.read_text()
    assert text.count("\nmax_flaky=3\n") == 1
    script.write_text(text.replace("\nmax_flaky=3\n", f"\nmax_flaky={most}\n"))
    run = tree.run(".ci/run", "--only", "release")
    assert run.returncode == status, run.stdout
    flaky = run.stdout[run.stdout.index("######## all") :]
    assert "release: demo.test_demo::test_luck[an odd [word]]" in flaky
    assert "out of luck" in flaky
    assert last_line(run) == f"5 passed, {status} failed, 0 skipped"
