"""The ledger: hard caps that hold however many processes reserve at once.

A reservation is one conditional UPDATE per budget (`spent + reserved + amount <= cap`) together with one
ledger entry per job, in one transaction; reading first and writing after would overspend (measured: 35 %).
An entry is settled or released once: the entry's state decides, so a repeated call changes nothing.
Amounts are integers: micro-dollars, calls, tokens, GPU milliseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from sqlalchemy import delete, func, insert, update
from sqlmodel import Session, col, select

from assay.errors import BudgetExceededError
from storage.events import emit
from storage.tables import Budget, Endpoint, LedgerEntry, LedgerState, utc_now

__all__ = [
    "PERIODS",
    "UNITS",
    "Charge",
    "Costs",
    "affordable",
    "budget_ids",
    "budgets_for",
    "budgets_of",
    "drop",
    "endpoint_id",
    "period_start",
    "periodic",
    "release",
    "reserve",
    "reserved_for",
    "set_cap",
    "settle",
    "settle_at_worst",
    "spent_by_job",
    "turn_periods",
]

UNITS = ("usd", "calls", "tokens", "gpu-ms")

#: Over which a cap holds; in UTC, and "total" for good.
PERIODS = ("total", "month", "day", "hour")


@dataclass(frozen=True)
class Charge:
    """What a call costs, in every unit.

    Attributes:
        usd: Micro-dollars.
        calls: Number of calls.
        tokens: Input and output tokens.
        gpu_ms: Milliseconds of a local GPU.
        endpoint: Name of the endpoint that is called, for the budgets of endpoints.
    """

    usd: int = 0
    calls: int = 1
    tokens: int = 0
    gpu_ms: int = 0
    endpoint: str = ""

    def __add__(self, other: Charge) -> Charge:
        """The two together, in every unit."""
        return Charge(
            usd=self.usd + other.usd,
            calls=self.calls + other.calls,
            tokens=self.tokens + other.tokens,
            gpu_ms=self.gpu_ms + other.gpu_ms,
            endpoint=self.endpoint or other.endpoint,
        )

    def in_unit(self, unit: str) -> int:
        """The amount in one of `UNITS`."""
        return {"usd": self.usd, "calls": self.calls, "tokens": self.tokens, "gpu-ms": self.gpu_ms}[unit]

    def counts_for(self, budget: Budget) -> bool:
        """Whether the call is one that the budget counts; an endpoint's budget counts its own calls only."""
        return budget.scope != "endpoint" or budget.endpoint == self.endpoint

    def in_budget(self, budget: Budget) -> int:
        """The amount that counts for a budget, in its unit."""
        return self.in_unit(budget.unit) if self.counts_for(budget) else 0


def period_start(period: str, now: datetime) -> datetime:
    """When the period began that `now` (UTC) lies in; a total began when it was made, so `now` for it."""
    if period == "total":
        return now
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    starts = {
        "hour": now.replace(minute=0, second=0, microsecond=0),
        "day": midnight,
        "month": midnight.replace(day=1),
    }
    return starts[period]


def set_cap(
    session: Session, scope: str, scope_id: int, unit: str, cap: int, *, period: str = "total"
) -> Budget:
    """Set the cap of a budget, making the budget where there is none.

    A raised cap is an event, by which the studies go on that wait for it. A new budget counts what is
    reserved from now on.
    """
    query = select(Budget).where(
        Budget.scope == scope, Budget.scope_id == scope_id, Budget.unit == unit, Budget.period == period
    )
    budget = session.exec(query.with_for_update().execution_options(populate_existing=True)).first()
    if budget is None:
        budget = Budget(scope=scope, scope_id=scope_id, unit=unit, period=period, cap=cap)
        budget.starts_at = period_start(period, utc_now())
        if scope == "endpoint":
            budget.endpoint = session.get_one(Endpoint, scope_id).name
        session.add(budget)
        session.flush()
        return budget
    raised = cap > budget.cap
    budget.cap, budget.warned = cap, 0
    session.add(budget)
    session.flush()
    if raised:
        emit(session, "budget.raised", {"budget_id": budget.id})
    return budget


def drop(session: Session, budget: Budget) -> None:
    """Do away with a cap and what was written under it; the studies that wait for it go on."""
    session.connection().execute(delete(LedgerEntry).where(col(LedgerEntry.budget_id) == budget.id))
    emit(session, "budget.raised", {"budget_id": budget.id})
    session.delete(budget)
    session.flush()


def endpoint_id(session: Session, name: str) -> int:
    """Number of an endpoint in budgets, made where there is none yet."""
    endpoint = session.exec(select(Endpoint).where(Endpoint.name == name)).first()
    if endpoint is None:
        endpoint = Endpoint(name=name)
        session.add(endpoint)
        session.flush()
    return int(endpoint.id or 0)


