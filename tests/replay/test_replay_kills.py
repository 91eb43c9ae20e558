# kill -9 at every system call that touches archive or journal: of a committing program, of recovery, of the mounted
# daemon, of `stfs apply`.
import collections
import subprocess

import archive_file
import kills
import loop_disk
import programs
import pytest
import share_of_day
from mounted import MountFailed, unmount_by_force

pytestmark = pytest.mark.usefixtures("strace")

SEED = 7
# Commits 3 and 4: a tensor of several MiB, which is cloned where that can be, and parts of three.
SERIES = ["--seed", SEED, "--first", 3, "--commits", 2]
# The same, and two more: commits 4, 5 and 7 go through a lane journal, which 6, a large one, settles.
KEPT_SERIES = ["--seed", SEED, "--first", 3, "--commits", 5, "--keep-journal"]


@pytest.fixture(params=["ext4", "xfs"])
def directory(request, disk):
    """The directory of the archives: ext4 copies blocks, xfs shares them."""
    return disk(request.param, loop_disk.SIZES["xfs"])


class Series:
    """Archives, killed programs and verdicts. The commits before the third are taken as made."""

    def __init__(self, directory, series=SERIES):
        self.archive = directory / programs.ARCHIVE
        self.series = series
        self.template = None
        self.verdicts = collections.Counter()
        self.wrong = []

    def begin(self):
        """A new archive as it is after commit 2."""
        for journal in programs.journals_beside(self.archive):
            (self.archive.parent / journal).unlink()
        if self.template is None:
            programs.create_archive(self.archive, SEED)
            assert programs.run_workload(self.archive, "--seed", SEED, "--commits", 2).is_finished
            self.template = self.archive.read_bytes()
        self.archive.unlink()
        self.archive.write_bytes(self.template)

    def kill(self, call, number, *options):
        self.begin()
        return programs.run_workload(self.archive, *self.series, *options, before=kills.killed_at(call, number))

    def judge(self, at_least, at_most, label, *options):
        report = programs.check_state(self.archive, SEED, at_least, at_most, *options)
        self.verdicts[report["verdict"]] += 1
        if report["verdict"] != "whole":
            self.wrong.append(f"{label}: commits {at_least} to {at_most}: {report}")
        return report

    def points(self, scratch, *options):
        """Every place where the series can be killed."""
        self.begin()
        log = scratch / "calls"
        assert programs.run_workload(self.archive, *self.series, *options, before=kills.traced(log)).is_finished
        return kills.points(log, kills.openats_of_loader(log, programs.ARCHIVE)), log


SWEEPS = [(kind, series) for kind in ("ext4", "xfs") for series in ("journals", "lane-journal")]


@pytest.mark.parametrize("sweep", share_of_day.todays(SWEEPS, "-".join), ids="-".join)
def test_a_killed_commit_is_whole_or_not_at_all(sweep, disk, scratch):
    kind, commits = sweep
    directory = disk(kind, loop_disk.SIZES["xfs"])
    series = Series(directory, KEPT_SERIES if commits == "lane-journal" else SERIES)
    places, _ = series.points(scratch)
    for call, number in places:
        story = series.kill(call, number)
        assert not story.is_finished, f"nobody was killed at {call} {number}"
        series.judge(max(2, story.at_least), max(2, story.at_most), f"killed at {call} {number}", "--writes")
    print(f"{len(places)} kills: {dict(series.verdicts)}")
    assert len(places) > 60
    assert not series.wrong, "\n".join(series.wrong)


def test_a_kill_shows_a_journal_that_was_never_named(directory, scratch):
    """Proves that these tests can fail: without its journal, a commit that is killed half-way stays torn."""
    series = Series(directory)
    lie = ["--lie", "journal-publish"]
    places, _ = series.points(scratch, *lie)
    for call, number in places:
        if call in ("pwrite64", "fdatasync", "ioctl"):
            story = series.kill(call, number, *lie)
            series.judge(max(2, story.at_least), max(2, story.at_most), f"killed at {call} {number}")
    assert series.verdicts["torn"] > 0, series.verdicts


def test_recovery_killed_at_every_call_is_finished_by_the_next(directory, scratch):
    series = Series(directory)
    _, log = series.points(scratch)
    # Commit 4 is in its journal and a part of it in the archive.
    victim = ("pwrite64", kills.after(log, "linkat", "pwrite64", 2))
    check = programs.check_command(series.archive, SEED, 4, 4)
    series.kill(*victim)
    assert programs.journals_beside(series.archive), "the victim has left no journal"
    recovery = scratch / "recovery"
    assert subprocess.run([*kills.traced(recovery), *check], capture_output=True).returncode == 0
    places = kills.points(recovery, kills.openats_of_loader(recovery, programs.ARCHIVE))
    for call, number in places:
        series.kill(*victim)
        subprocess.run([*kills.killed_at(call, number), *check], capture_output=True)
        # The same place again, so that a recovery of a recovery is killed too.
        subprocess.run([*kills.killed_at(call, number), *check], capture_output=True)
        series.judge(4, 4, f"killed at {victim}, recovery at {call} {number}", "--writes")
    print(f"{2 * len(places)} kills of recovery: {dict(series.verdicts)}")
    assert len(places) > 15
    assert not series.wrong, "\n".join(series.wrong)


