"""Geometry of the drawings: numbers in, coordinates out; the templates turn them into inline SVG.

Everything is an SVG attribute, never a style attribute: the pages allow no inline style.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent.comparison import Comparison, Difference
from agent.leaderboard import LeaderboardRow
from agent.web._prompt_pages import Cell

__all__ = [
    "Axis",
    "Bar",
    "Curve",
    "Differences",
    "Map",
    "axis_of",
    "bar_axis",
    "bar_of",
    "curve_of",
    "differences_of",
    "map_of",
]

BAR_WIDTH, BAR_MARGIN = 220.0, 10.0
CURVE_WIDTH, CURVE_HEIGHT = 440.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 14.0, 12.0, 38.0
STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Axis:
    """A linear axis with round ends.

    Attributes:
        low: Value at the start.
        high: Value at the end.
        ticks: Round values from `low` to `high`.
        start: Coordinate of `low`.
        end: Coordinate of `high`.
        digits: Decimals that tell the ticks apart.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    start: float
    end: float
    digits: int

    def at(self, value: float) -> float:
        """Coordinate of a value, kept on the axis."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)

    def label(self, value: float) -> str:
        """A tick's text."""
        return f"{value:.{self.digits}f}"


def axis_of(
    values: Iterable[float], start: float, end: float, *, intervals: int = 4, steps: Sequence[float] = STEPS
) -> Axis:
    """A round axis over all values, with at most about `intervals` intervals."""
    found = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(found), max(found)
    step = next((s for s in steps if s * intervals >= high - low), steps[-1])
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    ticks = tuple(round(i * step, 6) for i in range(first, last + 1))
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) + (1 if step == 0.25 else 0)
    return Axis(ticks[0], ticks[-1], ticks, start, end, digits)


@dataclass(frozen=True)
class Bar:
    """A row's interval: from `low` to `high` with its score between them, and the grid behind it."""

    low: float
    high: float
    score: float
    exact: bool
    grid: tuple[float, ...]


def bar_axis(rows: Sequence[LeaderboardRow]) -> Axis:
    """The axis that all rows of a leaderboard share."""
    ends = [row.low for row in rows] + [row.high for row in rows]
    return axis_of(ends, BAR_MARGIN, BAR_WIDTH - BAR_MARGIN, intervals=6)


def bar_of(row: LeaderboardRow, axis: Axis) -> Bar:
    """Where a row's interval lies on the shared axis."""
    return Bar(
        low=axis.at(row.low),
        high=axis.at(row.high),
        score=axis.at(row.score),
        exact=row.low == row.high,
        grid=tuple(axis.at(tick) for tick in axis.ticks),
    )


@dataclass(frozen=True)
class Curve:
    """An estimate with its interval over the prompts acquired.

    Attributes:
        x: Axis of prompts acquired.
        y: Axis of scores (upwards).
        band: Corners of the interval's area, as SVG points.
        line: Points of the score.
        points: (x, y) of each step.
    """

    x: Axis
    y: Axis
    band: str
    line: str
    points: tuple[tuple[float, float], ...]


def curve_of(steps: Sequence[tuple[int, float, float, float]]) -> Curve:
    """Draw (acquired, low, score, high) of each step."""
    counts = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
    x = axis_of([0, *(step[0] for step in steps)], LEFT, CURVE_WIDTH - RIGHT, intervals=5, steps=counts)
    y = axis_of([v for step in steps for v in step[1:]], CURVE_HEIGHT - BOTTOM, TOP, intervals=5)
    upper = [(x.at(n), y.at(high)) for n, _, _, high in steps]
    lower = [(x.at(n), y.at(low)) for n, low, _, _ in steps]
    middle = [(x.at(n), y.at(score)) for n, _, score, _ in steps]
    return Curve(x, y, _points([*upper, *reversed(lower)]), _points(middle), tuple(middle))


@dataclass(frozen=True)
class Differences:
    """Intervals of differences on one axis that shows 0: (label, low, value, high) in coordinates."""

    axis: Axis
    zero: float
    lines: tuple[tuple[str, float, float, float], ...]


def differences_of(comparison: Comparison) -> Differences:
    """Draw the differences of a comparison, those that there are."""
    found: list[tuple[str, Difference | None]] = [
        ("all prompts, estimated", comparison.estimated),
        ("common prompts", comparison.paired),
        ("such prompts in general", comparison.sampled),
    ]
    known = [(label, d) for label, d in found if d is not None]
    ends = [0.0, *(end for _, d in known for end in (d.low, d.high, d.value))]
    axis = axis_of(ends, 10.0, 430.0, intervals=6)
    lines = tuple((label, axis.at(d.low), axis.at(d.value), axis.at(d.high)) for label, d in known)
    return Differences(axis, axis.at(0.0), lines)


@dataclass(frozen=True)
class Map:
    """Prompts by discrimination (x) and difficulty (y, hard ones on top): circles (x, y, radius, cell)."""

    x: Axis
    y: Axis
    circles: tuple[tuple[float, float, float, Cell], ...]


MAP_WIDTH, MAP_HEIGHT, LARGEST_CIRCLE = 640.0, 380.0, 9.0


def map_of(cells: Sequence[Cell]) -> Map:
    """Draw the cells with areas in proportion to their counts."""
    x = axis_of([c.discrimination for c in cells] or [0.0], LEFT, MAP_WIDTH - RIGHT, intervals=6)
    y = axis_of([0.0, 1.0], MAP_HEIGHT - BOTTOM, TOP, intervals=5)
    most = max((cell.count for cell in cells), default=1)
    circles = (
        (
            x.at(c.discrimination),
            y.at(c.difficulty),
            round(1.6 + LARGEST_CIRCLE * (c.count / most) ** 0.5, 1),
            c,
        )
        for c in cells
    )
    return Map(x, y, tuple(circles))


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)
