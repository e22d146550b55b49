"""Running batches: what is claimed, called, stored, settled and sent again, on a real SQLite file."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from assay.errors import StorageError
from assay.specs import DatasetSpec, PromptSpec
from storage import catalog, events, jobs, ledger
from storage.jobs import NewJob
from storage.ledger import Charge
from storage.matrices import load_columns
from storage.scores import ScoreRow, add_scores
from storage.tables import JobState, utc_now
from tests.world import BENCHMARK, World
from workers import execution, outcomes
from workers.backends import BACKENDS, Answer, CallError, Request
from workers.execution import run_jobs
from workers.prices import Bill

PRICE = {"input_per_million": 1.0, "output_per_million": 2.0}  # an answer costs 10 + 2 * 2 micro-dollars
COST, RESERVED = 14, 100


class FakeBackend:
    """Answers by a script: the prompt's text decides, and what was asked is kept."""

    asked: list[Request] = []  # noqa: RUF012  (emptied for each test)

    def __init__(self, spec: Any) -> None:
        if spec.attributes.get("unusable"):
            raise StorageError("no such endpoint", "mend it")

    async def answer(self, request: Request) -> Answer:
        FakeBackend.asked.append(request)
        if request.text.startswith("fail once") and request.attempt > 1:
            return Answer("yes", input_tokens=10, output_tokens=2)
        if request.text.startswith("fail"):
            raise CallError("busy", retry=True, retry_after=0.01)
        if request.text.startswith("never"):
            raise CallError("no such model", retry=False)
        if request.text.startswith("explode"):
            raise RuntimeError("a bug")
        reason = "content_filter" if request.text.startswith("refuse") else "stop"
        return Answer("yes", reason, input_tokens=10, output_tokens=2)

    async def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeBackend]:
    FakeBackend.asked = []
    monkeypatch.setitem(BACKENDS._targets, "fake", "tests.workers.test_execution:FakeBackend")
    monkeypatch.setitem(BACKENDS._loaded, "fake", FakeBackend)
    return FakeBackend


def prepare(world: World, texts: list[str], *, scorer: str = "exact-match", **spec: Any) -> list[int]:
    """A study with one reserved and queued job per text; returns the jobs."""
    with world.database.begin() as session:
        benchmark, _ = catalog.add_benchmark(session, BENCHMARK)
        dataset = catalog.add_dataset(session, benchmark, DatasetSpec(name="d", scorer=scorer))
        prompts = [PromptSpec(id=f"p{i}", text=f"{t} {i}", target="yes") for i, t in enumerate(texts)]
        catalog.add_prompts(session, dataset, prompts)
        catalog.bump_prompts_revision(session, benchmark)
    method = world.add_model("m", backend="fake", **{"price": PRICE, **spec})
    study = world.add_study(method, max_usd=1.0)
    with world.database.begin() as session:
        columns = load_columns(session, catalog.find_benchmark(session, BENCHMARK))
        new = [NewJob(method, int(pk), int(columns.scorer_pks[0]), RESERVED) for pk in columns.prompt_pks]
        ids = jobs.add(session, study, 1, new)
        charges = dict.fromkeys(ids, Charge(usd=RESERVED))
        ledger.reserve(session, ledger.budgets_of(session, [("study", study)]), charges)
    return ids


def test_scores_outputs_money_and_news_are_stored_together(world: World) -> None:
    ids = prepare(world, ["ask"] * 3)
    assert run_jobs(world.worker(), ids) == 3
    assert [job.state for job in world.jobs()] == [JobState.DONE] * 3
    assert [(s.value, s.job_id) for s in world.acquired()] == [(1.0, i) for i in ids]
    assert [(o.text, o.input_tokens, o.output_tokens) for o in world.outputs()] == [("yes", 10, 2)] * 3
    assert (world.budget(1).spent, world.budget(1).reserved) == (3 * COST, 0)
    assert sum(event.payload["done"] for event in world.events("jobs.finished")) == 3
    assert world.wakes >= 1


def test_the_same_message_again_does_nothing(world: World) -> None:
    ids = prepare(world, ["ask"] * 3)
    run_jobs(world.worker(), ids)
    assert run_jobs(world.worker("other"), ids) == 0
    assert run_jobs(world.worker(), [12345]) == 0
    assert len(FakeBackend.asked) == 3


