"""The order of a leaderboard's first places, and the event when it changes."""

from __future__ import annotations

from dataclasses import dataclass

from sqlmodel import Session, select

from agent.leaderboard import build
from assay.settings import Settings
from storage.database import Database
from storage.events import emit
from storage.tables import Benchmark, Event

__all__ = ["MOVES_RANKS", "Ranking", "note", "ranking_after"]

#: Events after which a leaderboard may have another order.
MOVES_RANKS = ("study.finished", "scores.imported")


@dataclass(frozen=True)
class Ranking:
    """The first methods of a benchmark, best first."""

    benchmark: str
    methods: tuple[str, ...]


def ranking_after(database: Database, settings: Settings, event: Event) -> Ranking | None:
    """The order after an event; None where the event moves nothing. Reads without holding up writers."""
    name = event.payload.get("benchmark")
    if event.kind not in MOVES_RANKS or not isinstance(name, str):
        return None
    with database.read() as session:
        if session.exec(select(Benchmark.id).where(Benchmark.name == name)).first() is None:
            return None
        board = build(session, name, settings.cache_dir)
    return Ranking(name, tuple(row.method for row in board.rows[: settings.ranked_first]))


def note(session: Session, ranking: Ranking) -> None:
    """Store the order; where it is another than before, say so in an event. The first order is no change."""
    benchmark = session.exec(
        select(Benchmark).where(Benchmark.name == ranking.benchmark).with_for_update()
    ).one()
    before, after = list(benchmark.ranking), list(ranking.methods)
    if before == after:
        return
    benchmark.ranking = after
    session.add(benchmark)
    session.flush()
    if before:
        emit(session, "rank.changed", {"benchmark": benchmark.name, "before": before, "after": after})
