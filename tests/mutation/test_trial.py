"""The verdict of a trial: a fault is caught only if a test fails with the fault."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import seen
from candidate import Candidate, Edit
import trial
from trial import Place, batches_of, escaped, is_enough, try_fault, try_without_lock

ROOT = Path(__file__).resolve().parents[2]
# This test passes by fault 1 and notices it.
NOTICES = """
import os

def test_notices():
    with open(os.environ.get("STFS_MUTANTS_SEEN", os.devnull), "r+b") as marks:
        marks.seek(1)
        marks.write(b"\\1")
    assert os.environ.get("STFS_MUTANT") != "1"

def test_does_not():
    pass
"""

GUARDED = """
#include "core/base/mutex.h"
class Count {
 public:
  void add() { const stfs::MutexLock lock(mutex_); ++count_; }
  void wait() { const stfs::MutexLock lock(mutex_); }

 private:
  stfs::Mutex mutex_;
  int count_ GUARDED_BY(mutex_) = 0;
};
"""


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A pytest on a busy machine needs more than the usual time to start."""
    monkeypatch.setattr(trial, "AT_LEAST", 300.0)


@pytest.fixture
def place(tmp_path):
    """A repository with one Python test, below the directory of pytest's settings."""
    folder = tmp_path / "tests" / "mount"
    folder.mkdir(parents=True)
    (tmp_path / "tests" / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_one.py").write_text(NOTICES)
    os.symlink(ROOT / ".venv", tmp_path / ".venv")
    place = Place(tmp_path, tmp_path / "build")
    yield place
    place.remove()


def test_a_python_test_that_was_seen_is_found_again_and_notices_its_fault(place):
    tests = seen.look("tests/mount/test_one.py", place, [1, 2], 600)
    assert [test.name for test in tests] == [f"tests/mount/test_one.py::{name}" for name in ("test_notices", "test_does_not")]
    assert [set(test.faults) for test in tests] == [{1}, set()]
    caught = try_fault(1, tests, place, 600)
    assert caught.caught and "test_notices" in caught.by
    assert not try_fault(2, tests, place, 600).caught


def test_a_test_that_fails_without_the_fault_too_catches_nothing(place):
    """The batch goes on without it: a later test of the batch still notices its fault."""
    test = place.root / "tests" / "mount" / "test_one.py"
    test.write_text("def test_fails_now_and_then():\n    assert False\n" + NOTICES)
    names = ("test_fails_now_and_then", "test_notices")
    tests = [seen.Test("pytest", f"tests/mount/test_one.py::{name}", 0.1, frozenset([1, 2])) for name in names]
    caught = try_fault(1, tests, place, 600)
    assert caught.caught and "test_notices" in caught.by
    assert not try_fault(2, tests, place, 600).caught


def test_a_python_test_that_is_not_found_catches_nothing(place):
    with pytest.raises(RuntimeError, match="did not find"):
        try_fault(1, [seen.Test("pytest", "mount/test_one.py::test_notices", 0.1, frozenset([1]))], place, 600)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_mounts_of_any_name_are_ended(place):
    points = [os.fsencode(place.path) + name for name in (b"/t/\xff", b"/t/a b\\c")]
    for point in points:
        os.makedirs(point)
        subprocess.run(["mount", "-t", "tmpfs", "none", point], check=True)
    assert [os.fsencode(name) for name in place.mounts()] == points
    place.clear()
    assert place.mounts() == [] and not (place.path / "t").exists()


def test_a_batch_fits_in_one_argument_of_a_command():
    tests = [seen.Test("core_tests", f"{number:04} " + "a name, with a comma " * 4, 0.01, frozenset()) for number in range(3000)]
    batches = batches_of(tests)
    assert [test for batch in batches for test in batch] == tests
    for batch in batches:
        subprocess.run(["true", ",".join(escaped(test.name) for test in batch)], check=True)


@pytest.mark.skipif(shutil.which("clang++") is None, reason="there is no clang++")
def test_clang_notices_a_lock_that_a_member_needs(tmp_path):
    place = Place(ROOT, tmp_path)
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    source = folder / f"count.{os.getpid()}.h"
    source.write_text(GUARDED)
    lock = "const stfs::MutexLock lock(mutex_)"
    first = GUARDED.index(lock)
    try:
        for begin, is_noticed in ((first, True), (GUARDED.index(lock, first + 1), False)):
            edits = (Edit(begin, begin + len(lock), "", ""),)
            fault = Candidate(f"build/{source.name}", 1, "no lock", "add", lock, "no lock", edits)
            verdict = try_without_lock(fault, place)
            assert (verdict is not None and verdict.caught) == is_noticed
    finally:
        source.unlink()
        place.remove()


def test_a_score_may_be_lower_than_asked_by_one_standard_deviation():
    enough = {5: 2, 39: 21, 60: 33, 10_000: 5952}
    for tried, least in enough.items():
        assert is_enough(least, tried, 60) and not is_enough(least - 1, tried, 60)
    assert is_enough(0, 0, 60)
    assert is_enough(0, 10, 0)
    assert is_enough(10, 10, 100) and not is_enough(9, 10, 100)
