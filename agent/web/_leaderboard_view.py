"""The leaderboard page's own state: sorting, filtering and paging of rows that are built already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from agent.leaderboard import Leaderboard, LeaderboardRow
from assay.errors import UsageError

__all__ = ["SORTS", "View", "view_of"]

PAGE = 100  # rows of one HTML page; JSON and the files carry all
Key = Callable[[LeaderboardRow], Any]

#: Sort keys, each with whether its natural order is descending.
SORTS: dict[str, tuple[Key, bool]] = {
    "rank": (lambda row: row.rank, False),
    "name": (lambda row: row.method.casefold(), False),
    "score": (lambda row: row.score, True),
    "width": (lambda row: row.width, False),
    "next": (lambda row: -1.0 if row.better_than_next is None else row.better_than_next, True),
    "acquired": (lambda row: row.acquired_share, True),
    "cost": (lambda row: row.cost, True),
    "age": (lambda row: row.estimated_at.timestamp() if row.estimated_at else 0.0, True),
    "estimator": (lambda row: (row.estimator, row.version_id or 0), False),
}


@dataclass(frozen=True)
class View:
    """Rows as asked for, and links to the other views of them.

    Attributes:
        rows: All rows that match, sorted.
        page: Page number, 1 = first.
        pages: Number of pages, at least 1.
        sort: A key of `SORTS`.
        descending: Whether the order is descending.
        text: What the names are filtered by.
    """

    rows: tuple[LeaderboardRow, ...]
    page: int
    pages: int
    sort: str
    descending: bool
    text: str

    @property
    def shown(self) -> tuple[LeaderboardRow, ...]:
        """The rows of this page."""
        return self.rows[(self.page - 1) * PAGE : self.page * PAGE]

    def sort_link(self, key: str) -> str:
        """Query that sorts by a column: its natural order first, the other one on the second click."""
        descending = not self.descending if key == self.sort else SORTS[key][1]
        return self._query(sort=key, dir="desc" if descending else "asc")

    def page_link(self, page: int) -> str:
        """Query of another page in the same order."""
        return self._query(page=str(page))

    def file_link(self, kind: str) -> str:
        """Query of the same rows as json, csv or md."""
        return self._query(format=kind)

    def aria_sort(self, key: str) -> str:
        """What a screen reader says about a column's order."""
        if key != self.sort:
            return "none"
        return "descending" if self.descending else "ascending"

    def _query(self, **changes: str) -> str:
        state = {"sort": self.sort, "dir": "desc" if self.descending else "asc", "q": self.text, **changes}
        return "?" + urlencode({key: value for key, value in state.items() if value})


def view_of(board: Leaderboard, query: dict[str, str]) -> View:
    """The view that a query asks for.

    Raises:
        UsageError: An unknown sort key or a page number that is none.
    """
    sort = query.get("sort") or "rank"
    if sort not in SORTS:
        raise UsageError(f"cannot sort by '{sort}'", f"use one of: {', '.join(SORTS)}")
    key, natural = SORTS[sort]
    descending = {"asc": False, "desc": True}.get(query.get("dir", ""), natural)
    text = query.get("q", "").strip()
    rows = [row for row in board.rows if text.casefold() in row.method.casefold()]
    rows.sort(key=key, reverse=descending)  # stable: equal keys stay in order of rank
    pages = max(1, -(-len(rows) // PAGE))
    page = query.get("page") or "1"
    if not (page.isascii() and page.isdigit() and len(page) < 9):
        raise UsageError(f"there is no page '{page}'", "page numbers start at 1")
    return View(tuple(rows), min(max(1, int(page)), pages), pages, sort, descending, text)