def test_nothing_is_claimed_twice_however_many_workers_get_the_message(world: World) -> None:
    ids = prepare(world, ["ask"] * 30)
    claimed: list[int] = []
    threads = [
        threading.Thread(target=lambda i=i: claimed.append(run_jobs(world.worker(f"w{i}"), ids)))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(claimed) == 30
    assert max(Counter(request.key for request in FakeBackend.asked).values()) == 1
    assert len(world.acquired()) == 30
    world.check_money()


def test_a_failed_try_is_queued_and_sent_again_after_its_delay(world: World) -> None:
    (job_id,) = prepare(world, ["fail once"])
    run_jobs(world.worker(), [job_id])
    (job,) = world.jobs()
    assert (job.state, job.reason, job.attempts) == (JobState.QUEUED, "busy", 1)
    assert world.sent == [([job_id], 0.01)]
    assert world.budget(1).reserved == RESERVED  # the money stays set aside for the next try
    world.work()
    assert [job.state for job in world.jobs()] == [JobState.DONE]
    assert [request.idempotency_key for request in FakeBackend.asked] == [f"assay-job-{job_id}"] * 2
    world.check_money()


def test_a_retry_is_not_taken_before_its_time(world: World) -> None:
    (job_id,) = prepare(world, ["fail once"])
    with world.database.begin() as session:
        jobs.claim(session, [job_id], "w", timedelta(seconds=5))
        jobs.requeue(session, job_id, "busy", timedelta(seconds=60))
    assert run_jobs(world.worker(), [job_id]) == 0
    assert FakeBackend.asked == []


def test_backoff_grows_with_jitter_and_has_a_ceiling() -> None:
    for attempt, ceiling in ((1, 0.5), (2, 1.0), (3, 2.0), (20, 30.0)):
        waits = [execution._backoff(attempt, None) for _ in range(50)]
        assert ceiling / 2 <= min(waits) < max(waits) <= ceiling
    assert execution._backoff(1, 7.0) == 7.0


def test_parked_after_the_last_try_and_its_reservation_given_back(world: World) -> None:
    (job_id,) = prepare(world, ["fail"])
    run_jobs(world.worker(), [job_id])
    world.work()
    (job,) = world.jobs()
    assert (job.state, job.reason, job.attempts) == (JobState.PARKED, "busy", world.settings.max_attempts)
    assert world.acquired() == []
    assert (world.budget(1).spent, world.budget(1).reserved) == (0, 0)
    assert world.events("jobs.finished")[-1].payload == {"study_id": 1, "done": 0, "parked": 1}


def test_what_cannot_get_better_is_parked_at_once(world: World) -> None:
    ids = prepare(world, ["never", "ask"])
    run_jobs(world.worker(), ids)
    assert [(job.state, job.attempts) for job in world.jobs()] == [(JobState.PARKED, 1), (JobState.DONE, 1)]
    world.check_money()


def test_paid_answers_that_cannot_be_scored_are_settled_and_parked(world: World) -> None:
    prepare(world, ["refuse"])
    run_jobs(world.worker(), world.job_ids())
    (job,) = world.jobs()
    assert (job.state, job.reason) == (JobState.PARKED, "refused by the endpoint's content filter")
    assert world.acquired() == []
    assert world.outputs() == []  # not to be reused as if it could be scored
    assert (world.budget(1).spent, world.budget(1).reserved) == (COST, 0)


def test_a_bug_in_one_call_takes_no_other_down(world: World) -> None:
    ids = prepare(world, ["explode", "ask"])
    run_jobs(world.worker(), ids)
    first, second = world.jobs()
    assert (first.state, first.reason) == (JobState.PARKED, "unexpected RuntimeError: a bug")
    assert second.state == JobState.DONE
    world.check_money()


@pytest.mark.parametrize(
    ("outcome", "reason"), [(RuntimeError("a bug"), "failed: RuntimeError: a bug"), (7.0, "outside [0, 1]")]
)
def test_a_call_is_charged_also_where_its_scorer_fails(
    world: World, monkeypatch: pytest.MonkeyPatch, outcome: Any, reason: str
) -> None:
    class Broken:
        def score(self, answer: Answer, fields: dict[str, Any]) -> float:
            if isinstance(outcome, Exception):
                raise outcome
            return float(outcome)

    ids = prepare(world, ["ask"])
    monkeypatch.setitem(execution.SCORERS._loaded, "exact-match", Broken)
    run_jobs(world.worker(), ids)
    (job,) = world.jobs()
    assert job.state == JobState.PARKED
    assert reason in job.reason
    assert (world.budget(1).spent, world.budget(1).reserved) == (COST, 0)
    assert world.acquired() == []


def test_a_scorer_that_cannot_be_made_is_noticed_before_paying(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = prepare(world, ["ask"])
    monkeypatch.delitem(execution.SCORERS._targets, "exact-match")
    run_jobs(world.worker(), ids)
    assert "unknown scorer 'exact-match'" in world.jobs()[0].reason
    assert FakeBackend.asked == []
    assert (world.budget(1).spent, world.budget(1).reserved) == (0, 0)


def test_an_unknown_price_is_never_called(world: World) -> None:
    ids = prepare(world, ["ask"], price=None)
    run_jobs(world.worker(), ids)
    assert world.jobs()[0].state == JobState.PARKED
    assert world.jobs()[0].reason.startswith("the price of model 'm' is not known")
    assert FakeBackend.asked == []
    world.check_money()


def test_a_backend_that_cannot_be_opened_parks_its_jobs_with_the_reason(world: World) -> None:
    ids = prepare(world, ["ask"], attributes={"unusable": True})
    run_jobs(world.worker(), ids)
    assert world.jobs()[0].reason == "no such endpoint (mend it)"


def test_known_outputs_are_scored_without_a_call(world: World) -> None:
    ids = prepare(world, ["ask"])
    run_jobs(world.worker(), ids)
    with world.database.begin() as session:  # the same prompt under another scorer, by another study
        benchmark = catalog.find_benchmark(session, BENCHMARK)
        strict = catalog.scorer_of(session, "exact-match", {"ignore_case": False})
    second = world.add_study(1)
    with world.database.begin() as session:
        new = [NewJob(1, 1, strict.id or 0, RESERVED)]
        again = jobs.add(session, second, 1, new)
        budgets = ledger.budgets_of(session, [("study", second)])
        ledger.reserve(session, budgets, {again[0]: Charge(usd=RESERVED)})
    run_jobs(world.worker(), again)
    assert benchmark.id == 1
    assert len(FakeBackend.asked) == 1
    assert len(world.acquired()) == 2
    assert (world.budget(second).spent, world.budget(second).reserved) == (0, 0)


def test_known_scores_need_no_call(world: World) -> None:
    ids = prepare(world, ["ask"], attributes={"unusable": True})
    job = world.jobs()[0]
    with world.database.begin() as session:
        row = ScoreRow(1, job.scorer_id, job.method_id, job.prompt_id, 0.0, "imported")
        add_scores(session, [row.astuple()])
    run_jobs(world.worker(), ids)
    assert world.jobs()[0].state == JobState.DONE
    assert world.acquired() == []
    assert FakeBackend.asked == []
    assert (world.budget(1).spent, world.budget(1).reserved) == (0, 0)


def test_results_are_kept_while_the_database_is_locked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = prepare(world, ["ask"] * 2)
    monkeypatch.setattr(execution, "STORE_RETRY_S", 0.02)
    refused = itertools.count()

    def locked_twice(*arguments: Any) -> Any:
        if next(refused) < 2:
            raise StorageError("the database is locked by another program")
        return outcomes.store(*arguments)

    monkeypatch.setattr(execution, "store", locked_twice)
    run_jobs(world.worker(), ids)
    assert next(refused) >= 3
    assert len(world.acquired()) == 2
    assert len(FakeBackend.asked) == 2
    world.check_money()


def test_results_are_kept_while_another_program_holds_the_lock(world: World) -> None:
    ids = prepare(world, ["ask"] * 2)
    held = threading.Event()

    def hold() -> None:
        with world.locked():
            held.set()
            time.sleep(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    run_jobs(world.worker(), ids)
    thread.join()
    assert len(world.acquired()) == 2
    world.check_money()


def test_an_answer_that_comes_after_the_lease_was_lost_counts_once(world: World) -> None:
    (job_id,) = prepare(world, ["ask"])
    with world.database.begin() as session:
        (job,) = jobs.claim(session, [job_id], "slow", timedelta(seconds=-1))
    with world.database.read() as session:
        work = execution.load_work(session, [job])
    with world.database.begin() as session:
        jobs.requeue(session, job_id, "its worker stopped answering")
    run_jobs(world.worker("fast"), [job_id])
    late = outcomes.Outcome(work[0], answer=Answer("no"), bill=Bill(Charge(usd=COST), {})).scored(0.0)
    outcomes.store(world.database, [late])
    assert [score.value for score in world.acquired()] == [1.0]
    assert world.budget(1).spent == COST
    world.check_money()


def test_leases_are_renewed_while_a_call_takes_long(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (job_id,) = prepare(world, ["ask"])
    monkeypatch.setattr(world.settings, "lease_s", 0.15)

    async def slow(self: FakeBackend, request: Request) -> Answer:
        await execution.asyncio.sleep(0.5)
        with world.database.read() as session:
            assert jobs.expired(session) == []
        assert world.jobs()[0].lease_until > utc_now()
        return Answer("yes")

    monkeypatch.setattr(FakeBackend, "answer", slow)
    run_jobs(world.worker(), [job_id])
    assert world.jobs()[0].state == JobState.DONE


def test_no_more_calls_at_once_than_the_model_allows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = prepare(world, ["ask"] * 12, max_in_flight=3)
    flying: list[int] = [0, 0]

    async def counted(self: FakeBackend, request: Request) -> Answer:
        flying[0] += 1
        flying[1] = max(flying)
        await execution.asyncio.sleep(0.01)
        flying[0] -= 1
        return Answer("yes")

    monkeypatch.setattr(FakeBackend, "answer", counted)
    run_jobs(world.worker(), ids)
    assert flying[1] == 3
    assert len(world.acquired()) == 12


def test_events_of_finished_jobs_wait_for_the_agent(world: World) -> None:
    run_jobs(world.worker(), prepare(world, ["ask"]))
    with world.database.read() as session:
        assert "jobs.finished" in [event.kind for event in events.unhandled(session)]
