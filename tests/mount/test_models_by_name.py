# The name NAME.safetensors in a mounted directory of models is the archive of the model NAME: programs read it and save to it.
import errno
import os
import shutil

import pytest
from mounted import errno_of
from new_models import check_model, mount, values, whole, zoo  # noqa: F401
from safetensors.numpy import save_file


def test_an_existing_name_is_the_models_archive(zoo, mount, tmp_path):
    """Writing onto it stores what differs."""
    due = values(0)
    inode = os.stat(zoo / "base.safetensors").st_ino
    due["layer.0"] = due["layer.0"] + 1
    due["layer.3"][0, 0] = 5
    (mount / "base.safetensors").write_bytes(whole(tmp_path / "saved", due))
    assert os.stat(zoo / "base.safetensors").st_ino == inode
    assert "2 of 4 tensors differed" in mount.log()
    check_model(zoo, mount, "base", due)
    assert os.listdir(mount.path) == ["base"]
    with open(mount / "base" / "layer.0", "rb") as reader:
        old = due["layer.0"].tobytes()
        due = values(5, 3)
        save_file(due, tmp_path / "saved")
        shutil.copy(tmp_path / "saved", mount / "base.safetensors")
        check_model(zoo, mount, "base", due)
        assert reader.read() == old
    with pytest.raises(FileExistsError):
        open(mount / "base.safetensors", "xb")
    assert errno_of(lambda: open(mount / "base", "wb")) == errno.EISDIR
    due = values(6, 3)
    save_file(due, mount / "base" / ".safetensors" / "archive.safetensors")
    check_model(zoo, mount, "base", due)


def test_scratch_files_of_a_deleted_model_are_named(zoo, mount, mounts):
    (mount / "base" / "notes").write_text("notes")
    os.unlink(zoo / "base.safetensors")
    save_file(values(1), zoo / "another.safetensors")
    assert os.listdir(zoo / ".base.safetensors.scratch") == ["notes"]
    log = mounts(zoo).log()
    assert f"{zoo / 'base.safetensors'}: there is no such model, but its scratch files" in log
    assert f"`rm -r {zoo / '.base.safetensors.scratch'}` deletes them" in log
