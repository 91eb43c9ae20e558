# Sharded models, mounts, journals, and archives that change.
import os
import shutil
import subprocess
import warnings

import numpy as np
import pytest

import mounted
import stfs
from archive_file import ArchiveFile, random_bytes
from conftest import BUILD
from sharded_model import ShardedModel


@pytest.fixture
def sharded(tmp_path):
    return ShardedModel(tmp_path / "sharded")


def test_sharded_models_by_index_and_by_directory(sharded):
    due = sharded.reference()
    for path in (sharded.index, sharded.directory):
        with stfs.open(path, strict=True) as model:
            assert set(model) == set(due) and model.path == str(sharded.index)
            for name, tensor in model.items():
                assert (tensor.dtype, list(tensor.shape), tensor.tobytes()) == due[name]
                assert bytes(tensor) == due[name][2] and tensor.archive == str(sharded.shard_of(name))
                assert tensor.offset == sharded.archive_of(name).layout()[name][2]
            assert model.metadata["title"] == "a sample"


def test_strict_refuses_a_model_with_a_missing_shard(sharded):
    os.unlink(sharded.directory / sharded.names[1])
    with stfs.open(sharded.index) as model:
        assert 0 < len(model) < len(sharded.tensors)
        missing = next(name for name, shard in sharded.weight_map.items() if shard == sharded.names[1])
        assert missing not in model
    with pytest.raises(ValueError, match=sharded.names[1]):
        stfs.open(sharded.index, strict=True)


def test_a_mount_and_the_file_of_a_tensor(archive_path, tensors, mounts):
    mount = mounts(archive_path)
    with stfs.open(mount.path) as model:
        assert len(model) == len(tensors) and model.path == str(archive_path)
        # Its memory is the archive's, not the mount's.
        assert model["embed"].is_mapped and model["embed"].tobytes() == tensors["embed"].tobytes()
    with stfs.open(mount / "embed") as one:
        assert list(one) == ["embed"] and len(one) == 1 and "odd" not in one
        assert one["embed"].tobytes() == tensors["embed"].tobytes() and one["embed"].name == "embed"
        assert one["embed"].archive == str(archive_path)
        with pytest.raises(KeyError, match="is not the tensor"):
            one["odd"]


def test_commits_show_and_the_generation_tells(archive_path, mounts):
    mount = mounts(archive_path)
    with stfs.open(mount.path) as model:
        tensor, before = model["odd"], model.generation
        shared, copied = np.from_dlpack(tensor), tensor.copy()
        new = random_bytes(tensor.nbytes, 77)
        (mount / "odd").write_bytes(new)
        assert shared.tobytes() == tensor.tobytes() == bytes(tensor) == new != copied.tobytes()
        assert mounted.eventually(lambda: model.generation != before)
        model.check_current()


@pytest.mark.parametrize("io", ["auto", "pread"])
def test_what_a_dead_writer_has_committed_is_read_out_of_its_journal(archive_path, tensors, io):
    layout = ArchiveFile(archive_path).layout()
    name = "embed"
    begin, end = layout[name][2:]
    page = (begin + 4095) // 4096 * 4096
    assert page + 4096 < end
    done = subprocess.run([BUILD / "tests" / "leave_journal", archive_path, str(page)], input=b"J" * 4096, capture_output=True)
    assert done.returncode == 0, done.stderr
    stored = ArchiveFile(archive_path).tensor(name)
    with stfs.open(archive_path, io=io) as model:
        tensor = model[name]
        assert not tensor.is_mapped
        due = stored[:page - begin] + b"J" * 4096 + stored[page - begin + 4096:]
        assert tensor.tobytes() == bytes(tensor) == tensor.copy().tobytes() == tensor.numpy().tobytes() == due
        rows = np.frombuffer(due, np.uint16).reshape(1000, 300)
        assert tensor[1::3, ::2].tobytes() == bytes(tensor[1::3, ::2]) == rows[1::3, ::2].tobytes()
        assert model["odd"].tobytes() == tensors["odd"].tobytes()


def leave_journal_of_a_newer_version(archive_path):
    """Its path."""
    left = subprocess.run([BUILD / "tests" / "leave_journal", archive_path, "4096"], input=b"J" * 4096, check=True,
                          capture_output=True)
    journal = left.stdout.decode().strip()
    with open(journal, "r+b") as file:
        file.seek(8)
        file.write(bytes([200, 0, 0, 0]))
    return journal


@pytest.mark.parametrize("open_model", [stfs.open, stfs.Model])
def test_a_newer_commit_that_is_not_shown_is_warned_of(archive_path, tensors, open_model):
    journal = leave_journal_of_a_newer_version(archive_path)
    with pytest.warns(stfs.NotShownWarning) as caught, open_model(archive_path) as model:
        assert model["odd"].tobytes() == tensors["odd"].tobytes()
    (warning,) = caught
    # The program's own line, so that it is shown once for each.
    assert warning.filename == __file__
    assert journal in str(warning.message) and "a newer commit may not be shown" in str(warning.message)
    assert "version that wrote it" in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error", stfs.NotShownWarning)
        with pytest.raises(stfs.NotShownWarning, match="newer commit"):
            open_model(archive_path)
        os.unlink(journal)
        open_model(archive_path).close()


def test_a_warning_about_a_path_disturbs_no_terminal(archive_path, tmp_path):
    directory = tmp_path / "a\x1b[31m\x9b\u202e\n"
    directory.mkdir()
    leave_journal_of_a_newer_version(shutil.copy(archive_path, directory))
    with pytest.warns(stfs.NotShownWarning) as caught:
        stfs.open(directory / archive_path.name)
    assert str(caught[0].message).isprintable()


def test_a_store_that_is_read_and_not_mapped(archive_path, tensors):
    with stfs.open(archive_path, io="pread") as model:
        for name, tensor in model.items():
            assert not tensor.is_mapped
            assert bytes(tensor) == tensor.tobytes() == tensors[name].tobytes()
