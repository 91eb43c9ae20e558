"""What a trial says of a fault: caught by a test that fails with it, and by nothing else."""

import os
from pathlib import Path

import pytest
import seen
from trial import Place, try_fault

ROOT = Path(__file__).resolve().parents[2]
# Passes by fault 1, and notices it.
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
    tests = seen.look("tests/mount/test_one.py", place, [1, 2], 60)
    assert [test.name for test in tests] == [f"tests/mount/test_one.py::{name}" for name in ("test_notices", "test_does_not")]
    assert [set(test.faults) for test in tests] == [{1}, set()]
    caught = try_fault(1, tests, place, 60)
    assert caught.caught and "test_notices" in caught.by
    assert not try_fault(2, tests, place, 60).caught


def test_a_python_test_that_is_not_found_catches_nothing(place):
    with pytest.raises(RuntimeError, match="did not find"):
        try_fault(1, [seen.Test("pytest", "mount/test_one.py::test_notices", 0.1, frozenset([1]))], place, 60)
