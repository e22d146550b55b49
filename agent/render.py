"""A leaderboard as a Rich table, a JSON-able mapping, CSV and Markdown."""

from __future__ import annotations

import csv
import io
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from agent.leaderboard import COMPLETE, INTERVAL_WORDS, Leaderboard, LeaderboardRow
from agent.text import ago, dollars, printable

__all__ = ["as_csv", "as_dict", "as_markdown", "as_table", "notes"]

COLUMNS = (
    "Rank",
    "Model",
    "Score",
    "Interval",
    "Beats next",
    "Acquired",
    "Cost",
    "Age",
    "Estimator",
    "Study",
)
TEMPLATE_COLUMNS = ("Templates", "5 %", "Median", "95 %")  # of the scores over a model's templates
NARROW_COLUMNS = ("Rank", "Model", "Score", "Interval", "Acquired", "Cost")
WIDE = 150  # columns of a terminal that all of them need
CSV_COLUMNS = (
    "rank",
    "rank_best",
    "rank_worst",
    "method",
    "model",
    "score",
    "low",
    "high",
    "std",
    "level",
    "interval_kind",
    "acquired",
    "total",
    "acquired_share",
    "cost_usd",
    "estimated_at",
    "estimator",
    "version_id",
    "study_id",
    "study_state",
    "better_than_next",
    "stale",
    "templates",
    "median",
    "q05",
    "q95",
)


def columns_of(board: Leaderboard) -> tuple[str, ...]:
    """The columns to show: those of the distribution over templates only where a model has one."""
    spread = any(row.templates for row in board.rows)
    return (*COLUMNS[:4], *TEMPLATE_COLUMNS, *COLUMNS[4:]) if spread else COLUMNS


def cells_of(row: LeaderboardRow, board: Leaderboard) -> dict[str, str]:
    """Every cell of a row by its column's name."""
    spread = [str(row.templates) if row.templates else "–"]
    spread += ["–" if value is None else f"{value:.3f}" for value in (row.q05, row.median, row.q95)]
    return dict(zip((*COLUMNS, *TEMPLATE_COLUMNS), (*_cells(row, board), *spread), strict=True))


def as_table(board: Leaderboard, width: int = 200) -> Table:
    """For a terminal of `width` columns (a narrow one gets the main columns only); print `notes` below it."""
    wanted = columns_of(board) if width >= WIDE else NARROW_COLUMNS
    table = Table(
        title=Text(f"{printable(board.benchmark)}: {len(board.rows)} models, {board.prompts} prompts"),
        box=box.SIMPLE_HEAD,
        title_justify="left",
    )
    for name in wanted:
        right = name in ("Score", "Beats next", "Acquired", "Cost", "Age", *TEMPLATE_COLUMNS)
        table.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=name != "Model",
            min_width=12 if name == "Model" else None,
            overflow="fold",
        )
    for row in board.rows:
        # Text objects: nothing in a name is taken for Rich's own markup.
        cells = cells_of(row, board)
        if width < WIDE:
            cells |= _short_cells(row)
        table.add_row(*(Text(cells[name]) for name in wanted), style="dim" if row.stale else "")
    return table


def as_dict(board: Leaderboard) -> dict[str, Any]:
    """For JSON: every field of every row; costs in micro-dollars and dollars, times in ISO 8601."""
    top = {key: value for key, value in vars(board).items() if key not in ("rows", "built_at")}
    return {
        **top,
        "cost": board.cost,
        "cost_usd": board.cost / 1e6,
        "built_at": board.built_at.isoformat(),
        "rows": [_row_dict(row, board) for row in board.rows],
    }


