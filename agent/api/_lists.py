"""Lists in parts: by a key that only grows, so that a part stays what it is while rows are added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Path, Query
from sqlmodel import Session, col

from agent.wire import LARGEST_INT, Page

__all__ = ["Cursor", "Listing", "Number", "page_of"]

T = TypeVar("T")

Number = Annotated[int, Path(ge=1, le=LARGEST_INT)]


class Cursor:
    """Which part of a list is wanted."""

    def __init__(
        self,
        limit: Annotated[int, Query(ge=1, le=1000, description="Entries at most.")] = 100,
        after: Annotated[
            int | None, Query(ge=0, le=LARGEST_INT, description="The `next` of the part before.")
        ] = None,
        newest: Annotated[bool, Query(description="Newest first instead of oldest first.")] = False,
    ) -> None:
        self.limit = limit
        self.after = after
        self.newest = newest

    def apply(self, query: Any, key: Any) -> Any:
        """The query for one row more than wanted, which tells whether there is a following part."""
        column = col(key)
        if self.after is not None:
            query = query.where(column < self.after if self.newest else column > self.after)
        return query.order_by(column.desc() if self.newest else column).limit(self.limit + 1)


Listing = Annotated[Cursor, Depends()]


def page_of(
    session: Session,
    query: Any,
    key: Any,
    cursor: Cursor,
    show: Callable[[Any], T],
    id_of: Callable[[Any], Any],
) -> Page[T]:
    """A part of a query's rows.

    Args:
        session: A reading session.
        query: Selects the rows, without order or limit.
        key: The column that orders them.
        cursor: Which part.
        show: A row as it is shown.
        id_of: A row's key.
    """
    rows = list(session.exec(cursor.apply(query, key)).all())
    more = len(rows) > cursor.limit
    rows = rows[: cursor.limit]
    return Page(items=[show(row) for row in rows], next=int(id_of(rows[-1])) if more else None)
