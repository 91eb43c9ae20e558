# A full version of a weight sync takes the place of a model with other tensors, and is killed at each system call, or loses
# power: the model is one version or the other, its state agrees, and nothing else is left.
import collections
import os
import shutil
import subprocess
from pathlib import Path

import archive_file
import crash_state
import kills
import loop_disk
import mounted
import pytest
import recording
import share_of_day
from published_weights import INDEX, save, state_of, tensors_of, version_directory

STFS = mounted.BUILD / "stfs"
OLD = {"a": archive_file.random_array("f2", (4001,), 1), "b": archive_file.random_array("u1", (12_345,), 2)}
NEW = {"a": archive_file.random_array("f4", (77, 3), 3), "c": archive_file.random_array("f2", (5001,), 4)}
TENSORS = [{name: array.tobytes() for name, array in tensors.items()} for tensors in (OLD, NEW)]
CALLS = ["openat", "write", "fallocate", "fsync", "ftruncate", "rename", "unlink", "mkdir", "flock"]
STATES = 400 if os.environ.get("STFS_LONG") else 60
SHARDS = {"an archive": 1, "shards": 2}


def pull(host, published, before=()):
    return subprocess.run([*before, STFS, "pull", host, published], capture_output=True, text=True,
                          timeout=60 * mounted.PATIENCE)


class Replacement:
    """A host with version 0, and version 1 with other tensors; what was found in its states."""

    def __init__(self, scratch, shards):
        self.shards = shards
        self.published, self.nothing = scratch / "published", scratch / "nothing"
        self.nothing.mkdir()
        save(version_directory(self.published, 0), OLD, shards)
        self.host = scratch / "host"
        assert pull(self.host, self.published).returncode == 0
        (self.host / "foreign").write_text("stays")
        (self.host / "config.json").write_text("0")
        save(version_directory(self.published, 1), NEW, shards)
        (version_directory(self.published, 1) / "config.json").write_text("1")
        self.found = collections.Counter()

    def check(self, host, label):
        """As it is, after the next receiver has looked at it, and after that has pulled. The version that was there."""
        tensors = tensors_of(host)
        assert tensors in TENSORS, label
        assert state_of(host) in (None, TENSORS.index(tensors)), label
        looked = pull(host, self.nothing)
        assert looked.returncode == 0 and looked.stderr == "", (label, looked)
        version = state_of(host)
        self.found[version] += 1
        self.check_whole(host, version, label)
        assert TENSORS[version] == tensors, label
        pulled = pull(host, self.published)
        assert pulled.returncode == 0, (label, pulled)
        self.check_whole(host, 1, label)
        return version

    def check_whole(self, host, version, label):
        assert tensors_of(host) == TENSORS[version] and state_of(host) == version, label
        assert (host / "config.json").read_text() == str(version) and (host / "foreign").read_text() == "stays", label
        names = sorted(name for name in os.listdir(host) if not name.endswith(".safetensors"))
        assert names == sorted([".weight_sync", "config.json", "foreign", *([INDEX] if self.shards > 1 else [])]), (label, names)
        assert sum(name.endswith(".safetensors") for name in os.listdir(host)) == self.shards, label
        assert sorted(os.listdir(host / ".weight_sync")) == ["lock", "state.json"], label


@pytest.mark.parametrize("shards", SHARDS.values(), ids=SHARDS)
def test_a_killed_replacement_is_one_version_or_the_other(scratch, strace, shards):
    replacement = Replacement(scratch, shards)
    host = scratch / "victim"
    shutil.copytree(replacement.host, host)
    assert pull(host, replacement.published, kills.traced(scratch / "calls", CALLS)).returncode == 0
    places = kills.points(scratch / "calls", kills.openats_of_loader(scratch / "calls", "victim"))
    ended = 0
    # The first and the last, and a seventh of those between.
    todays = sorted({0, len(places) - 1, *range(share_of_day.DAY % share_of_day.SHARES, len(places), share_of_day.SHARES)})
    for call, number in (places[at] for at in todays):
        shutil.rmtree(host)
        shutil.copytree(replacement.host, host)
        # Threads share the shards that they open: a thread's last calls may not come again.
        ended += pull(host, replacement.published, kills.killed_at(call, number)).returncode == 0
        # Once more: now the recovery is killed too.
        pull(host, replacement.published, kills.killed_at(call, number))
        replacement.check(host, f"killed at {call} {number}")
    print(f"{len(todays)} of {len(places)} kills: {dict(replacement.found)}")
    assert len(places) > 50 and ended < 10 and set(replacement.found) == {0, 1}


CUTS = [(kind, shards) for kind in ("ext4", "xfs", "btrfs") for shards in SHARDS]


@pytest.mark.parametrize("cut", share_of_day.todays(CUTS, "-".join), ids="-".join)
def test_a_power_cut_leaves_one_version_or_the_other(scratch, cut):
    kind, shards = cut
    if reason := loop_disk.why_unavailable(kind):
        pytest.skip(reason)
    replacement = Replacement(scratch, SHARDS[shards])
    base = loop_disk.make_image(scratch / "base", kind)
    with loop_disk.mounted_image(base, kind, scratch / "made") as mount:
        shutil.copytree(replacement.host, f"{mount}/host")
    log, begin, done = recording.record_on(base, kind, scratch,
                                           lambda mount, position: pull(mount / "host", replacement.published))
    assert done.returncode == 0, done
    platter = crash_state.Platter(base, log, scratch)
    states = crash_state.draw(log, begin, STATES, 1)
    for state in states:
        image = platter.materialize(state, scratch / "crash")
        try:
            with loop_disk.mounted_image(image, kind, scratch / "crashed") as mount:
                replacement.check(Path(mount) / "host", f"{kind}: {state}")
        except OSError:
            # Half a block of the file system's own (replays.py).
            if state.way != "tear":
                raise
    print(f"{kind}: {len(log)} entries, {dict(replacement.found)}")
    assert set(replacement.found) == {0, 1}
