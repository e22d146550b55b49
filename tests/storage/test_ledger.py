from __future__ import annotations

import multiprocessing
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlmodel import select

from assay.errors import BudgetExceededError
from storage import events, jobs, ledger
from storage.database import Database
from storage.ledger import Charge
from storage.tables import Budget, LedgerEntry, LedgerState
from tests.storage.example import Example, small_benchmark
from tests.storage.reserver import reserve_and_close

CAPS = {"usd": 100, "calls": 5}


def add_jobs(db: Database, example: Example, count: int) -> list[int]:
    with db.begin() as session:
        return jobs.add(session, example.study_id, 1, example.new_jobs(count))


def reserve(db: Database, example: Example, charges: dict[int, Charge]) -> None:
    with db.begin() as session:
        ledger.reserve(session, ledger.budgets_of(session, [("study", example.study_id)]), charges)


def state(db: Database) -> dict[str, tuple[int, int]]:
    with db.read() as session:
        return {b.unit: (b.reserved, b.spent) for b in session.exec(select(Budget)).all()}


def test_settling_turns_the_reservation_into_what_the_call_cost(db: Database):
    example = small_benchmark(db, caps=CAPS)
    first, second = add_jobs(db, example, 2)
    reserve(db, example, {first: Charge(usd=30), second: Charge(usd=40)})
    assert state(db) == {"usd": (70, 0), "calls": (2, 0)}
    with db.begin() as session:
        assert ledger.settle(session, {first: Charge(usd=25)}) == {first}
    assert state(db) == {"usd": (40, 25), "calls": (1, 1)}
    with db.begin() as session:
        assert ledger.settle(session, {first: Charge(usd=25)}) == set()
        assert ledger.release(session, [first, second]) == {second}
    assert state(db) == {"usd": (0, 25), "calls": (0, 1)}


def test_nothing_is_reserved_where_one_of_several_caps_is_passed(db: Database):
    example = small_benchmark(db, caps=CAPS)
    ids = add_jobs(db, example, 6)
    with pytest.raises(BudgetExceededError, match=r"\(calls\) leaves 5, but 6 was asked for"):
        reserve(db, example, {job_id: Charge(usd=1) for job_id in ids})
    assert state(db) == {"usd": (0, 0), "calls": (0, 0)}
    with db.read() as session:
        assert session.exec(select(LedgerEntry)).all() == []


def test_a_released_job_can_be_reserved_again_but_not_twice(db: Database):
    example = small_benchmark(db, caps=CAPS)
    (job_id,) = add_jobs(db, example, 1)
    for _ in range(2):
        reserve(db, example, {job_id: Charge(usd=10)})
        with db.begin() as session:
            ledger.release(session, [job_id])
    reserve(db, example, {job_id: Charge(usd=7)})
    with pytest.raises(ValueError, match="already reserved"):
        reserve(db, example, {job_id: Charge(usd=7)})
    assert state(db)["usd"] == (7, 0)


def test_a_lowered_cap_stops_new_reservations_only(db: Database):
    example = small_benchmark(db, caps=CAPS)
    first, second = add_jobs(db, example, 2)
    reserve(db, example, {first: Charge(usd=60)})
    with db.begin() as session:
        ledger.set_cap(session, "study", example.study_id, "usd", 50)
    with pytest.raises(BudgetExceededError):
        reserve(db, example, {second: Charge(usd=1)})
    with db.begin() as session:
        assert ledger.settle(session, {first: Charge(usd=60)}) == {first}


def test_affordable_counts_from_the_first_charge_on(db: Database):
    example = small_benchmark(db, caps=CAPS)
    with db.read() as session:
        budgets = ledger.budgets_of(session, [("study", example.study_id)])
    assert ledger.affordable(budgets, [Charge(usd=60), Charge(usd=60), Charge(usd=1)]) == 1
    assert ledger.affordable(budgets, [Charge(usd=1)] * 9) == 5
    assert ledger.affordable([], [Charge(usd=1)] * 9) == 9


# --- random sequences --------------------------------------------------------------------------------------

N_JOBS = 5
which = st.lists(st.integers(0, N_JOBS - 1), min_size=1, max_size=3, unique=True)
amount = st.integers(0, 60)
steps = st.one_of(
    st.tuples(st.just("reserve"), which, amount),
    st.tuples(st.just("settle"), which, amount),
    st.tuples(st.just("release"), which, st.just(0)),
    st.tuples(st.just("expire"), which, st.just(0)),
)


