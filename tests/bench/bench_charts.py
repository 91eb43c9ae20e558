"""Draws results as SVG, 700 pixels wide. A picture follows the light or dark scheme of its reader.

Each group of rows has a picture, NAME.svg, with the figure of each way as a bar. A thin line has the spread, and a mark the goal.
Rows about growth are lines on logarithmic axes. summary.svg has the ratio of our ways to their twins.
"""
from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import Any

from bench_text import number_text

Result = dict[str, Any]
WIDTH, MARGIN = 700, 16
BAR_X, BAR_WIDTH, LINE = 262, 284, 20
PLOT_HEIGHT = 130
KINDS = {"ours": "safetensorsfs", "twin": "the native way", "peer": "other programs", "limit": "a limit"}

STYLE = """
    .back { fill: #ffffff; stroke: #d0d7de } text { fill: #24292f; font: 12px system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif }
    .title { font-size: 13px; font-weight: 600 } .note { fill: #57606a; font-size: 11px } .end { text-anchor: end }
    .middle { text-anchor: middle } .head { font-size: 16px; font-weight: 600 }
    .ours { fill: #0969da } .twin { fill: #6e7781 } .peer { fill: #bcc4cc } .limit { fill: none; stroke: #6e7781; stroke-dasharray: 3 2 }
    .spread { stroke: #24292f; stroke-width: 1 } .grid { stroke: #d0d7de; stroke-width: 1 } .one { stroke: #6e7781; stroke-width: 1 }
    .met { stroke: #1a7f37; stroke-width: 3 } .missed { stroke: #cf222e; stroke-width: 3 }
    .line { fill: none; stroke: #0969da; stroke-width: 2 }
    @media (prefers-color-scheme: dark) {
      .back { fill: #0d1117; stroke: #30363d } text { fill: #e6edf3 } .note { fill: #9198a1 }
      .ours { fill: #4493f8 } .twin { fill: #8b949e } .peer { fill: #4b535d } .limit { stroke: #8b949e }
      .spread { stroke: #e6edf3 } .grid { stroke: #30363d } .one { stroke: #8b949e }
      .met { stroke: #3fb950 } .missed { stroke: #f85149 } .line { stroke: #4493f8 }
    }"""