def turn_periods(session: Session, budgets: Iterable[Budget]) -> list[Budget]:
    """Begin a new period where one is over: nothing is spent in it yet. Returns the budgets that were turned.

    What is still reserved stays reserved, and is spent in the period in which it is settled.
    """
    turned = []
    for budget in budgets:
        start = period_start(budget.period, utc_now())
        if budget.period == "total" or start <= budget.starts_at:
            continue
        statement = (
            update(Budget)
            .where(col(Budget.id) == budget.id, col(Budget.starts_at) < start)
            .values(starts_at=start, spent=0, warned=0)
        )
        if session.connection().execute(statement).rowcount:
            emit(session, "budget.renewed", {"budget_id": budget.id})
        session.refresh(budget)
        turned.append(budget)
    return turned


def periodic(session: Session) -> list[Budget]:
    """Budgets whose period can turn."""
    return list(session.exec(select(Budget).where(Budget.period != "total").order_by(col(Budget.id))).all())


def budgets_of(session: Session, scopes: Iterable[tuple[str, int]]) -> list[Budget]:
    """The budgets of the given (scope, scope id) pairs, freshly read, in the order of locking."""
    found: list[Budget] = []
    for scope, scope_id in scopes:
        query = select(Budget).where(Budget.scope == scope, Budget.scope_id == scope_id)
        found.extend(session.exec(query.execution_options(populate_existing=True)).all())
    return sorted(found, key=lambda budget: budget.id or 0)


def budgets_for(
    session: Session, scopes: Iterable[tuple[str, int]], charges: Iterable[Charge]
) -> list[Budget]:
    """Every budget that such charges count for, in the order of locking, each in its present period."""
    found = budgets_of(session, scopes)
    names = {charge.endpoint for charge in charges} - {""}
    if names:
        query = select(Budget).where(Budget.scope == "endpoint", col(Budget.endpoint).in_(names))
        found.extend(session.exec(query.execution_options(populate_existing=True)).all())
    found.sort(key=lambda budget: budget.id or 0)
    turn_periods(session, found)
    return found


class Costs(Protocol):
    """Anything that counts for budgets: a charge, or several of different endpoints together."""

    def in_budget(self, budget: Budget) -> int:
        """The amount that counts for a budget, in its unit."""
        ...


def affordable(budgets: Sequence[Budget], charges: Sequence[Costs]) -> int:
    """How many of the charges, taken from the first on, fit under every cap."""
    count = len(charges)
    for budget in budgets:
        left = budget.cap - budget.spent - budget.reserved
        fitting = 0
        for charge in charges:
            left -= charge.in_budget(budget)
            if left < 0:
                break
            fitting += 1
        count = min(count, fitting)
    return count


def reserve(session: Session, budgets: Sequence[Budget], charges: Mapping[int, Charge]) -> None:
    """Reserve the charges of some jobs under every budget, all or nothing.

    Args:
        session: A writing session; the reservation is the caller's transaction's.
        budgets: Budgets in the order of `budgets_of`.
        charges: Job id -> worst-case charge.

    Raises:
        BudgetExceededError: A cap would be passed; the caller's transaction must be rolled back.
    """
    for budget in budgets:
        mine = {job_id: charge for job_id, charge in charges.items() if charge.counts_for(budget)}
        amount = sum(charge.in_unit(budget.unit) for charge in mine.values())
        if not _take(session, budget, amount):
            label = f"{budget.scope} {budget.scope_id} ({budget.unit})"
            raise BudgetExceededError(label, amount, budget.cap - budget.spent - budget.reserved)
        _write_entries(session, budget, mine)


def _take(session: Session, budget: Budget, amount: int) -> bool:
    statement = (
        update(Budget)
        .where(col(Budget.id) == budget.id, Budget.spent + Budget.reserved + amount <= Budget.cap)  # type: ignore[arg-type]
        .values(reserved=Budget.reserved + amount)
    )
    return bool(session.connection().execute(statement).rowcount)


def _write_entries(session: Session, budget: Budget, charges: Mapping[int, Charge]) -> None:
    """One entry per job; a job whose earlier reservation was released takes its entry up again."""
    again = set(
        session.exec(
            select(LedgerEntry.job_id).where(
                col(LedgerEntry.budget_id) == budget.id, col(LedgerEntry.job_id).in_(list(charges))
            )
        ).all()
    )
    rows = [
        {
            "budget_id": budget.id,
            "job_id": job_id,
            "state": LedgerState.RESERVED,
            "reserved": charge.in_unit(budget.unit),
            "settled": 0,
            "created_at": utc_now(),
        }
        for job_id, charge in charges.items()
        if job_id not in again
    ]
    if rows:
        session.connection().execute(insert(LedgerEntry), rows)
    for job_id in again:
        statement = (
            update(LedgerEntry)
            .where(col(LedgerEntry.budget_id) == budget.id, col(LedgerEntry.job_id) == job_id)
            .where(col(LedgerEntry.state) == LedgerState.RELEASED)
            .values(state=LedgerState.RESERVED, reserved=charges[job_id].in_unit(budget.unit))
        )
        if not session.connection().execute(statement).rowcount:
            raise ValueError(f"job {job_id} is already reserved or settled")


