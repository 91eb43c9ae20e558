"""Rounds and the figures they give: every way of a row in turn, one round to warm up, the others count.

Ways alternate within a round, so that what a machine does by itself (a neighbour, a disk that slows down) meets
all of them alike. A figure is the median with its lowest and highest; a ratio is that of the medians, with the
lowest and highest of the rounds' own. `missed` is a finding, not a failure.
"""
from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Goal:
    """What a way has to reach: a ratio to a twin, or at most a figure in the row's own unit."""
    limit: float
    twin: str | None = None  # the way's own twin where none is named
    is_at_most: bool = False


@dataclass(frozen=True)
class Way:
    """One way to do what a row measures; `run` does it once and returns the figure."""
    run: Callable[[], float]
    twin: str | None = None  # whose figure its ratio refers to: the row's first way where none is named
    goals: tuple[Goal, ...] = ()


@dataclass
class Found:
    """What the rounds gave for one way."""
    values: list[float] = field(default_factory=list)
    twin: str | None = None
    goals: tuple[Goal, ...] = ()
    note: str = ""


def ratio_of(value: float, twin: float, higher_is_better: bool) -> float:
    """Above one where the value is the better."""
    over, under = (value, twin) if higher_is_better else (twin, value)
    return over / under if under else float("inf")


class Row:
    """One measurement: the values of all its ways, and what follows from them."""

    def __init__(self, name: str, unit: str, found: dict[str, Found], higher_is_better: bool) -> None:
        self.name = name
        self.unit = unit
        self.found = found
        self.higher_is_better = higher_is_better
        self.load = os.getloadavg()[0]

    @property
    def rounds(self) -> int:
        return max(len(found.values) for found in self.found.values())

    def median(self, way: str) -> float:
        return statistics.median(self.found[way].values)

    def ratio(self, way: str, twin: str) -> tuple[float, float, float]:
        """Of the medians; the lowest and the highest of the rounds (of the medians where the rounds do not pair)."""
        mine, theirs = self.found[way].values, self.found[twin].values
        whole = ratio_of(self.median(way), self.median(twin), self.higher_is_better)
        if len(mine) != len(theirs):
            single = [ratio_of(value, self.median(twin), self.higher_is_better) for value in mine]
        else:
            single = [ratio_of(*pair, self.higher_is_better) for pair in zip(mine, theirs)]
        return whole, min(single), max(single)

    def verdicts(self, way: str) -> list[dict[str, Any]]:
        """Each goal of a way with the figure that it judges; goals whose twin was left out say nothing."""
        result = []
        for goal in self.found[way].goals:
            twin = goal.twin or self.found[way].twin
            if goal.is_at_most:
                figure, is_met = self.median(way), self.median(way) <= goal.limit
            elif twin in self.found:
                figure = self.ratio(way, twin)[0]
                is_met = figure >= goal.limit
            else:
                continue
            result.append({"limit": goal.limit, "is_at_most": goal.is_at_most, "figure": figure,
                           "twin": None if goal.is_at_most else twin, "is_met": is_met})
        return result

    def as_json(self) -> dict[str, Any]:
        ways = {}
        for way, found in self.found.items():
            ways[way] = {"median": self.median(way), "low": min(found.values), "high": max(found.values),
                         "values": found.values, "twin": found.twin, "goals": self.verdicts(way)}
            if found.twin is not None:
                ratio, low, high = self.ratio(way, found.twin)
                ways[way] |= {"ratio": ratio, "ratio_low": low, "ratio_high": high}
            if found.note:
                ways[way]["note"] = found.note
        return {"name": self.name, "unit": self.unit, "rounds": self.rounds, "load": self.load, "ways": ways}

    # -- as a person reads it --

    def text(self) -> str:
        lines = [f"{self.name} [{self.unit}; median, lowest .. highest of {self.rounds}; load {self.load:.1f}]"]
        for way, found in self.found.items():
            spread = f"{min(found.values):.4g} .. {max(found.values):.4g}"
            line = f"  {way:<42}{self.median(way):>10.4g}   {spread:<24}"
            line += f"{self.ratio_text(way):<32}{self.goal_text(way)}"
            if found.note:
                line += f"  ({found.note})"
            lines.append(line.rstrip())
        return "\n".join(lines)

    def ratio_text(self, way: str) -> str:
        twin = self.found[way].twin
        if twin is None:
            return ""
        ratio, low, high = self.ratio(way, twin)
        return f"ratio {ratio:.3g} ({low:.3g} .. {high:.3g})"

    def goal_text(self, way: str) -> str:
        texts = []
        for verdict in self.verdicts(way):
            sign = "<=" if verdict["is_at_most"] else ">="
            of = verdict["twin"] if verdict["twin"] != self.found[way].twin else None
            other = f" of {of} ({verdict['figure']:.2f})" if of else ""
            texts.append(f"goal {sign} {verdict['limit']:g}{other} {'met' if verdict['is_met'] else 'missed'}")
        return "; ".join(texts)


class Table:
    """Every row of a run, printed as it is found."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.rows: list[Row] = []

    def measure(self, name: str, unit: str, ways: dict[str, Way], before: Callable[[str], Any] | None = None,
                higher_is_better: bool = True) -> Row:
        """Runs all ways in turn, `before(way)` outside the clock of each."""
        found = self.find(ways, before)
        return self.add(name, unit, found, higher_is_better)

    def find(self, ways: dict[str, Way], before: Callable[[str], Any] | None = None) -> dict[str, Found]:
        """The values of the counted rounds, without a row of their own yet."""
        first = next(iter(ways))
        found = {label: Found([], way.twin or first, way.goals) for label, way in ways.items()}
        for number in range(self.rounds + 1):
            for label, way in ways.items():
                if before:
                    before(label)
                value = way.run()
                if number > 0:  # the first warms up
                    found[label].values.append(value)
        return found

    def add(self, name: str, unit: str, found: dict[str, Found], higher_is_better: bool = True) -> Row:
        """A row of values that were found already."""
        row = Row(name, unit, found, higher_is_better)
        self.rows.append(row)
        print(f"\n{row.text()}")
        sys.stdout.flush()
        return row

    def goals_text(self) -> str:
        """All goals of the run in one place, the missed ones last."""
        met, missed = [], []
        for row in self.rows:
            for way in row.found:
                for verdict in row.verdicts(way):
                    sign = "<=" if verdict["is_at_most"] else ">="
                    line = (f"  {'met' if verdict['is_met'] else 'missed':<8}{verdict['figure']:>8.3g} {sign} "
                            f"{verdict['limit']:<6g}{row.name}: {way}")
                    (met if verdict["is_met"] else missed).append(line)
        return "\n".join(["goals:", *met, *missed]) if met or missed else ""
