# Runs the programs of these tests and parses their output.
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mount"))
import mounted  # noqa: E402

DRIVER = mounted.BINARY
STFS = mounted.BUILD / "stfs"
WORKLOAD = mounted.BUILD / "tests" / "commit_workload"
CHECK = mounted.BUILD / "tests" / "state_check"
RECORDER = mounted.BUILD / "tests" / "block_recorder"

ARCHIVE = "model.safetensors"
# A smaller archive than the programs' own, so that a disk of 64 MiB has room and a copy takes no time.
LARGE_BYTES = 4 << 20


@dataclass
class Story:
    """The output of a workload: numbers of commits, and positions in the recorder's log."""
    begun: dict = field(default_factory=dict)
    done: dict = field(default_factory=dict)
    failed: tuple = None  # (number, errno, "aborted" | "committed" | "unknown", message)
    is_finished: bool = False
    unopened: str = None

    @property
    def at_least(self):
        """The last commit that was promised."""
        number = max(self.done, default=0)
        return max(number, self.failed[0]) if self.failed and self.failed[2] == "committed" else number

    @property
    def at_most(self):
        """The last commit that may be in the archive."""
        if self.failed and self.failed[2] == "aborted":
            return self.failed[0] - 1
        return max(self.begun, default=0)

    def bounds_at(self, position):
        """The last promised and the last possible commit at this position of the log."""
        done = [number for number, at in self.done.items() if at <= position]
        begun = [number for number, at in self.begun.items() if at <= position]
        return max(done, default=0), max(begun, default=0)


def read_story(text):
    story = Story()
    for line in text.splitlines():
        word, *rest = line.split(" ")
        if word in ("begin", "done"):
            where = story.begun if word == "begin" else story.done
            where[int(rest[0])] = int(rest[1]) if len(rest) > 1 else 0
        elif word == "failed":
            story.failed = (int(rest[0]), int(rest[1]), rest[2], " ".join(rest[3:]))
        elif word == "unopened":
            story.unopened = " ".join(rest)
        elif word == "finished":
            story.is_finished = True
    return story


def workload_command(archive, *options):
    return [str(WORKLOAD), str(archive), "--large-bytes", str(LARGE_BYTES), *map(str, options)]


def create_archive(path, seed):
    subprocess.run(workload_command(path, "--create", "--seed", seed), check=True)
    return path


def run_workload(archive, *options, before=(), timeout=120):
    """Runs the workload to its end, successful or not."""
    result = subprocess.run([*before, *workload_command(archive, *options)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, timeout=timeout)
    story = read_story(result.stdout)
    story.returncode, story.stderr = result.returncode, result.stderr
    return story


def check_command(archive, seed, at_least, at_most, *options):
    return [str(CHECK), str(archive), "--seed", str(seed), "--large-bytes", str(LARGE_BYTES), "--at-least",
            str(at_least), "--at-most", str(at_most), *options]


def check_state(archive, seed, at_least, at_most, *options):
    """The verdict of state_check on an archive."""
    result = subprocess.run(check_command(archive, seed, at_least, at_most, *options), capture_output=True,
                            text=True, timeout=120)
    if not result.stdout:
        return {"verdict": "crashed", "explanation": f"exit status {result.returncode}: {result.stderr}"}
    return json.loads(result.stdout)


def journals_beside(archive):
    archive = Path(archive)
    return sorted(name for name in os.listdir(archive.parent) if name.startswith(f".{archive.name}.stj."))


def why_unbuilt():
    for program in (DRIVER, STFS, WORKLOAD, CHECK, RECORDER):
        if not program.exists():
            return f"{program} is not built"
    return None