class Picture:
    """The elements of one SVG, from top to bottom."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.elements: list[str] = []
        self.y = MARGIN + 16
        self.text(MARGIN, title, "head")
        self.y += 8

    def text(self, x: float, words: str, kind: str = "", y: float | None = None) -> None:
        name = f' class="{kind}"' if kind else ""
        self.elements.append(f'<text x="{x:.1f}" y="{self.y if y is None else y:.1f}"{name}>{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        self.elements.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height}" rx="1" class="{kind}"/>')

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: str) -> None:
        self.elements.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" class="{kind}"/>')

    def legend(self, kinds: list[str]) -> None:
        self.y += LINE
        x = MARGIN
        for kind in kinds:
            self.box(x, self.y - 10, 12, 11, kind)
            self.text(x + 17, KINDS[kind], "note")
            x += 40 + 6.2 * len(KINDS[kind])
        self.line(x, self.y - 10, x, self.y + 1, "met")
        self.line(x + 8, self.y - 10, x + 8, self.y + 1, "missed")
        self.text(x + 16, "goal, met and missed", "note")
        self.y += 8

    def svg(self) -> str:
        height = round(self.y + MARGIN)
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
            f"  <title>{escape(self.title)}</title>", f"  <style>{STYLE}", "  </style>",
            f'  <rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6" class="back"/>',
            *(f"  {element}" for element in self.elements), "</svg>", ""])


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else words[:most - 1] + "…"


def _goal_figure(goal: Result, row: Result) -> float | None:
    """Returns the figure that just meets a goal."""
    if goal["is_at_most"]:
        return goal["limit"]
    of = next((way["median"] for way in row["ways"] if way["name"] == goal["of"] and "median" in way), None)
    if of is None:
        return None
    return of * goal["limit"] if row["better"] == "higher" else of / goal["limit"]


def _draw_bars(picture: Picture, row: Result) -> None:
    marks = {way["name"]: [(figure, goal["is_met"]) for goal in row["goals"] if goal["way"] == way["name"]
                           if (figure := _goal_figure(goal, row)) is not None] for way in row["ways"]}
    measured = [way for way in row["ways"] if "median" in way]
    most = max([way["high"] for way in measured], default=0) or 1
    without_peers = max([way["high"] for way in measured if way["kind"] != "peer"], default=0)
    most = min(most, 3 * without_peers or most)  # a much slower peer would hide the other bars
    for way in row["ways"]:
        picture.y += LINE
        picture.text(BAR_X - 8, _cut(way["name"], 37), "end")
        if "missing" in way:
            picture.text(BAR_X, _cut(way["missing"], 70), "note")
            continue
        scale = BAR_WIDTH / most
        if way["median"] <= most:
            picture.box(BAR_X, picture.y - 11, way["median"] * scale, 14, way["kind"])
            picture.line(BAR_X + way["low"] * scale, picture.y - 4, BAR_X + min(way["high"], most) * scale, picture.y - 4, "spread")
        else:  # the bar is cut, with a gap before its end
            picture.box(BAR_X, picture.y - 11, BAR_WIDTH - 14, 14, way["kind"])
            picture.box(BAR_X + BAR_WIDTH - 10, picture.y - 11, 10, 14, way["kind"])
        for figure, is_met in marks[way["name"]]:
            if figure <= most * 1.02:
                x = BAR_X + figure * scale
                picture.line(x, picture.y - 13, x, picture.y + 5, "met" if is_met else "missed")
        picture.text(BAR_X + BAR_WIDTH + 65, number_text(way["median"]), "end")
        if "ratio" in way:
            picture.text(WIDTH - MARGIN, f"{number_text(way['ratio'])} x", "end")


def _draw_growth(picture: Picture, row: Result) -> None:
    points = [(math.log10(int(way["name"].split()[0].replace(",", ""))), math.log10(max(way["median"], 1e-3)), way)
              for way in row["ways"] if "median" in way]
    if not points:
        return
    left, right = points[0][0], max(points[-1][0], points[0][0] + 1)
    low, high = math.floor(min(y for _, y, _ in points)), math.ceil(max(y for _, y, _ in points) + 0.01)
    top, x_scale, y_scale = picture.y + 14, (WIDTH - 180) / (right - left), PLOT_HEIGHT / (high - low)

    def place(x: float, y: float) -> tuple[float, float]:
        return 90 + (x - left) * x_scale, top + (high - y) * y_scale
    for decade in range(low, high + 1):
        y = place(left, decade)[1]
        picture.line(90, y, WIDTH - 60, y, "grid")
        picture.text(82, f"{10.0 ** decade:,g}", "note end", y + 4)
    where = [place(x, y) for x, y, _ in points]
    picture.elements.append(f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in where)}"/>')
    for (x, y), (_, _, way) in zip(where, points):
        picture.elements.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="ours"/>')
        is_first = (x, y) == where[0]  # its text would hide the axis
        picture.text(x + 6 if is_first else x, number_text(way["median"]), "" if is_first else "middle", y - 8)
        picture.text(x, way["name"], "note middle", top + PLOT_HEIGHT + 16)
    picture.y = top + PLOT_HEIGHT + 22


def _draw_row(picture: Picture, row: Result) -> None:
    picture.y += LINE + 12
    picture.text(MARGIN, _cut(row["title"], 88), "title")
    picture.y += 15
    if "ways" not in row:
        picture.text(MARGIN, _cut(f"{'skipped' if 'skipped' in row else 'failed'}: {row.get('skipped') or row.get('failed')}", 110), "note")
        return
    growth = f"; grows as the number of tensors to the power of {row['exponent']:.2f}" if "exponent" in row else ""
    busy = "; other programs were busy" if row["is_busy"] else ""
    picture.text(MARGIN, f"{row['unit']}, {row['better']} is better{growth}{busy}", "note")
    (_draw_growth if "exponent" in row else _draw_bars)(picture, row)


def _draw_machine(picture: Picture, result: Result) -> None:
    machine = result["machine"]
    picture.y += LINE + 10
    picture.text(MARGIN, _cut(f"{machine['cores']} cores, {machine['processor']}, Linux {machine['kernel']}, {machine['file_system']}, "
                              f"commit {machine['commit'][:10]}, {result['began'][:10]}", 118), "note")
    if result["is_quick"]:
        picture.y += 15
        picture.text(MARGIN, "Small sizes and few rounds (--quick): these figures only show that all works.", "note")


def group_picture(result: Result, group: str) -> str:
    rows = [row for row in result["rows"] if row["group"] == group]
    picture = Picture(f"safetensorsfs: {group}")
    used = {way["kind"] for row in rows for way in row.get("ways", ())}
    picture.legend([kind for kind in KINDS if kind in used])
    for row in rows:
        _draw_row(picture, row)
    _draw_machine(picture, result)
    return picture.svg()


def summary_picture(result: Result, title: str = "safetensorsfs beside the native way", names: tuple[str, ...] | None = None) -> str:
    """Draws the ratio of our first way of each row, or of each of `names`, to its twin, on a logarithmic axis."""
    picture = Picture(title)
    picture.y += 14
    picture.text(MARGIN, "speed as a multiple of the native way: to the right of 1 safetensorsfs is faster", "note")
    found = []
    for row in sorted(result["rows"], key=lambda row: names.index(row["name"]) if names and row["name"] in names else 0):
        ways = [way for way in row.get("ways", ()) if way["kind"] == "ours" and "ratio" in way]
        first = [goal["way"] for goal in row.get("goals", ())]
        way = next((way for way in ways if way["name"] in first), ways[0] if ways else None)
        if way and (names is None or row["name"] in names):
            found.append((row, way))
    ratios = [max(way["ratio"], 1e-3) for _, way in found] or [1.0]
    low, high = min(-1, math.floor(math.log10(min(ratios)))), max(1, math.ceil(math.log10(max(ratios))))
    begin, width = 330, WIDTH - 330 - 80

    def x_of(ratio: float) -> float:
        return begin + width * (math.log10(max(ratio, 10.0 ** low)) - low) / (high - low)
    picture.legend(["ours"])
    picture.y += LINE
    top = picture.y
    for decade in range(low, high + 1):
        picture.text(x_of(10.0 ** decade), f"{10.0 ** decade:,g}", "note middle")
        picture.line(x_of(10.0 ** decade), top + 6, x_of(10.0 ** decade), top + 12 + LINE * len(found), "one" if decade == 0 else "grid")
    picture.y += 4
    for row, way in found:
        picture.y += LINE
        picture.text(begin - 10, _cut(row["title"], 46), "end")
        ends = sorted((x_of(1), x_of(way["ratio"])))
        picture.box(ends[0], picture.y - 11, ends[1] - ends[0], 14, "ours")
        for goal in row["goals"]:
            if goal["way"] == way["name"] and goal["of"] == way["twin"]:
                picture.line(x_of(goal["limit"]), picture.y - 13, x_of(goal["limit"]), picture.y + 5, "met" if goal["is_met"] else "missed")
        picture.text(WIDTH - MARGIN, number_text(way["ratio"]), "end")
    _draw_machine(picture, result)
    return picture.svg()


def write_charts(result: Result, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for group in dict.fromkeys(row["group"] for row in result["rows"]):
        (directory / f"{group}.svg").write_text(group_picture(result, group))
    (directory / "summary.svg").write_text(summary_picture(result))
