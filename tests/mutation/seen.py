"""Which tests pass by which faults, and how long each takes: one normal run of all of them tells it."""

import dataclasses
import json
import time
from pathlib import Path

from trial import Place, run_quietly


@dataclasses.dataclass(frozen=True)
class Test:
    program: str  # of Catch2, or "pytest"
    name: str  # of a test case, or a file
    seconds: float
    faults: frozenset[int]


def size_of_map(faults) -> int:
    return max(faults, default=0) + 1


def catch_tests(program: Path, selection: str, place: Place, numbers) -> list[Test]:
    """Runs all that are selected; leaves out what fails without a fault."""
    seen, log = place.path / "seen", place.path / "log"
    seen.write_bytes(bytes(size_of_map(numbers)))
    log.write_bytes(b"")
    environment = {"STFS_MUTANTS_SEEN": str(seen), "STFS_MUTANTS_LOG": str(log)}
    run_quietly([str(program), selection], place, environment, 3600)
    tests = []
    for line in log.read_text(errors="replace").splitlines():
        seconds, result, passed, name = line.split(" ", 3)
        if result != "passed":
            print(f"  fails without a fault, is left out: {program.name}: {name}")
            continue
        faults = frozenset(int(number) for number in passed.split(",") if number)
        tests.append(Test(program.name, name, float(seconds), faults & frozenset(numbers)))
    return tests


def python_test(file: str, place: Place, numbers, patience: float) -> Test | None:
    seen = place.path / "seen"
    seen.write_bytes(bytes(size_of_map(numbers)))
    seen.chmod(0o666)
    begin = time.monotonic()
    status = run_quietly(python_command(file), place, {"STFS_MUTANTS_SEEN": str(seen)}, patience)
    if status != 0:
        print(f"  fails without a fault (or takes too long), is left out: {file}")
        return None
    marks = seen.read_bytes()
    faults = frozenset(number for number in numbers if marks[number])
    return Test("pytest", file, time.monotonic() - begin, faults)


def python_command(file: str) -> list[str]:
    return [".venv/bin/python", "-m", "pytest", file, "-x", "-q", "-p", "no:cacheprovider", "--timeout", "600"]


class SeenTests:
    """Kept in the build directory, since it takes as long as the tests. Each program, or file, has a digest of all that
    decides what it does: who changes one runs only that one again."""

    def __init__(self, kept: Path):
        self.kept = kept
        self.tests: dict[str, list[Test]] = {}
        self.digests: dict[str, str] = {}
        for name, fields in json.loads(kept.read_text()).items() if kept.exists() else []:
            self.digests[name] = fields["digest"]
            self.tests[name] = [Test(a, b, c, frozenset(d)) for a, b, c, d in fields["tests"]]

    def has(self, name: str, digest: str) -> bool:
        return self.digests.get(name) == digest

    def keep(self, name: str, digest: str, tests: list[Test]):
        self.tests[name] = tests
        self.digests[name] = digest
        plain = {
            key: {
                "digest": self.digests[key],
                "tests": [(one.program, one.name, one.seconds, sorted(one.faults)) for one in of_key],
            }
            for key, of_key in self.tests.items()
        }
        self.kept.write_text(json.dumps(plain))

    def of(self, fault: int) -> list[Test]:
        found = [test for tests in self.tests.values() for test in tests if fault in test.faults]
        return sorted(found, key=lambda test: test.seconds)
