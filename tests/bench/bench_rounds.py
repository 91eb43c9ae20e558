"""Runs the rounds of a row, and returns its result as the JSON has it (tests/README.md describes the fields).

In each round every way runs once. The first round warms up, and the others are counted. The ways alternate within a round, so
that changes of the machine affect all ways in the same manner. A figure is the median with the lowest and the highest value. A
ratio is between medians, with the lowest and the highest ratio of the rounds.
"""
from __future__ import annotations

import math
import os
import statistics
import time
from typing import Any

from bench_machine import busy_cores
from bench_row import ROW_TWIN, Goal, Plan, Row, Way
from bench_session import Session

QUIET_CORES = 0.25  # other programs use at most this many cores

Values = dict[str, list[float]]
Result = dict[str, Any]


def measure(row: Row, plan: Plan, session: Session) -> Result:
    """Measures a row, again if other programs were busy at its begin or its end, and keeps the quietest try."""
    tries: list[tuple[float, Values, dict[str, str]]] = []
    while True:
        os.sync()  # the kernel writes nothing of ours during the sample
        busy = busy_cores()
        values, missing = _rounds(plan, session)
        tries.append((max(busy, busy_cores()), values, missing))
        if tries[-1][0] <= QUIET_CORES or len(tries) > session.repeats or session.is_late():
            break
    busy, values, missing = min(tries, key=lambda one: one[0])
    return {"name": row.name, "group": row.group, "title": session.sizes.text(row.title), "unit": row.unit,
            "better": "higher" if row.higher_is_better else "lower", "busy_cores": round(busy, 2),
            "is_busy": busy > QUIET_CORES, "tries": len(tries), "load": os.getloadavg()[0],
            **_figures(row, plan, values, missing)}


def _rounds(plan: Plan, session: Session) -> tuple[Values, dict[str, str]]:
    """Returns the counted values of each way, and the reasons of the ways that can't run."""
    missing = {label: way.missing for label, way in plan.ways.items() if way.missing}
    values: Values = {label: [] for label in plan.ways if label not in missing}
    done: set[str] = set()
    for number in range(session.rounds + 1):
        for label, way in plan.ways.items():
            if label in missing or label in done or (way.is_once and number == 0):
                continue
            started = time.monotonic()
            try:
                if plan.before:
                    plan.before(label)
                value = way.run()
            except Exception as error:
                if way.kind != "peer":
                    raise
                missing[label] = f"fails: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
                del values[label]
                continue
            is_slow = way.kind == "peer" and time.monotonic() - started > session.sizes.slow_seconds
            if number > 0 or is_slow:
                values[label].append(value)
            if way.is_once or is_slow:
                done.add(label)
    return values, missing


def ratio_of(value: float, other: float, higher_is_better: bool) -> float:
    """Returns a ratio, which is above one if the value is the better one."""
    over, under = (value, other) if higher_is_better else (other, value)
    return over / under if under else math.inf


def _ratios(mine: list[float], theirs: list[float], higher_is_better: bool) -> tuple[float, float, float]:
    """Returns the ratio of the medians, and the lowest and highest ratio of the rounds. With different numbers of rounds, the
    other's median is used."""
    other = statistics.median(theirs)
    pairs = zip(mine, theirs) if len(mine) == len(theirs) else ((value, other) for value in mine)
    single = [ratio_of(*pair, higher_is_better) for pair in pairs]
    return ratio_of(statistics.median(mine), other, higher_is_better), min(single), max(single)


def _figures(row: Row, plan: Plan, values: Values, missing: dict[str, str]) -> Result:
    """Returns the fields `ways` and `goals`, and `exponent` for a row about growth."""
    row_twin = next((label for label, way in plan.ways.items() if way.kind == "twin" and label in values), None)

    def named(of: str | None) -> str | None:
        return row_twin if of == ROW_TWIN else of

    def way_result(label: str, way: Way) -> Result:
        if label in missing:
            return {"name": label, "kind": way.kind, "missing": missing[label]}
        mine, of = values[label], named(way.of)
        result = {"name": label, "kind": way.kind, "median": statistics.median(mine), "low": min(mine), "high": max(mine),
                  "values": mine}
        if of in values and of != label:
            ratio, low, high = _ratios(mine, values[of], row.higher_is_better)
            result |= {"twin": of, "ratio": ratio, "ratio_low": low, "ratio_high": high}
        return result

    def goal_result(goal: Goal) -> Result | None:
        of = named(goal.of)
        if goal.way not in values or (not goal.is_at_most and of not in values):
            return None
        if goal.is_at_most:
            figure = statistics.median(values[goal.way])
        else:
            figure = _ratios(values[goal.way], values[of], row.higher_is_better)[0]
        return {"way": goal.way, "of": None if goal.is_at_most else of, "limit": goal.limit, "is_at_most": goal.is_at_most,
                "figure": figure, "is_met": figure <= goal.limit if goal.is_at_most else figure >= goal.limit}

    goals = (goal_result(goal) for goal in (row.goals if plan.goals is None else plan.goals))
    result: Result = {"ways": [way_result(label, way) for label, way in plan.ways.items()],
                      "goals": [goal for goal in goals if goal]}
    if row.is_growth:
        result["exponent"] = exponent_of({int(label.split()[0].replace(",", "")): statistics.median(one)
                                          for label, one in values.items()})
    return result


def exponent_of(medians: dict[int, float]) -> float:
    """Returns e for figures that grow as count ** e between the two largest counts. Smaller counts show constant costs, such as the
    start of a process."""
    if len(medians) < 2:
        return 0.0
    (fewer, less), (more, most) = sorted(medians.items())[-2:]
    return math.log(max(most, 1e-9) / max(less, 1e-9)) / math.log(more / fewer)
