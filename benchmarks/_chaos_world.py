"""The world of the kill test: a small seeded benchmark, four models that answer, five studies.

Two models are replayed, two are behind the endpoint. Caps are as tight as they can be without stopping a
study.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from sqlmodel import Session

from agent.demo._world import DATASETS, World, make_world
from agent.demo.endpoint import tokens
from agent.registration import add_prompts
from assay.settings import Settings
from assay.specs import ModelSpec, Price
from storage import catalog, events, ledger, studies
from storage.database import Database
from storage.importing import import_matrix_folder
from storage.studies import StudyRequest
from workers.prices import FRAME_TOKENS

__all__ = ["BENCHMARK", "PRICE", "ChaosPlan", "chaos_settings", "fill"]

BENCHMARK = "kill-test"
HISTORY = 20
PRICE = Price(input_per_million=2.0, output_per_million=8.0)
REPLAY_PRICE = Price(per_call=0.0001)
MAX_TOKENS = 32
REPLAY_COST = REPLAY_PRICE.micro_dollars(0, 0)


@dataclass(frozen=True)
class ChaosPlan:
    """Size of a kill test.

    Attributes:
        seed: Of the world, the victims and the moments.
        kills: How many processes are killed.
        gap_s: Shortest and longest time between two kills.
        max_prompts: Calls per study.
        batch_size: Calls per step.
        latency_ms: Of each call.
        failure_rate: Share of tries that fail.
        patience_s: Longest time for the studies to end after the last kill.
        agents: Agent processes, all on one database.
    """

    seed: int = 1
    kills: int = 30
    gap_s: tuple[float, float] = (0.5, 5.0)
    max_prompts: int = 110
    batch_size: int = 4
    latency_ms: float = 700.0
    failure_rate: float = 0.05
    patience_s: float = 240.0
    agents: int = 1


def chaos_settings(folder: Path, database_url: str, broker_url: str = "") -> Settings:
    """Short leases, so that what a killed process held is soon taken up again."""
    return Settings(
        data_dir=folder,
        database_url=database_url,
        broker_url=broker_url,
        lease_s=3.0,
        sweep_s=1.0,
        redispatch_s=3.0,
        jobs_per_task=2,
    )


def fill(database: Database, folder: Path, plan: ChaosPlan, port: int) -> None:
    """Store history, models and studies, and write the answers for the endpoint and the replay backend."""
    world = make_world(np.random.default_rng(plan.seed), history=HISTORY + 4, per_dataset=60)
    subjects = world.history[HISTORY:]
    answers = {name: _answers(world, HISTORY + i) for i, name in enumerate(subjects)}
    texts = [question.prompt.text for question in world.questions]
    endpoint = {name: dict(zip(texts, answers[name], strict=True)) for name in subjects}
    (folder / "answers.json").write_text(json.dumps(endpoint), encoding="utf-8")
    _write_replay_folder(world, folder / "replay", answers)
    with database.begin() as session:
        add_prompts(session, BENCHMARK, list(DATASETS), [question.prompt for question in world.questions])
    known = replace(world, history=world.history[:HISTORY], correct=world.correct[: HISTORY + 1])
    known.write_matrix_folder(folder / "history")
    import_matrix_folder(database, folder / "history", BENCHMARK)
    _hush(database)
    with database.begin() as session:
        for name in subjects:
            spec = _replayed(name, folder, plan) if name in subjects[:2] else _paid(name, port)
            catalog.add_model(session, spec, announce=False)
        _add_studies(session, plan, texts, answers)


def _hush(database: Database) -> None:
    """Take the set-up's own news as handled, so that no automatic study joins the five."""
    with database.begin() as session:
        for event in events.unhandled(session):
            events.mark_handled(session, event.id or 0)


def _answers(world: World, row: int) -> list[str]:
    return [q.right if world.correct[row, j] else q.wrong for j, q in enumerate(world.questions)]


def _write_replay_folder(world: World, folder: Path, answers: dict[str, list[str]]) -> None:
    """All models' scores, and the subjects' answers, for the replay backend."""
    everyone = replace(world, correct=np.vstack([world.correct[: HISTORY + 4], world.correct[-1:]]))
    everyone.write_matrix_folder(folder)
    lines = [json.dumps({"model": name, "outputs": texts}) for name, texts in answers.items()]
    (folder / "outputs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _add_studies(
    session: Session, plan: ChaosPlan, texts: Sequence[str], answers: dict[str, list[str]]
) -> None:
    """One study for each of four models, two for the last, which want the same cells."""
    benchmark = catalog.find_benchmark(session, BENCHMARK)
    assert benchmark.id is not None
    names = [*answers, list(answers)[-1]]
    ledger.set_cap(session, "overall", 0, "calls", len(answers) * plan.max_prompts)
    for i, name in enumerate(names):
        method = catalog.find_method(session, name)
        assert method.id is not None
        prompts = plan.max_prompts // names.count(name)
        request = StudyRequest(
            benchmark_id=benchmark.id,
            method_ids=[method.id],
            policy="uniform" if i == 1 else "stratified",
            estimator="aggregate" if i in (1, 4) else "linear-gaussian",
            seed=plan.seed + i,
            batch_size=plan.batch_size,
            max_prompts=prompts,
            caps={"usd": prompts * REPLAY_COST if i < 2 else _cap(texts, answers[name], prompts)},
        )
        studies.create(session, request)


def _cap(questions: Sequence[str], answers: Sequence[str], prompts: int) -> int:
    """Micro-dollars that just suffice: the dearest calls, and room to reserve one more at its worst."""
    costs = sorted(PRICE.micro_dollars(*tokens(q, a)) for q, a in zip(questions, answers, strict=True))
    longest = max(len(question.encode()) for question in questions)
    return sum(costs[-prompts:]) + PRICE.micro_dollars(longest + FRAME_TOKENS, MAX_TOKENS)


def _paid(name: str, port: int) -> ModelSpec:
    return ModelSpec(
        name=name,
        backend="openai",
        base_url=f"http://127.0.0.1:{port}/v1",
        max_tokens=MAX_TOKENS,
        price=PRICE,
        timeout_s=20,
    )


def _replayed(name: str, folder: Path, plan: ChaosPlan) -> ModelSpec:
    return ModelSpec(
        name=name,
        backend="replay",
        matrix=str(folder / "replay"),
        latency_ms=plan.latency_ms,
        failure_rate=plan.failure_rate,
        price=REPLAY_PRICE,
    )
