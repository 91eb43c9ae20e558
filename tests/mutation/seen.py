"""The faults that each test passes by, and the duration of each test, from one normal run of all tests."""

import dataclasses
import json
import os
from pathlib import Path

from trial import Place, python_command, run_quietly


@dataclasses.dataclass(frozen=True)
class Test:
    program: str  # of Catch2, or "pytest"
    name: str  # of a test case, or of a test as pytest names it
    seconds: float
    faults: frozenset[int]


def look(name: str, place: Place, numbers, patience: float) -> list[Test]:
    """Runs a Python file, or `PROGRAM SELECTION` of Catch2, with a time limit. Leaves out tests that fail without a
    fault."""
    seen, log = place.path / "seen", place.path / "log"
    seen.write_bytes(bytes(max(numbers, default=0) + 1))
    log.write_bytes(b"")
    seen.chmod(0o666)
    environment = {"STFS_MUTANTS_SEEN": str(seen), "STFS_MUTANTS_LOG": str(log)}
    if name.endswith(".py"):
        program, command, most = "pytest", python_command([name]), 900
    else:
        program, selection = name.split(" ")
        command, most = [str(place.build / "tests" / program), selection], 3600
    run_quietly(command, place, environment, min(most, patience))
    tests = []
    for line in log.read_text(errors="replace").splitlines():
        seconds, result, passed, case = line.split(" ", 3)
        if result == "skipped":
            continue
        if result != "passed":
            print(f"  fails without a fault, is left out: {program}: {case}")
            continue
        faults = frozenset(int(number) for number in passed.split(",") if number)
        tests.append(Test(program, case, float(seconds), faults & frozenset(numbers)))
    return tests


class SeenTests:
    """The result is kept in the build directory, because a new one takes as long as the tests. Each program or file has a
    digest of everything that decides its behaviour. After a change, only that program or file runs again."""

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
        new = self.kept.with_suffix(".new")
        new.write_text(json.dumps(plain))
        os.replace(new, self.kept)

    def of(self, fault: int) -> list[Test]:
        """Returns the tests that pass by a fault: tests of Catch2 before tests that mount, the quickest first."""
        found = [test for tests in self.tests.values() for test in tests if fault in test.faults]
        return sorted(found, key=lambda test: (test.program == "pytest", test.seconds))
