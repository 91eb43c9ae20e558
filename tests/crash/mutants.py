"""Removes one step of the protocol from a copy of the core, builds, and sees whether the explorer notices. The steps
are rows of mutant_table.py.

    python3 tests/crash/mutants.py                 all of them
    python3 tests/crash/mutants.py NAME...         only these
    python3 tests/crash/mutants.py --list
    python3 tests/crash/mutants.py --directory DIR where to build; without it, build/mutants

Exit status: 0 every mutant was caught, 1 one survived or could not be built, 2 wrong usage.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from mutant import KINDS, Mutant
from mutant_table import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
# So long a mutant may go unnoticed, in seconds of the explorer.
PATIENCE = 120
HANGS = 60  # so much longer than it was told to take


class Workshop:
    """A copy of the sources with a build of its own."""

    def __init__(self, directory: Path):
        self.source = directory / "source"
        self.build = directory / "build"
        self.explorer = self.build / "tests" / "crash_explorer"

    def copy_sources(self):
        """Only what differs is written, so that little is built again."""
        self.source.mkdir(parents=True, exist_ok=True)
        for name in ("core", "fs", "tools", "tests", "packaging"):
            wanted = {p.relative_to(ROOT) for p in (ROOT / name).rglob("*") if p.is_file() and "__pycache__" not in p.parts}
            there = self.source / name
            for stale in [p for p in there.rglob("*") if p.is_file() and p.relative_to(self.source) not in wanted]:
                stale.unlink()
            for file in wanted:
                self.write(file, (ROOT / file).read_bytes())
        self.write(Path("CMakeLists.txt"), (ROOT / "CMakeLists.txt").read_bytes())
        if (ROOT / "LICENSE").exists():
            self.write(Path("LICENSE"), (ROOT / "LICENSE").read_bytes())

    def write(self, file: Path, content: bytes):
        there = self.source / file
        if there.exists() and there.read_bytes() == content:
            return
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(content)

    def configure(self):
        command = ["cmake", "-G", "Ninja", "-S", self.source, "-B", self.build, "-DCMAKE_BUILD_TYPE=None",
                   "-DCMAKE_CXX_FLAGS=-O1"]
        if shutil.which("ccache"):
            command.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
        self.run(command)

    def compile(self):
        self.run(["ninja", "-C", self.build, "crash_explorer"])

    def run(self, command):
        # What was built below one directory serves below another.
        environment = os.environ | {"CCACHE_BASEDIR": str(self.source.parent), "CCACHE_NOHASHDIR": "1"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            errors = [line for line in done.stdout.splitlines() if "error" in line]
            raise RuntimeError("\n".join(errors[:10]) or done.stdout[-3000:])

    def explore(self, kinds, seconds, states=10**12, scenario="") -> subprocess.CompletedProcess:
        command = [self.explorer, "--states", str(states), "--seconds", str(seconds)]
        if scenario:
            command += ["--workload", scenario]
        for kind in kinds:
            command += ["--kind", kind]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds + HANGS)

    def prepare(self):
        """The sources as they are must pass: a mutant that fails like them proves nothing."""
        self.copy_sources()
        self.configure()
        self.compile()
        for kind in KINDS:
            done = self.explore([kind], 2)
            if done.returncode != 0:
                raise RuntimeError(f"without a mutant, {kind} fail already: {done.stdout}")

    def try_mutant(self, mutant: Mutant) -> str:
        """What the explorer says of it. Raises AssertionError where it says nothing."""
        file, mutated = mutant.apply(self.source / "core")
        original = file.read_text()
        file.write_text(mutated)
        try:
            self.compile()
            # A crash or a hang of the mutant is a way of being caught.
            try:
                done = self.explore(mutant.kinds, PATIENCE, scenario=mutant.scenario)
            except subprocess.TimeoutExpired:
                return "it hangs"
        finally:
            file.write_text(original)
        assert done.returncode != 0, f"survived: {mutant.name}: {done.stdout.strip()}"
        return done.stdout.strip().splitlines()[-1] if done.returncode == 1 else f"exit status {done.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print(*(mutant.name for mutant in MUTANTS), sep="\n")
        return 0
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    if len(chosen) < len(set(options.names)):
        parser.error("no mutant of that name; --list tells them")
    workshop = Workshop(options.directory)
    workshop.prepare()
    survivors = 0
    for mutant in chosen:
        started = time.monotonic()
        try:
            verdict = "caught: " + workshop.try_mutant(mutant)
        except (AssertionError, ValueError, RuntimeError) as error:
            survivors += 1
            verdict = f"NOT CAUGHT: {error}"
        print(f"{mutant.name} ({time.monotonic() - started:.0f} s): {verdict}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
