"""Runs tests with one fault on, and ends all processes that the tests have started."""

import dataclasses
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

# A batch may take this many times longer than without the fault, because the machine may be busy.
TIMES = 4
FOLDER = Path(__file__).resolve().parent
AT_LEAST = 20.0  # seconds
# The quick tests of a fault run together first, up to a sum of seconds. Then the tests up to the next sum run.
BATCHES = (1.0, 10.0, 60.0)
MARK = "STFS_MUTATION_PLACE"
# Linux refuses an argument of 128 KiB.
MOST_NAMES = 100_000  # bytes
PYTEST_RAN_NOTHING = (4, 5)  # exit statuses: a test was not found; none was selected
# Under nohup, or behind an &, signals are ignored that the tests send. These words restore the default.
USUAL = ("env", "--default-signal=HUP", "--default-signal=INT", "--default-signal=QUIT")


def is_enough(caught: int, tried: int, percent: float) -> bool:
    """Whether a score is `percent`, or lower by at most one standard deviation of a sample of this size."""
    share = percent / 100
    return caught >= share * tried - math.sqrt(share * (1 - share) * tried)


class Place:
    """A directory for one worker's temporary files. `clear` ends the mounts below the directory and the processes for it."""

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
        if not self.mounts():  # the files below a mount may be someone's data
            shutil.rmtree(self.path / "t", ignore_errors=True)

    def mounts(self) -> list[str]:
        # A test may mount at a name that is not UTF-8, or at a name with a space, which the kernel writes as \040.
        table = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
        names = [line.split(" ")[4] for line in table.split("\n") if line]
        points = [re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), name) for name in names]
        return [point for point in points if point.startswith(f"{self.path}/")]

    def end_processes(self):
        """Daemons have separate sessions, so they are found by a mark in their environment."""
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
    """Returns the exit status, or None if the command was ended. The command's output is in the file `output` of the
    place."""
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
    """Escapes a name for a test specification of Catch2."""
    for character in '\\,"[]*~':
        name = name.replace(character, "\\" + character)
    return name


def batches_of(tests: list) -> list[list]:
    """Returns batches of tests of one program. The quick tests come first, and tests that mount come last."""
    result = []
    for mounts in (False, True):
        left = [test for test in tests if (test.program == "pytest") == mounts]
        for limit in (*BATCHES, float("inf")):
            taken, total = [], 0.0
            while left and total + left[0].seconds <= limit:
                total += left[0].seconds
                taken.append(left.pop(0))
            for program in sorted({test.program for test in taken}):
                result += in_one_command([test for test in taken if test.program == program])
    return result


def in_one_command(tests: list) -> list[list]:
    """Splits tests where their names are too long for one argument of a command."""
    result, length = [[]], 0
    for test in tests:
        length += len(os.fsencode(escaped(test.name))) + 1
        if length > MOST_NAMES and result[-1]:
            result.append([])
            length = len(os.fsencode(escaped(test.name))) + 1
        result[-1].append(test)
    return result


def try_without_lock(fault, place: Place) -> Verdict | None:
    """Clang notices most locks that are left out. @return None if it does not notice this one."""
    begin = time.monotonic()
    text = (place.root / fault.file).read_text(encoding="latin-1")
    source = place.path / Path(fault.file).with_suffix(".cc").name
    source.write_text(text[: fault.edits[0].begin] + text[fault.edits[0].end :], encoding="latin-1")
    checked = subprocess.run([place.root / ".ci" / "check_locks", source], capture_output=True, text=True, check=False)
    source.unlink()
    if "-Wthread-safety" not in checked.stdout:
        return None
    return Verdict(True, "clang: .ci/check_locks", time.monotonic() - begin)


def try_fault(number: int, tests: list, place: Place, most_seconds: float) -> Verdict:
    """@param most_seconds  the limit for the sum of the tests' normal durations. Later tests are not run."""
    begin = time.monotonic()
    total = 0.0
    for batch in batches_of(tests):
        batch = [test for test in batch if (total := total + test.seconds) <= most_seconds]
        while batch:
            patience = AT_LEAST + TIMES * sum(test.seconds for test in batch)
            status = run_quietly(command_of(batch, place), place, {"STFS_MUTANT": str(number)}, patience)
            if batch[0].program == "pytest" and status in PYTEST_RAN_NOTHING:
                raise RuntimeError(f"pytest did not find {batch[0].name}, or another test of {len(batch)}")
            if status == 0:
                check_all_ran(batch, place)
                break
            who = who_noticed(batch, status, place)
            failed = failed_of(batch, place)
            if not depends_on_time(batch, status) or passes(failed, place, patience):
                return Verdict(True, who, time.monotonic() - begin)
            batch = [test for test in batch if test not in failed]
        if total > most_seconds:
            break
    why = "no test notices" if total <= most_seconds else f"no test of the first {most_seconds:.0f} s notices"
    return Verdict(False, why if tests else "no test passes by", time.monotonic() - begin)


def depends_on_time(batch: list, status: int | None) -> bool:
    """A mounted test, or a batch that took too long, may have failed because the machine is busy."""
    return status is None or batch[0].program == "pytest"


def failed_of(batch: list, place: Place) -> list:
    """Returns the tests that the report of the batch names. If it names none, any of them may have failed."""
    lines = (place.path / "output").read_text(errors="replace").splitlines()
    named = {line.split(" ", 1)[1].split(" - ")[0] for line in lines if line.startswith(("FAILED ", "ERROR "))}
    return [test for test in batch if test.name in named] or batch


def passes(tests: list, place: Place, patience: float) -> bool:
    """Runs the tests without a fault. A test that fails then, too, notices no fault."""
    return run_quietly(command_of(tests, place), place, {}, patience) == 0


def check_all_ran(batch: list, place: Place):
    """Catch2 reports no error for a name that it does not find, so the number of tests is compared."""
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
