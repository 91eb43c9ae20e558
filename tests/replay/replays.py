#!/usr/bin/env python3
# Power cuts on a real file system: records a workload below it, then mounts crash states of the disk again and judges them.
# As a program it replays for a given time.
#
#   replays.py --seconds 3600 [--seed N] [--file-system ext4]...
import argparse
import collections
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import crash_state  # noqa: E402
import loop_disk  # noqa: E402
import programs  # noqa: E402
import recording as recording_  # noqa: E402
import safetensors  # noqa: E402

COMMITS = 16


class Replayer:
    """Judges crash states. `verdicts` counts the outcomes, `wrong` describes the mistakes."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.verdicts = collections.Counter()
        self.wrong = []
        self.applied = []  # (recording, crash state, number of the commit) of states with a journal to recover

    def judge(self, image, kind, seed, at_least, at_most, label, writes=False):
        """Mounts the image, which recovers the file system, and has the archive recovered and checked."""
        with loop_disk.mounted_image(image, kind, self.directory / "crashed") as mount:
            archive = Path(mount) / programs.ARCHIVE
            report = programs.check_state(archive, seed, at_least, at_most, *(["--writes"] if writes else []))
            if report["verdict"] == "whole":
                safetensors.deserialize(archive.read_bytes())  # raises where the reference would not load it
        self.verdicts[report["verdict"]] += 1
        if report["verdict"] != "whole":
            self.wrong.append(f"{kind}, workload seed {seed}, {label}, commits {at_least} to {at_most}: {report}")
        return report

    def replay(self, recording, count, seed):
        """Judges `count` crash states of a recording."""
        platter = crash_state.Platter(recording.base, recording.log, self.directory)
        for number, state in enumerate(crash_state.draw(recording.log, recording.begin, count, seed)):
            at_least, at_most = recording.story.bounds_at(state.position)
            image = platter.materialize(state, self.directory / "crash")
            report = self._judge_mountable(platter, image, recording, state, (at_least, at_most), number % 4 == 0)
            if report.get("applied", 0) > 0 and report["verdict"] == "whole":
                self.applied.append((recording, state, report["state"]))

    def _judge_mountable(self, platter, image, recording, state, bounds, writes):
        try:
            return self.judge(image, recording.kind, recording.seed, *bounds, state, writes)
        except OSError as error:
            # ext4 and btrfs were both seen to refuse a disk with half a metadata block, because the block's checksum
            # is wrong. The archive did not cause this. The same blocks are judged again, untorn.
            if state.way != "tear":
                self.verdicts["unmountable"] += 1
                self.wrong.append(f"{recording.kind}, {state}: the file system does not mount: {error}")
                return {"verdict": "unmountable"}
            self.verdicts["unmountable when torn"] += 1
            untorn = crash_state.CrashState(state.position, "drop", state.seed)
            platter.materialize(untorn, image)
            return self._judge_mountable(platter, image, recording, untorn, bounds, writes)

    def replay_recoveries(self, count_of_states, count_of_each, seed):
        """Crashes during recovery: records the recovery, and judges its crash states. Each must keep the commits that were
        made before."""
        choices = random.Random(seed)
        states = choices.sample(self.applied, min(count_of_states, len(self.applied)))
        for recording, state, number in states:
            directory = self.directory / "recovery"
            directory.mkdir(exist_ok=True)
            platter = crash_state.Platter(recording.base, recording.log, directory)
            crashed = platter.materialize(state, directory / "base")
            log, begin, report = recording_.record_on(crashed, recording.kind, directory, lambda mount, _:
                                                      programs.check_state(mount / programs.ARCHIVE, recording.seed,
                                                                           number, number))
            if report["verdict"] != "whole":
                self.verdicts[report["verdict"]] += 1
                self.wrong.append(f"{recording.kind}, {state}: recovered once {number}, then {report}")
                continue
            again = crash_state.Platter(crashed, log, directory)
            for second in crash_state.draw(log, begin, count_of_each, choices.getrandbits(32)):
                image = again.materialize(second, self.directory / "crash")
                try:
                    self.judge(image, recording.kind, recording.seed, number, number, f"{state}, then {second}")
                except OSError as error:
                    self.verdicts["unmountable when torn" if second.way == "tear" else "unmountable"] += 1
                    if second.way != "tear":
                        self.wrong.append(f"{recording.kind}, {state}, then {second}: does not mount: {error}")


def run_long(arguments):
    started = time.monotonic()
    seed = arguments.seed
    counts = collections.defaultdict(collections.Counter)
    while time.monotonic() - started < arguments.seconds:
        for kind in arguments.file_system:
            with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
                replayer = Replayer(directory)
                recorded = recording_.record_workload(kind, seed, COMMITS, Path(directory),
                                                      keeps_journal=seed % 2 == 0)
                replayer.replay(recorded, arguments.each, seed)
                replayer.replay_recoveries(4, arguments.each // 16, seed)
                counts[kind].update(replayer.verdicts)
                for wrong in replayer.wrong:
                    print("WRONG:", wrong, flush=True)
        seed += 1
        passed = time.monotonic() - started
        print(f"{passed:.0f} s, next seed {seed}: " + "; ".join(f"{kind} {dict(counts[kind])}" for kind in counts),
              flush=True)
    good = {"whole", "unmountable when torn"}
    return 0 if all(set(verdicts) <= good for verdicts in counts.values()) else 1


def main():
    parser = argparse.ArgumentParser(description="Power cuts on real file systems, for as long as one likes.")
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=200, help="crash states of each recorded workload")
    parser.add_argument("--file-system", action="append", choices=sorted(loop_disk.SIZES))
    parser.add_argument("--directory", default="/dev/shm" if shutil.disk_usage("/dev/shm").free > 2 << 30 else None,
                        help="where images lie; memory is best")
    arguments = parser.parse_args()
    arguments.file_system = arguments.file_system or sorted(loop_disk.SIZES)
    return run_long(arguments)


if __name__ == "__main__":
    sys.exit(main())
