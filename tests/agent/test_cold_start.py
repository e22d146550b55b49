"""New prompts in the running agent: embedded, learned about, refreshed, pooled; and what it will cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlmodel import select
from typer.testing import CliRunner

from agent.cli import app
from agent.registration import add_prompts
from assay.specs import DatasetSpec, PromptSpec
from estimators import ColdStartEstimator, PseudoLabels, load_estimator
from storage import catalog, estimates, versions
from storage.tables import (
    Dataset,
    Embedding,
    Estimate,
    EstimatorVersion,
    Job,
    Prompt,
    Score,
    Study,
    StudyState,
    VersionState,
)
from tests.world import BENCHMARK, World, write_matrix
from workers.labelling import load_labels

MODELS, TESTS, OLD, ALL = 40, 6, 36, 54
TESTED = [f"m{i}" for i in range(MODELS - TESTS, MODELS)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A history on 36 prompts; the models can answer 18 more, which the benchmark does not have yet."""
    opened = World.open(tmp_path, max_prompts=18, policy="expected-variance-reduction", retrain_scores=0)
    opened.with_history(models=MODELS, tests=TESTS, prompts=OLD)
    wider = write_matrix(tmp_path / "wider", models=MODELS, tests=TESTS, prompts=ALL)
    (wider / "prompts.jsonl").write_text("\n".join(json.dumps(p) for p in prompts()) + "\n", encoding="utf-8")
    return opened


