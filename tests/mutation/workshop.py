"""Builds programs with faults beside a plain build and from its objects. Only sources with a fault are compiled again."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from candidate import Candidate
from mutated_file import MutatedFile

FOLDER = Path(__file__).resolve().parent
# Faults cause warnings.
FLAGS = "-w -Wno-error -Wno-narrowing -fmax-errors=0"
# Our ninja file: each step is a changed command of the plain build.
RULE = "rule step\n  command = $step\n"


@dataclasses.dataclass
class Made:
    """The faults in the programs, by their numbers, and the candidates that do not compile."""

    faults: dict[int, Candidate]
    refused: list[Candidate]


@dataclasses.dataclass
class Step:
    command: str
    output: str  # relative to the build directory
    inputs: list[str]  # as for the output; a source has its whole path
    source: str = ""  # relative to the repository; empty for a link


class Workshop:
    """`plain` is a build of the repository that compiles each source separately. The files in `build` are links to its
    files, except for files with faults."""

    def __init__(self, root: Path, place: Path, plain: Path):
        self.root = root
        self.place = place
        self.plain = plain
        self.sources = place / "source"
        self.build = place / "build"

    def make_plain(self, targets: tuple[str, ...]):
        if not (self.plain / "build.ninja").exists():
            cached = shutil.which("g++", path="/usr/lib/ccache") or "g++"
            command = ["cmake", "--preset", "release", "-B", str(self.plain), f"-DCMAKE_CXX_COMPILER={cached}",
                       "-DCMAKE_UNITY_BUILD=OFF", "-DSTFS_TESTS=ON"]  # fmt: skip
            done = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(done.stderr[-3000:])
        done = self.run_ninja(self.plain, list(targets))
        if done.returncode != 0:
            raise RuntimeError(f"the build without a fault fails:\n{done.stdout[-3000:]}")

    def make(self, faults: dict[int, Candidate], targets: tuple[str, ...], log=print) -> Made:
        """Builds the programs, without faults that do not compile."""
        refused: list[Candidate] = []
        steps = self.plain_steps(targets)
        for attempt in range(12):
            touched = self.put_in(faults)
            self.write_steps(steps, touched)
            done = self.run_ninja(self.build, ["-f", "mutation.ninja"])
            if done.returncode == 0:
                return Made(faults, refused)
            (self.place / "refused.log").write_text(done.stdout)
            bad = self.blamed(done.stdout, touched, faults, everything=attempt > 8)
            if not bad:
                raise RuntimeError(f"the build fails, and not by a fault:\n{done.stdout[-4000:]}")
            log(f"{len(bad)} faults do not compile, such as {faults[min(bad)]}")
            refused += [faults.pop(number) for number in sorted(bad)]
        raise RuntimeError("the build fails again and again")

    def run_ninja(self, build: Path, words: list[str]) -> subprocess.CompletedProcess:
        environment = {**os.environ, "LC_ALL": "C", "PATH": f"/usr/lib/ccache:{os.environ['PATH']}"}
        return subprocess.run(
            ["ninja", "-k", "0", "-j", str(os.cpu_count()), "-C", str(build), *words],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )  # fmt: skip

    # --- the plain build --------------------------------------------------------------------------------

    def plain_steps(self, targets: tuple[str, ...]) -> list[Step]:
        """Returns the steps that make the targets, in order."""
        done = subprocess.run(
            ["ninja", "-C", str(self.plain), "-t", "commands", *targets], capture_output=True, text=True, check=True
        )
        steps = []
        made: set[str] = set()
        for command in done.stdout.splitlines():
            words = shlex.split(command)
            source = words[words.index("-c") + 1] if "-c" in words else ""
            if "qc" in words:
                output = words[words.index("qc") + 1]
            elif "-o" in words:
                output = words[words.index("-o") + 1]
            else:
                continue  # steps that make other files
            if "cmake_pch" in source:
                continue
            inputs = [source] if source else [word for word in words if word in made and word != output]
            steps.append(Step(command, output, inputs, os.path.relpath(source, self.root) if source else ""))
            made.add(output)
        return steps

    def headers_of_objects(self) -> dict[str, set[str]]:
        """Returns the files of the repository that each object depends on."""
        done = subprocess.run(
            ["ninja", "-C", str(self.plain), "-t", "deps"], capture_output=True, text=True, check=True
        )
        result: dict[str, set[str]] = {}
        output = ""
        for line in done.stdout.splitlines():
            if line[:1] not in ("", " "):
                output = line.split(": ")[0]
            elif line.strip():
                path = os.path.normpath(os.path.join(self.plain, line.strip()))
                if path.startswith(f"{self.root}/"):
                    result.setdefault(output, set()).add(os.path.relpath(path, self.root))
        return result

    # --- the steps that differ --------------------------------------------------------------------------

    def write_steps(self, steps: list[Step], touched: dict[str, MutatedFile]):
        headers = {name for name in touched if name.endswith(".h")}
        users = self.headers_of_objects() if headers else {}
        lines = [RULE]
        changed: set[str] = set()
        for step in steps:
            if step.source:
                if step.source not in touched and not (headers & users.get(step.output, set())):
                    continue
                lines.append(self.line_of(step.output, self.compiling(step, touched), self.files_of(step, touched, users)))
            else:
                listener = self.listener_of(step, steps)
                if listener:
                    lines.append(self.line_of(listener.output, listener.command, listener.inputs))
                    step = Step(f"{step.command}".replace(" -o ", f" {listener.output} -o ", 1), step.output,
                                [*step.inputs, listener.output])  # fmt: skip
                elif not changed.intersection(step.inputs):
                    continue
                command = step.command.replace(str(self.plain), str(self.build))
                lines.append(self.line_of(step.output, command, [one for one in step.inputs]))
            changed.add(step.output)
        self.mirror({line.split(": ")[0].removeprefix("build ") for line in lines[1:]})
        self.write(self.build / "mutation.ninja", "".join(lines).encode())

    @staticmethod
    def line_of(output: str, command: str, inputs: list[str]) -> str:
        return f"build {output}: step {' '.join(inputs)}\n  step = {command.replace('$', '$$')}\n"

    def compiling(self, step: Step, touched: dict[str, MutatedFile]) -> str:
        source = self.root / step.source
        taken = self.sources / step.source if step.source in touched else source
        command = step.command.replace(f"-I{self.root} ", f"-I{self.sources} -I{self.root} -iquote {source.parent} ", 1)
        return command.replace(f" -c {source}", f" {FLAGS} -c {taken}").replace(" -Werror ", " ")

    def files_of(self, step: Step, touched: dict[str, MutatedFile], users: dict[str, set[str]]) -> list[str]:
        names = [name for name in touched if name == step.source or name in users.get(step.output, ())]
        return [step.inputs[0], *(str(self.sources / name) for name in names)]

    def listener_of(self, link: Step, steps: list[Step]) -> Step | None:
        """Each program of Catch2 reports the faults that its tests pass by. The listener is compiled like the program's
        first source."""
        if not link.output.endswith("_tests"):
            return None
        folder = f"/{os.path.basename(link.output)}.dir/"
        own = next(step for step in steps if step.output in link.inputs and step.source and folder in step.output)
        output = f"{link.output}_seen.o"
        command = re.sub(r" -Winvalid-pch -include \S+cmake_pch\.hxx| -Werror", "", own.command)
        command = command.replace(f"-I{self.root} ", f"-I{self.sources} -I{self.root} ", 1)
        command = command.replace(f"-o {own.output}", f"-o {output}").replace(
            f"-c {self.root / own.source}", f"-c {FOLDER / 'seen_listener.cc'}"
        )
        return Step(command, output, [str(FOLDER / "seen_listener.cc"), str(self.sources / "mutation_switch.h")])

    def mirror(self, own: set[str]):
        """Links to all files of the plain build. The files in `own` are ours. They are made again or stay."""
        self.build.mkdir(parents=True, exist_ok=True)
        for folder, folders, names in os.walk(self.plain):
            there = self.build / os.path.relpath(folder, self.plain)
            folders[:] = [name for name in folders if name not in ("test-results", "Testing")]
            there.mkdir(exist_ok=True)
            for name in names:
                if name.startswith((".ninja", "build.ninja")):
                    continue
                ours, plain = there / name, Path(folder, name)
                is_own = os.path.relpath(ours, self.build) in own
                is_link = ours.is_symlink() and os.readlink(ours) == str(plain)
                if is_link if is_own else (ours.exists() or ours.is_symlink()) and not is_link:
                    ours.unlink()
                    is_link = False
                if not is_own and not is_link:
                    # A link to a file beside it stays such a link: libstfs.so then leads to the file that is built here.
                    ours.symlink_to(os.readlink(plain) if plain.is_symlink() else plain)

    # --- the files with faults --------------------------------------------------------------------------

    def put_in(self, faults: dict[int, Candidate]) -> dict[str, MutatedFile]:
        by_file: dict[str, dict[int, Candidate]] = {}
        for number, candidate in faults.items():
            by_file.setdefault(candidate.file, {})[number] = candidate
        self.write(self.sources / "mutation_switch.h", (FOLDER / "switch.h").read_bytes())
        for old in [*self.sources.rglob("*.cc"), *self.sources.rglob("*.h")]:
            name = os.path.relpath(old, self.sources)
            if name not in by_file and name != "mutation_switch.h":
                old.unlink()
        mutated = {}
        for name, inside in by_file.items():
            mutated[name] = MutatedFile((self.root / name).read_bytes().decode("latin-1"), inside)
            self.write(self.sources / name, mutated[name].text.encode("latin-1"))
        return mutated

    @staticmethod
    def write(target: Path, content: bytes):
        """A file that does not change keeps its time."""
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)

    def blamed(
        self, output: str, touched: dict[str, MutatedFile], faults: dict[int, Candidate], everything: bool
    ) -> set[int]:
        """Returns the inner faults at the lines that the compiler names. If the compiler names no line with a fault,
        returns the faults of the header or of the source that failed. This is done only when no other fault can be the
        reason, because a fault in a header can cause errors at lines without a fault."""
        located: set[int] = set()
        elsewhere: list[set[int]] = []
        for block in re.split(r"^FAILED: ", output, flags=re.M)[1:]:
            block = re.split(r"^\[\d+/\d+\] ", block, maxsplit=1, flags=re.M)[0]  # the next step may have succeeded
            found = self.located(block, touched)
            located |= found
            if everything or not found:
                names = {self.name_of(re.sub(r"(:\d+)*[:,]*$", "", word)) for word in block.split()} & set(touched)
                headers = {name for name in names if name.endswith(".h")}
                chosen = names if everything else headers or names
                elsewhere.append({number for number, candidate in faults.items() if candidate.file in chosen})
        return located if located and not everything else located.union(*elsewhere)

    def located(self, block: str, touched: dict[str, MutatedFile]) -> set[int]:
        places = re.findall(r"^(\S+?):(\d+):\d+: +(error|note|fatal error|required)", block, re.M)
        places += [(*place, "required") for place in re.findall(r"^(\S+?):(\d+):\d+: +required from here", block, re.M)]
        for wanted in (("error", "fatal error"), ("note", "required")):
            found = set()
            for path, line, kind in places:
                name = self.name_of(path)
                if kind in wanted and name in touched and (numbers := touched[name].faults_at(int(line))):
                    found.add(numbers[-1])
            if found:
                return found
        return set()

    def name_of(self, path: str) -> str:
        return os.path.relpath(os.path.normpath(os.path.join(self.build, path)), self.sources)
