# Requests of another user in root's mount (allow_other), one of each kind: the caller's user and groups decide, also the
# supplementary groups. Rows of packaging/doc/threats.md.
import errno
import os

import pytest
from mounted import eventually, in_child
from test_permissions import model, shards, visit  # noqa: F401

pytestmark = [pytest.mark.needs_root, pytest.mark.sequential]

PREFIX = "user.safetensors."
GROUP = 54321


def open_to_write(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666))


def errno_as(user, groups, action):
    """The errno that the user's program gets; 0 for a success."""
    read_end, write_end = os.pipe()

    def act():
        os.setgroups(groups)
        os.setresgid(*[user.gid] * 3)
        os.setresuid(*[user.uid] * 3)
        try:
            action()
            os.write(write_end, b"0")
        except OSError as error:
            os.write(write_end, str(error.errno).encode())

    in_child(act)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        return int(pipe.read())


def requests(mount, own, other):
    """What changes more than the shard of `own`, which the caller may write."""
    hidden = mount / ".safetensors"
    return {
        "write another shard": lambda: open_to_write(mount / other),
        "truncate": lambda: os.truncate(mount / other, 0),
        "touch": lambda: os.utime(mount / other),
        "set times": lambda: os.utime(mount / other, (1, 1)),
        "chmod": lambda: os.chmod(mount / own, 0o777),
        "chown": lambda: os.chown(mount / other, 65534, -1),
        "set metadata": lambda: os.setxattr(mount.path, f"{PREFIX}metadata.x", b"1"),
        "retype": lambda: os.setxattr(mount / other, f"{PREFIX}dtype", b"I8"),
        "remove": lambda: os.remove(mount / own),
        "rename": lambda: os.rename(mount / own, mount / "renamed"),
        "create": lambda: open_to_write(mount / "new"),
        "make a directory": lambda: os.mkdir(mount / "new"),
        "link": lambda: os.link(mount / other, mount / "link"),
        "symlink": lambda: os.symlink("/etc/passwd", mount / "link"),
        "pipe": lambda: os.mkfifo(mount / "pipe"),
        "write npy": lambda: open_to_write(hidden / "npy" / f"{other}.npy"),
        "create npy": lambda: open_to_write(hidden / "npy" / "new.npy"),
        "save a checkpoint": lambda: open_to_write(hidden / "archive.safetensors"),
        "write a file of the source": lambda: open_to_write(hidden / "pretrained" / "config.json"),
        "list private metadata": lambda: os.getxattr(mount.path, f"{PREFIX}metadata.secret"),
        "set an access control list": lambda: os.setxattr(mount / own, "system.posix_acl_access", b"x"),
        "set file capabilities": lambda: os.setxattr(mount / own, "security.capability", b"x"),
    }


def test_who_may_write_one_shard_changes_nothing_of_the_others(model, visit):  # noqa: F811
    os.chmod(model.directory / model.names[0], 0o666)
    own, other = shards(model)
    there = visit(model.index)
    before = {name: (there.mount / name).read_bytes() for name in model.tensors}
    allowed = {errno.EACCES, errno.EPERM, errno.ENODATA, errno.EINVAL, errno.EOPNOTSUPP}
    got = {name: errno_as(there.nobody, [], action) for name, action in requests(there.mount, own, other).items()}
    assert not {name: os.strerror(code) for name, code in got.items() if code not in allowed}
    assert {name: (there.mount / name).read_bytes() for name in model.tensors} == before
    assert errno_as(there.nobody, [], lambda: open_to_write(there.mount / own)) == 0


def test_supplementary_groups_give_their_rights_and_no_more(model, visit):  # noqa: F811
    for name in model.names:
        os.chown(model.directory / name, 0, GROUP)
        os.chmod(model.directory / name, 0o664)
    tensor, _ = shards(model)
    there = visit(model.index)
    transactions = there.mount / ".safetensors" / "transactions"

    def stage_an_edit():
        os.mkdir(transactions / "T")
        try:
            os.setxattr(transactions / "T", f"{PREFIX}metadata.x", b"1")
        finally:
            os.rmdir(transactions / "T")

    for groups, due in (([], errno.EACCES), ([GROUP + 1], errno.EACCES), ([GROUP + 1, GROUP], 0)):
        assert errno_as(there.nobody, groups, lambda: open_to_write(there.mount / tensor)) == due
        assert errno_as(there.nobody, groups, stage_an_edit) == due
        assert errno_as(there.nobody, groups,
                        lambda: os.setxattr(there.mount.path, f"{PREFIX}metadata.y", b"1")) == due
    # The group's right ends.
    for name in model.names:
        os.chmod(model.directory / name, 0o644)
    assert eventually(lambda: os.stat(there.mount / tensor).st_mode & 0o777 == 0o644)
    assert errno_as(there.nobody, [GROUP], lambda: open_to_write(there.mount / tensor)) == errno.EACCES
    assert errno_as(there.nobody, [GROUP], stage_an_edit) == errno.EACCES
