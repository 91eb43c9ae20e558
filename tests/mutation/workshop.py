"""A copy of the sources below the build directory, with faults inside, and what is built of it."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from candidate import Candidate
from mutated_file import MutatedFile

FOLDER = Path(__file__).resolve().parent
PROGRAMS = ("core_tests", "fs_tests", "tools_tests", "crash_tests", "simulation_tests")
LISTENERS = ("core", "fs", "tools", "crash", "simulation")
# Faults make warnings; a slower optimizer makes the build quick.
LISTS = tuple(f"{folder}/CMakeLists.txt" for folder in ("core", "fs", "tools", "tests"))
FLAGS = "-O1 -w -Wno-narrowing -fmax-errors=0"

@dataclasses.dataclass
class Made:
    """What was put into the programs, by its number, and what did not compile."""

    faults: dict[int, Candidate]
    refused: list[Candidate]


class Workshop:
    def __init__(self, root: Path, place: Path):
        self.root = root
        self.place = place
        self.copy = place / "source"
        self.build = self.copy / "build" / "rel"

    def copy_sources(self):
        """All that git knows or would take, as the tree is now. What stays the same keeps its time."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=self.root, capture_output=True, check=True,
        )  # fmt: skip
        names = {os.fsdecode(name) for name in listed.stdout.split(b"\0") if name}
        touched = self.touched_before()
        for name in sorted(names):
            if (self.root / name).is_file():
                if name not in touched and name not in LISTS:
                    self.write(name, (self.root / name).read_bytes(), (self.root / name).stat().st_mode)
        self.write("mutation_switch.h", (FOLDER / "switch.h").read_bytes())
        for part in LISTENERS:
            listener = f"tests/{part}/mutation_seen_test.cc"
            names.add(listener)
            self.write(listener, (FOLDER / "seen_listener.cc").read_bytes())
        content = (self.root / "tests/CMakeLists.txt").read_text()
        listeners = " ".join(f"{part}/mutation_seen_test.cc" for part in LISTENERS)
        content += f"\nset_source_files_properties({listeners} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)\n"
        content += "target_sources(simulation_tests PRIVATE simulation/mutation_seen_test.cc)\n"  # the others look for it
        self.write("tests/CMakeLists.txt", content.encode())
        for folder in ("core", "fs", "tools", "tests"):
            for file in (self.copy / folder).rglob("*.cc"):
                if os.path.relpath(file, self.copy) not in names:
                    file.unlink()

        if (self.root / ".venv").exists() and not (self.copy / ".venv").exists():
            (self.copy / ".venv").symlink_to((self.root / ".venv").resolve())

    def write(self, name: str, content: bytes, mode: int = 0o644):
        target = self.copy / name
        if target.is_file() and target.read_bytes() == content:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(mode & 0o777)

    def configure(self):
        if (self.build / "build.ninja").exists():
            return
        cached = shutil.which("g++", path="/usr/lib/ccache") or "g++"
        command = ["cmake", "--preset", "release", "-B", str(self.build), f"-DCMAKE_CXX_COMPILER={cached}",
                   "-DCMAKE_UNITY_BUILD=OFF", "-DSTFS_WERROR=ON", "-DSTFS_TESTS=ON"]  # fmt: skip
        done = subprocess.run(command, cwd=self.copy, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-3000:])

    def make(self, faults: dict[int, Candidate], targets: tuple[str, ...] = PROGRAMS, log=print) -> Made:
        """Builds; leaves out what does not compile."""
        refused: list[Candidate] = []
        touched = self.put_in(faults, self.touched_before())
        for attempt in range(12):
            done = self.run_ninja(targets)
            if done.returncode == 0:
                return Made(faults, refused)
            bad = self.blamed(done.stdout, touched, faults, everything=attempt > 8)
            if not bad:
                raise RuntimeError(f"the build fails, and not by a fault:\n{done.stdout[-4000:]}")
            log(f"{len(bad)} faults do not compile, such as {faults[min(bad)]}")
            refused += [faults.pop(number) for number in sorted(bad)]
            touched = self.put_in(faults, set(touched))
        raise RuntimeError("the build fails again and again")

    def run_ninja(self, targets: tuple[str, ...]) -> subprocess.CompletedProcess:
        environment = {**os.environ, "LC_ALL": "C", "PATH": f"/usr/lib/ccache:{os.environ['PATH']}"}
        return subprocess.run(
            ["ninja", "-k", "0", "-j", str(os.cpu_count()), "-C", str(self.build), *targets],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )  # fmt: skip

    # --- the files with faults --------------------------------------------------------------------------

    def touched_before(self) -> set[str]:
        note = self.place / "touched.json"
        return set(json.loads(note.read_text())) if note.exists() else set()

    def put_in(self, faults: dict[int, Candidate], before: set[str]) -> dict[str, MutatedFile]:
        by_file: dict[str, dict[int, Candidate]] = {}
        for number, candidate in faults.items():
            by_file.setdefault(candidate.file, {})[number] = candidate
        (self.place / "touched.json").write_text(json.dumps(sorted(before | set(by_file))))
        for name in before - set(by_file):
            if (self.root / name).exists():
                self.write(name, (self.root / name).read_bytes())
        mutated = {}
        for name, inside in by_file.items():
            mutated[name] = MutatedFile((self.root / name).read_bytes().decode("latin-1"), inside)
            self.write(name, mutated[name].text.encode("latin-1"))
        self.set_flags(sorted(before | set(by_file)))
        return mutated

    def set_flags(self, names: list[str]):
        """A file that had faults once keeps their flags: its folder is not configured again and again."""
        for folder in ("core", "fs", "tools"):
            lists = self.root / folder / "CMakeLists.txt"
            content = lists.read_text()
            sources = [name.removeprefix(folder + "/") for name in names if name.startswith(folder + "/")]
            if sources:
                content += "\nset_source_files_properties(\n  " + "\n  ".join(sources)
                content += f'\n  PROPERTIES COMPILE_OPTIONS "{FLAGS.replace(" ", ";")}")\n'
            self.write(f"{folder}/CMakeLists.txt", content.encode())

    def blamed(
        self, output: str, touched: dict[str, MutatedFile], faults: dict[int, Candidate], everything: bool
    ) -> set[int]:
        """The faults whose lines the compiler names: the inner one of each."""
        bad: set[int] = set()
        for block in re.split(r"^FAILED: ", output, flags=re.M)[1:]:
            places = re.findall(r"^(\S+?):(\d+):\d+: +(error|note|fatal error|required)", block, re.M)
            places += [(*place, "required") for place in re.findall(r"^(\S+?):(\d+):\d+: +required from here", block, re.M)]
            found: set[int] = set()
            for wanted in (("error", "fatal error"), ("note", "required")):
                for path, line, kind in places:
                    name = self.name_of(path)
                    if kind in wanted and name in touched and (numbers := touched[name].faults_at(int(line))):
                        found.add(numbers[-1])
                if found:
                    break
            if everything or not found:
                names = {self.name_of(word) for word in block.split()} & set(touched)
                found |= {number for number, candidate in faults.items() if candidate.file in names}
            bad |= found
        return bad

    def name_of(self, path: str) -> str:
        return os.path.relpath(os.path.normpath(os.path.join(self.build, path)), self.copy)
