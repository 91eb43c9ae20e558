"""The table of a run, from the results as the JSON has them."""
from __future__ import annotations

from typing import Any

Result = dict[str, Any]
COLUMNS = (46, 9, 24, 29)  # way, median, spread, ratio


def number_text(value: float) -> str:
    """Returns three digits, with commas for thousands."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def header() -> str:
    way, median, spread, ratio = COLUMNS
    return f"{'row / way':<{way + 2}}{'median':>{median}}  {'lowest .. highest':<{spread}}{'ratio to the twin':<{ratio}}goal"


def goal_text(goal: Result) -> str:
    """Returns `>= 0.9 met`, with the figure and the other way if that is not the twin."""
    sign = "<=" if goal["is_at_most"] else ">="
    return f"{sign} {goal['limit']:.4g} {'met' if goal['is_met'] else 'MISSED'}"


def _ratio_text(way: Result) -> str:
    if "ratio" not in way:
        return ""
    ratio, low, high = (number_text(way[name]) for name in ("ratio", "ratio_low", "ratio_high"))
    return f"{ratio} ({low} .. {high})"


def _way_text(way: Result, goals: list[Result]) -> str:
    name, median, spread, ratio = COLUMNS
    if "missing" in way:
        return f"  {way['name']:<{name}}{'':>{median}}  {way['missing']}"
    goal_texts = []
    for goal in goals:
        other = goal["of"] if goal["of"] not in (None, way.get("twin")) else None
        goal_texts.append(f"{goal_text(goal)} ({goal['figure']:.3g} of {other})" if other else goal_text(goal))
    between = f"{number_text(way['low'])} .. {number_text(way['high'])}"
    return (f"  {way['name']:<{name}}{number_text(way['median']):>{median}}  {between:<{spread}}{_ratio_text(way):<{ratio}} "
            f"{'; '.join(goal_texts)}").rstrip()


def row_text(row: Result) -> str:
    """Returns the lines of a row: its title, and each way."""
    if "skipped" in row or "failed" in row:
        state = f"skipped: {row['skipped']}" if "skipped" in row else f"FAILED: {row['failed']}"
        return f"{row['name']}: {row['title']}\n  {state}"
    title = f"{row['name']}: {row['title']} [{row['unit']}, {row['better']} is better]"
    if row["is_busy"]:
        title += f"  BUSY: other programs used {row['busy_cores']:.1f} cores in the quietest of {row['tries']} tries"
    lines = [title, *(_way_text(way, [goal for goal in row["goals"] if goal["way"] == way["name"]]) for way in row["ways"])]
    if "exponent" in row:
        lines.append(f"  grows as the number of tensors to the power of {row['exponent']:.2f}, between the two largest")
    return "\n".join(lines)


def summary_text(result: Result) -> str:
    """Returns the goals of all rows, the missed ones last, then skipped and failed rows, busy rows, missing peers and notes."""
    lines: dict[bool, list[str]] = {True: [], False: []}
    for row in result["rows"]:
        for goal in row.get("goals", ()):
            sign = "<=" if goal["is_at_most"] else ">="
            lines[goal["is_met"]].append(f"  {'met' if goal['is_met'] else 'MISSED':<8}{number_text(goal['figure']):>8} {sign} "
                                         f"{goal['limit']:<8.4g}{row['name']}: {goal['way']}")
    text = [f"goals: {len(lines[True])} met, {len(lines[False])} missed", *lines[True], *lines[False]]
    for kind in ("skipped", "failed"):
        text += [f"{kind}: {row['name']}: {row[kind]}" for row in result["rows"] if kind in row]
    absent = {f"{way['name']}: {way['missing']}" for row in result["rows"] for way in row.get("ways", ()) if "missing" in way}
    text += [f"missing: {line}" for line in sorted(absent)]
    if busy := [row["name"] for row in result["rows"] if row.get("is_busy")]:
        text.append(f"BUSY: other programs ran beside {', '.join(busy)}: measure these rows again on a quiet machine")
    if result["is_quick"]:
        text.append("quick: the goals are for the full sizes, and few rounds say little")
    return "\n".join([*text, *(f"note: {note}" for note in result["notes"]), f"took {result['seconds']:.0f} s"])
