# Requests that are no write of a tensor: changes of the structure, preallocation of space, and writes on read-only mounts.
import ctypes
import errno
import os
import shutil

import numpy as np
import pytest
from archive_file import Expectation
from mounted import errno_of
from written_tensor import T, check_shown, run

pytestmark = pytest.mark.sequential

libc = ctypes.CDLL(None, use_errno=True)


def refusals(mount):
    t, new = mount / T, mount / "new"
    return {
        "rename": lambda: os.rename(t, new), "rename over": lambda: os.rename(t, mount / "odd"),
        "unlink": lambda: os.unlink(t),
        "create": lambda: os.close(os.open(new, os.O_WRONLY | os.O_CREAT)),
        "create exclusive": lambda: os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL)),
        "mkdir": lambda: os.mkdir(new), "symlink": lambda: os.symlink("x", new), "link": lambda: os.link(t, new),
        "mknod": lambda: os.mknod(new), "mkfifo": lambda: os.mkfifo(new),
    }


def changes_of_access(mount):
    return {"chmod": lambda: os.chmod(mount / T, 0o4755), "chmod root": lambda: os.chmod(mount.path, 0o1777),
            "chown": lambda: os.chown(mount / T, 4242, 4242),
            "chmod view": lambda: os.chmod(mount / ".safetensors" / "npy" / f"{T}.npy", 0o4640)}


@pytest.mark.parametrize("options, due", [("edit=off", errno.EPERM), ("ro", errno.EROFS)])
def test_changes_of_the_structure_are_refused(archive, mounts, options, due):
    mount, expected = mounts(archive.path, options), Expectation(archive)
    for action, act in refusals(mount).items():
        assert errno_of(act) == due, action
        assert sorted(os.listdir(mount.path)) == sorted(expected.layout), action
        expected.check()


@pytest.mark.parametrize("options, due", [("strict_modes", errno.EPERM), ("ro", errno.EROFS)])
def test_modes_and_owners_are_refused(archive, mounts, options, due):
    mount = mounts(archive.path, options)
    for action, act in changes_of_access(mount).items():
        assert errno_of(act) == due, action


def test_modes_and_owners_are_accepted_and_stay_as_they_are(mount, expected):
    before = os.stat(mount / T), os.stat(mount.path)
    for act in changes_of_access(mount).values():
        act()
    for known, now in zip(before, (os.stat(mount / T), os.stat(mount.path))):
        assert (known.st_mode, known.st_uid, known.st_gid) == (now.st_mode, now.st_uid, now.st_gid)
    expected.check()


@pytest.mark.parametrize("copy", [("cp", "-p"), ("cp", "-a"), ("rsync", "-aI", "--inplace"), "copy", "copy2"], ids=str)
def test_copies_that_set_mode_and_owner_succeed(mount, expected, fresh, copy):
    data, path = fresh()
    os.chmod(path, 0o751)
    os.chown(path, 4242, 4242)
    if isinstance(copy, str):
        getattr(shutil, copy)(path, mount / T)
    elif shutil.which(copy[0]) is None:
        pytest.skip(f"there is no {copy[0]}")
    else:
        done = run(*copy, path, mount / T)
        assert done.returncode == 0, done.stderr
    expected.change(T, data)
    check_shown(mount, expected)


def test_rmdir_is_refused(archive, mounts):
    mount = mounts(archive.path, "layout=tree,edit=off")
    assert errno_of(os.rmdir, mount / "layers") == errno.EPERM


def test_creating_a_name_that_exists_is_opening_it(mount, expected, fresh):
    data, _ = fresh()
    fd = os.open(mount / T, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(fd, data)
    os.close(fd)
    expected.change(T, data)
    check_shown(mount, expected)
    assert errno_of(os.open, mount / T, os.O_WRONLY | os.O_CREAT | os.O_EXCL) == errno.EEXIST


def test_what_cp_p_and_touch_do_is_accepted(mount, expected):
    status = os.stat(mount / T)
    os.chmod(mount / T, status.st_mode & 0o7777)
    os.chown(mount / T, status.st_uid, status.st_gid)
    os.utime(mount / T)
    os.utime(mount / T, (1, 2))
    assert run("touch", mount / T).returncode == 0
    expected.check()


@pytest.mark.parametrize("mode", [0, 1, 3, 0x10])
def test_fallocate_is_eopnotsupp(mount, expected, open_fd, mode):
    fd = open_fd(mount / T, os.O_RDWR)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    assert libc.fallocate(fd, mode, 0, 4096) == -1
    assert ctypes.get_errno() == errno.EOPNOTSUPP
    os.close(fd)
    expected.check()


def test_posix_fallocate_of_the_whole_tensor_changes_nothing(mount, expected, open_fd):
    fd = open_fd(mount / T, os.O_RDWR)
    os.posix_fallocate(fd, 0, expected.size(T))  # glibc does it by hand where the system can't
    os.close(fd)
    check_shown(mount, expected)


def test_without_edits_sed_in_place_and_saving_under_a_new_name_fail_understandably(archive, mounts):
    mount, expected = mounts(archive.path, "edit=off"), Expectation(archive)
    done = run("sed", "-i", "s/a/b/", mount / T)
    assert done.returncode != 0 and "Operation not permitted" in done.stderr
    with pytest.raises(PermissionError):
        np.save(mount / "new.npy", np.zeros(3))
    done = run("mv", archive.path, mount / "elsewhere")
    assert done.returncode != 0 and "Operation not permitted" in done.stderr
    assert os.path.exists(archive.path)
    done = run("rm", "-f", mount / T)
    assert done.returncode != 0 and "Operation not permitted" in done.stderr
    check_shown(mount, expected)


# ---- mounts that do not write ----

@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND])
def test_opening_for_writing_on_a_read_only_mount_is_erofs(archive, mounts, flags):
    mount = mounts(archive.path, "ro")
    before, status = archive.content(), os.stat(archive.path)
    assert errno_of(os.open, mount / T, flags) == errno.EROFS
    assert errno_of(os.truncate, mount / T, 0) == errno.EROFS
    assert archive.content() == before
    assert os.stat(archive.path).st_mtime_ns == status.st_mtime_ns