TENSORS = {"scalar": 4, "norm.a": 1000, "norm.b": 1500, "weight": 1_300_000, "last": 3001}
OLD = {name: archive_file.random_bytes(size, 1) for name, size in TENSORS.items()}
NEW = {name: archive_file.random_bytes(size, 2) for name, size in TENSORS.items()}


def content(archive):
    return {name: data for name, (_, _, data) in archive_file.ArchiveFile(archive).reference().items()}


def remake(archive):
    """Restores the archive, so that a kill does not begin with the result of an earlier one."""
    for journal in programs.journals_beside(archive):
        (archive.parent / journal).unlink()
    archive.unlink(missing_ok=True)
    archive_file.write_bytes_tensors(archive, OLD)


def test_stfs_apply_killed_at_every_call_changes_all_tensors_or_none(disk, scratch):
    archive = disk("xfs") / "model.safetensors"
    delta = archive_file.write_bytes_tensors(scratch / "delta.safetensors", NEW)
    command = [programs.STFS, "apply", archive, delta]
    remake(archive)
    applied = subprocess.run([*kills.traced(scratch / "calls"), *command], capture_output=True, text=True)
    assert applied.returncode == 0 and content(archive) == NEW, applied.stderr
    places = kills.points(scratch / "calls", kills.openats_of_loader(scratch / "calls", "safetensors"))
    found = collections.Counter()
    for call, number in places:
        remake(archive)
        killed = subprocess.run([*kills.killed_at(call, number), *command], capture_output=True)
        assert killed.returncode != 0, f"nobody was killed at {call} {number}"
        recovered = subprocess.run([programs.STFS, "recover", archive], capture_output=True, text=True)
        assert recovered.returncode == 0, recovered.stderr
        now = content(archive)
        assert now in (OLD, NEW), f"killed at {call} {number}: {[n for n in NEW if now[n] == NEW[n]]} are new"
        assert not programs.journals_beside(archive)
        found["new" if now == NEW else "old"] += 1
    print(f"{len(places)} kills of stfs apply: {dict(found)}")
    assert found["new"] and found["old"]


# A write in place and one that truncates first, as the daemon sees them.
WRITERS = {"dd": ["dd", "bs=256K", "conv=notrunc", "status=none"], "cp": None}


@pytest.mark.parametrize("writer", sorted(WRITERS))
def test_a_daemon_killed_at_every_call_leaves_the_old_tensor_or_the_new(writer, disk, scratch, mounts):
    archive = disk("ext4") / "model.safetensors"
    source = scratch / "new"
    source.write_bytes(NEW["weight"])
    changed = {**OLD, "weight": NEW["weight"]}

    unharmed = []  # whether the daemon has outlived the writer

    def write_through(before):
        """Whether the writer was told that the new content is there; None where there was no mount."""
        try:
            mount = mounts(archive, before=before)
        except MountFailed:
            return None
        mount.may_die = True
        target = mount.path / "weight"
        command = ["cp", source, target] if writer == "cp" else [*WRITERS[writer], f"if={source}", f"of={target}"]
        is_told = subprocess.run(command, capture_output=True, timeout=60).returncode == 0
        unharmed.append(mount.process.poll() is None)
        problem = mount.finish()
        assert problem is None, problem
        unmount_by_force(mount.path)
        return is_told

    remake(archive)
    assert write_through(kills.traced(scratch / "calls")) is True
    assert content(archive) == changed
    # The start of the mount makes dozens of these calls; only the last ones are part of the commit.
    calls = [call for call in kills.CALLS if call not in ("openat", "statx", "getdents64", "fcntl")]
    places = [place for place in kills.points(scratch / "calls") if place[0] in calls]
    places += [(call, number) for call in ("openat", "statx", "getdents64", "fcntl")
               for number in sorted({number for name, number in kills.points(scratch / "calls") if name == call})[-6:]]
    found = collections.Counter()
    for call, number in places:
        remake(archive)
        is_told = write_through(kills.killed_at(call, number))
        mount = mounts(archive)  # recovers
        seen = (mount / "weight").read_bytes()
        assert mount.unmount() == 0
        now = content(archive)
        assert now in (OLD, changed), f"killed at {call} {number}: torn"
        assert seen == now["weight"]
        assert not (is_told and now == OLD), f"killed at {call} {number}: lost, {writer} was told that it is there"
        assert not programs.journals_beside(archive)
        found["new" if now == changed else "old"] += 1
    print(f"{len(places)} kills of the daemon under {writer}, {sum(unharmed) - 1} of them later: {dict(found)}")
    assert found["new"] and found["old"]
