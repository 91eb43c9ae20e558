# The mounts of a test. At its end all are unmounted, and the test fails if one of them has a problem.
import contextlib
import itertools

import mounted
import pytest


@contextlib.contextmanager
def mounts_below(directory):
    """mounts(SOURCE, options) -> Mount, as many as a test wants."""
    made = []
    numbers = itertools.count()  # failed mounts also use a number

    def make(source, options="", path=None, **kwargs):
        number = next(numbers)
        if path is None:
            path = directory / f"mnt{number}"
            path.mkdir()
        mount = mounted.Mount(source, path, directory / f"daemon{number}.log", options, **kwargs)
        made.append(mount)
        return mount

    yield make
    wrong = [problem for problem in (mount.finish() for mount in reversed(made)) if problem]
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)