def prompts() -> list[dict[str, Any]]:
    old = [
        {"id": f"p{j}", "dataset": "easy" if j < OLD // 3 else "hard", "text": f"What is {j}?"}
        for j in range(OLD)
    ]
    return old + [{"id": f"p{j}", "dataset": "new", "text": f"Why is {j}?"} for j in range(OLD, ALL)]


def evaluate(world: World, names: list[str] = TESTED) -> None:
    for name in names:
        world.add_model(name, announce=True, backend="replay", matrix=str(world.folder / "wider"))
    settle(world)


def settle(world: World) -> None:
    """Until nothing moves; a fit that the last look of the agent asked for is work too."""
    world.settle()
    while world.fits_due:
        world.settle()


def grow(world: World) -> None:
    with world.database.begin() as session:
        spec = DatasetSpec(name="new", scorer="replay")
        added = [PromptSpec(id=p["id"], dataset="new", text=p["text"]) for p in prompts()[OLD:]]
        add_prompts(session, BENCHMARK, [spec], added)


def versions_of(world: World) -> list[EstimatorVersion]:
    return list(world.rows(EstimatorVersion))


def estimator_of(world: World, version: EstimatorVersion) -> ColdStartEstimator:
    with world.database.read() as session:
        folder = versions.artifact_folder(session, version.id or 0, world.settings.cache_dir)
    loaded = load_estimator(folder)
    assert isinstance(loaded, ColdStartEstimator)
    return loaded


def labels_of(world: World, version: EstimatorVersion) -> tuple[PseudoLabels, dict[str, str]]:
    with world.database.read() as session:
        folder = versions.artifact_folder(session, version.id or 0, world.settings.cache_dir)
    found = load_labels(folder)
    assert found is not None
    return found


def new_jobs(world: World) -> list[Job]:
    new = {pk for pk, key in ((p.id, p.key) for p in world.rows(Prompt)) if int(key[1:]) >= OLD}
    return [job for job in world.jobs() if job.prompt_id in new]


def test_new_prompts_refresh_what_was_evaluated_and_pool_the_answers(world: World) -> None:
    evaluate(world)
    assert not new_jobs(world)
    grow(world)
    settle(world)
    refreshed = [s for s in world.studies() if (s.trigger or "").startswith("prompts:")]
    assert [s.state for s in refreshed] == [StudyState.DONE] * TESTS
    first, second = versions_of(world)[1:3]
    assert first.history["findings"]["cold prompts"] == ALL - OLD
    assert first.history["findings"]["answers there"] == 0
    assert len(world.rows(Embedding, Embedding.content_hash)) == ALL
    assert second.reason != ""
    assert second.history["findings"]["answers there"] > 0
    drawn = new_jobs(world)
    per_study = len(drawn) / TESTS
    assert 0.3 * 18 <= per_study <= 0.7 * 18
    assert all(job.probability is not None for job in drawn)
    assert all(s.origin != "pseudo" for s in world.rows(Score, Score.prompt_id))
    world.check_money()


def test_after_pooling_every_estimate_is_made_anew_without_buying(world: World) -> None:
    evaluate(world)
    grow(world)
    settle(world)
    pooled = [s for s in world.studies() if (s.trigger or "").startswith("pooled:")]
    last = versions_of(world)[-1]
    assert last.state == VersionState.CHAMPION, last.reason
    assert "on new prompts" in last.reason
    assert len(pooled) == TESTS
    assert {s.version_id for s in pooled} == {last.id}
    assert not [job for s in pooled for job in world.jobs(s.id)]
    bought = len(world.jobs())
    settle(world)
    assert len(world.jobs()) == bought  # and that starts nothing new


def test_what_was_spent_stays_on_the_leaderboard(world: World) -> None:
    paid(world)
    before = latest(world).cost
    assert before > 0
    grow(world)
    settle(world)
    spent = sum(world.budget(s.id or 0).spent for s in world.studies())
    assert latest(world).cost == spent > before


def latest(world: World) -> Estimate:
    found = world.rows(Estimate)
    assert isinstance(found[-1], Estimate)
    return found[-1]


def test_estimates_include_the_new_prompts(world: World) -> None:
    evaluate(world)
    grow(world)
    settle(world)
    with np.load(world.folder / "wider" / "scores.npz") as stored:
        scores = stored["scores"].astype(float)
    names = [p["dataset"] for p in prompts()]
    parts = [np.flatnonzero([n == d for n in names]) for d in ("easy", "hard", "new")]
    truth = np.mean([scores[:, part].mean(axis=1) for part in parts], axis=0)
    errors = []
    with world.database.read() as session:
        for study in session.exec(select(Study).where(Study.state == StudyState.DONE)).all():
            if (study.trigger or "").startswith("prompts:"):
                last = estimates.history(session, study.id or 0)[-1]
                assert last.total == ALL
                errors.append(abs(last.score - truth[last.method_id - 1]))
    assert np.mean(errors) < 0.12


def test_pseudo_labels_are_an_artifact_of_the_version_and_never_scores(world: World) -> None:
    world.settings.pseudo_label_variance = 0.2
    evaluate(world, TESTED[:1])
    before = len(world.rows(Score, Score.prompt_id))
    grow(world)
    world.work()
    settle(world)
    version = versions_of(world)[1]
    labels, about = labels_of(world, version)
    assert len(labels) > 0
    assert about["used"] == "false"
    assert "too few to check" in about["reason"]
    assert version.history["findings"]["pseudo-labels"] == len(labels)
    assert (labels.uncertainty <= 0.2).all()
    assert set(labels.values.tolist()) <= {0.0, 1.0}
    acquired = len(world.acquired())
    assert len(world.rows(Score, Score.prompt_id)) <= before + acquired


def test_labels_are_made_anew_and_dropped_where_a_score_arrives(world: World) -> None:
    world.settings.pseudo_label_variance = 0.25
    evaluate(world, TESTED[:1])
    grow(world)
    settle(world)
    first, _ = labels_of(world, versions_of(world)[1])
    cells = set(zip(first.methods, first.prompts, strict=True))
    assert ("m0", f"p{OLD}") in cells
    with world.database.begin() as session:
        benchmark = catalog.find_benchmark(session, BENCHMARK)
        _score(session, "m0", f"p{OLD}")
        benchmark.revision += 1
        session.add(benchmark)
        wanted = versions.want(session, benchmark, world.settings.estimator, {}, reason="test")
        version_id = int(wanted.id or 0)
    world.fits_due.append(version_id)
    settle(world)
    with world.database.read() as session:
        again, _ = labels_of(world, versions.find(session, version_id))
    assert ("m0", f"p{OLD}") not in set(zip(again.methods, again.prompts, strict=True))


def _score(session: Any, method: str, prompt: str) -> None:
    row = session.exec(select(Prompt).where(Prompt.key == prompt)).one()
    dataset = session.get_one(Dataset, row.dataset_id)
    session.add(
        Score(
            dataset_id=dataset.id,
            scorer_id=dataset.scorer_id,
            method_id=catalog.find_method(session, method).id,
            prompt_id=row.id,
            value=1.0,
            origin="imported",
        )
    )


# --- what it will cost -------------------------------------------------------------------------------------


def paid(world: World, name: str = "m34") -> None:
    """A model whose calls cost something, evaluated by a study that is over."""
    price = {"input_per_million": 3.0, "output_per_million": 15.0, "per_call": 0.0001}
    world.add_model(name, announce=True, backend="replay", matrix=str(world.folder / "wider"), price=price)
    settle(world)


def command(world: World, *arguments: str, given: str | None = None) -> Any:
    file = world.folder / "new.jsonl"
    file.write_text(
        "\n".join(json.dumps({**p, "dataset": "hard"}) for p in prompts()[OLD:]), encoding="utf-8"
    )
    env = {"ASSAY_DATA_DIR": str(world.settings.data_dir), "ASSAY_MAX_PROMPTS": "18"}
    line = ["benchmark", "add-prompts", BENCHMARK, str(file), *arguments]
    return CliRunner().invoke(app, line, env=env, input=given)


def count(world: World) -> int:
    return len(world.rows(Prompt))


def test_shows_what_will_be_spent_and_asks_first(world: World) -> None:
    paid(world)
    shown = command(world, "--json", "--dry-run")
    plan = json.loads(shown.stdout)["refresh"]
    assert (plan["studies"], plan["prompts"]) == (1, 18)
    assert 0 < plan["expected_usd"] <= plan["ceiling_usd"] <= world.settings.max_usd
    assert count(world) == OLD
    refused = command(world)
    assert (refused.exit_code, count(world)) == (2, OLD)
    agreed = command(world, "--yes")
    assert agreed.exit_code == 0, agreed.output
    assert "1 refresh studies of up to 18 prompts" in agreed.stdout
    assert count(world) == ALL
    settle(world)
    refreshes = [s for s in world.studies() if (s.trigger or "").startswith("prompts:")]
    spent = world.budget(refreshes[0].id or 0).spent / 1e6
    assert spent <= plan["ceiling_usd"]


def test_where_nothing_is_spent_nobody_is_asked(world: World) -> None:
    added = command(world)
    assert added.exit_code == 0, added.output
    assert count(world) == ALL
    assert json.loads(command(world, "--json").stdout)["added"] == 0
