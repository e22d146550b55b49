"""What each fault of an endpoint leads to; and a run in which a fifth of all tries goes wrong."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from assay.specs import ModelSpec
from benchmarks._workload import PRICE, Workload, fill
from benchmarks.endpoint import Behaviour, Fault, LocalEndpoint, serving, tokens_of
from benchmarks.faults import run_faults
from storage.tables import Attempt, Job, JobState, LedgerEntry, LedgerState, Output, Score
from tests.world import World
from workers.execution import run_jobs
from workers.limits import Limits, endpoint_of

QUICK = {"timeout_s": 0.3}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.execution.FIRST_RETRY_S", 0.005)
    monkeypatch.setattr("workers.limits._local.BACKOFF_S", 0.05)


class Run:
    """One prompt that meets a fault, run to its end."""

    def __init__(self, folder: Path, fault: Fault, *, once: bool = False, **settings: int) -> None:
        prefix = f"{'once' if once else 'fault'}:{fault}"
        with serving(Behaviour(latency_s=0.005, hang_s=1.0, retry_after_s=0.05)) as self.endpoint:
            load = fill(folder, self.endpoint.url, 1, prefix=prefix, settings=settings, **QUICK)
            self.world = World(folder, load.settings, load.database)
            self._run(load)
        self.job: Job = self.world.rows(Job)[0]
        self.entry: LedgerEntry = next(one for one in self.world.rows(LedgerEntry) if one.budget_id == 1)
        self.scores = self.world.rows(Score, Score.prompt_id)
        self.outputs = self.world.rows(Output)
        self.tries = [str(one.status) for one in self.world.rows(Attempt)]
        load.database.close()

    def _run(self, load: Workload) -> None:
        worker = self.world.worker()
        run_jobs(worker, load.ids)
        while self.world.calls_due:
            ids, delay_s = self.world.calls_due.popleft()
            time.sleep(delay_s)
            run_jobs(worker, ids)

    @property
    def calls(self) -> int:
        return sum(self.endpoint.tries.values())

    @property
    def billed(self) -> int:
        return sum(PRICE.micro_dollars(*usage) for usage in self.endpoint.billed.values())


RETRIED = {
    Fault.REFUSE: "unreachable",
    Fault.BUSY: "rate-limited",
    Fault.BUSY_SILENT: "rate-limited",
    Fault.ERROR: "server-error",
    Fault.DROP: "unreachable",
    Fault.MALFORMED: "unreadable",
    Fault.HANG: "timeout",
}


@pytest.mark.parametrize("fault", RETRIED)
def test_what_may_pass_is_tried_again_and_paid_once(tmp_path: Path, fault: Fault) -> None:
    run = Run(tmp_path, fault, once=True)
    assert (run.job.state, run.job.status) == (JobState.DONE, "scored")
    assert [score.value for score in run.scores] == [1.0]
    assert run.tries == [RETRIED[fault]]
    assert run.calls == 2
    assert (run.entry.state, run.entry.settled) == (LedgerState.SETTLED, run.billed)


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.ERROR, Fault.DROP, Fault.MALFORMED, Fault.HANG])
def test_what_does_not_pass_is_parked_with_its_reason_and_every_try(tmp_path: Path, fault: Fault) -> None:
    run = Run(tmp_path, fault, max_attempts=2)
    assert (run.job.state, run.job.status, run.job.attempts) == (JobState.PARKED, RETRIED[fault], 2)
    assert run.job.reason
    assert run.tries == [RETRIED[fault]] * 2
    assert run.scores == run.outputs == []
    if fault == Fault.ERROR:  # certainly not billed
        assert (run.entry.state, run.entry.settled) == (LedgerState.RELEASED, 0)
    else:  # nobody knows, so that the worst case is booked
        assert (run.entry.state, run.entry.settled) == (LedgerState.SETTLED, run.entry.reserved)


@pytest.mark.parametrize(
    ("fault", "status"),
    [(Fault.TRUNCATE, "truncated"), (Fault.EMPTY, "empty"), (Fault.FILTER, "refused")],
)
def test_answers_that_say_nothing_are_paid_never_scored_and_never_reused(
    tmp_path: Path, fault: Fault, status: str
) -> None:
    run = Run(tmp_path, fault)
    assert (run.job.state, run.job.status) == (JobState.PARKED, status)
    assert run.tries == [status]
    assert run.scores == run.outputs == []
    assert run.calls == 1
    assert (run.entry.state, run.entry.settled) == (LedgerState.SETTLED, run.billed)


def test_a_call_that_is_denied_is_not_repeated(tmp_path: Path) -> None:
    run = Run(tmp_path, Fault.DENY)
    assert (run.job.state, run.job.status, run.calls) == (JobState.PARKED, "rejected", 1)
    assert (run.entry.state, run.entry.settled) == (LedgerState.RELEASED, 0)


def test_a_late_answer_is_an_answer(tmp_path: Path) -> None:
    run = Run(tmp_path, Fault.DELAY)
    assert (run.job.status, run.calls, run.tries) == ("scored", 1, [])


def test_usage_that_cannot_be_is_charged_at_the_worst_case(tmp_path: Path) -> None:
    run = Run(tmp_path, Fault.LIE)
    assert run.job.status == "scored"
    assert run.entry.settled == run.entry.reserved >= run.billed
    assert run.job.bill["usage"] == "not believable, worst case charged"


def test_a_429_costs_no_attempt(tmp_path: Path) -> None:
    run = Run(tmp_path, Fault.BUSY, once=True)
    assert run.job.attempts == 1


def test_the_price_is_stored_with_the_charge(tmp_path: Path) -> None:
    run = Run(tmp_path, Fault.DELAY)
    tokens = tokens_of("fault:delay 0", "0")
    assert run.job.bill == {
        "input_tokens": tokens[0],
        "output_tokens": tokens[1],
        "usd": run.billed,
        "price": {"input_per_million": 2.0, "output_per_million": 8.0},
        "price_from": "model file",
    }


def test_a_fifth_of_all_tries_goes_wrong_and_the_books_agree(tmp_path: Path) -> None:
    run = run_faults(tmp_path, prompts=150, rate=0.2, seed=3, timeout_s=0.4, latency_s=0.002)
    assert run.holds, run
    assert run.states["done", "scored"] > 120


def test_a_storm_of_429_costs_few_calls(tmp_path: Path) -> None:
    behaviour = Behaviour(latency_s=0.005, storm_s=0.6, state_wait=False)
    with serving(behaviour) as endpoint:
        calls = storm(tmp_path, endpoint, 200)
    assert calls <= 1.2 * 200 + 32  # what was in flight when it began


def storm(folder: Path, endpoint: LocalEndpoint, prompts: int) -> int:
    load = fill(folder, endpoint.url, prompts, max_in_flight=32)
    world = World(folder, load.settings, load.database)
    worker = world.worker()
    run_jobs(worker, load.ids)
    while world.calls_due:
        ids, delay_s = world.calls_due.popleft()
        time.sleep(delay_s)
        run_jobs(worker, ids)
    assert {job.state for job in world.rows(Job)} == {JobState.DONE}
    load.database.close()
    return sum(endpoint.tries.values())


def test_limits_come_from_the_model() -> None:
    spec = ModelSpec(name="m", base_url="http://h/v1", max_in_flight=7, requests_per_minute=600)
    assert Limits.of(spec) == Limits(7, 600, None, 90)
    assert endpoint_of(spec) == "http://h/v1"
