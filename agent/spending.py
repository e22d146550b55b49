"""What was spent, on what, when, and the caps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func
from sqlmodel import Session, col, select

from storage.tables import Benchmark, Budget, Endpoint, Job, LedgerEntry, LedgerState, Method, Model, Study

__all__ = [
    "CapLine",
    "Group",
    "SpendLine",
    "SpendPage",
    "endpoint_of",
    "endpoints_of",
    "groups_of",
    "spend_page",
    "spend_state",
]

DAYS, STUDIES = 31, 50  # lines shown, newest or dearest first


@dataclass(frozen=True)
class SpendLine:
    """Micro-dollars under a heading, and the calls they paid for."""

    name: str
    link: str
    spent: int
    calls: int


@dataclass(frozen=True)
class CapLine:
    """A cap: in micro-dollars, calls, tokens or GPU milliseconds."""

    scope: str
    name: str
    link: str
    unit: str
    cap: int
    spent: int
    reserved: int

    @property
    def share(self) -> float:
        """Used and promised share of the cap."""
        return (self.spent + self.reserved) / self.cap if self.cap else 1.0


@dataclass(frozen=True)
class SpendPage:
    """Money by benchmark, endpoint, study and day. A job counts once, however many caps it falls under."""

    spent: int
    calls: int
    by_benchmark: tuple[SpendLine, ...]
    by_endpoint: tuple[SpendLine, ...]
    by_study: tuple[SpendLine, ...]
    by_day: tuple[SpendLine, ...]
    caps: tuple[CapLine, ...]


@dataclass(frozen=True)
class Group:
    """Jobs of one study, method and day."""

    study_id: int
    benchmark: str
    endpoint: str
    day: str
    spent: int
    calls: int


def spend_state(session: Session) -> Hashable:
    """Changes with every settled call and every cap."""
    query: Any = select(
        func.max(LedgerEntry.id),
        select(func.sum(Budget.spent + Budget.reserved + Budget.cap)).scalar_subquery(),
        select(func.count(col(Budget.id))).scalar_subquery(),
    )
    return tuple(session.exec(query).one())


def spend_page(session: Session) -> SpendPage:
    """All spending in dollars, and all caps."""
    groups = groups_of(session)
    return SpendPage(
        spent=sum(group.spent for group in groups),
        calls=sum(group.calls for group in groups),
        by_benchmark=_by(groups, lambda g: (g.benchmark, f"benchmark:{g.benchmark}")),
        by_endpoint=_by(groups, lambda g: (g.endpoint, "")),
        by_study=_by(groups, lambda g: (f"study {g.study_id}", f"/studies/{g.study_id}"))[:STUDIES],
        by_day=tuple(sorted(_by(groups, lambda g: (g.day, "")), key=lambda line: line.name)[-DAYS:]),
        caps=tuple(_caps(session)),
    )


def _by(groups: list[Group], key: Callable[[Group], tuple[str, str]]) -> tuple[SpendLine, ...]:
    """Sums by a heading, the dearest first."""
    spent: dict[tuple[str, str], int] = defaultdict(int)
    calls: dict[tuple[str, str], int] = defaultdict(int)
    for group in groups:
        spent[key(group)] += group.spent
        calls[key(group)] += group.calls
    lines = [SpendLine(name, link, spent[name, link], calls[name, link]) for name, link in spent]
    return tuple(sorted(lines, key=lambda line: (-line.spent, line.name)))


def groups_of(session: Session) -> list[Group]:
    """What was settled in dollars, by study, method and day."""
    once = (  # a job has one entry per cap that it falls under
        select(
            LedgerEntry.job_id,
            func.max(LedgerEntry.settled).label("spent"),
            func.max(LedgerEntry.settled_at).label("at"),
        )
        .join(Budget, col(Budget.id) == col(LedgerEntry.budget_id))
        .where(Budget.unit == "usd", LedgerEntry.state == LedgerState.SETTLED)
        .group_by(col(LedgerEntry.job_id))
        .subquery()
    )
    day = func.date(once.c.at)
    query: Any = (
        select(  # type: ignore[call-overload]
            Job.study_id, Job.method_id, day, func.sum(once.c.spent), func.count()
        )
        .join(once, once.c.job_id == col(Job.id))
        .group_by(col(Job.study_id), col(Job.method_id), day)
    )
    endpoints, benchmarks = endpoints_of(session), _benchmarks(session)
    return [
        Group(study_id, benchmarks[study_id], endpoints[method_id], str(when), int(spent), int(calls))
        for study_id, method_id, when, spent, calls in session.exec(query).all()
    ]


def endpoints_of(session: Session) -> dict[int, str]:
    """Where each method's calls go, by its key."""
    query: Any = select(Method.id, Model).join(Model, col(Model.id) == col(Method.model_id))
    return {pk: endpoint_of(model) for pk, model in session.exec(query).all()}


def endpoint_of(model: Model) -> str:
    """A model's endpoint, without what may precede the host; its backend where it has none."""
    address = str(model.spec.get("base_url") or "")
    return address.rpartition("@")[2] if "@" in address else address or f"{model.backend} backend"


def _benchmarks(session: Session) -> dict[int, str]:
    query: Any = select(Study.id, Benchmark.name).join(
        Benchmark, col(Benchmark.id) == col(Study.benchmark_id)
    )
    return dict(session.exec(query).all())


def _caps(session: Session) -> list[CapLine]:
    """Caps above studies first, then the studies' own, newest first."""
    names: dict[Any, str] = dict(session.exec(select(Benchmark.id, Benchmark.name)).all())
    places: dict[Any, str] = dict(session.exec(select(Endpoint.id, Endpoint.name)).all())
    above = session.exec(select(Budget).where(Budget.scope != "study").order_by(col(Budget.id))).all()
    newest = select(Budget).where(Budget.scope == "study").order_by(col(Budget.id).desc()).limit(STUDIES)
    return [_cap(budget, names, places) for budget in (*above, *session.exec(newest).all())]


def _cap(budget: Budget, benchmarks: dict[Any, str], endpoints: dict[Any, str]) -> CapLine:
    name, link = budget.scope, ""
    if budget.scope == "study":
        name, link = f"study {budget.scope_id}", f"/studies/{budget.scope_id}"
    elif budget.scope == "benchmark":
        name = benchmarks.get(budget.scope_id, "?")
        link = f"benchmark:{name}"
    elif budget.scope == "endpoint":
        name = endpoints.get(budget.scope_id, "?").rpartition("@")[2]
    if budget.period != "total":
        name = f"{name}, per {budget.period}"
    return CapLine(budget.scope, name, link, budget.unit, budget.cap, budget.spent, budget.reserved)
