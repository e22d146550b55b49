"""What must hold after (and, for the caps, during) a kill test. Each check reads the database and says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text

from assay.errors import StorageError
from benchmarks._chaos_world import PRICE
from storage.database import Database

__all__ = ["BudgetSampler", "Check", "check_all"]

SAMPLES_PER_SECOND = 20


@dataclass(frozen=True)
class Check:
    """One thing that must hold: what was found, and whether it is right."""

    what: str
    found: str
    holds: bool


@dataclass
class BudgetSampler:
    """Looks at every budget 20 times a second, in a thread of its own.

    Attributes:
        samples: How often the budgets were read.
        missed: How often they could not be, since the database was away.
        violations: What was wrong at a sampled moment.
        fullest: Highest (spent + reserved) / cap that was seen.
    """

    database: Database
    samples: int = 0
    missed: int = 0
    violations: list[str] = field(default_factory=list)
    fullest: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)
    _spent: dict[int, int] = field(default_factory=dict)

    def __enter__(self) -> BudgetSampler:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                self._sample()
            except StorageError:  # not a violation; the sample is made again
                self.missed += 1
            self._stop.wait(max(0.0, 1 / SAMPLES_PER_SECOND - (time.monotonic() - started)))

    def _sample(self) -> None:
        for budget in _rows(self.database, "SELECT id, scope, unit, cap, reserved, spent FROM budget"):
            label = f"{budget.scope} budget {budget.id} ({budget.unit})"
            if budget.spent + budget.reserved > budget.cap:
                self.violations.append(f"{label}: {budget.spent} + {budget.reserved} > {budget.cap}")
            if budget.reserved < 0 or budget.spent < self._spent.get(budget.id, 0):
                self.violations.append(f"{label}: reserved {budget.reserved}, spent {budget.spent} fell")
            self._spent[budget.id] = budget.spent
            self.fullest = max(self.fullest, (budget.spent + budget.reserved) / budget.cap)
        self.samples += 1


def check_all(database: Database, sampler: BudgetSampler, bill: dict[str, Any]) -> list[Check]:
    """Every check, in the order of the table."""
    checks: list[Callable[[Database], Check]] = [
        _studies_done,
        _no_open_job,
        _one_score_per_job,
        _no_cell_bought_twice,
        _one_entry_per_budget,
        _every_job_settled,
        _nothing_reserved,
        _spent_is_settled,
    ]
    return [
        *(check(database) for check in checks),
        _caps_held(sampler),
        *_bill_matches(database, bill),
    ]


def _rows(database: Database, query: str) -> list[Any]:
    with database.read() as session:
        return list(session.connection().execute(text(query)).all())


def _count(database: Database, query: str) -> int:
    return int(_rows(database, query)[0][0])


def _studies_done(database: Database) -> Check:
    rows = _rows(database, "SELECT id, state, reason FROM study ORDER BY id")
    done = sum(row.state == "done" for row in rows)
    others = "; ".join(f"study {row.id} {row.state}: {row.reason}" for row in rows if row.state != "done")
    return Check("every study is done", f"{done} of {len(rows)} {others}".strip(), done == len(rows))


def _no_open_job(database: Database) -> Check:
    rows = _rows(database, "SELECT state, count(*) AS n FROM job GROUP BY state ORDER BY state")
    found = ", ".join(f"{row.n} {row.state}" for row in rows)
    return Check("no job is left open", found, not any(row.state in ("queued", "leased") for row in rows))


def _one_score_per_job(database: Database) -> Check:
    """Every done job has its score, except those that found their cell scored when they came to it."""
    done = _count(database, "SELECT count(*) FROM job WHERE state = 'done'")
    scores = _count(database, "SELECT count(*) FROM score WHERE origin = 'acquired'")
    matched = _count(
        database,
        "SELECT count(DISTINCT job.id) FROM job JOIN score ON score.job_id = job.id"
        " AND score.method_id = job.method_id AND score.prompt_id = job.prompt_id"
        " AND score.scorer_id = job.scorer_id WHERE job.state = 'done'",
    )
    known = _count(
        database,
        "SELECT count(DISTINCT job_id) FROM ledgerentry JOIN job ON job.id = ledgerentry.job_id"
        " WHERE job.state = 'done' AND ledgerentry.state = 'released'",
    )
    found = f"{done} jobs done, {scores} scores acquired, {known} found scored"
    return Check("one score per job", found, done - known == scores == matched and scores > 0)


def _no_cell_bought_twice(database: Database) -> Check:
    query = (
        "SELECT count(*) FROM (SELECT 1 FROM job JOIN ledgerentry ON ledgerentry.job_id = job.id"
        " JOIN budget ON budget.id = ledgerentry.budget_id AND budget.scope = 'study'"
        " WHERE ledgerentry.state = 'settled'"
        " GROUP BY method_id, prompt_id, scorer_id HAVING count(*) > 1) AS twice"
    )
    twice = _count(database, query)
    return Check("no (method, prompt, scorer) paid for twice", f"{twice} cells", twice == 0)


def _one_entry_per_budget(database: Database) -> Check:
    query = (
        "SELECT count(*) FROM (SELECT 1 FROM ledgerentry GROUP BY job_id, budget_id"
        " HAVING count(*) > 1) AS twice"
    )
    twice = _count(database, query)
    return Check("one ledger entry per job and budget", f"{twice} doubled", twice == 0)


def _every_job_settled(database: Database) -> Check:
    query = (
        "SELECT job.state AS job, ledgerentry.state AS entry, count(*) AS n FROM job"
        " LEFT JOIN ledgerentry ON ledgerentry.job_id = job.id GROUP BY 1, 2 ORDER BY 1, 2"
    )
    rows = _rows(database, query)
    found = ", ".join(f"{row.n} {row.job}/{row.entry}" for row in rows)
    wrong = any(row.entry not in ("settled", "released") for row in rows)
    return Check("every job's reservation is settled or given back", found, not wrong)


def _nothing_reserved(database: Database) -> Check:
    reserved = _count(database, "SELECT coalesce(sum(reserved), 0) FROM budget")
    return Check("nothing is reserved any more", str(reserved), reserved == 0)


def _spent_is_settled(database: Database) -> Check:
    query = (
        "SELECT budget.id, budget.spent, coalesce(sum(ledgerentry.settled), 0) AS settled FROM budget"
        " LEFT JOIN ledgerentry ON ledgerentry.budget_id = budget.id AND ledgerentry.state = 'settled'"
        " GROUP BY budget.id, budget.spent"
    )
    rows = _rows(database, query)
    wrong = [row.id for row in rows if row.spent != row.settled]
    found = f"{len(rows) - len(wrong)} of {len(rows)} budgets agree"
    return Check("spent = sum of settled jobs", found, not wrong)


def _caps_held(sampler: BudgetSampler) -> Check:
    found = (
        f"{len(sampler.violations)} violations in {sampler.samples} samples ({sampler.missed} missed),"
        f" fullest {sampler.fullest:.1%}" + "".join(f"; {violation}" for violation in sampler.violations[:3])
    )
    return Check("no cap exceeded at any sampled moment", found, not sampler.violations)


def _bill_matches(database: Database, bill: dict[str, Any]) -> list[Check]:
    """Each call that the endpoint billed is settled once, at what the endpoint says of it."""
    query = (
        "SELECT ledgerentry.job_id, ledgerentry.settled FROM ledgerentry"
        " JOIN budget ON budget.id = ledgerentry.budget_id JOIN job ON job.id = ledgerentry.job_id"
        " JOIN method ON method.id = job.method_id JOIN model ON model.id = method.model_id"
        " WHERE budget.scope = 'study' AND ledgerentry.state = 'settled' AND model.backend = 'openai'"
    )
    settled = {f"assay-job-{row.job_id}": row.settled for row in _rows(database, query)}
    billed = {
        key: PRICE.micro_dollars(usage["prompt_tokens"], usage["completion_tokens"])
        for key, usage in bill["billed"].items()
    }
    different = [key for key in {*settled, *billed} if settled.get(key) != billed.get(key)]
    found = (
        f"{len(billed)} calls for ${sum(billed.values()) / 1e6:.6f} billed,"
        f" {len(settled)} for ${sum(settled.values()) / 1e6:.6f} settled"
    )
    repeats = f"{bill['repeats']} of {bill['tries']} tries; answered again by key, not billed again"
    return [
        Check("settled = what the endpoint billed, call by call", found, not different and bool(billed)),
        Check("calls repeated because their answer was lost", repeats, holds=True),
    ]
