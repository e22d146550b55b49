"""A study step by step: stopping, pausing, waiting, failing, and two agents at once."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from sqlmodel import select

from agent import advance as advance_module
from agent.advance import advance
from agent.loop import Agent
from agent.registration import add_prompt_file
from assay.errors import BadInputError, StorageError
from estimators._aggregate import AggregateEstimator
from policies._uniform import UniformPolicy
from storage import catalog, estimates, jobs, ledger, studies
from storage.tables import Estimate, JobState, Model, StudyState
from tests.world import World

PRICED = {"per_call": 0.001}  # a call costs 1,000 micro-dollars at most and in fact


def priced(world: World, name: str = "m17") -> int:
    return world.add_model(name, backend="replay", matrix=str(world.matrix), price=PRICED)


def resume(world: World, study_id: int, cap: int | None = None) -> None:
    with world.database.begin() as session:
        if cap is not None:
            ledger.set_cap(session, "study", study_id, "usd", cap)
        studies.move(session, study_id, StudyState.RUNNING)


def history(world: World, study_id: int) -> list[Estimate]:
    with world.database.read() as session:
        return list(estimates.history(session, study_id))


# --- stopping ----------------------------------------------------------------------------------------------


def test_stops_once_it_has_bought_its_prompts(world: World) -> None:
    study = world.add_study(world.add_model("m17"), max_prompts=12)
    world.settle()
    done = world.study(study)
    assert (done.state, done.reason) == (StudyState.DONE, "bought 12 of at most 12 prompts")
    assert done.finished_at is not None
    assert [len(ids) for ids, _ in world.sent] == [5, 5, 2]
    assert len(world.acquired()) == 12
    at = history(world, study)
    assert [row.acquired for row in at] == [0, 5, 10, 12]
    assert all(row.low <= row.score <= row.high for row in at)
    assert at[-1].high - at[-1].low < at[0].high - at[0].low
    world.check_money()


def test_scores_are_those_of_the_matrix(world: World) -> None:
    study = world.add_study(world.add_model("m17"), max_prompts=36)
    world.settle()
    final = history(world, study)[-1]
    truth = world.truth[17]
    assert final.score == pytest.approx((truth[:12].mean() + truth[12:].mean()) / 2)
    assert final.interval_kind == "complete"
    assert final.high - final.low == pytest.approx(0.0, abs=1e-9)


def test_stops_once_the_interval_is_narrow(world: World) -> None:
    study = world.add_study(world.add_model("m17"), max_prompts=36, until_width=0.3)
    world.settle()
    done = world.study(study)
    assert done.state == StudyState.DONE
    assert "is within 0.3" in done.reason
    widths = [row.high - row.low for row in history(world, study)]
    assert widths[-1] <= 0.3 < min(widths[1:-1], default=1.0)
    assert 0 < len(world.acquired()) < 36


def test_stops_where_nothing_is_left(world: World) -> None:
    study = world.add_study(world.add_model("m17"), max_prompts=None)
    world.settle()
    assert world.study(study).reason == "nothing is left that would be worth buying"
    assert len(world.acquired()) == 36


def test_free_studies_need_no_cap(world: World) -> None:
    study = world.add_study(world.add_model("m17"), max_usd=None)
    world.settle()
    assert world.study(study).state == StudyState.DONE


# --- the cap -----------------------------------------------------------------------------------------------


def test_pauses_at_the_cap_with_the_reason_and_goes_on_when_it_is_raised(world: World) -> None:
    study = world.add_study(priced(world), max_usd=0.007, max_prompts=12)
    world.settle()
    paused = world.study(study)
    assert paused.state == StudyState.PAUSED
    assert paused.reason.startswith("budget exhausted: the study cap of $0.0070 leaves $0")
    assert f"assay study resume {study} --max-usd" in paused.reason
    assert [len(ids) for ids, _ in world.sent] == [5, 2]  # the last batch is what the cap affords
    assert world.budget(study).spent == 7000
    assert len(world.events("budget.exhausted")) == 1
    world.check_money()
    resume(world, study, cap=20_000)
    world.settle()
    assert world.study(study).state == StudyState.DONE
    assert len(world.acquired()) == 12
    assert world.budget(study).spent == 12_000
    world.check_money()


def test_resuming_under_the_same_cap_pauses_again_and_spends_nothing(world: World) -> None:
    study = world.add_study(priced(world), max_usd=0.003)
    world.settle()
    for _ in range(2):
        resume(world, study)
        world.settle()
        assert world.study(study).state == StudyState.PAUSED
    assert world.budget(study).spent == 3000


def test_a_cap_of_nothing_buys_nothing(world: World) -> None:
    study = world.add_study(priced(world), max_usd=0.0)
    world.settle()
    assert world.study(study).state == StudyState.PAUSED
    assert world.jobs() == []


@pytest.mark.parametrize(("unit", "cap"), [("calls", 4), ("usd", 4000)])
def test_caps_of_benchmark_and_all_together_hold_too(world: World, unit: str, cap: int) -> None:
    with world.database.begin() as session:
        ledger.set_cap(session, "benchmark", 1, unit, cap)
        ledger.set_cap(session, "overall", 0, unit, cap + 100_000)
    study = world.add_study(priced(world))
    world.settle()
    assert world.study(study).state == StudyState.PAUSED
    assert "the benchmark cap" in world.study(study).reason
    assert len(world.acquired()) == 4
    world.check_money()


def test_what_was_reserved_too_much_comes_back(world: World) -> None:
    price = {"output_per_million": 1.0}  # at most 512 tokens; a replayed answer has none
    method = world.add_model("m17", backend="replay", matrix=str(world.matrix), price=price)
    study = world.add_study(method, max_usd=0.0016, max_prompts=12)
    world.settle()
    assert [len(ids) for ids, _ in world.sent] == [3, 3, 3, 3]
    assert world.study(study).state == StudyState.DONE
    assert world.budget(study).spent == 0


def test_an_unknown_price_pauses_with_the_reason(world: World) -> None:
    study = world.add_study(world.add_model("stranger", backend="openai", base_url="http://127.0.0.1:9/v1"))
    world.settle()
    paused = world.study(study)
    assert paused.state == StudyState.PAUSED
    assert paused.reason.startswith("the price of model 'stranger' is not known (set price = ")
    assert world.jobs() == []


# --- estimator and policy ----------------------------------------------------------------------------------


def test_waits_for_its_estimator_which_is_asked_for_once(world: World) -> None:
    context, study = world.agent_context(), world.add_study(world.add_model("m17"))
    for _ in range(3):
        advance(context, study)
    assert (world.study(study).state, world.study(study).reason) == (
        StudyState.WAITING,
        "waits for estimator 'linear-gaussian' (version 1)",
    )
    assert set(world.fits_due) == {1}
    world.work()
    assert advance(context, study)
    assert (world.study(study).state, world.study(study).version_id) == (StudyState.RUNNING, 1)


def test_fails_with_the_reason_where_the_estimator_cannot_be_fitted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise BadInputError("too few rows", "import more")

    monkeypatch.setattr(AggregateEstimator, "fit", fail)
    study = world.add_study(world.add_model("m17"), estimator="aggregate")
    world.settle()
    failed = world.study(study)
    assert failed.state == StudyState.FAILED
    assert failed.reason == "estimator 'aggregate': too few rows (import more)"
    monkeypatch.undo()
    with world.database.begin() as session:  # mended: as `assay study resume` does
        studies.move(session, study, StudyState.WAITING)
    world.settle()
    assert world.study(study).state == StudyState.DONE


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BadInputError("cannot choose", "choose another"), "cannot choose (choose another)"),
        (ZeroDivisionError("oops"), "unexpected ZeroDivisionError: oops"),
    ],
)
def test_a_policy_that_fails_pauses_its_study_and_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(UniformPolicy, "_select", fail)
    first = world.add_study(world.add_model("m17"), policy="uniform")
    second = world.add_study(world.add_model("m18"))
    world.settle()
    assert (world.study(first).state, world.study(first).reason) == (StudyState.PAUSED, reason)
    assert world.study(second).state == StudyState.DONE


def test_a_busy_database_is_no_study_s_fault(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    study = world.add_study(world.add_model("m17"))

    def busy(*_: Any) -> None:
        raise StorageError("the database is locked by another program")

    with monkeypatch.context() as patched:
        patched.setattr(advance_module, "_want_version", busy)
        with pytest.raises(StorageError):
            advance(world.agent_context(), study)
    assert world.study(study).state == StudyState.WAITING
    world.settle()
    assert world.study(study).state == StudyState.DONE


def test_prompts_added_meanwhile_are_learned_before_the_study_goes_on(world: World) -> None:
    study = world.add_study(world.add_model("m17"), max_prompts=20)
    agent = Agent(world.agent_context())
    while not world.acquired():
        agent.tick()
        world.work()
    path = world.folder / "more.jsonl"
    path.write_text(json.dumps({"text": "What?", "dataset": "hard"}), encoding="utf-8")
    with world.database.begin() as session:
        add_prompt_file(session, path, "trivia")
    world.settle(agent)
    assert world.study(study).version_id == 2
    assert history(world, study)[-1].total == 37


# --- several at once ---------------------------------------------------------------------------------------


def test_of_two_agents_at_once_one_takes_the_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    study = world.add_study(world.add_model("m17"))
    first, second = world.agent_context(), world.agent_context()
    advance(first, study)
    world.work()
    read, overtaken = advance_module.read_situation, []

    def slow_read(*arguments: Any) -> Any:
        situation = read(*arguments)
        if not overtaken:  # while the first agent thinks, the second takes the step
            overtaken.append(True)
            assert advance(second, study)
        return situation

    monkeypatch.setattr(advance_module, "read_situation", slow_read)
    assert not advance(first, study)
    assert world.study(study).step == 1
    assert len(world.jobs()) == 5
    assert len(world.sent) == 1
    assert world.budget(study).reserved == sum(job.expected_cost for job in world.jobs())


def test_cells_that_another_study_waits_for_are_not_asked_again(world: World) -> None:
    method = world.add_model("m17")
    first, second = world.add_study(method, max_prompts=30), world.add_study(method, max_prompts=30)
    context = world.agent_context()
    advance(context, first)
    world.work()
    for study in (first, second):
        assert advance(context, study)
    cells = [(job.method_id, job.prompt_id) for job in world.jobs()]
    assert len(cells) == len(set(cells)) == 10
    world.settle()
    assert [world.study(study).state for study in (first, second)] == [StudyState.DONE] * 2
    assert len(world.acquired()) == len(world.jobs()) == 36  # each cell was bought once for both
    world.check_money()


def test_parked_cells_are_not_asked_again(world: World) -> None:
    scores = world.truth.astype(np.int8)
    scores[17, :4] = -1
    np.savez(world.matrix / "scores.npz", scores=scores)
    method = world.add_model("m17")
    for _ in range(2):
        world.add_study(method, max_prompts=None)
        world.settle()
    assert sum(job.state == JobState.PARKED for job in world.jobs()) == 4
    assert len(world.jobs()) == 36


def test_retries_change_nothing_in_the_end(world: World) -> None:
    world.settings.max_attempts = 50
    method = world.add_model("m17", backend="replay", matrix=str(world.matrix), failure_rate=0.3)
    world.add_study(method, max_prompts=15)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("workers.execution.FIRST_RETRY_S", 0.001)
        world.settle()
    truth = world.truth[17]
    assert len(world.acquired()) == 15
    assert all(score.value == truth[score.prompt_id - 1] for score in world.acquired())
    assert max(job.attempts for job in world.jobs()) > 1
    with world.database.read() as session:
        assert catalog.find_model(session, "m17").name == "m17"
    world.check_money()


# --- endpoints that are away -------------------------------------------------------------------------------


def test_a_step_without_one_success_pauses_and_resuming_asks_again(world: World) -> None:
    world.settings.max_attempts = 1
    broken = world.add_model("m17", backend="replay", matrix=str(world.matrix), failure_rate=1.0)
    study = world.add_study(broken, max_prompts=12)
    world.settle()
    paused = world.study(study)
    assert paused.state == StudyState.PAUSED
    assert "all 5 calls of a step failed: simulated failure" in paused.reason
    assert [job.state for job in world.jobs(study)] == [JobState.PARKED] * 5
    assert world.acquired() == []
    world.check_money()
    with world.database.begin() as session:
        assert jobs.free_unpaid(session, study) == 5
        studies.move(session, study, StudyState.RUNNING)
    with world.database.begin() as session:
        model = session.exec(select(Model).where(Model.name == "m17")).one()
        model.spec = {**model.spec, "failure_rate": 0.0}  # the endpoint is back
        session.add(model)
    world.settle()
    assert world.study(study).state == StudyState.DONE
    assert len(world.acquired()) == 12
    world.check_money()
