"""What follows from an event: studies, once each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlmodel import col, select

from agent.loop import Agent
from agent.registration import add_prompt_file
from storage import catalog, studies
from storage.events import emit
from storage.importing import import_matrix_folder
from storage.tables import Event, Model, StudyState, utc_now
from tests.world import BENCHMARK, World, write_matrix


def handle(world: World) -> None:
    Agent(world.agent_context())._handle_events()


def add_prompts(world: World, *texts: str, benchmark: str = BENCHMARK) -> None:
    path = world.folder / "more.jsonl"
    lines = [json.dumps({"text": t, "dataset": "new", "target": "x"}) for t in texts]
    path.write_text("\n".join(lines), encoding="utf-8")
    with world.database.begin() as session:
        add_prompt_file(session, path, benchmark)


def second_benchmark(world: World, name: str = "other") -> None:
    folder: Path = write_matrix(world.folder / name, models=6, tests=0, prompts=6)
    import_matrix_folder(world.database, folder, name)


def test_a_new_model_gets_a_study_per_benchmark_and_only_once(world: World) -> None:
    second_benchmark(world)
    world.add_model("m17", announce=True)
    handle(world)
    assert [(s.benchmark_id, s.objective) for s in world.studies()] == [(1, "estimate"), (2, "estimate")]
    world.add_model("m17", announce=True)  # registering again announces nothing
    with world.database.begin() as session:  # and if the event came again, the trigger is known
        emit(session, "model.registered", {"model_id": model_id(world, "m17"), "model": "m17"})
    handle(world)
    assert len(world.studies()) == 2


def model_id(world: World, name: str) -> int:
    with world.database.read() as session:
        return int(catalog.find_model(session, name).id or 0)


def test_the_study_is_as_configured(world: World) -> None:
    world.settings.max_usd, world.settings.until_width, world.settings.seed = 0.25, 0.1, 3
    world.add_model("m17", announce=True)
    handle(world)
    (study,) = world.studies()
    assert (study.policy, study.estimator, study.seed) == ("stratified", "linear-gaussian", 3)
    assert (study.batch_size, study.max_prompts, study.until_width) == (5, 15, 0.1)
    assert (world.budget(1).unit, world.budget(1).cap) == ("usd", 250_000)


def test_a_model_may_name_its_benchmarks(world: World) -> None:
    second_benchmark(world)
    world.add_model("m17", announce=True, backend="replay", matrix=str(world.matrix), benchmarks=["other"])
    world.add_model("m18", announce=True, backend="replay", matrix=str(world.matrix), benchmarks=["no such"])
    handle(world)
    assert [study.benchmark_id for study in world.studies()] == [2]


def test_imported_retired_and_prompts_less_are_left_alone(world: World) -> None:
    with world.database.begin() as session:
        catalog.add_benchmark(session, "empty")
    world.add_model("m17", announce=True)
    with world.database.begin() as session:
        model = catalog.find_model(session, "m17")
        model.retired_at = utc_now()
        session.add(model)
        imported = session.exec(select(Model).where(col(Model.backend) == "imported")).first()
        assert imported is not None
        emit(session, "model.registered", {"model_id": imported.id, "model": imported.name})
    handle(world)
    assert world.studies() == []


def test_without_history_the_study_needs_none(tmp_path: Path) -> None:
    world = World.open(tmp_path)
    write_matrix(world.matrix, models=3, tests=1)
    import_matrix_folder(world.database, world.matrix, BENCHMARK, rows="train")
    world.add_model("m2", announce=True)
    handle(world)
    assert [(study.policy, study.estimator) for study in world.studies()] == [("stratified", "aggregate")]
    world.database.close()


def test_new_prompts_refresh_what_was_evaluated_once_per_revision(world: World) -> None:
    world.add_model("m17", announce=True)
    world.settle()
    assert [study.state for study in world.studies()] == [StudyState.DONE]
    add_prompts(world, "What is new?")
    handle(world)
    add_prompts(world, "What is new?")  # known already: nothing is announced
    handle(world)
    assert len(world.studies()) == 2
    assert world.studies()[1].trigger == "prompts:1:2:method:17"
    add_prompts(world, "What else?")
    handle(world)
    assert len(world.studies()) == 3


def test_models_that_no_study_covers_are_not_refreshed(world: World) -> None:
    add_prompts(world, "What is new?")
    handle(world)
    assert world.studies() == []


def test_unfinished_studies_take_new_prompts_by_themselves(world: World) -> None:
    world.add_study(world.add_model("m17"))
    add_prompts(world, "What is new?")
    world.settle()
    assert [(study.id, study.state) for study in world.studies()] == [(1, StudyState.DONE)]


def test_cancelled_studies_do_not_bring_their_models_back(world: World) -> None:
    world.add_model("m17", announce=True)
    handle(world)
    with world.database.begin() as session:
        studies.move(session, 1, StudyState.CANCELLED)
    add_prompts(world, "What is new?")
    handle(world)
    assert len(world.studies()) == 1


def test_every_event_is_handled_once_by_whichever_agent(world: World) -> None:
    world.add_model("m17", announce=True)
    first, second = Agent(world.agent_context()), Agent(world.agent_context())
    with world.database.read() as session:
        waiting = list(session.exec(select(Event).where(col(Event.handled_at).is_(None))).all())
    for event in waiting:
        first._handle(event)
        assert second._handle(event) == set()
    assert len(world.studies()) == 1


@pytest.mark.parametrize("payload", [{}, {"model_id": "x"}, {"model_id": 9999}])
def test_an_event_that_cannot_be_handled_stops_nobody(world: World, payload: dict[str, object]) -> None:
    with world.database.begin() as session:
        emit(session, "model.registered", payload)
        emit(session, "somebody.elses", {"a": 1})
    world.add_model("m17", announce=True)
    handle(world)
    assert len(world.studies()) == 1
    with world.database.read() as session:
        assert (
            session.exec(
                select(Event).where(Event.kind == "model.registered", col(Event.handled_at).is_(None))
            ).all()
            == []
        )
