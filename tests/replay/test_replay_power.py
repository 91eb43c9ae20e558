# Power cuts at any moment, on real file systems: promised commits are there, and no commit is torn.
import os

import loop_disk
import pytest
import recording
import share_of_day
from replays import COMMITS, Replayer

# STFS_LONG replays more states, within the time limit of a test; replays.py --seconds N has no such limit.
STATES = 1500 if os.environ.get("STFS_LONG") else 100
RECOVERIES, STATES_OF_EACH = (40, 25) if os.environ.get("STFS_LONG") else (5, 8)


CUTS = [("btrfs", "journals"), ("ext4", "journals"), ("xfs", "journals"),
        ("ext4", "lane-journal"), ("xfs", "lane-journal"), ("btrfs", "lane-journal")]


@pytest.mark.parametrize("cut", share_of_day.todays(CUTS, "-".join), ids="-".join)
def test_a_power_cut_leaves_whole_commits_and_every_promised_one(cut, scratch):
    kind, commits = cut
    reason = loop_disk.why_unavailable(kind)
    if reason:
        pytest.skip(reason)
    recorded = recording.record_workload(kind, 1, COMMITS, scratch, keeps_journal=commits == "lane-journal")
    # Without flushes the rest of the test would prove nothing.
    flushes = recorded.log.entries[recorded.begin:].count(None)
    assert flushes >= 2 * COMMITS, "the file system's flushes do not reach the recorder"
    replayer = Replayer(scratch)
    replayer.replay(recorded, STATES, 1)
    first = dict(replayer.verdicts)
    replayer.replay_recoveries(RECOVERIES, STATES_OF_EACH, 1)
    print(f"{kind}: {len(recorded.log)} entries, {flushes} flushes; {first}, with recoveries {replayer.verdicts}")
    assert not replayer.wrong, "\n".join(replayer.wrong)
    assert replayer.verdicts["whole"] >= STATES
    assert replayer.applied, "no crash state had a journal to recover: the replays show nothing"


BATCH, BATCHES = 20, 8


@pytest.mark.parametrize("lie", ["journal-sync", "directory-sync", "archive-sync"])
def test_a_missing_sync_is_found(lie, scratch):
    """Proves that the harness can fail. Not every file system shows every missing sync (btrfs hides the directory's, and
    shows no torn archive without the journal's), so one file system that shows it is enough."""
    kinds = [kind for kind in ("xfs", "ext4", "btrfs") if loop_disk.why_unavailable(kind) is None]
    if not kinds:
        pytest.skip(loop_disk.why_unavailable("xfs"))
    verdicts = {}
    for kind in kinds:
        directory = scratch / kind
        directory.mkdir()
        recorded = recording.record_workload(kind, 2, COMMITS, directory, lie=lie)
        replayer = Replayer(directory)
        verdicts[kind] = replayer.verdicts
        for batch in range(BATCHES):
            replayer.replay(recorded, BATCH, batch)
            if replayer.verdicts["torn"] + replayer.verdicts["lost"] > 0:
                print(f"without {lie}, {kind}: {dict(replayer.verdicts)}")
                return
    pytest.fail(f"nobody missed the {lie}: {verdicts}")
