# truncate(2) by name and the O_TRUNC of an open, which the kernel sends alike, and the size that a writer sees.
import errno
import os

from closing_writer import SIZE, WHOLE, whole
from mounted import errno_of
from written_tensor import T, check_shown


def test_truncate_by_name_right_after_an_open_is_its_o_trunc(mount, expected, open_fd):
    fd = open_fd(mount / T, os.O_WRONLY)
    os.truncate(mount / T, 0)
    os.write(fd, WHOLE)
    os.close(fd)
    whole(expected).check()
    fd = open_fd(mount / T, os.O_WRONLY)
    os.truncate(mount / T, 0)
    assert errno_of(os.close, fd) == errno.EINVAL
    check_shown(mount, expected)


def test_truncate_by_name_is_refused_after_another_open_or_a_write(mount, expected, open_fd):
    fd = open_fd(mount / T, os.O_WRONLY)
    open_fd(mount / "odd", os.O_WRONLY)
    assert errno_of(os.truncate, mount / T, 0) == errno.EINVAL
    os.pwrite(fd, b"patch", 3)
    assert errno_of(os.truncate, mount / T, 0) == errno.EINVAL
    os.close(fd)
    expected.change(T, b"patch", 3)
    check_shown(mount, expected)


def test_a_truncating_writer_sees_the_one_size_that_the_inode_has(mount, expected, open_fd):
    """fs/write/close_decision.h says why: readers keep the old tensor, and the kernel has one size for both."""
    fd = open_fd(mount / T, os.O_WRONLY | os.O_TRUNC)
    assert os.fstat(fd).st_size == SIZE
    assert os.lseek(fd, 0, os.SEEK_END) == SIZE
    assert os.lseek(fd, 0, os.SEEK_CUR) == SIZE
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, WHOLE)
    os.close(fd)
    whole(expected)
    check_shown(mount, expected)
