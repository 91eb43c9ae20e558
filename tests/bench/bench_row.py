"""The declaration of a row of tests/bench/run.

A row is a function with the decorator `row`. It gets a Place for its files and mounts, and returns a Plan: the ways to do the
same work, each a function that does the work once and returns the figure. The decorator has everything that `--list` shows.

    @row("mapped", "mapped and summed, warm", "GB/s", goals=(Goal("safetensorsfs", 0.85),))
    def mapped(place: Place) -> Plan:
        return Plan({"plain file": twin(...), "safetensorsfs": ours(...), "bindfs": peer(...)})

A ratio is above one if the way is better than its twin, whichever direction is better.
"""
from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench_session import Place

MIB, GIB = 1 << 20, 1 << 30
ROW_TWIN = "(the row's twin)"


@dataclass(frozen=True)
class Sizes:
    """How much a run measures. The goals are for FULL."""
    rounds: int            # that count, after one that warms up
    minutes: int           # of the whole run on a quiet machine
    large_bytes: int       # of the tensor that is read and written
    archive_gib: int       # of the large archive
    many: int              # tensors of an archive beside a directory of as many files
    most: int              # tensors of the largest header
    writes: int            # small writes in a round
    slow_seconds: float    # a peer that takes longer runs once

    def text(self, title: str) -> str:
        """Returns a row's title with these sizes."""
        large = f"{self.large_bytes // GIB} GiB" if self.large_bytes % GIB == 0 else f"{self.large_bytes / MIB:g} MiB"
        return title.format(large=large, archive=f"{self.archive_gib} GiB", many=f"{self.many:,}", most=f"{self.most:,}")


FULL = Sizes(rounds=5, minutes=20, large_bytes=GIB, archive_gib=16, many=100_000, most=1_000_000, writes=200, slow_seconds=10)
QUICK = Sizes(rounds=2, minutes=3, large_bytes=64 * MIB, archive_gib=1, many=10_000, most=100_000, writes=50, slow_seconds=1)


@dataclass(frozen=True)
class Goal:
    """The lowest ratio of a way to another one, or the highest figure in the row's unit."""
    way: str
    limit: float
    of: str = ROW_TWIN
    is_at_most: bool = False


@dataclass(frozen=True)
class Way:
    """One way to do the work of a row."""
    kind: str                              # ours, twin, peer, or limit: no program can be faster
    run: Callable[[], float] | None = None
    of: str | None = ROW_TWIN              # its ratio is to this way; None: it has no ratio
    is_once: bool = False                  # runs in one round, without a warm-up
    missing: str = ""                      # the reason if it can't run here


def ours(run: Callable[[], float], of: str | None = ROW_TWIN, is_once: bool = False) -> Way:
    return Way("ours", run, of, is_once)


def twin(run: Callable[[], float], of: str | None = ROW_TWIN, is_once: bool = False) -> Way:
    """The native way to do the same. The first twin of a row is the row's twin."""
    return Way("twin", run, of, is_once)


def peer(run: Callable[[], float]) -> Way:
    return Way("peer", run)


def limit(run: Callable[[], float]) -> Way:
    return Way("limit", run)


def missing(kind: str, why: str) -> Way:
    return Way(kind, missing=why)


@dataclass(frozen=True)
class Plan:
    """The ways of a row. `before(way)` runs before each of them, outside the clock. `goals` replace the declared goals."""
    ways: dict[str, Way]
    before: Callable[[str], object] | None = None
    goals: tuple[Goal, ...] | None = None


class Skip(Exception):
    """The row can't run here, for this reason."""


def why_absent(module: str) -> str:
    """Returns the reason if a library of Python can't be used, or nothing."""
    return "" if importlib.util.find_spec(module) else f"{module}: not installed"


def need(*modules: str) -> None:
    """Skips the row if a library is missing."""
    for module in modules:
        if why := why_absent(module):
            raise Skip(why)


def library_twin(run: Callable[[], float], module: str = "safetensors") -> Way:
    """The twin that needs a library."""
    why = why_absent(module)
    return missing("twin", why) if why else twin(run)


@dataclass(frozen=True)
class Row:
    name: str
    group: str
    title: str
    unit: str
    higher_is_better: bool
    goals: tuple[Goal, ...]
    is_growth: bool         # its ways are numbers of tensors; the result has the exponent of growth
    make: Callable[[Place], Plan]


ROWS: dict[str, Row] = {}


def row(name: str, title: str, unit: str, *, goals: tuple[Goal, ...] = (), lower: bool = False,
        grows: bool = False) -> Callable[[Callable[[Place], Plan]], Callable[[Place], Plan]]:
    """Declares a row. Its group is the module's name without `rows_`. The title may have {large}, {archive}, {many} and {most},
    sizes of the run. `lower` says that a lower figure is better."""
    def register(make: Callable[[Place], Plan]) -> Callable[[Place], Plan]:
        assert name not in ROWS, name
        group = sys.modules[make.__module__].__name__.removeprefix("rows_")
        ROWS[name] = Row(name, group, title, unit, not lower, goals, grows, make)
        return make
    return register
