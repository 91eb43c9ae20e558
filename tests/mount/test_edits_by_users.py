# Edits of another user in a mount that root has made (allow_other): the right to write the archive is the right to edit it.
import os

import pytest
from edited_mount import EditedMount, save, u8
from mounted import eventually, in_child
from test_permissions import model, shards, visit  # noqa: F401

pytestmark = [pytest.mark.needs_root, pytest.mark.sequential]

SIZES = {"large": 300_001, "b": 3, "c": 70_001, "d": 4096}
# What it does to the tensors. A pair is an attribute and its value.
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
    """What the user nobody is told; empty where the edit works."""
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
