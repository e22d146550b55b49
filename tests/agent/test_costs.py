"""What a cell is expected to cost: by the prompt's length, the dataset's typical answer, and the price."""

from __future__ import annotations

import numpy as np
import pytest
from sqlmodel import select

from agent.context import AgentContext
from agent.costs import expected_costs, specs_of
from agent.situation import read_situation
from storage import catalog, versions
from storage.tables import Dataset, Method, Output, Prompt, Study
from tests.world import BENCHMARK, World
from workers.training import train_version

PRICE = {"input_per_million": 1.0, "output_per_million": 10.0}


def answer(world: World, method: int, prompt: int, tokens: int) -> None:
    with world.database.begin() as session:
        session.add(Output(method_id=method, prompt_id=prompt, text="x", output_tokens=tokens))


def costs(world: World, context: AgentContext, method: int) -> np.ndarray:
    with world.database.read() as session:
        columns = context.columns(session, catalog.find_benchmark(session, BENCHMARK))
        methods = [session.get_one(Method, method)]
        return expected_costs(session, context, columns, methods, specs_of(session, methods))[0]


def lengthen(world: World, prompt: int, length: int) -> None:
    with world.database.begin() as session:
        row = session.get_one(Prompt, prompt)
        row.text = "word " * (length // 5)
        session.add(row)


@pytest.fixture
def method(world: World) -> int:
    return world.add_model("m17", backend="replay", matrix=str(world.matrix), price=PRICE)


def test_long_prompts_and_wordy_datasets_cost_more(world: World, method: int) -> None:
    lengthen(world, 1, 4000)
    with world.database.read() as session:
        first_of_hard = session.exec(select(Prompt.id).join(Dataset).where(Dataset.name == "hard")).first()
    assert first_of_hard is not None
    answer(world, 1, 2, 10)
    answer(world, 1, first_of_hard, 500)
    found = costs(world, world.agent_context(), method)
    assert found[0] > 2 * found[1]
    assert found[first_of_hard] > 10 * found[2]
    assert found.mean() == pytest.approx(1.0)


def test_answers_are_counted_once_as_they_come(world: World, method: int) -> None:
    context = world.agent_context()
    answer(world, 1, 1, 100)
    first = costs(world, context, method)
    np.testing.assert_array_equal(costs(world, context, method), first)
    answer(world, 1, 30, 400)
    answer(world, 2, 1, 200)
    again, afresh = costs(world, context, method), costs(world, world.agent_context(), method)
    np.testing.assert_allclose(again, afresh)
    assert not np.allclose(again, first)


def test_the_state_of_a_live_study_holds_them(world: World, method: int) -> None:
    study_id = world.add_study(method, policy="uniform")
    lengthen(world, 1, 4000)
    with world.database.begin() as session:
        benchmark = catalog.find_benchmark(session, BENCHMARK)
        wanted = versions.want(session, benchmark, world.settings.estimator, {})
        version_id = int(wanted.id or 0)
    assert train_version(world.worker(), version_id)
    context = world.agent_context()
    with world.database.read() as session:
        assert session.get_one(Study, study_id).estimator == world.settings.estimator
        state = read_situation(session, context, study_id, version_id).state
    assert state.cost.shape == (1, 36)
    assert state.cost[0, 0] > 1.2 * state.cost[0, 1:].max()
