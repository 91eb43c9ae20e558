"""The progress of long calls, in a function of the caller or as a bar of tqdm."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Union

#: A function of the done and the total number of bytes, or True for a bar of tqdm. False and None: no progress.
Progress = Union[Callable[[int, int], object], bool, None]


@contextmanager
def shown(progress: Progress, title: str) -> Iterator[Callable[[int, int], object] | None]:
    """Gives the function to call with the done and the total number of bytes, or None.

    Raises ModuleNotFoundError at once if a bar is wanted and tqdm is not installed.
    """
    if progress is None or progress is False:
        yield None
        return
    if progress is not True:
        if not callable(progress):
            raise TypeError(f"progress is True or a function, not {type(progress).__name__}")
        yield progress
        return
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("progress=True shows a bar of tqdm, which is not installed: pip install tqdm, or give "
                                  "a function", name=error.name) from None
    with tqdm(desc=title, unit="B", unit_scale=True, unit_divisor=1024) as bar:

        def show(done_bytes: int, total_bytes: int) -> None:
            if bar.total != total_bytes or done_bytes < bar.n:  # another pass
                bar.reset(total_bytes)
            bar.update(done_bytes - bar.n)

        yield show
