# Edits of another user in a mount that root has made (allow_other): the right to write the archive is the right to edit it.
import contextlib
import errno
import io
import os
import signal
import time

import numpy as np
import pytest
from edited_mount import EditedMount, save, u8
from mounted import errno_of, eventually, in_child
from safetensors.numpy import save as to_bytes
from test_permissions import model, shards, visit  # noqa: F401

pytestmark = [pytest.mark.needs_root, pytest.mark.sequential]

SIZES = {"large": 300_001, "b": 3, "c": 70_001, "d": 4096}
# Commands and their effects on the tensors. A pair is an attribute and its value.
EDITS = {
    "rm large": lambda due: due.pop("large"),
    "mv c renamed": lambda due: due.update(renamed=due.pop("c")),
    "printf abc > new && setfattr -n user.safetensors.dtype -v U8 new && setfattr -n user.safetensors.shape -v '[3]' new":
        lambda due: due.update(new=u8(b"abc")),
    "printf xyz > b": lambda due: due.update(b=u8(b"xyz")),
    ("d", "dtype", "I8"): lambda due: due.update(d=("I8", *due["d"][1:])),
    (".", "metadata.key", "value"): lambda due: None,
    'cat "$1" > .safetensors/archive.safetensors': None,
}


def refusal(there, edit, *arguments):
    """The error for the user "nobody"; empty if the edit works."""
    if isinstance(edit, str):
        done = there.run(edit, *arguments)
        assert bool(done.returncode) == bool(done.stderr), done.stderr
        return done.stderr
    name, attribute, value = edit

    def set_attribute():
        os.setgroups([])
        os.setresgid(*[there.nobody.gid] * 3)
        os.setresuid(*[there.nobody.uid] * 3)
        os.setxattr(there.mount / name, f"user.safetensors.{attribute}", value.encode())

    try:
        in_child(set_attribute)
    except AssertionError as error:
        return str(error)
    return ""


def set_mode(there, path, mode):
    os.chmod(path, mode)
    assert eventually(lambda: os.stat(there.mount / "b").st_mode & 0o777 == mode)


@pytest.fixture
def edited(tmp_path, visit):  # noqa: F811
    path = tmp_path / "m.safetensors"
    due = save(path, SIZES)
    there = visit(path)
    return there, EditedMount(there.mount, [path], due), path


def test_who_may_write_the_archive_may_edit_it(edited, nobody):
    there, edit, path = edited
    set_mode(there, path, 0o666)
    saved = save(nobody.directory / "saved", {"whole": 5000, "new": 3})
    os.chmod(nobody.directory / "saved", 0o644)
    for script, change in EDITS.items():
        assert refusal(there, script, nobody.directory / "saved") == "", script
        if change is None:
            edit.due = dict(saved)
        else:
            change(edit.due)
        edit.check()
    assert os.stat(path).st_uid == 0 and os.stat(path).st_mode & 0o777 == 0o666


def test_who_may_not_write_the_archive_edits_nothing(edited):
    there, edit, path = edited
    set_mode(there, path, 0o644)
    before = path.read_bytes()
    for script in EDITS:
        told = refusal(there, script, "/dev/null")
        assert "ermission denied" in told, (script, told)
        assert path.read_bytes() == before
    edit.check()


def test_a_new_tensor_of_one_user_is_not_changed_by_another_before_its_close(edited):
    there, edit, path = edited
    set_mode(there, path, 0o644)
    with open(there.mount / "mine", "wb", buffering=0) as file:
        file.write(b"first half, ")
        for script in ("printf theirs > mine", "rm mine", "mv mine theirs"):
            assert "ermission denied" in refusal(there, script), script
        file.write(b"second half")
        os.setxattr(file.fileno(), "user.safetensors.dtype", b"U8")
        os.setxattr(file.fileno(), "user.safetensors.shape", b"[23]")
    edit.due["mine"] = u8(b"first half, second half")
    edit.check()


