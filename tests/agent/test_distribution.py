"""The objective "distribution" in live studies: many templates of one model, quantiles, templates that
join."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent import leaderboard, render, steering
from agent.commands.study import describe as describe_study
from agent.loop import Agent
from agent.registration import add_prompts
from agent.row_features import effects_of
from agent.steering import StudyOrder
from agent.template_variants import generate_variants
from assay.errors import BadInputError, UsageError
from assay.specs import DatasetSpec, PromptSpec
from estimators.distribution import QUANTILES, quantiles_of, wasserstein
from storage import catalog, studies
from storage.matrices import load_rows
from storage.tables import Method, StudyState
from storage.templates import add_template
from tests.workers.endpoint import Endpoint, completion, serving
from tests.world import World

QUESTIONS, VARIANTS = 40, 50
FEW = ["fmt-0*"]  # ten of them
BENCHMARK = "sums"
BASE = "Question: {text}\nAnswer:"


def uniform(*key: object) -> float:
    digest = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def right(number: int, rendered: str) -> bool:
    """Whether the simulated model gets a question right when it is put like this."""
    formatting = re.sub(r"\d+", "N", rendered)
    level = 0.2 + 0.7 * uniform("format", formatting)
    return uniform("question", number) < 0.35 or uniform(number, formatting) < level - 0.1


def answer(body: dict[str, Any]) -> dict[str, Any]:
    text = body["messages"][-1]["content"]
    number = int(re.findall(r"\d+", text)[0])
    return completion(str(number + 1) if right(number, text) else "no idea")


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving() as found:
        found.responder = answer
        yield found


@pytest.fixture
def world(tmp_path: Path, endpoint: Endpoint) -> World:
    """A benchmark of sums, a model behind an endpoint, and 50 formatting variants."""
    world = World.open(tmp_path, batch_size=100)
    prompts = [PromptSpec(id=f"q{i}", text=f"What follows {i}?", target=str(i + 1)) for i in range(QUESTIONS)]
    with world.database.begin() as session:
        add_prompts(session, BENCHMARK, [DatasetSpec(name="default")], prompts)
        variants = generate_variants(BASE, VARIANTS, np.random.default_rng(0))
        for i, variant in enumerate(variants):
            add_template(session, f"fmt-{i:02d}", variant.text)
    price = {"input_per_million": 1.0, "output_per_million": 2.0}
    world.add_model("counter", backend="openai", base_url=endpoint.url, price=price, max_tokens=8)
    return world


def order(world: World, **wanted: Any) -> int:
    given = {
        "benchmark": BENCHMARK,
        "methods": ["counter"],
        "objective": "distribution",
        "templates": ["fmt-*"],
        "max_prompts": 300,
        "max_usd": 1.0,
        **wanted,
    }
    with world.database.begin() as session:
        (study,) = steering.order(session, world.settings, StudyOrder(**given))
    return study


def true_scores() -> np.ndarray:
    texts = [v.text for v in generate_variants(BASE, VARIANTS, np.random.default_rng(0))]
    return np.array(
        [
            np.mean([right(i, text.replace("{text}", f"What follows {i}?")) for i in range(QUESTIONS)])
            for text in texts
        ]
    )


def shown(world: World, study: int) -> dict[str, Any]:
    with world.database.read() as session:
        return describe_study(session, study)


def test_fifty_formatting_variants_from_a_few_cells_of_each(world: World) -> None:
    study = order(world, batch_size=150)
    world.settle()
    found = shown(world, study)
    assert found["state"] == StudyState.DONE
    assert len(world.acquired()) == 300
    truth = true_scores()
    estimated = [e["score"] for e in found["estimates"]]
    assert wasserstein(estimated, truth) < 0.06
    at = {q["at"]: q["value"] for q in found["quantiles"]}
    assert list(at) == list(QUANTILES)
    assert {q["interval_kind"] for q in found["quantiles"]} == {"predicted"}  # nothing to rehearse on
    assert np.abs(list(at.values()) - quantiles_of(truth, QUANTILES)).mean() < 0.1
    by_method = np.array([e["acquired"] for e in found["estimates"]])
    assert set(by_method) == {6}  # two-way balanced
    world.check_money()
    with world.database.read() as session:
        board = leaderboard.build(session, BENCHMARK)
    (row,) = board.rows
    assert (row.method, row.templates) == ("counter", VARIANTS)
    assert (row.q05, row.median, row.q95) == (at[0.05], at[0.5], at[0.95])
    assert row.score == row.median
    assert f"{row.q95:.3f}" in render.as_markdown(board)
    assert "q95" in render.as_csv(board)
    assert "Median" in render.as_markdown(board)


def test_templates_that_arrive_join_the_running_study(world: World) -> None:
    study = order(world, templates=FEW, max_prompts=100, batch_size=20)
    agent = Agent(world.agent_context())
    for _ in range(3):
        agent.tick()
        world.work()
    assert world.study(study).state == StudyState.RUNNING
    with world.database.begin() as session:
        add_template(session, "fmt-0late", "Please: {{ text }}", "jinja")
        add_template(session, "fmt-0unfit", "{text} {hint}")
        add_template(session, "other", "{text}!")
    world.settle(agent)
    found = shown(world, study)
    assert "counter@fmt-0late" in found["methods"]
    assert len(found["methods"]) == 11
    late = next(e for e in found["estimates"] if e["method"] == "counter@fmt-0late")
    assert late["acquired"] >= 5  # it catches up: rows with the fewest evaluations come first
    assert found["quantiles"][0]["rows"] == 11


def test_stops_when_every_quantile_is_known_closely_enough(world: World) -> None:
    study = order(world, templates=FEW, max_prompts=400, until_width=0.3, quantiles=[0.5])
    world.settle()
    assert "widest interval of a quantile" in world.study(study).reason
    assert len(world.acquired()) < 400


@pytest.mark.parametrize("estimator", ["x-pirt-discrete", "x-pirt-embedding"])
def test_template_covariates_reach_the_estimator(world: World, estimator: str) -> None:
    study = order(world, templates=FEW, estimator=estimator, max_prompts=100)
    world.settle()
    assert shown(world, study)["state"] == StudyState.DONE


def test_same_template_same_method(world: World) -> None:
    order(world, templates=["fmt-0*"])
    order(world, templates=["fmt-*"])
    with world.database.read() as session:
        model = catalog.find_model(session, "counter")
    methods = [method for method in world.rows(Method) if method.model_id == model.id]
    assert len(methods) == VARIANTS + 1  # and the default one


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        ({"templates": ["nothing-*"]}, UsageError, "no template matches"),
        ({"templates": ["fmt-01"]}, UsageError, "at least two templates"),
        ({"templates": [], "methods": ["counter"]}, UsageError, "at least two templates"),
        ({"objective": "best"}, UsageError, "goes with the objective 'distribution'"),
        ({"templates": ["fmt-*", "unfit"]}, BadInputError, "names the field 'hint', prompt 'q0'"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_stored(
    world: World, wanted: dict[str, Any], error: type[Exception], message: str
) -> None:
    with world.database.begin() as session:
        add_template(session, "unfit", "{text} {hint}")
    with pytest.raises(error, match=message):
        order(world, **wanted)
    assert not world.studies()


def test_enough_history_chooses_cells_and_rehearses_for_the_quantiles(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.rehearsal.GROUPS", 6)
    world = World.open(tmp_path).with_history(models=110, tests=1, prompts=24)
    with world.database.begin() as session:
        for i in range(6):
            add_template(session, f"way-{i}", f"way {i}: {{text}}")
    world.add_model("m109")
    study = order(world, benchmark="trivia", methods=["m109"], templates=["way-*"], max_prompts=40)
    kept = world.study(study)
    assert (kept.policy, kept.estimator) == ("quantile-variance", "mirt-group")
    world.settle()
    assert world.study(study).state == StudyState.DONE
    assert {q["interval_kind"] for q in shown(world, study)["quantiles"]} == {"rehearsed"}


def test_what_templates_did_for_earlier_models_reaches_the_estimator(
    world: World, endpoint: Endpoint
) -> None:
    price = {"input_per_million": 1.0, "output_per_million": 2.0}
    world.add_model("second", backend="openai", base_url=endpoint.url, price=price, max_tokens=8)
    first = order(world, templates=FEW, max_prompts=200, estimator="x-pirt")
    world.settle()
    study = order(world, methods=["second"], templates=FEW, max_prompts=60, estimator="x-pirt-history")
    world.settle()
    assert shown(world, study)["state"] == StudyState.DONE
    context = world.agent_context()
    with world.database.read() as session:
        benchmark = catalog.find_benchmark(session, BENCHMARK)
        columns = context.columns(session, benchmark)
        known = {s: studies.methods_of(session, s) for s in (first, study)}
        effects = effects_of(session, columns, known[study], world.settings)[:, 0]
        scores = load_rows(session, columns, np.array([m.id for m in known[first]], dtype=np.int64))
    means = np.nanmean(scores, axis=1)
    by_template = dict(zip([m.template_id for m in known[first]], means, strict=True))
    assert np.corrcoef(effects, [by_template[m.template_id] for m in known[study]])[0, 1] > 0.8
