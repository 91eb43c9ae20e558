# Edits of the structure by `stfs` with real files: beside a mount, beside other editors, killed at any moment, by others.
import json
import os
import random
import signal
import subprocess
import time

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from kill_storm import StoredModel
from mounted import BUILD, eventually

STFS = BUILD / "stfs"
FREE = "__safetensorsfs.free."


def stfs(*words):
    done = subprocess.run([STFS, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def seconds_of(*words):
    started = time.monotonic()
    stfs(*words)
    return time.monotonic() - started


def content(path):
    with safetensors.safe_open(path, "np") as archive:
        return {name: archive.get_tensor(name).tobytes() for name in archive.keys() if not name.startswith(FREE)}


@pytest.fixture
def archive(tmp_path):
    rng = random.Random(3)
    path = tmp_path / "m.safetensors"
    arrays = {name: np.frombuffer(rng.randbytes(400_000), "u1") for name in "abcdef"}
    safetensors.numpy.save_file(arrays, path)
    stfs("set", path, "--metadata", "room=made")  # moves the first tensor: from now on the header has room
    return path, {name: array.tobytes() for name, array in arrays.items()}


def test_a_mount_shows_edits_and_keeps_the_space_until_nobody_reads(archive, mounts):
    path, due = archive
    mount = mounts(path)
    before = path.stat().st_blocks
    with open(mount / "c", "rb") as reader:
        assert reader.read(10) == due["c"][:10]
        stfs("rm", mount.path, "c")
        stfs("mv", path, "d", "layers.d")
        eventually(lambda: sorted(name for name in os.listdir(mount.path)) == ["a", "b", "e", "f", "layers.d"])
        try:  # never bytes of another tensor
            assert os.pread(reader.fileno(), 10, 0) == due["c"][:10]
        except OSError:
            pass
        assert before - path.stat().st_blocks < 380_000 // 512
    assert (mount / "layers.d").read_bytes() == due["d"]
    assert content(mount / ".safetensors" / "archive.safetensors").keys() == {"a", "b", "e", "f", "layers.d"}
    mount.unmount()
    stfs("set", path, "--unset", "room")
    assert before - path.stat().st_blocks >= 380_000 // 512
    due["layers.d"] = due.pop("d")
    del due["c"]
    assert content(path) == due


def free_bytes(directory):
    status = os.statvfs(directory)
    assert status.f_bavail <= status.f_bfree < status.f_blocks
    return status.f_bfree * status.f_frsize, status.f_bavail * status.f_frsize


def used_bytes(directory):
    """What is neither a filler nor the store's free space, which other programs change."""
    status = os.statvfs(directory)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def test_statfs_counts_what_deleted_tensors_have_left(archive, mounts, tmp_path):
    path, _ = archive
    before, _ = free_bytes(mounts(path, "ro").path)  # the header's room took the place of the first tensor
    stfs("rm", "--keep-space", path, "c", "e")
    free, available = free_bytes(mounts(path, "ro").path)
    assert available == 0 and 790_000 <= free - before <= 810_000
    used = used_bytes(mounts(path, "ro").path)
    assert used_bytes(mounts(path).path) == used
    models = tmp_path / "models"
    models.mkdir()
    for name in ("one", "two"):
        (models / f"{name}.safetensors").write_bytes(path.read_bytes())
    assert used_bytes(mounts(models).path) == 2 * used
    assert free_bytes(mounts(models, "ro").path) == (2 * free, 0)


def test_statfs_tells_the_free_space_of_the_store(archive, mounts, tmp_path):
    path, _ = archive
    models = tmp_path / "models"
    models.mkdir()
    for name in ("one", "two"):
        (models / f"{name}.safetensors").write_bytes(path.read_bytes())
    for source in (path, models):
        mount = mounts(source)

        def agrees():
            store = os.statvfs(path.parent)
            _, available = free_bytes(mount.path)
            return abs(available - store.f_bavail * store.f_frsize) < max(store.f_bavail * store.f_frsize // 10, 1 << 20)

        assert eventually(agrees)
        assert os.statvfs(mount.path).f_favail > 0


def test_a_header_without_room_waits_until_nobody_reads(tmp_path, mounts):
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file({"a": np.zeros(5000, "u1"), "b": np.ones(5000, "u1")}, path)
    mount = mounts(path)
    done = subprocess.run([STFS, "set", path, "--metadata", "key=" + "v" * 500], capture_output=True, text=True)
    assert done.returncode == 1 and "has the archive open" in done.stderr
    mount.unmount()
    stfs("set", path, "--metadata", "key=" + "v" * 500)
    assert content(path) == {"a": bytes(5000), "b": b"\1" * 5000}


def test_editors_and_writers_take_turns(archive, mounts):
    path, due = archive
    mount = mounts(path)
    raw = path.parent / "raw"
    raw.write_bytes(b"n" * 9000)
    editors = []
    for number in range(6):
        editors.append(subprocess.Popen([STFS, "put", "--create", "--dtype", "U8", "--wait", "60", path, f"n{number}", raw],
                                        stderr=subprocess.PIPE, text=True))
        editors.append(subprocess.Popen([STFS, "put", "--wait", "60", path, "a", "--raw", "-"], stdin=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True))
        editors[-1].stdin.write("z" * 400_000)
        editors[-1].stdin.close()
        editors[-1].stdin = None
    created = set()
    for at, editor in enumerate(editors):
        _, said = editor.communicate(timeout=120)
        if editor.returncode == 0 and at % 2 == 0:
            created.add(f"n{at // 2}")
        # An editor that opened the archive before another edit fails with a message, and may retry.
        assert editor.returncode == 0 or "header" in said, said
    assert created
    found = content(path)
    assert found.pop("a") in (due.pop("a"), b"z" * 400_000)
    assert {name: found.pop(name) for name in created} == {name: b"n" * 9000 for name in created}
    assert found == due
    eventually(lambda: created <= set(os.listdir(mount.path)))


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_edit_is_done_or_not_begun(archive, seed):
    path, due = archive
    rng = random.Random(seed)
    raw = path.parent / "raw"
    whole = seconds_of("set", path, "--metadata", "try=1")
    for round_number in range(25):
        data = rng.randbytes(rng.choice([10, 5000, 600_000]))
        raw.write_bytes(data)
        name = rng.choice(["new", *due])
        new = dict(due)
        if rng.randrange(2) and name in due and len(due) > 2:
            words = ["rm", path, name]
            del new[name]
        else:
            words = ["put", "--create", "--dtype", "U8", path, name, raw]
            new[name] = data
        editor = subprocess.Popen([STFS, *map(str, words)], stderr=subprocess.DEVNULL)
        time.sleep(rng.random() * 1.5 * whole)
        editor.send_signal(signal.SIGKILL)
        editor.wait()
        try:
            seen = content(path)  # by a program that knows nothing of journals
        except safetensors.SafetensorError:
            seen = None
        assert seen in (None, due, new), round_number
        stfs("recover", path)
        due = content(path)
        assert due == new or seen != new
        assert not list(path.parent.glob(".m.*"))


def test_killed_edits_of_shards_change_all_files_or_none(tmp_path):
    rng = random.Random(5)
    arrays = {f"t{number}": np.frombuffer(rng.randbytes(30_000), "u1") for number in range(8)}
    safetensors.numpy.save_file(arrays, tmp_path / "all.safetensors")
    index = tmp_path / "m.safetensors.index.json"
    stfs("repack", "--shard-size", "70K", tmp_path / "all.safetensors", index)
    due = {name: array.tobytes() for name, array in arrays.items()}
    whole = max(seconds_of("mv", index, "t*", "renamed.*"), seconds_of("mv", index, "renamed.*", "t*"))
    changed = 0
    for round_number in range(200):
        if round_number >= 40 and 0 < changed < round_number:
            break  # kills have come before the commit and behind it
        old, new = ("t", "renamed.") if "t0" in due else ("renamed.", "t")
        editor = subprocess.Popen([STFS, "mv", index, f"{old}*", f"{new}*"], stderr=subprocess.DEVNULL)
        time.sleep(rng.random() * 1.5 * whole)
        editor.send_signal(signal.SIGKILL)
        editor.wait()
        stfs("recover", index)
        weight_map = json.loads(index.read_text())["weight_map"]
        found = {}
        for shard in set(weight_map.values()):
            found |= content(tmp_path / shard)
        assert found.keys() == weight_map.keys()
        after = {new + name.removeprefix(old): data for name, data in due.items()}
        assert found in (due, after)
        changed += found == after
        due = found
        assert not list(tmp_path.glob(".*"))
    assert 0 < changed < round_number


def test_metadata_stay_when_a_shard_loses_its_tensors(tmp_path):
    model = StoredModel(tmp_path / "model", 3)
    stfs("set", model.target, "--metadata", "key=value")
    stfs("rm", model.target, "s0.*")
    assert model.read()[1] == {"kept": "yes", "key": "value"}
    assert "also holds" not in subprocess.run([STFS, "info", model.target], capture_output=True, text=True, check=True).stderr
    stfs("rm", model.target, "s1.*")
    assert model.read()[1] == {"kept": "yes", "key": "value"}


@pytest.mark.parametrize("keeps", [False, True], ids=["closed", "kept"])
@pytest.mark.parametrize("verb", ["apply", "commit"])
def test_a_delta_that_deletes_leaves_a_gap_only_where_it_is_kept(archive, tmp_path, verb, keeps):
    path, due = archive
    without = tmp_path / "without.safetensors"
    del due["c"]
    safetensors.numpy.save_file({name: np.frombuffer(data, "u1") for name, data in due.items()}, without,
                                metadata={"room": "made"})
    delta = tmp_path / "delta.safetensors"
    subprocess.run([STFS, "diff", path, without, "--out", delta], stdout=subprocess.DEVNULL, check=True)
    target = [path, delta] if verb == "apply" else ["--base", path, delta]
    done = subprocess.run([STFS, verb, *["--keep-space"] * keeps, *map(str, target)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with safetensors.safe_open(path, "np") as stored:
        assert any(name.startswith(FREE) for name in stored.keys()) == keeps
    assert ("--keep-space was given. `stfs compact " in done.stderr) == keeps
    assert content(path) == due