def test_edits_of_shards_take_the_right_to_each_of_them(model, visit):  # noqa: F811
    os.chmod(model.index, 0o666)
    for name, mode in zip(model.names, (0o666, 0o644)):
        os.chmod(model.directory / name, mode)
    there = visit(model.index)
    writable, fixed = shards(model)
    before = {name: (model.directory / name).read_bytes() for name in model.names}
    for script in (f"rm {writable}", f"rm {fixed}", f"mv {writable} other", "printf x > new"):
        assert "ermission denied" in refusal(there, script), script
    assert before == {name: (model.directory / name).read_bytes() for name in model.names}
    assert there.may_write(writable) and not there.may_write(fixed)


def test_a_close_makes_no_tensor_in_a_shard_that_its_program_may_not_write(model, visit):  # noqa: F811
    # A new tensor is put into the last shard. A tensor that is gone would be made anew there.
    for name, mode in zip(model.names, (0o666, 0o644)):
        os.chmod(model.directory / name, mode)
    there = visit(model.index)
    plain, numpy = model.tensors_of(model.names[0])[:2]
    last = (model.directory / model.names[1]).read_bytes()

    def close_after_removal(path, name, write):
        os.setgroups([])
        os.setresgid(*[there.nobody.gid] * 3)
        os.setresuid(there.nobody.uid, there.nobody.uid, 0)
        file = os.open(there.mount / path, os.O_WRONLY | os.O_TRUNC)
        write(file)
        os.seteuid(0)
        os.unlink(there.mount / name)
        os.seteuid(there.nobody.uid)
        assert errno_of(lambda: os.close(file)) == errno.ESTALE

    def write_plain(file):
        os.setxattr(file, "user.safetensors.shape", b"[7]")
        os.setxattr(file, "user.safetensors.dtype", b"U8")
        os.write(file, b"nobody!")

    def write_numpy(file):
        buffer = io.BytesIO()
        np.save(buffer, np.full(7, 5, "u1"))
        os.write(file, buffer.getvalue())

    in_child(lambda: close_after_removal(plain, plain, write_plain))
    in_child(lambda: close_after_removal(f".safetensors/npy/{numpy}.npy", numpy, write_numpy))
    assert (model.directory / model.names[1]).read_bytes() == last
    assert not (there.mount / plain).exists() and not (there.mount / numpy).exists()


def in_background(user, function):
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(*[user.gid] * 3)
            os.setresuid(*[user.uid] * 3)
            function()
        finally:
            os._exit(1)
    return child


def edit_without_end(mount, name):
    """Sends requests that the kernel checks with the mode of the mount's root."""
    for number in range(1 << 30):
        for edit in (lambda: os.setxattr(mount.path, "user.safetensors.metadata.k", b"%d" % number),
                     lambda: os.remove(mount / name), lambda: os.rename(mount / name, mount / "renamed")):
            with contextlib.suppress(OSError):
                edit()
        with contextlib.suppress(OSError):
            assert os.getxattr(mount.path, "user.safetensors.metadata.tag") != b"private"


def test_a_private_archive_that_replaces_a_public_one_is_not_edited(tmp_path, visit, nobody):  # noqa: F811
    tensors = {"t": np.zeros(5000, "u1"), "u": np.ones(5000, "u1")}
    public, private = (to_bytes(tensors, {"tag": tag}) for tag in ("public", "private"))
    path = tmp_path / "m.safetensors"

    def replace_by(content, mode):
        (tmp_path / "next").write_bytes(content)
        os.chmod(tmp_path / "next", mode)
        os.rename(tmp_path / "next", path)

    replace_by(public, 0o666)
    mount = visit(path).mount
    children = [in_background(nobody, lambda: edit_without_end(mount, "u")) for _ in range(2)]
    try:
        for _ in range(40):
            replace_by(private, 0o600)
            time.sleep(0.15)
            assert path.read_bytes() == private
            replace_by(public, 0o666)
            time.sleep(0.1)
    finally:
        for child in children:
            os.kill(child, signal.SIGTERM)
        ends = [os.waitpid(child, 0)[1] for child in children]
    assert ends == [signal.SIGTERM] * 2
