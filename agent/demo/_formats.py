"""The demo of a score that does not hang on one wording: 50 formatting variants of one template, live."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agent.demo._run import PATIENCE_S, Progress, free_port, start_world, wait_for_endpoint
from agent.demo._world import DATASETS, Question, make_world
from agent.registration import add_prompts
from agent.steering import StudyOrder, order
from agent.supervisor import Supervisor
from agent.template_variants import generate_variants
from assay.errors import AssayError
from assay.settings import Settings
from assay.specs import ModelSpec, Price
from assay.templates import render_template
from estimators.distribution import QUANTILES, quantiles_of, wasserstein
from storage import catalog, estimates, jobs, ledger, quantiles, studies
from storage.database import Database
from storage.tables import StudyState
from storage.templates import add_template

__all__ = ["FormatsResult", "run_formats_demo"]

BENCHMARK, MODEL = "demo", "formatted"
BASE = "Question: {text}\nAnswer:"
VARIANTS, PER_DATASET, CELLS = 50, 20, 600
CAP_USD = 0.25


@dataclass(frozen=True)
class FormatsResult:
    """What the demo found out.

    Attributes:
        templates: Number of templates.
        at, estimated, low, high, true: Quantiles: where, estimate, ends of the interval, and the truth.
        w1: Wasserstein-1 distance of the estimated from the true scores of the templates.
        calls, full_calls: Calls that were bought, and what every template on every prompt would take.
        spent_usd, cap_usd: Money.
        seconds: From creating the study to its end.
    """

    templates: int
    at: tuple[float, ...]
    estimated: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    true: tuple[float, ...]
    w1: float
    calls: int
    full_calls: int
    spent_usd: float
    cap_usd: float
    seconds: float


def run_formats_demo(folder: Path, tell: Callable[[Progress], None], *, seed: int = 0) -> FormatsResult:
    """Run the demo in a folder, which is emptied first.

    Raises:
        AssayError: Something did not come up or did not finish; the message names the logs.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = Settings(data_dir=folder, database_url="", broker_url="", watch_models=None, batch_size=100)
    tell(Progress(f"building {3 * PER_DATASET} prompts and {VARIANTS} formatting variants"))
    rng = np.random.default_rng(seed)
    questions = make_world(rng, history=2, per_dataset=PER_DATASET).questions
    texts = [variant.text for variant in generate_variants(BASE, VARIANTS, rng)]
    correct = _draw(len(texts), len(questions), rng)
    answers = folder / "answers.json"
    answers.write_text(json.dumps({MODEL: _answers(texts, questions, correct)}), encoding="utf-8")
    port = free_port()
    database = _fill(settings, questions, texts, port)
    with ExitStack() as stack:
        stack.callback(database.close)
        supervisor = start_world(settings, answers, port)
        stack.callback(supervisor.stop)
        tell(Progress("starting broker, agent, worker and a local endpoint"))
        supervisor.start()
        wait_for_endpoint(port, supervisor)
        started = time.monotonic()
        study_id = _order(database, settings)
        _follow(database, supervisor, study_id, tell)
        return _result(database, study_id, correct, time.monotonic() - started)


def _draw(templates: int, prompts: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """(R, N) True where the model is right: some formats suit it better than others."""
    effect, difficulty = rng.normal(0.6, 0.7, (templates, 1)), rng.normal(0.0, 1.4, prompts)
    drawn: NDArray[np.bool_] = rng.random((templates, prompts)) < 1.0 / (1.0 + np.exp(difficulty - effect))
    return drawn


def _answers(texts: list[str], questions: tuple[Question, ...], correct: NDArray[np.bool_]) -> dict[str, str]:
    """What the endpoint answers to each rendered prompt."""
    return {
        render_template(
            text, "format", {"text": question.prompt.text}, name="variant", prompt=question.prompt.id or ""
        ): question.right if correct[i, j] else question.wrong
        for i, text in enumerate(texts)
        for j, question in enumerate(questions)
    }


def _fill(settings: Settings, questions: tuple[Question, ...], texts: list[str], port: int) -> Database:
    database = Database(settings.database)
    database.create_or_check()
    spec = ModelSpec(
        name=MODEL,
        base_url=f"http://127.0.0.1:{port}/v1",
        max_tokens=32,
        price=Price(input_per_million=2.0, output_per_million=8.0),
    )
    with database.begin() as session:
        add_prompts(session, BENCHMARK, list(DATASETS), [question.prompt for question in questions])
        for i, text in enumerate(texts):
            add_template(session, f"format-{i:03d}", text)
        catalog.add_model(session, spec, announce=False)
    return database


def _order(database: Database, settings: Settings) -> int:
    wanted = StudyOrder(
        benchmark=BENCHMARK,
        methods=[MODEL],
        objective="distribution",
        templates=["format-*"],
        max_prompts=CELLS,
        max_usd=CAP_USD,
    )
    with database.begin() as session:
        return order(session, settings, wanted)[0]


def _follow(
    database: Database, supervisor: Supervisor, study_id: int, tell: Callable[[Progress], None]
) -> None:
    until, last = time.monotonic() + PATIENCE_S, None
    while time.monotonic() < until:
        supervisor.watch()
        with database.read() as session:
            study = studies.find(session, study_id)
            found = {q.at: q for q in quantiles.of_study(session, study_id)}
        if study.state in (StudyState.PAUSED, StudyState.FAILED):
            raise AssayError(f"the demo's study is {study.state}: {study.reason}", f"see {supervisor.logs}")
        if (middle := found.get(0.5)) is not None and middle.acquired != last:
            last = middle.acquired
            tell(Progress("buying scores", last, CELLS, middle.value, middle.low, middle.high))
        if study.state == StudyState.DONE:
            return
        time.sleep(0.1)
    raise AssayError("the demo's study did not finish in time", f"see the logs in {supervisor.logs}")


def _result(database: Database, study_id: int, correct: NDArray[np.bool_], seconds: float) -> FormatsResult:
    with database.read() as session:
        found = quantiles.of_study(session, study_id)
        newest = {e.method_id: e.score for e in estimates.history(session, study_id)}
        budget = ledger.budgets_of(session, [("study", study_id)])[0]
        calls = jobs.count_finished(session, study_id)
    truth = correct.mean(axis=1)  # datasets of equal size: the mean of their means
    return FormatsResult(
        templates=len(correct),
        at=tuple(q.at for q in found),
        estimated=tuple(q.value for q in found),
        low=tuple(q.low for q in found),
        high=tuple(q.high for q in found),
        true=tuple(quantiles_of(truth, QUANTILES).tolist()),
        w1=wasserstein(np.array(list(newest.values())), truth),
        calls=calls,
        full_calls=correct.size,
        spent_usd=budget.spent / 1e6,
        cap_usd=budget.cap / 1e6,
        seconds=seconds,
    )
