"""Changes one step of core/ or tools/sync and sees whether the explorer notices. The steps are rows of
protocol_mutants.py: those that tests/mutation can't make.

    python3 tests/crash/mutants.py                 all of them
    python3 tests/crash/mutants.py NAME...         only these
    python3 tests/crash/mutants.py --list
    python3 tests/crash/mutants.py --directory DIR where to work; without it, mutants/ in the build

A build is there already: the one that STFS_BUILD_DIR names, without it build/release. For a row one file is compiled
again and the explorer is linked again; neither the sources nor the build are written to.

Exit status: 0 every mutant was caught, 1 one survived or could not be built, 2 wrong usage.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from mutant import Mutant
from protocol_mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STFS_BUILD_DIR", ROOT / "build" / "release")).resolve()
# The explorer tries a mutant for this time in seconds. It notices each row in one or two.
PATIENCE = 60
HANGS = 60  # the explorer hangs if it runs for so many seconds past its limit


def run(command, directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        errors = [line for line in done.stdout.splitlines() if "error" in line or "undefined" in line]
        raise RuntimeError("\n".join(errors[:10]) or done.stdout[-3000:])
    return done.stdout


class Workshop:
    """Makes explorers with a mutant inside, from a build's objects and a recompiled object."""

    def __init__(self, build: Path, directory: Path):
        self.build = build
        self.directory = directory
        self.explorer = build / "tests" / "crash_explorer"

    def prepare(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        units = json.loads((self.build / "compile_commands.json").read_text())
        # The unit of each source. The sources of a group share the group's unit.
        self.units: dict[Path, Path] = {}
        self.compilers = {Path(unit["file"]): shlex.split(unit["command"]) for unit in units}
        for unit in self.compilers:
            is_group = unit.parent.name == "Unity"
            for source in re.findall(r'^#include "(.+)"$', unit.read_text(), re.M) if is_group else [unit]:
                self.units[Path(source)] = unit
        self.check_build()
        # The last command links the explorer.
        commands = run(["ninja", "-C", self.build, "-t", "commands", "crash_explorer"], self.build)
        self.linker = shlex.split(commands.splitlines()[-1].removeprefix(": && ").removesuffix(" && :"))
        self.precompile("core", ("core",))
        self.precompile("tools", ("core", "tools/sync"))

    def precompile(self, name: str, directories: tuple[str, ...]):
        """All headers of these directories, for the sources of `name`: no mutant is in a header."""
        example = min(source for source in self.units if source.is_relative_to(ROOT / name))
        headers = [header.relative_to(ROOT) for other in directories for header in sorted((ROOT / other).rglob("*.h"))]
        text = self.directory / f"{name}.hxx"
        text.write_text("".join(f'#include "{header}"\n' for header in headers))
        run([*self.compiler_of(example), "-x", "c++-header", text, "-o", f"{text}.gch"], self.build)

    def check_build(self):
        """Fails unless the build is newer than the sources, because a mutant among old objects proves nothing."""
        if not self.explorer.exists():
            raise RuntimeError(f"{self.explorer} is not there; build it first, with packaging/compile -D STFS_TESTS=ON")
        for source in sorted(file for name in ("core", "tools/sync") for file in (ROOT / name).rglob("*.[ch]*")):
            if source.stat().st_mtime > self.explorer.stat().st_mtime:
                raise RuntimeError(f"{source} is newer than {self.explorer}; build it first, with packaging/compile")

    def compiler_of(self, file: Path) -> list[str]:
        """The build's command for that file, for a quick compilation, without the names of its input and output."""
        command = []
        words = iter(self.compilers[self.units[file]])
        for word in words:
            if word in ("-o", "-c", "-include", "-Xclang"):
                next(words)
            elif not re.match("-[OgW]", word):
                command.append(word)
        return [*command, "-O0", "-w"]

    def by_unit(self, mutant: Mutant) -> dict[Path, dict[Path, str]]:
        """The changed files, by the unit that is compiled with them."""
        units: dict[Path, dict[Path, str]] = {}
        for file, text in mutant.apply(ROOT).items():
            units.setdefault(self.units[file], {})[file] = text
        return units

    def compile(self, unit: Path, texts: dict[Path, str]) -> Path:
        """The unit's object with these contents in place of its files'."""
        file = next(iter(texts))
        name = file.relative_to(ROOT).parts[0]
        source = self.directory / f"{name}_{unit.name}"
        group = unit.read_text() if unit != file else f'#include "{file}"\n'
        for changed, text in texts.items():
            (self.directory / changed.name).write_text(text)
            group = group.replace(f'"{changed}"', f'"{self.directory / changed.name}"')
        source.write_text(group)
        made = self.directory / f"{source.name}.o"
        headers = self.directory / f"{name}.hxx"
        run([*self.compiler_of(file), "-include", headers, "-c", source, "-o", made], self.build)
        return made

    def make(self, mutant: Mutant) -> Path:
        """The explorer with the mutant inside."""
        objects = [self.compile(unit, texts) for unit, texts in self.by_unit(mutant).items()]
        # Objects before an archive replace its members.
        linked = self.directory / "crash_explorer.mutant"  # another name, so it is not mistaken for the real program
        command = self.linker.copy()
        at = command.index("-o")
        command[at : at + 2] = ["-s", *map(str, objects), "-o", str(linked)]
        run(command, self.build)
        return linked

    def look_at(self, program: Path, mutant: Mutant, *limits) -> subprocess.CompletedProcess:
        """Runs the program on the mutant's kinds and scenario."""
        command = [program, *limits]
        if mutant.scenario:
            command += ["--workload", mutant.scenario]
        for kind in mutant.kinds:
            command += ["--kind", kind]
        # A sanitizer's report about a mutant must not reach the log of the tests.
        environment = {name: value for name, value in os.environ.items() if not name.endswith("SAN_OPTIONS")}
        return subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=PATIENCE + HANGS)

    def try_mutant(self, mutant: Mutant) -> str:
        """The explorer's verdict on the mutant. Raises AssertionError if the mutant survives."""
        # A crash or a hang of the mutant also catches it.
        seed = None
        try:
            first = ["--seed", str(mutant.seed)]
            done = self.look_at(self.make(mutant), mutant, *first, "--states", str(10**12), "--seconds", str(PATIENCE))
            assert done.returncode != 0, f"survived: {mutant.name}: {done.stdout.strip()}"
            verdict = f"exit status {done.returncode}"
            if done.returncode == 1:
                verdict = done.stdout.strip().splitlines()[-1]
                seed = re.match(r"seed (\d+):", verdict)[1]
        except subprocess.TimeoutExpired:
            verdict = "it hangs"
        # The unchanged explorer must not fail in the same way.
        limits = ["--seed", seed, "--states", "1"] if seed else ["--states", str(10**12), "--seconds", "2"]
        done = self.look_at(self.explorer, mutant, *limits)
        if done.returncode != 0:
            raise RuntimeError(f"without the mutant it fails, too: {done.stdout.strip()}")
        return verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--directory", type=Path, default=BUILD / "mutants")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print(*(mutant.name for mutant in MUTANTS), sep="\n")
        return 0
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    if len(chosen) < len(set(options.names)):
        parser.error("no mutant of that name; --list tells them")
    workshop = Workshop(BUILD, options.directory.resolve())
    try:
        workshop.prepare()
    except RuntimeError as error:
        print(f"mutants.py: {error}", file=sys.stderr)
        return 1
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
