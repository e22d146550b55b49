"""A leaderboard as one HTML file that needs nothing else: no server, no script, no other file."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from agent import render
from agent.leaderboard import Leaderboard
from agent.web import _charts as charts
from agent.web._rendering import page

__all__ = ["static_page"]


def static_page(board: Leaderboard) -> str:
    """The whole leaderboard, to be published as a file."""
    axis = charts.bar_axis(board.rows)
    return page(
        "static.html",
        board=board,
        rows=[(row, charts.bar_of(row, axis)) for row in board.rows],
        axis=axis,
        notes=render.notes(board),
        style=_style(),
    )


def _style() -> str:
    """The sheet of the pages; it holds nothing that could end the element that it is put into."""
    sheet = (Path(__file__).parent / "static" / "style.css").read_text(encoding="utf-8")
    assert "</" not in sheet
    return Markup(sheet)  # noqa: S704
