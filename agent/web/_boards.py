"""Leaderboards kept in memory until something they show has changed."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from sqlalchemy import func
from sqlmodel import Session, col, select

from agent.leaderboard import Leaderboard, build
from storage.catalog import find_benchmark
from storage.tables import Estimate, Event, Model, utc_now

__all__ = ["Boards"]

KEPT = 100  # benchmarks


class Boards:
    """Builds each leaderboard once per state of the database, however many readers ask at once."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._known: dict[str, tuple[tuple[object, ...], Leaderboard]] = {}

    def get(self, session: Session, name: str) -> Leaderboard:
        """The benchmark's leaderboard; see `agent.leaderboard.build`."""
        state = self._state(session, name)
        with self._lock:
            known = self._known.get(name)
            if known is None or known[0] != state:
                known = (state, build(session, name, self._cache))
                if len(self._known) >= KEPT:
                    self._known.pop(next(iter(self._known)))
                self._known[name] = known
        return replace(known[1], built_at=utc_now())  # ages are counted from now

    @staticmethod
    def _state(session: Session, name: str) -> tuple[object, ...]:
        """Changes whenever the leaderboard may: scores, prompts, estimates, studies (events), retirements."""
        benchmark = find_benchmark(session, name)
        return (
            benchmark.id,
            benchmark.created_at,
            benchmark.revision,
            benchmark.prompts_revision,
            session.exec(select(func.max(Estimate.id)).where(Estimate.benchmark_id == benchmark.id)).one(),
            session.exec(select(func.max(Event.id))).one(),
            session.exec(select(func.count(col(Model.retired_at)))).one(),
        )
