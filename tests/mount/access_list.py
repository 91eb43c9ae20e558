"""POSIX access control lists of files and directories, without the tools of acl(5)."""
import errno
import os
import struct

import pytest

NOBODY = 2**32 - 1  # in entries that name no user and no group
OWNER, USER, GROUP_OBJECT, MASK, OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20


def set_list(path, *entries, kind="access"):
    """Sets a list of (tag, bits, user). Skips the test where the file system has no lists."""
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, f"system.posix_acl_{kind}", packed)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("the file system has no access control lists")


def let_user(user, bits, path, *, group=0, kind="access"):
    """The owner and this user get the bits, the file's group gets `group`, and others get nothing."""
    set_list(path, (OWNER, bits, NOBODY), (USER, bits, user), (GROUP_OBJECT, group, NOBODY), (MASK, bits, NOBODY), (OTHERS, 0, NOBODY),
             kind=kind)
