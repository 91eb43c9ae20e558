"""A seventh of what takes long, chosen by the day: a week tries all of it, and so does a run with --long. STFS_DAY=N
repeats another day's share; tests/run prints the day."""

import datetime
import os

import pytest

SHARES = 1 if "STFS_LONG" in os.environ else 7
DAY = int(os.environ.get("STFS_DAY") or datetime.date.today().toordinal())


def todays(rows, name=str):
    """The rows as parameters of a test. Those of another day are skipped under their names."""
    return [row if at % SHARES == DAY % SHARES else
            pytest.param(row, id=name(row), marks=pytest.mark.skip(reason="of another day's seventh, runs with --long"))
            for at, row in enumerate(rows)]