class Model:
    """What the ledger must say, kept in plain Python."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        self.settled: dict[int, int] = {}

    def fits(self, ids: list[int], usd: int) -> bool:
        spent = sum(self.open.values()) + sum(self.settled.values())
        calls = len(self.open) + len(self.settled)
        return spent + usd * len(ids) <= CAPS["usd"] and calls + len(ids) <= CAPS["calls"]

    def apply(self, db: Database, example: Example, step: tuple[str, list[int], int]) -> None:
        name, ids, usd = step
        getattr(self, name)(db, example, ids, usd)

    def reserve(self, db: Database, example: Example, ids: list[int], usd: int) -> None:
        taken = any(i in self.open or i in self.settled for i in ids)
        try:
            reserve(db, example, {i: Charge(usd=usd) for i in ids})
        except (BudgetExceededError, ValueError):
            assert taken or not self.fits(ids, usd)
        else:
            assert not taken
            assert self.fits(ids, usd)
            self.open.update(dict.fromkeys(ids, usd))

    def settle(self, db: Database, example: Example, ids: list[int], usd: int) -> None:
        actual = {i: min(usd, self.open.get(i, usd)) for i in ids}  # a reservation is the worst case
        with db.begin() as session:
            closed = ledger.settle(session, {i: Charge(usd=a) for i, a in actual.items()})
        assert closed == set(ids) & set(self.open)
        for i in closed:
            del self.open[i]
            self.settled[i] = actual[i]

    def release(self, db: Database, example: Example, ids: list[int], _: int) -> None:
        with db.begin() as session:
            closed = ledger.release(session, ids)
        assert closed == set(ids) & set(self.open)
        for i in closed:
            del self.open[i]

    def expire(self, db: Database, example: Example, ids: list[int], _: int) -> None:
        """A worker dies before it pays: the transaction is rolled back, nothing has happened."""
        try:
            with db.begin() as session:
                ledger.settle(session, {i: Charge(usd=1) for i in ids})
                raise ConnectionError
        except ConnectionError:
            self.release(db, example, ids, 0)  # what the sweeper does with its jobs


@pytest.fixture
def ledger_example(db: Database) -> tuple[Database, Example, list[int]]:
    example = small_benchmark(db, caps=CAPS)
    return db, example, add_jobs(db, example, N_JOBS)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sequence=st.lists(steps, max_size=12))
def test_random_sequences_keep_the_books_balanced(ledger_example, sequence):
    db, example, job_ids = ledger_example
    with db.begin() as session:
        session.connection().exec_driver_sql("DELETE FROM ledgerentry")
        session.connection().exec_driver_sql("UPDATE budget SET reserved = 0, spent = 0")
    model = Model()
    for name, ids, usd in sequence:
        model.apply(db, example, (name, [job_ids[i] for i in ids], usd))
        check_books(db, model)


def check_books(db: Database, model: Model) -> None:
    with db.read() as session:
        budgets = session.exec(select(Budget)).all()
        entries = session.exec(select(LedgerEntry)).all()
        for budget in budgets:
            mine = [entry for entry in entries if entry.budget_id == budget.id]
            assert budget.spent == ledger.spent_by_job(session, budget.id or 0)
            assert budget.reserved == sum(e.reserved for e in mine if e.state == LedgerState.RESERVED)
            assert budget.spent + budget.reserved <= budget.cap
        usd = next(budget for budget in budgets if budget.unit == "usd")
        assert (usd.reserved, usd.spent) == (sum(model.open.values()), sum(model.settled.values()))


# --- many processes ----------------------------------------------------------------------------------------

PROCESSES, JOBS_EACH, CAP = 8, 12, 150


def test_eight_processes_never_pass_one_cap(db: Database):
    example = small_benchmark(db, n_prompts=PROCESSES * JOBS_EACH, caps={"usd": CAP})
    ids = add_jobs(db, example, PROCESSES * JOBS_EACH)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.storage.reserver"])  # imported once, not eight times
    start, answers = context.Barrier(PROCESSES), context.SimpleQueue()
    url = db.url.render_as_string(hide_password=False)
    running = [
        context.Process(
            target=reserve_and_close, args=(url, k, example.study_id, ids[k::PROCESSES], start, answers)
        )
        for k in range(PROCESSES)
    ]
    for process in running:
        process.start()
    while any(process.is_alive() for process in running):
        assert sum(state(db)["usd"]) <= CAP
        time.sleep(0.02)
    assert [process.exitcode for process in running] == [0] * PROCESSES
    granted = sum(answers.get() for _ in running)
    with db.read() as session:
        entries = session.exec(select(LedgerEntry)).all()
    assert len(entries) == granted < PROCESSES * JOBS_EACH  # the cap refused some
    spent = sum(entry.settled for entry in entries)
    assert state(db)["usd"] == (0, spent)
    assert spent <= CAP


# --- several budgets at once -------------------------------------------------------------------------------

SEVERAL = {"study": 100, "benchmark": 70, "endpoint": 50, "overall": 90}
URLS = ("http://a/v1", "http://b/v1")


def several_budgets(db: Database, example: Example) -> None:
    with db.begin() as session:
        for scope, cap in SEVERAL.items():
            scope_id = {"study": example.study_id, "benchmark": 1, "overall": 0}.get(scope)
            if scope_id is None:
                scope_id = ledger.endpoint_id(session, URLS[0])
            ledger.set_cap(session, scope, scope_id, "usd", cap)
        ledger.set_cap(session, "overall", 0, "calls", 6)
        ledger.set_cap(session, "overall", 0, "usd", 40, period="day")


several_steps = st.one_of(
    st.tuples(st.just("reserve"), which, st.integers(0, 40), st.sampled_from(URLS)),
    st.tuples(st.just("settle"), which, st.integers(0, 40), st.just("")),
    st.tuples(st.just("release"), which, st.just(0), st.just("")),
    st.tuples(st.just("worst"), which, st.just(0), st.just("")),
    st.tuples(st.just("tomorrow"), which, st.just(0), st.just("")),
)


@pytest.fixture
def several_example(db: Database) -> tuple[Database, Example, list[int]]:
    example = small_benchmark(db, caps={})
    several_budgets(db, example)
    return db, example, add_jobs(db, example, N_JOBS)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sequence=st.lists(several_steps, max_size=14))
def test_every_one_of_several_budgets_holds_at_every_moment(several_example, sequence):
    db, example, job_ids = several_example
    clock = datetime(2026, 1, 1, 12, tzinfo=UTC)
    with db.begin() as session:
        session.connection().exec_driver_sql("DELETE FROM ledgerentry")
        session.connection().exec_driver_sql("UPDATE budget SET reserved = 0, spent = 0, warned = 0")
        for budget in session.exec(select(Budget)).all():
            budget.starts_at = ledger.period_start(budget.period, clock)
            session.add(budget)
    for name, which_jobs, usd, url in sequence:
        clock += timedelta(days=1) if name == "tomorrow" else timedelta(seconds=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ledger, "utc_now", lambda now=clock: now)
            _step(db, example, name, [job_ids[i] for i in which_jobs], usd, url)
        _check_several(db)


def _step(db: Database, example: Example, name: str, ids: list[int], usd: int, url: str) -> None:
    scopes = [("study", example.study_id), ("benchmark", 1), ("overall", 0)]
    try:
        with db.begin() as session:
            if name == "reserve":
                charges = {i: Charge(usd=usd, endpoint=url) for i in ids}
                ledger.reserve(session, ledger.budgets_for(session, scopes, charges.values()), charges)
            elif name == "settle":
                entries = session.exec(select(LedgerEntry).where(LedgerEntry.state == "reserved")).all()
                most = {e.job_id: e.reserved for e in entries if e.budget_id == 1}
                ledger.settle(session, {i: Charge(usd=min(usd, most.get(i, usd))) for i in ids})
            elif name == "release":
                ledger.release(session, ids)
            elif name == "worst":
                ledger.settle_at_worst(session, ids)
            else:
                ledger.turn_periods(session, ledger.periodic(session))
    except (BudgetExceededError, ValueError):
        assert name == "reserve"


def _check_several(db: Database) -> None:
    with db.read() as session:
        entries = session.exec(select(LedgerEntry)).all()
        for budget in session.exec(select(Budget)).all():
            mine = [entry for entry in entries if entry.budget_id == budget.id]
            assert budget.spent == ledger.spent_by_job(session, budget.id or 0)
            assert budget.reserved == sum(e.reserved for e in mine if e.state == LedgerState.RESERVED)
            if budget.period == "total":
                assert budget.spent + budget.reserved <= budget.cap
            else:  # what yesterday reserved may still come to be spent, beside what today took
                assert budget.spent <= 2 * budget.cap
            assert budget.warned == 0 or budget.spent * 100 >= budget.cap * budget.warned


def test_an_endpoints_cap_counts_its_own_calls_only(db: Database):
    example = small_benchmark(db, caps={})
    several_budgets(db, example)
    first, second = add_jobs(db, example, 2)
    charges = {first: Charge(usd=45, endpoint=URLS[1]), second: Charge(usd=20, endpoint=URLS[0])}
    with db.begin() as session:
        budgets = ledger.budgets_for(session, [], charges.values())
        assert [budget.scope for budget in budgets] == ["endpoint"]
        ledger.reserve(session, budgets, charges)
        assert ledger.budgets_for(session, [], charges.values())[0].reserved == 20


def test_a_cap_is_announced_at_four_fifths_and_when_it_is_spent(db: Database):
    example = small_benchmark(db, caps={"usd": 100})
    ids = add_jobs(db, example, 4)
    reserve(db, example, {i: Charge(usd=25) for i in ids})
    seen = []
    for job_id in ids:
        with db.begin() as session:
            ledger.settle(session, {job_id: Charge(usd=25)})
        with db.read() as session:
            seen.append([e.kind for e in events.recent(session) if e.kind.startswith("budget")])
    assert seen[:3] == [[], [], []]
    assert seen[3] == ["budget.spent", "budget.warning"]


def test_a_raised_cap_is_an_event_and_a_lowered_one_is_none(db: Database):
    example = small_benchmark(db, caps={"usd": 100})
    with db.begin() as session:
        ledger.set_cap(session, "study", example.study_id, "usd", 50)
        assert "budget.raised" not in [e.kind for e in events.recent(session)]
        ledger.set_cap(session, "study", example.study_id, "usd", 60)
        assert "budget.raised" in [e.kind for e in events.recent(session)]
