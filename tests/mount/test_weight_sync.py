# stfs apply with published versions: the result has the same bits as with the receivers of other stacks, or nothing changes.
import json
import os
import shutil
import subprocess

import archive_file
import mounted
import numpy as np
import published_weights
import pytest
from published_weights import Trainer, publish, receive, save, state_of, version_directory

STFS = mounted.BUILD / "stfs"


def stfs(*words, wanted=0):
    done = subprocess.run([STFS, *map(str, words)], capture_output=True, text=True, timeout=60 * mounted.PATIENCE)
    assert done.returncode == wanted, (words, done)
    return done.stdout if wanted == 0 else done.stderr


def content_of(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


@pytest.fixture(params=[1, 3], ids=["an archive", "shards"])
def trainer(request, tmp_path):
    """All dtypes of the reference, odd sizes, scalars, empty tensors, and one of several pieces."""
    tensors = archive_file.sample_tensors() | {"large": archive_file.random_array("f2", (1_300_001,), 9)}
    return Trainer(tmp_path / "published", save(tmp_path / "model", tensors, request.param))


@pytest.fixture(params=["xxh3-128", "adler32", "blake3"])
def checksum_format(request, tmp_path):
    some = save(tmp_path / "some", {"w": np.arange(9, dtype="f4")})
    asked = subprocess.run([STFS, "diff", some, some, "--encoding", "xor", "--checksum", request.param, "--version", "1",
                            "--out", tmp_path / "asked"], capture_output=True, text=True)
    if "no libblake3" in asked.stderr:
        pytest.skip("this build has no libblake3")
    return request.param


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_versions_are_applied_bit_by_bit(trainer, tmp_path, encoding, checksum_format):
    other = shutil.copytree(trainer.model, tmp_path / "other")
    for names in (None, ["scalar", "odd"], ["large"]):
        version = trainer.step(names=names, encoding=encoding, checksum_format=checksum_format)
        stfs("apply", trainer.model, version)
        receive(other, version)
        assert content_of(trainer.model) == content_of(other)
        assert trainer.version_of(trainer.model) == state_of(trainer.model) == trainer.newest
    assert sorted(os.listdir(trainer.model)) == sorted(os.listdir(other))


def test_either_receiver_goes_on_with_the_others_work(trainer):
    for turn in range(4):
        version = trainer.step(encoding=["xor", "overwrite"][turn // 2])
        if turn % 2 == 0:
            stfs("apply", trainer.model, version)
        else:
            receive(trainer.model, version)
    assert trainer.version_of(trainer.model) == state_of(trainer.model) == 4


def test_a_version_is_applied_once(trainer):
    version = trainer.step()
    stfs("apply", trainer.model, version)
    before = content_of(trainer.model)
    assert "has version 000001 already" in stfs("apply", trainer.model, version)
    assert json.loads(stfs("info", "--json", trainer.model))["version"] == "000001"
    assert "version     000001 of a weight sync\n" in stfs("info", trainer.model)
    os.unlink(trainer.model / ".weight_sync/state.json")  # the checksums prove it as well
    assert "has version 000001 already" in stfs("apply", trainer.model, version)
    assert content_of(trainer.model) == before and state_of(trainer.model) == 1


def test_a_model_without_a_weight_sync_has_no_version(trainer):
    assert "version" not in json.loads(stfs("info", "--json", trainer.model))
    assert "version" not in stfs("info", trainer.model)


def test_half_of_a_version_that_another_receiver_has_left_is_completed(trainer):
    version = trainer.step()
    there = published_weights.Mapped(trainer.model).tensors
    for name in list(there)[::2]:
        there[name][:] = trainer.states[1][name]
    del there
    stfs("apply", trainer.model, version)
    assert trainer.version_of(trainer.model) == state_of(trainer.model) == 1


def test_a_dry_run_checks_and_changes_nothing(trainer):
    version = trainer.step(names=["large", "small"])
    assert stfs("apply", "--dry-run", trainer.model, version).startswith("version 000001: would change 2 tensors of ")
    assert trainer.version_of(trainer.model) == 0 and state_of(trainer.model) is None
    assert not (trainer.model / ".weight_sync").exists()


def test_the_state_names_what_has_changed(trainer):
    before = {path.name: os.stat(path) for path in trainer.model.glob("*.safetensors")}
    changing = {published_weights.Mapped(trainer.model).files[name] for name in ("odd", "small")}
    stfs("apply", trainer.model, trainer.step(names=["odd", "small"]))
    state = trainer.model / ".weight_sync/state.json"
    told = json.loads(state.read_text())
    changed_from = told.pop("changed_from")
    model = told.pop("model")
    assert (trainer.model / model).is_file()
    assert told == {"version": "000001", "changed_since": "000000", "changed": ["odd", "small"]}
    # The archives that the version has changed, as they were before.
    assert changed_from == {file: f"{before[file].st_ino}-{before[file].st_size}-{before[file].st_mtime_ns}" for file in changing}
    stfs("apply", trainer.model, trainer.step())
    assert json.loads(state.read_text()) == {"version": "000002", "model": model}
    state.write_text('{"version": 2, "theirs": [1]}')
    stfs("apply", trainer.model, trainer.step(names=["odd"]))
    assert json.loads(state.read_text())["theirs"] == [1] and state_of(trainer.model) == 3


def one_wrong(name, what):
    """Damages the entry of one tensor."""
    def change(entries):
        diff, checksum = entries[name]
        entries[name] = what(diff, checksum)
    return change


def expanded(diff):
    return published_weights.zstandard.ZstdDecompressor().decompress(diff)


WRONG = {
    "a checksum": (lambda diff, sum: (diff, "0" * len(sum)), "xor"),
    "a short diff": (lambda diff, sum: (published_weights.compress(expanded(diff)[:-1]), sum), "xor"),
    "a long diff": (lambda diff, sum: (published_weights.compress(expanded(diff) + b"\1"), sum), "xor"),
    "a bomb": (lambda diff, sum: (published_weights.compress(bytes(1 << 28)), sum), "xor"),
    "half a frame": (lambda diff, sum: (diff[:len(diff) // 2], sum), "xor"),
    "no frame": (lambda diff, sum: (b"no frame", sum), "xor"),
    "bytes behind the frame": (lambda diff, sum: (diff + b"more", sum), "xor"),
    "a position behind the end": (
        lambda diff, sum: (published_weights.compress(np.array([1, 12345], "<u4").tobytes() + b"x"), sum), "overwrite"),
    "positions out of order": (
        lambda diff, sum: (published_weights.compress(np.array([2, 9, 8], "<u4").tobytes() + b"xy"), sum), "overwrite"),
    "a count that lies": (
        lambda diff, sum: (published_weights.compress(np.array([1 << 30, 8], "<u4").tobytes() + b"xy"), sum), "overwrite"),
}


@pytest.mark.parametrize("case", WRONG)
def test_one_wrong_diff_among_all_changes_nothing(trainer, case):
    what, encoding = WRONG[case]
    stfs("apply", trainer.model, trainer.step())
    before = content_of(trainer.model)
    version = trainer.step(encoding=encoding, change=one_wrong("odd", what))
    said = stfs("apply", trainer.model, version, wanted=1)
    assert "weight_v000002: odd: " in said, said
    assert content_of(trainer.model) == before and state_of(trainer.model) == 1


def test_one_wrong_checksum_among_ten_thousand_tensors_changes_nothing(tmp_path):
    tensors = {f"t{at}": np.array([at, -at], "i4") for at in range(10_000)}
    trainer = Trainer(tmp_path / "published", save(tmp_path / "model", tensors, 2))
    before = content_of(trainer.model)
    refused = stfs("apply", trainer.model, trainer.step(change=one_wrong("t7654", lambda diff, sum: (diff, "0" * len(sum)))), wanted=1)
    assert "t7654" in refused, refused
    assert content_of(trainer.model) == before and state_of(trainer.model) is None


def test_a_wrong_base_is_refused_by_the_tensors_name(trainer):
    version = trainer.step()
    there = published_weights.Mapped(trainer.model).tensors
    there["layers.1.weight"][7] ^= 1
    del there
    before = content_of(trainer.model)
    assert "layers.1.weight: " in stfs("apply", trainer.model, version, wanted=1)
    assert content_of(trainer.model) == before and state_of(trainer.model) is None


def test_versions_out_of_order_are_refused(trainer):
    versions = [trainer.step() for _ in range(3)]
    stfs("apply", trainer.model, versions[0])
    assert "it changes version 000002, and the model has version 000001" in stfs("apply", trainer.model, versions[2], wanted=1)
    stfs("apply", trainer.model, versions[1])
    assert "the model has version 000002 already" in stfs("apply", trainer.model, versions[0], wanted=1)
    assert trainer.version_of(trainer.model) == state_of(trainer.model) == 2


def test_names_that_the_model_lacks_are_refused(trainer, tmp_path):
    old, new = ({name: np.full(5, value, "u1") for name in ("nowhere", "odd")} for value in (1, 2))
    said = stfs("apply", trainer.model, publish(tmp_path / "p", 1, old, new), wanted=1)
    assert "nowhere: the model has no such tensor" in said


def test_a_damaged_state_is_refused_with_the_way_out(trainer):
    version = trainer.step()
    (trainer.model / ".weight_sync").mkdir()
    for text in ("", "{}", "[1]", '{"version": "x"}', '{"version": -1}'):
        (trainer.model / ".weight_sync/state.json").write_text(text)
        if text:
            assert "if you know which version the model has, write that" in stfs("apply", trainer.model, version, wanted=1)
            assert "if you know which version the model has, write that" in stfs("info", trainer.model, wanted=1)
    assert trainer.version_of(trainer.model) == 0


def test_a_delta_mount_is_refused_and_a_plain_one_shows_the_new_generation(tmp_path, mounts):
    trainer = Trainer(tmp_path / "published", save(tmp_path / "model", archive_file.sample_tensors()))
    version = trainer.step()
    delta = mounts(trainer.model / "model.safetensors", f"delta={tmp_path / 'd.safetensors'}")
    assert "has deltas on top" in stfs("apply", delta.path, version, wanted=1)
    plain = mounts(trainer.model / "model.safetensors")
    before = int(os.getxattr(plain.path / "odd", "user.safetensors.generation"))
    stfs("apply", plain.path, version)
    mounted.eventually(lambda: int(os.getxattr(plain.path / "odd", "user.safetensors.generation")) > before)
    assert (plain.path / "odd").read_bytes() == trainer.states[1]["odd"].tobytes()
    assert trainer.version_of(trainer.model) == state_of(trainer.model) == 1


def test_another_receiver_has_the_lock(trainer):
    import fcntl
    version = trainer.step()
    (trainer.model / ".weight_sync").mkdir()
    with open(trainer.model / ".weight_sync/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another receiver updates the model" in stfs("apply", "--wait", "0", trainer.model, version, wanted=1)
    stfs("apply", "--wait", "0", trainer.model, version)


@pytest.mark.needs_root
def test_a_state_that_may_not_be_written_is_found_before_the_commit(nobody):
    """Nothing changes, and the model takes later commits."""
    home = nobody.directory
    trainer = Trainer(home / "published", save(home / "model", {"w": np.arange(999, dtype="f4")}))
    version = trainer.step()
    state = trainer.model / ".weight_sync"
    state.mkdir()
    (state / "lock").touch()
    program = shutil.copy2(STFS, home / "stfs")
    subprocess.run(["chmod", "-R", "a+rX", home], check=True)
    for path in [trainer.model, *trainer.model.glob("*.safetensors")]:
        os.chown(path, nobody.uid, nobody.gid)
    before = content_of(trainer.model)
    apply = [*nobody.before, program, "apply", trainer.model, version]
    refused = subprocess.run(apply, capture_output=True, text=True)
    assert refused.returncode == 1 and ".weight_sync: make a file in it: Permission denied" in refused.stderr, refused
    assert content_of(trainer.model) == before
    os.chown(state, nobody.uid, nobody.gid)
    subprocess.run(apply, check=True, capture_output=True)
    assert trainer.version_of(trainer.model) == state_of(trainer.model) == 1


def test_a_model_whose_files_are_links_is_refused(tmp_path):
    trainer = Trainer(tmp_path / "published", save(tmp_path / "blobs", {"w": np.arange(9, dtype="f4")}))
    version = trainer.step()
    (tmp_path / "snapshot").mkdir()
    os.symlink("../blobs/model.safetensors", tmp_path / "snapshot/model.safetensors")
    assert "lies in another directory than " in stfs("apply", tmp_path / "snapshot", version, wanted=1)
    assert trainer.version_of(trainer.model) == 0


def test_a_full_version_changes_the_model_in_place(trainer):
    inodes = {path.name: path.stat().st_ino for path in trainer.model.glob("*.safetensors")}
    trainer.step(publishes=False)
    full = shutil.copytree(trainer.model, version_directory(trainer.published, 1))
    there = published_weights.Mapped(full).tensors
    for name, content in trainer.states[1].items():
        there[name][:] = content
    del there
    stfs("apply", trainer.model, full)
    assert trainer.version_of(trainer.model) == state_of(trainer.model) == 1
    assert {path.name: path.stat().st_ino for path in trainer.model.glob("*.safetensors")} == inodes


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_what_stfs_publishes_other_receivers_apply_bit_by_bit(trainer, tmp_path, encoding, checksum_format):
    host, next_state = (shutil.copytree(trainer.model, tmp_path / name) for name in ("host", "next"))
    for number, names in enumerate([None, ["scalar", "odd"], ["large"]], 1):
        trainer.step(names=names, publishes=False)
        there = published_weights.Mapped(next_state).tensors
        for name, content in trainer.states[-1].items():
            there[name][:] = content
        del there
        stfs("diff", trainer.model, next_state, "--encoding", encoding, "--checksum", checksum_format, "--version", number,
             "--out", trainer.published)
        version = version_directory(trainer.published, number)
        assert not list(version.glob("*.tmp"))
        receive(host, version)
        stfs("apply", trainer.model, version)
        assert content_of(host) == content_of(next_state) == content_of(trainer.model)
    changed = json.loads((version / published_weights.INDEX).read_text())["weight_map"]
    assert list(changed) == ["large"]


def test_models_that_differ_in_more_than_bytes_are_not_published(tmp_path):
    save(tmp_path / "a", {"w": np.arange(4, dtype="f4"), "v": np.arange(4, dtype="f4")})
    save(tmp_path / "b", {"w": np.arange(4, dtype="f2"), "v": np.arange(4, dtype="f4")})
    said = stfs("diff", tmp_path / "a", tmp_path / "b", "--encoding", "xor", "--version", "1", "--out", tmp_path / "p", wanted=1)
    assert "w" in said and not (tmp_path / "p/weight_v000001").exists()


def test_a_published_version_is_not_published_again(trainer, tmp_path):
    words = ["diff", trainer.model, shutil.copytree(trainer.model, tmp_path / "b"), "--encoding", "xor", "--version", "1", "--out",
             trainer.published]
    stfs(*words)
    assert "weight_v000001" in stfs(*words, wanted=1)
    stfs("apply", trainer.model, version_directory(trainer.published, 1))
    assert trainer.version_of(trainer.model) == 0 and state_of(trainer.model) == 1
