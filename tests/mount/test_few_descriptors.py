# A mount that may open few files: staging by one user takes no descriptor for each tensor, and stops no other user's write.
import errno
import os
import resource

from edited_mount import content, write_tensor
from mounted import errno_of
from transaction_edits import begin, commit, edited  # noqa: F401

NEW = 300
TO_SPARE = 24


def leave_few(mount):
    limit = len(mount.descriptors()) + TO_SPARE
    resource.prlimit(mount.pid, resource.RLIMIT_NOFILE, (limit, limit))


def test_a_transaction_of_many_new_tensors_commits_and_stops_no_other_write(edited):
    mount = edited.mount
    leave_few(mount)
    directory = begin(mount)
    for at in range(NEW):
        write_tensor(directory / f"new{at}", b"%08d" % at)
        if at % 50 == 0:
            data = os.urandom(len(edited.due["b"][2]))
            (mount / "b").write_bytes(data)
            edited.due["b"] = (*edited.due["b"][:2], data)
    edited.check()
    commit(mount)
    for at in range(NEW):
        edited.due[f"new{at}"] = ("U8", [8], b"%08d" % at)
    edited.check()


def test_files_that_stay_open_are_refused_one_by_one_and_nothing_is_lost(edited):
    mount = edited.mount
    leave_few(mount)
    opened = []
    for at in range(2 * TO_SPARE):
        try:
            opened.append(os.open(mount / f"scratch{at}", os.O_WRONLY | os.O_CREAT))
        except OSError as error:
            assert error.errno in (errno.EMFILE, errno.ENFILE), error
            break
    data = os.urandom(len(edited.due["b"][2]))
    told = errno_of((mount / "b").write_bytes, data)  # a commit needs descriptors too
    assert told in (0, errno.EMFILE)
    for at, file in enumerate(opened):
        assert os.write(file, b"kept") == 4
        os.close(file)
        assert (mount / f"scratch{at}").read_bytes() == b"kept"
        os.unlink(mount / f"scratch{at}")
    (mount / "b").write_bytes(data)
    edited.due["b"] = (*edited.due["b"][:2], data)
    edited.check()
    assert content(edited.archives[0]) is not None
