"""Runs tests with one fault on, and ends all that they have started."""

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

# A batch may take so much longer than without the fault, on a machine that has other work.
TIMES = 4
FOLDER = Path(__file__).resolve().parent
AT_LEAST = 20.0  # seconds
# The quick tests of a fault run together first, up to so many seconds, then those up to the next.
BATCHES = (1.0, 10.0, 60.0)
MARK = "STFS_MUTATION_PLACE"
PYTEST_RAN_NOTHING = (4, 5)  # exit statuses: a test was not found; none was selected
# Under nohup, or behind an &, signals are ignored that tests send.
USUAL = ("env", "--default-signal=HUP", "--default-signal=INT", "--default-signal=QUIT")


class Place:
    """A directory for temporary files of one worker. What is mounted below it, or runs for it, ends with `clear`."""

    def __init__(self, root: Path, build: Path):
        self.path = Path(tempfile.mkdtemp(prefix="m.", dir="/tmp"))
        self.path.chmod(0o755)
        self.root = root
        self.build = build

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        temporary = self.path / "t"
        temporary.mkdir(exist_ok=True, mode=0o755)
        return {**os.environ, "TMPDIR": str(temporary), "STFS_BUILD_DIR": str(self.build), MARK: str(self.path),
                "STFS_DAY": os.environ.get("STFS_DAY", "0"), "PYTHONPATH": str(FOLDER), **more}  # fmt: skip

    def clear(self):
        self.end_processes()
        for mount in sorted(self.mounts(), reverse=True):
            subprocess.run(["umount", "-l", mount], stderr=subprocess.DEVNULL, check=False)
        if not self.mounts():  # what is mounted may be somebody's
            shutil.rmtree(self.path / "t", ignore_errors=True)

    def mounts(self) -> list[str]:
        points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        return [point for point in points if point.startswith(f"{self.path}/")]

    def end_processes(self):
        """Daemons have sessions of their own; all have our mark in their environment."""
        mark = f"{MARK}={self.path}\0".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes() + b"\0":
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                continue

    def remove(self):
        self.clear()
        if not self.mounts():
            shutil.rmtree(self.path, ignore_errors=True)


def run_quietly(command: list[str], place: Place, environment: dict[str, str], patience: float) -> int | None:
    """The exit status; None if it had to be ended. What it prints is in the file `output` of the place."""
    with open(place.path / "output", "wb") as output:
        process = subprocess.Popen(
            [*USUAL, *command], cwd=place.root, env=place.environment(environment), stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(patience)
        except subprocess.TimeoutExpired:
            return None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            place.clear()


@dataclasses.dataclass
class Verdict:
    caught: bool
    by: str  # a test, or why there is none
    seconds: float


def escaped(name: str) -> str:
    """As a test specification of Catch2 takes it."""
    for character in '\\,"[]*~':
        name = name.replace(character, "\\" + character)
    return name


def batches_of(tests: list) -> list[list]:
    """Tests of one program that run together; the quick ones first, and those that mount behind the others."""
    result = []
    for mounts in (False, True):
        left = [test for test in tests if (test.program == "pytest") == mounts]
        for limit in (*BATCHES, float("inf")):
            taken, total = [], 0.0
            while left and total + left[0].seconds <= limit:
                total += left[0].seconds
                taken.append(left.pop(0))
            for program in sorted({test.program for test in taken}):
                result.append([test for test in taken if test.program == program])
    return result


def try_fault(number: int, tests: list, place: Place, most_seconds: float) -> Verdict:
    """@param most_seconds  tests that take longer together, without a fault, are not run."""
    begin = time.monotonic()
    total = 0.0
    for batch in batches_of(tests):
        batch = [test for test in batch if (total := total + test.seconds) <= most_seconds]
        if not batch:
            break
        patience = AT_LEAST + TIMES * sum(test.seconds for test in batch)
        status = run_quietly(command_of(batch, place), place, {"STFS_MUTANT": str(number)}, patience)
        if batch[0].program == "pytest" and status in PYTEST_RAN_NOTHING:
            raise RuntimeError(f"pytest did not find {batch[0].name}, or another test of {len(batch)}")
        if status != 0:
            return Verdict(True, who_noticed(batch, status, place), time.monotonic() - begin)
        check_all_ran(batch, place)
    why = "no test notices" if total <= most_seconds else f"no test of the first {most_seconds:.0f} s notices"
    return Verdict(False, why if tests else "no test passes by", time.monotonic() - begin)


def check_all_ran(batch: list, place: Place):
    """A name that Catch2 does not find is no error to it."""
    report = (place.path / "output").read_text(errors="replace")
    if batch[0].program == "pytest":
        found = re.search(r"(\d+) passed", report)
    else:
        found = re.search(r"All tests passed \(.*?in (\d+) test cases?\)", report)
    if not found or int(found[1]) != len(batch):
        raise RuntimeError(f"{batch[0].program} did not run {len(batch)} cases: {report[-300:]}")


def python_command(names: list[str]) -> list[str]:
    return [".venv/bin/python", "-m", "pytest", *names, "-q", "-p", "no:cacheprovider", "-p", "pytest_seen", "--timeout", "600"]


def command_of(batch: list, place: Place) -> list[str]:
    if batch[0].program == "pytest":
        return [*python_command([test.name for test in batch]), "-x"]
    names = ",".join(escaped(test.name) for test in batch)
    return [str(place.build / "tests" / batch[0].program), "-a", names]


def who_noticed(batch: list, status: int | None, place: Place) -> str:
    program = batch[0].program
    if status is None:
        return f"{program}: takes too long"
    lines = (place.path / "output").read_text(errors="replace").splitlines()
    for at, line in enumerate(lines):
        if line.startswith("-----") and at + 1 < len(lines):
            return f"{program}: {lines[at + 1]}"
        if line.startswith("FAILED "):
            return line
    return f"{program}: exit status {status}"
