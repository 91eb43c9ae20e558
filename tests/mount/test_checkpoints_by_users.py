# Checkpoints in root's mount (allow_other): they change every shard, so only users who may write every shard make, write, rename
# or remove one. Rows of packaging/doc/threats.md.
import errno
import json
import os

import numpy as np
import pytest
from safetensors.numpy import save
from test_permissions import model, shards, visit  # noqa: F401
from test_refused_callers import GROUP, errno_as

pytestmark = [pytest.mark.needs_root, pytest.mark.sequential]

SHARD = "model-00001-of-00001.safetensors"
INDEX = "model.safetensors.index.json"
REFUSED = {errno.EACCES, errno.EPERM}


def b_array(text):
    return np.frombuffer(text.encode(), np.uint8)


def write(path, data, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
    fd = os.open(path, flags, 0o666)
    try:
        assert os.write(fd, data) == len(data)
    finally:
        os.close(fd)


def index_of(tensors):
    return json.dumps({"metadata": {}, "weight_map": dict.fromkeys(tensors, SHARD)}).encode()


def sticky_directory(tmp_path, content):
    """Root's archive in a directory in which everybody may make files."""
    (tmp_path / "shared").mkdir()
    os.chmod(tmp_path / "shared", 0o1777)
    archive = tmp_path / "shared" / "model.safetensors"
    archive.write_bytes(content)
    return archive, archive, ""


def linked_archive(tmp_path, content):
    """Root's archive in root's directory, mounted by root's link in a directory that everybody may write."""
    archive, _, inner = sticky_directory(tmp_path, content)
    archive.rename(tmp_path / "archive.safetensors")
    os.chmod(tmp_path / "shared", 0o777)
    archive.symlink_to(tmp_path / "archive.safetensors")
    return tmp_path / "archive.safetensors", archive, inner


def directory_of_models(tmp_path, content):
    archive, _, _ = sticky_directory(tmp_path, content)
    return archive, archive.parent, "model"


PLACES = [sticky_directory, linked_archive, directory_of_models]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_who_may_only_read_the_archive_saves_no_checkpoint(tmp_path, visit, nobody, place):  # noqa: F811
    content = save({"a": b_array("AAAA"), "b": b_array("BBBB")}, {"licence": "x"})
    archive, source, inner = place(tmp_path, content)
    os.chmod(archive, 0o644)
    evil = save({"a": b_array("XXXX")})
    there = visit(source)
    hidden = there.mount / inner / ".safetensors"
    pretrained = hidden / "pretrained"
    for directory in (hidden, pretrained):
        for name in (SHARD, INDEX, ".tmpX", ".tmp1.safetensors"):
            assert errno_as(nobody, [GROUP], lambda: write(directory / name, evil)) == errno.EACCES, name
            assert errno_as(nobody, [GROUP], lambda: os.mknod(directory / name, 0o100666)) == errno.EACCES, name
    assert "a checkpoint needs the right to write every shard" in there.mount.log()
    assert archive.read_bytes() == content
    # Root's checkpoint is only root's.
    wanted = save({"a": b_array("GOOD"), "b": b_array("GOOD")})
    for name in (".tmpX", SHARD):
        write(pretrained / name, wanted)
        assert errno_as(nobody, [], lambda: write(pretrained / name, evil)) in REFUSED
        assert errno_as(nobody, [], lambda: os.truncate(pretrained / name, 0)) in REFUSED
        assert errno_as(nobody, [], lambda: os.remove(pretrained / name)) in REFUSED
        for new in ("model.safetensors", ".tmpY"):
            assert errno_as(nobody, [], lambda: os.rename(pretrained / name, pretrained / new)) in REFUSED, new
        assert archive.read_bytes() == content
    os.rename(pretrained / ".tmpX", pretrained / "model.safetensors")
    assert (there.mount / inner / "a").read_bytes() == b"GOOD"


def test_a_group_that_may_write_the_archive_saves_checkpoints(tmp_path, visit, nobody):  # noqa: F811
    archive, source, _ = sticky_directory(tmp_path, save({"a": b_array("AAAA")}))
    os.chmod(archive.parent, 0o777)
    os.chown(archive, 0, GROUP)
    os.chmod(archive, 0o664)
    pretrained = visit(source).mount / ".safetensors" / "pretrained"

    def save_as_one(text):
        write(pretrained / ".tmpX", save({"a": b_array(text)}))
        os.rename(pretrained / ".tmpX", pretrained / "model.safetensors")

    def save_as_several(text):
        write(pretrained / SHARD, save({"a": b_array(text)}))
        write(pretrained / INDEX, index_of("a"))

    for how, text in ((save_as_one, "BBBB"), (save_as_several, "CCCC")):
        assert errno_as(nobody, [GROUP + 1], lambda: how("XXXX")) == errno.EACCES
        assert errno_as(nobody, [GROUP + 1, GROUP], lambda: how(text)) == 0
        assert (pretrained.parent.parent / "a").read_bytes() == text.encode()


def test_an_unfinished_file_has_the_rights_of_all_shards(model, visit, nobody):  # noqa: F811
    for name, mode in zip(model.names, (0o644, 0o666)):
        os.chmod(model.directory / name, mode)
    os.chmod(model.directory, 0o777)
    first, last = shards(model)
    there = visit(model.index)
    hidden = there.mount / ".safetensors"
    assert there.may_write(last) and not there.may_write(first)
    mask = os.umask(0)
    try:
        for path in (hidden / ".tmpX", hidden / SHARD, hidden / "pretrained" / SHARD, there.mount / "scratch"):
            write(path, save({"new": b_array("GOOD")}))
            refuses_others(nobody, path)
        for path in (hidden / INDEX, hidden / "npy" / "new.npy"):
            with open(path, "wb"):
                refuses_others(nobody, path)
    finally:
        os.umask(mask)


def refuses_others(nobody, path):
    assert os.stat(path).st_mode & 0o022 == 0, path
    assert errno_as(nobody, [], lambda: write(path, b"XXXX", os.O_WRONLY | os.O_TRUNC)) in REFUSED, path
    assert errno_as(nobody, [], lambda: os.truncate(path, 0)) in REFUSED, path
