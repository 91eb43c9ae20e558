# A full disk: at whichever step the disk is full, the archive has the old content or the new one, and the error is the file
# system's.
import collections
import errno
import os
import subprocess

import kills
import loop_disk
import programs
import pytest

SEED = 5
KINDS = sorted(loop_disk.SIZES)
# The free space when the workload starts, in KiB: from nothing to nearly enough for its largest commit.
DEGREES = [0, 4, 16, 64, 256, 1024, 2500, 5000, 9000]


def fill(directory, leave_kib):
    """Writes a ballast file that leaves so much of the disk free."""
    ballast = directory / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        for size_bytes in (1 << 20, 1 << 16, 1 << 12):
            data = os.urandom(size_bytes)
            try:
                while file.write(data) == size_bytes:
                    pass
            except OSError as error:
                assert error.errno in (errno.ENOSPC, errno.EDQUOT)
        end = file.tell()
        try:
            os.fsync(file.fileno())
        except OSError:
            pass
        file.truncate(max(0, end - leave_kib * 1024))
        os.fsync(file.fileno())
    return ballast


def check_whole(archive, bounds, ballast, label):
    """Checks the archive as a reader on the full disk, which cannot recover it, and as a writer after there is space."""
    report = programs.check_state(archive, SEED, *bounds, "--read-only")
    assert report["verdict"] == "whole", f"{label}, read-only: {report}"
    ballast.unlink()
    os.sync()
    report = programs.check_state(archive, SEED, *bounds, "--writes")
    assert report["verdict"] == "whole", f"{label}: {report}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_leaves_whole_commits(kind, disk):
    # btrfs reserves more space the larger it is; the others have their smallest size.
    directory = disk(kind)
    found = collections.Counter()
    for leave_kib in DEGREES:
        archive = directory / f"{leave_kib}.safetensors"
        programs.create_archive(archive, SEED)
        os.sync()
        ballast = fill(directory, leave_kib)
        story = programs.run_workload(archive, "--seed", SEED, "--commits", 8)
        label = f"{leave_kib} KiB left: {story}"
        if not story.is_finished:
            assert story.failed or story.unopened, label
            failure = story.failed[1] if story.failed else int(story.unopened.split()[0])
            assert failure == errno.ENOSPC, label
            found[story.failed[2] if story.failed else "unopened"] += 1
        else:
            found["finished"] += 1
        bounds = (story.at_least, story.at_most)
        check_whole(archive, bounds, ballast, label)
        archive.unlink()
    print(f"{kind}: {dict(found)}")
    assert found["aborted"] + found["committed"] > 0, "the disk was never full"


# Commit 3 is cloned where that can be, 4 is copied: btrfs wants new blocks for both, ext4 for neither.
@pytest.mark.parametrize("number", [3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_is_full_after_the_commit_point_shows_the_commit(kind, number, disk, processes, strace):
    directory = disk(kind)
    archive = programs.create_archive(directory / programs.ARCHIVE, SEED)
    assert programs.run_workload(archive, "--seed", SEED, "--commits", number - 1).is_finished
    os.sync()
    # The archive's sync is the second: by then the journal has its name, and the first bytes are in the cache. The
    # directory's sync is the first fsync.
    command = programs.workload_command(archive, "--seed", SEED, "--first", number, "--commits", 1)
    process = subprocess.Popen([*kills.stopped_at("fsync", 1), *command], stdout=subprocess.PIPE, text=True)
    processes.append(process)
    stopped = kills.Stopped(process)
    ballast = fill(directory, 0)
    stopped.go_on()
    story = programs.read_story(process.communicate(timeout=60)[0])
    print(f"{kind}, commit {number}: {story.failed or 'done'}")
    assert story.is_finished or story.failed[1] == errno.ENOSPC, story
    bounds = (story.at_least, story.at_most) if story.done or story.failed else (number, number)
    check_whole(archive, bounds, ballast, story)


def test_a_full_quota_says_EDQUOT(disk):
    directory = disk("btrfs") / "volume"
    limited = [["btrfs", "subvolume", "create", directory], ["btrfs", "quota", "enable", directory],
               ["btrfs", "qgroup", "limit", "9M", directory]]
    for command in limited:
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            pytest.skip(f"no quotas here: {result.stderr.strip()}")
    archive = programs.create_archive(directory / programs.ARCHIVE, SEED)
    os.sync()
    # Commit 3 is of 4 MiB, for which there is no room.
    story = programs.run_workload(archive, "--seed", SEED, "--commits", 3)
    assert story.failed, story
    assert story.failed[:2] == (3, errno.EDQUOT), story
    subprocess.run(["btrfs", "qgroup", "limit", "none", directory], check=True, capture_output=True)
    report = programs.check_state(archive, SEED, story.at_least, story.at_most, "--writes")
    assert report["verdict"] == "whole", report