def as_csv(board: Leaderboard) -> str:
    """As CSV with a header; a name that a spreadsheet would run as a formula gets an apostrophe in front."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in board.rows:
        values = _row_dict(row, board)
        writer.writerow({**values, "method": _inert(row.method), "model": _inert(row.model)})
    return out.getvalue()


def as_markdown(board: Leaderboard) -> str:
    """As a Markdown table under a heading, with notes."""
    lines = [f"## {_plain(board.benchmark)}", ""]
    shown = columns_of(board)
    lines += ["| " + " | ".join(shown) + " |", "| " + " | ".join("---" for _ in shown) + " |"]
    for row in board.rows:
        cells = cells_of(row, board)
        lines.append("| " + " | ".join(_plain(cells[name]) for name in shown) + " |")
    return "\n".join([*lines, "", *(f"{_plain(note)}\n" for note in notes(board))])


def notes(board: Leaderboard) -> list[str]:
    """What the table itself does not say: kinds of interval, methods not shown, the total cost."""
    kinds = dict.fromkeys((row.interval_kind, row.level) for row in board.rows)
    found = [_kind_note(kind, level) for kind, level in kinds]
    if any(row.rank_best != row.rank_worst for row in board.rows):
        found.append(f"A range beside a rank: the ranks not excluded at the {board.level:.0%} level.")
    if any(row.stale for row in board.rows):
        found.append("* estimated before the benchmark's prompts changed.")
    if any(row.templates for row in board.rows):
        found.append("5 %, Median and 95 %: quantiles of a model's scores over its templates.")
    for count, what in (
        (board.pending, "with an open study and no estimate yet"),
        (board.unlisted, "with only some of the scores and no study: assay study create"),
        (board.retired, "retired"),
    ):
        if count:
            found.append(f"Not shown: {count} {what}.")
    if not board.rows:
        found.insert(0, "No model has a score yet: add one with assay model add, or import scores.")
    found.append(f"Spent on the estimates shown: {dollars(board.cost)}.")
    return found


def _kind_note(kind: str, level: float) -> str:
    words = INTERVAL_WORDS.get(kind, kind)
    if kind == COMPLETE:
        return f"Exact: {words.removeprefix('complete: ')}."
    return f"Intervals at the {level:.0%} level, {words}."


def interval(row: LeaderboardRow) -> str:
    """The interval in one cell: "0.612–0.683 predicted", or "exact"."""
    if row.interval_kind == COMPLETE:
        return "exact"
    return f"{row.low:.3f}–{row.high:.3f} {printable(row.interval_kind)}"


def _cells(row: LeaderboardRow, board: Leaderboard) -> tuple[str, ...]:
    ranks = f" [{row.rank_best}–{row.rank_worst}]" if row.rank_best != row.rank_worst else ""
    version = f" v{row.version_id}" if row.version_id is not None else ""
    return (
        f"{row.rank}{ranks}",
        printable(row.method),
        f"{row.score:.4f}{'*' if row.stale else ''}",
        interval(row),
        "–" if row.better_than_next is None else f"{row.better_than_next:.0%}",
        f"{row.acquired}/{row.total} ({row.acquired_share:.1%})",
        dollars(row.cost),
        ago(row.estimated_at, board.built_at),
        f"{row.estimator}{version}" if row.estimator else "–",
        f"{row.study_id} {row.study_state}" if row.study_id is not None else "–",
    )


def _short_cells(row: LeaderboardRow) -> dict[str, str]:
    """What fits a terminal of 80 columns beside a model's name; the notes say what kind the intervals are."""
    exact = row.interval_kind == COMPLETE
    return {
        "Interval": "exact" if exact else f"{row.low:.3f}–{row.high:.3f}",
        "Acquired": f"{row.acquired}/{row.total}",
    }


def _row_dict(row: LeaderboardRow, board: Leaderboard) -> dict[str, Any]:
    values = dict(vars(row))
    values["estimated_at"] = row.estimated_at.isoformat() if row.estimated_at else None
    return {
        **values,
        "acquired_share": row.acquired_share,
        "cost_usd": row.cost / 1e6,
        "age_seconds": row.age_seconds(board.built_at),
    }


def _inert(name: str) -> str:
    return "'" + name if name.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else name


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for character in "\\`*_[]|#~!":
        text = text.replace(character, "\\" + character)
    return text
