# Times that a program sets before or after its close, and times of transactions.
import os
import shutil
import time

import numpy as np
import pytest
from closing_writer import WHOLE, whole
from written_tensor import T, check_shown, run


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_WRONLY | os.O_TRUNC, os.O_RDWR])
def test_a_time_set_before_the_close_stays(mount, expected, flags):
    fd = os.open(mount / T, flags)
    os.write(fd, WHOLE)
    os.utime(fd, ns=(5, 1_000_000_000_000_000_007))
    os.close(fd)
    whole(expected).check()
    assert os.stat(mount / T).st_mtime_ns == 1_000_000_000_000_000_007
    (mount / T).write_bytes(WHOLE)
    assert abs(os.stat(mount / T).st_mtime - time.time()) < 100


def test_a_time_set_after_the_last_store_to_a_mapping_stays(mount):
    mapped = np.memmap(mount / T, np.uint8, "r+")
    mapped[:] = 1
    os.utime(mount / T, (7, 7))
    del mapped
    assert os.stat(mount / T).st_mtime == 7


@pytest.mark.parametrize("copy", [("cp", "-p"), ("rsync", "-t", "--inplace")], ids=" ".join)
def test_a_copy_that_keeps_times_does(mount, expected, fresh, copy):
    if shutil.which(copy[0]) is None:
        pytest.skip(f"there is no {copy[0]}")
    data, path = fresh()
    os.chmod(path, os.stat(mount / T).st_mode & 0o777)
    os.utime(path, (1, 123456789))
    done = run(*copy, path, mount / T)
    assert done.returncode == 0, done.stderr
    expected.change(T, data)
    check_shown(mount, expected)
    assert os.stat(mount / T).st_mtime == 123456789


def test_a_transaction_keeps_the_times_and_shows_them_with_its_commit(mount, expected, fresh):
    data, path = fresh()
    os.chmod(path, os.stat(mount / T).st_mode & 0o777)
    os.utime(path, (1, 123456789))
    before = os.stat(mount / T).st_mtime
    directory = mount / ".safetensors" / "transactions" / "T"
    directory.mkdir()
    assert run("cp", "-p", path, directory / T).returncode == 0
    assert os.stat(mount / T).st_mtime == before
    os.rename(directory, mount / ".safetensors" / "committed" / "T")
    expected.change(T, data)
    check_shown(mount, expected)
    assert os.stat(mount / T).st_mtime == 123456789