def settle(session: Session, actual: Mapping[int, Charge]) -> set[int]:
    """Turn reservations into spending, once per job.

    Args:
        session: A writing session.
        actual: Job id -> what the call really cost.

    Returns:
        The jobs that were settled now; the others were settled or released before, and nothing changed.
    """
    return _close(session, actual, LedgerState.SETTLED)


def release(session: Session, job_ids: Iterable[int]) -> set[int]:
    """Give reservations back, once per job; returns the jobs whose reservation was given back now."""
    return _close(session, dict.fromkeys(job_ids, Charge(calls=0)), LedgerState.RELEASED)


def settle_at_worst(session: Session, job_ids: Iterable[int]) -> set[int]:
    """Settle calls whose bill will never be known at what was reserved for them, once per job."""
    return _close(session, dict.fromkeys(job_ids), LedgerState.SETTLED)


def _close(session: Session, actual: Mapping[int, Charge | None], state: LedgerState) -> set[int]:
    query = (
        select(LedgerEntry, Budget.unit)
        .join(Budget, col(Budget.id) == col(LedgerEntry.budget_id))
        .where(col(LedgerEntry.job_id).in_(list(actual)), LedgerEntry.state == LedgerState.RESERVED)
        .order_by(col(LedgerEntry.id))
        .with_for_update(of=LedgerEntry)  # on SQLite the writing session already excludes others
    )
    freed: dict[int, int] = defaultdict(int)
    spent: dict[int, int] = defaultdict(int)
    closed: set[int] = set()
    found = session.exec(query.execution_options(populate_existing=True)).all()
    budgets = _locked(session, {entry.budget_id for entry, _ in found})
    turn_periods(session, budgets.values())
    for entry, unit in found:
        entry.state = state
        charge = actual[entry.job_id]
        entry.settled = entry.reserved if charge is None else charge.in_unit(unit)
        # Never before the period that it is counted in, also where this machine's clock is a little late.
        entry.settled_at = max(utc_now(), budgets[entry.budget_id].starts_at)
        freed[entry.budget_id] += entry.reserved
        spent[entry.budget_id] += entry.settled
        closed.add(entry.job_id)
    session.flush()
    for budget_id in sorted(freed):
        session.connection().execute(
            update(Budget)
            .where(col(Budget.id) == budget_id)
            .values(reserved=Budget.reserved - freed[budget_id], spent=Budget.spent + spent[budget_id])
        )
        if spent[budget_id]:
            _warn(session, budget_id)
    return closed


def _locked(session: Session, budget_ids: Iterable[int]) -> dict[int, Budget]:
    """Budgets whose rows nobody else changes until the end of the transaction."""
    query = select(Budget).where(col(Budget.id).in_(list(budget_ids))).order_by(col(Budget.id))
    found = session.exec(query.with_for_update().execution_options(populate_existing=True)).all()
    return {int(budget.id or 0): budget for budget in found}


def _warn(session: Session, budget_id: int) -> None:
    """Announce once that four fifths, and once that all of a cap is spent."""
    for percent, kind in ((80, "budget.warning"), (100, "budget.spent")):
        statement = (
            update(Budget)
            .where(col(Budget.id) == budget_id, col(Budget.warned) < percent)
            .where(Budget.spent * 100 >= Budget.cap * percent)  # type: ignore[arg-type]
            .values(warned=percent)
        )
        if session.connection().execute(statement).rowcount:
            budget = session.get_one(Budget, budget_id, populate_existing=True)
            emit(session, kind, {"budget_id": budget_id, **_facts(budget)})


def _facts(budget: Budget) -> dict[str, object]:
    return budget.model_dump(include={"scope", "scope_id", "endpoint", "unit", "period", "cap", "spent"})


def reserved_for(session: Session, job_id: int) -> dict[str, int]:
    """What was reserved for a job, by unit."""
    query = (
        select(Budget.unit, func.max(LedgerEntry.reserved))
        .join(Budget, col(Budget.id) == col(LedgerEntry.budget_id))
        .where(LedgerEntry.job_id == job_id)
        .group_by(col(Budget.unit))
    )
    return {unit: int(amount) for unit, amount in session.exec(query).all()}


def budget_ids(session: Session, scope: str, scope_id: int, unit: str) -> list[int]:
    """The budget of a scope in one unit over its whole time, as a list of none or one."""
    query = select(Budget.id).where(
        Budget.scope == scope, Budget.scope_id == scope_id, Budget.unit == unit, Budget.period == "total"
    )
    return [int(i) for i in session.exec(query).all() if i is not None]


def spent_by_job(session: Session, budget_id: int) -> int:
    """Sum over jobs of what was settled in the budget's period; equals its `spent` at every moment."""
    budget = session.get_one(Budget, budget_id)
    query = select(func.coalesce(func.sum(LedgerEntry.settled), 0)).where(
        LedgerEntry.budget_id == budget_id, LedgerEntry.state == LedgerState.SETTLED
    )
    if budget.period != "total":
        query = query.where(col(LedgerEntry.settled_at) >= budget.starts_at)
    return int(session.exec(query).one())
