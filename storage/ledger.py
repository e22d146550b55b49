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

from sqlalchemy import func, insert, update
from sqlmodel import Session, col, select

from assay.errors import BudgetExceededError
from storage.tables import Budget, LedgerEntry, LedgerState, utc_now

__all__ = [
    "UNITS",
    "Charge",
    "affordable",
    "budget_ids",
    "budgets_of",
    "release",
    "reserve",
    "set_cap",
    "settle",
    "settle_at_worst",
    "spent_by_job",
]

UNITS = ("usd", "calls", "tokens", "gpu-ms")


@dataclass(frozen=True)
class Charge:
    """What a call costs, in every unit.

    Attributes:
        usd: Micro-dollars.
        calls: Number of calls.
        tokens: Input and output tokens.
        gpu_ms: Milliseconds of a local GPU.
    """

    usd: int = 0
    calls: int = 1
    tokens: int = 0
    gpu_ms: int = 0

    def __add__(self, other: Charge) -> Charge:
        """The two together, in every unit."""
        return Charge(
            usd=self.usd + other.usd,
            calls=self.calls + other.calls,
            tokens=self.tokens + other.tokens,
            gpu_ms=self.gpu_ms + other.gpu_ms,
        )

    def in_unit(self, unit: str) -> int:
        """The amount in one of `UNITS`."""
        return {"usd": self.usd, "calls": self.calls, "tokens": self.tokens, "gpu-ms": self.gpu_ms}[unit]


def set_cap(session: Session, scope: str, scope_id: int, unit: str, cap: int) -> Budget:
    """Set the cap of a budget, making the budget where there is none."""
    budget = session.exec(
        select(Budget).where(Budget.scope == scope, Budget.scope_id == scope_id, Budget.unit == unit)
    ).first()
    if budget is None:
        budget = Budget(scope=scope, scope_id=scope_id, unit=unit, cap=cap)
        session.add(budget)
    else:
        budget.cap = cap
    session.flush()
    return budget


def budgets_of(session: Session, scopes: Iterable[tuple[str, int]]) -> list[Budget]:
    """The budgets of the given (scope, scope id) pairs, freshly read, in the order of locking."""
    found: list[Budget] = []
    for scope, scope_id in scopes:
        query = select(Budget).where(Budget.scope == scope, Budget.scope_id == scope_id)
        found.extend(session.exec(query.execution_options(populate_existing=True)).all())
    return sorted(found, key=lambda budget: budget.id or 0)


def affordable(budgets: Sequence[Budget], charges: Sequence[Charge]) -> int:
    """How many of the charges, taken from the first on, fit under every cap."""
    count = len(charges)
    for budget in budgets:
        left = budget.cap - budget.spent - budget.reserved
        fitting = 0
        for charge in charges:
            left -= charge.in_unit(budget.unit)
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
        amount = sum(charge.in_unit(budget.unit) for charge in charges.values())
        if not _take(session, budget, amount):
            label = f"{budget.scope} {budget.scope_id} ({budget.unit})"
            raise BudgetExceededError(label, amount, budget.cap - budget.spent - budget.reserved)
        _write_entries(session, budget, charges)


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
    for entry, unit in session.exec(query.execution_options(populate_existing=True)).all():
        entry.state = state
        charge = actual[entry.job_id]
        entry.settled = entry.reserved if charge is None else charge.in_unit(unit)
        entry.settled_at = utc_now()
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
    return closed


def budget_ids(session: Session, scope: str, scope_id: int, unit: str) -> list[int]:
    """The budget of a scope in one unit, as a list of none or one."""
    query = select(Budget.id).where(Budget.scope == scope, Budget.scope_id == scope_id, Budget.unit == unit)
    return [int(i) for i in session.exec(query).all() if i is not None]


def spent_by_job(session: Session, budget_id: int) -> int:
    """Sum over jobs of what was settled under a budget; equals the budget's `spent` at every moment."""
    query = select(func.coalesce(func.sum(LedgerEntry.settled), 0)).where(
        LedgerEntry.budget_id == budget_id, LedgerEntry.state == LedgerState.SETTLED
    )
    return int(session.exec(query).one())
