"""Storing what was read, from whichever format, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session, col, select

from assay.errors import BadInputError
from assay.matrix import ScoreType
from assay.matrix_folder import Weighting
from assay.specs import DatasetSpec, PromptSpec
from storage import catalog
from storage.database import Database
from storage.events import emit
from storage.scores import ScoreBlock, add_block, bump_revision
from storage.tables import Benchmark, Dataset, Output, Prompt, Score, Scorer, safe_text, utc_now

__all__ = ["ImportReport", "Incoming", "IncomingOutput", "about", "check_weighting", "store"]

OUTPUTS_AT_ONCE = 1000


@dataclass(frozen=True)
class ImportReport:
    """What an import did.

    Attributes:
        models: Rows that were read.
        models_new: How many of them were not there before.
        prompts: Columns that were read.
        prompts_new: How many of them were not there before.
        scores_new: Scores that were stored now.
        scores_known: Scores that were there already.
        outputs_new: Outputs that were stored now.
        skipped: Rows of the file that were left out.
        notes: What the reader did not use, in words.
        rows: Rows of the file that were read, those left out included.
        reasons: Why rows were left out, with the number of rows for each reason.
    """

    models: int
    models_new: int
    prompts: int
    prompts_new: int
    scores_new: int
    scores_known: int
    outputs_new: int
    skipped: int = 0
    notes: tuple[str, ...] = ()
    rows: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class IncomingOutput:
    """An output to store with its position in the file's models and prompts."""

    model: int
    prompt: int
    text: str
    details: dict[str, Any]


@dataclass(frozen=True)
class Incoming:
    """A file's content: M models, N prompts in D datasets, n scores.

    Attributes:
        path: The file or folder, for messages.
        models: M names with their attributes.
        datasets: D dataset names.
        score_types: D score types.
        prompt_keys: N prompt ids, unique within their dataset.
        prompt_texts: N texts; "" = not given.
        prompt_datasets: (N,) dataset of each prompt.
        score_models: (n,) row of each score.
        score_prompts: (n,) column of each score.
        values: (n,) scores, finite, in [0, 1], each cell once.
        outputs: Outputs to store, read only once.
        rows: See `ImportReport`.
        reasons: See `ImportReport`.
        notes: See `ImportReport`.
        scorer_params: What tells these scores apart from others of the same dataset, such as their judge.
        weights: Weight of each dataset that is new, by name; 1 where it is not named.
    """

    path: Path
    models: dict[str, dict[str, Any]]
    datasets: tuple[str, ...]
    score_types: tuple[ScoreType, ...]
    prompt_keys: tuple[str, ...]
    prompt_texts: tuple[str, ...]
    prompt_datasets: NDArray[np.intp]
    score_models: NDArray[np.intp]
    score_prompts: NDArray[np.intp]
    values: NDArray[np.float64]
    outputs: Iterable[IncomingOutput] = field(default_factory=tuple)
    rows: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    scorer_params: dict[str, Any] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)


@contextmanager
def about(path: Path) -> Iterator[None]:
    """Have every complaint about the input name the file."""
    try:
        yield
    except BadInputError as error:
        if str(path) in str(error):
            raise
        raise BadInputError(f"{path}: {error}", error.hint) from None


def check_weighting(weighting: str) -> None:
    """Refuse an unknown weighting."""
    if weighting not in ("dataset", "prompt"):
        raise BadInputError(f"unknown weighting '{weighting}'", "use 'dataset' or 'prompt'")


def store(db: Database, incoming: Incoming, benchmark_name: str, weighting: Weighting) -> ImportReport:
    """Store everything, or nothing where anything is wrong.

    Raises:
        BadInputError: A prompt's text or a score contradicts what is stored.
        StorageError: The database cannot be used.
    """
    with about(incoming.path), db.begin() as session:
        benchmark, _ = catalog.add_benchmark(session, benchmark_name)
        datasets = _datasets(session, benchmark, incoming)
        prompt_ids, prompts_new = _prompts(session, datasets, incoming)
        reweighted = _set_weights(session, datasets, incoming, weighting)
        models_before = catalog.count_models(session)
        methods = catalog.add_imported_models(session, incoming.models)
        method_ids = np.array([methods[name] for name in incoming.models], dtype=np.int64)
        block = _block(incoming, datasets, method_ids, prompt_ids)
        scores_new = add_block(session, block) if len(block) else 0
        report = ImportReport(
            models=len(incoming.models),
            models_new=catalog.count_models(session) - models_before,
            prompts=len(incoming.prompt_keys),
            prompts_new=prompts_new,
            scores_new=scores_new,
            scores_known=len(incoming.values) - scores_new,
            outputs_new=_outputs(session, incoming.outputs, method_ids, prompt_ids),
            skipped=sum(incoming.reasons.values()),
            notes=incoming.notes,
            rows=incoming.rows,
            reasons=incoming.reasons,
        )
        _announce(session, benchmark, report, changed=reweighted or scores_new > 0)
    return report


def _datasets(session: Session, benchmark: Benchmark, incoming: Incoming) -> list[Dataset]:
    """The file's datasets in the file's order; new ones are scored by replaying what was imported."""
    query = select(Dataset).where(Dataset.benchmark_id == benchmark.id)
    known = {dataset.name: dataset for dataset in session.exec(query).all()}
    found = []
    for name, kind in zip(incoming.datasets, incoming.score_types, strict=True):
        dataset = known.get(name)
        if dataset is None:
            spec = DatasetSpec(
                name=name,
                score_type=kind,
                scorer="replay",
                scorer_params=incoming.scorer_params,
                weight=incoming.weights.get(name, 1.0),
            )
            dataset = catalog.add_dataset(session, benchmark, spec)
        else:
            _refuse_other_scorer(session, dataset, incoming.scorer_params)
        if dataset.score_type == ScoreType.BINARY and kind != ScoreType.BINARY:
            raise BadInputError(
                f"dataset '{name}' of benchmark '{benchmark.name}' holds binary scores, this file others",
                "import under another dataset or benchmark name",
            )
        found.append(dataset)
    return found


def _refuse_other_scorer(session: Session, dataset: Dataset, params: dict[str, Any]) -> None:
    """Scores of two judges, or against two references, must never meet in one column."""
    if not params:
        return
    stored = session.get_one(Scorer, dataset.scorer_id)
    if not stored.params and not _has_scores(session, dataset):  # only outputs were imported so far
        dataset.scorer_id = catalog.scorer_of(session, "replay", params).id or 0
        session.flush()
    elif stored.params != params:
        raise BadInputError(
            f"dataset '{dataset.name}' holds scores by {stored.name} {stored.params}, this file by {params}",
            "import under another benchmark name",
        )


def _has_scores(session: Session, dataset: Dataset) -> bool:
    return (
        session.exec(select(Score.value).where(Score.dataset_id == dataset.id).limit(1)).first() is not None
    )


def _prompts(session: Session, datasets: list[Dataset], incoming: Incoming) -> tuple[NDArray[np.int64], int]:
    """(N,) prompt keys of the database, and how many prompts are new."""
    ids = np.zeros(len(incoming.prompt_keys), dtype=np.int64)
    added = 0
    for d, dataset in enumerate(datasets):
        inside = np.flatnonzero(incoming.prompt_datasets == d)
        known = _known_texts(session, dataset)
        specs = list(_new_prompts(incoming, dataset, inside.tolist(), known))
        added += catalog.add_prompts(session, dataset, specs).added
        query = select(Prompt.key, Prompt.id).where(Prompt.dataset_id == dataset.id)
        by_key: dict[str, Any] = dict(session.exec(query).all())
        ids[inside] = [by_key[incoming.prompt_keys[j]] for j in inside]
    return ids, added


def _known_texts(session: Session, dataset: Dataset) -> dict[str, str]:
    return dict(session.exec(select(Prompt.key, Prompt.text).where(Prompt.dataset_id == dataset.id)).all())


def _new_prompts(
    incoming: Incoming, dataset: Dataset, inside: list[int], known: dict[str, str]
) -> Iterator[PromptSpec]:
    """The prompts that the dataset lacks. A file that gives no text names a known prompt by its id alone."""
    for j in inside:
        key, text = incoming.prompt_keys[j], incoming.prompt_texts[j]
        if key not in known:
            # Not validated: a matrix without texts is a matrix still.
            yield PromptSpec.model_construct(id=key, dataset=dataset.name, text=text)
        elif text and safe_text(text) != known[key]:
            raise BadInputError(
                f"prompt id '{key}' of dataset '{dataset.name}' stands for two different texts",
                "give the changed prompt a new id (scores of the old text would be wrong for it)",
            )


def _set_weights(session: Session, datasets: list[Dataset], incoming: Incoming, weighting: Weighting) -> bool:
    """Weigh the file's datasets by their number of prompts, where asked to; True where a weight changed."""
    changed = False
    for dataset in datasets if weighting == "prompt" else ():
        size = float(catalog.count_dataset_prompts(session, dataset))
        changed |= dataset.weight != size
        dataset.weight = size
    session.flush()
    return changed


def _block(
    incoming: Incoming, datasets: list[Dataset], methods: NDArray[np.int64], prompts: NDArray[np.int64]
) -> ScoreBlock:
    d = incoming.prompt_datasets[incoming.score_prompts]
    return ScoreBlock(
        dataset_ids=np.array([dataset.id for dataset in datasets], dtype=np.int64)[d],
        scorer_ids=np.array([dataset.scorer_id for dataset in datasets], dtype=np.int64)[d],
        method_ids=methods[incoming.score_models],
        prompt_ids=prompts[incoming.score_prompts],
        values=incoming.values,
    )


def _outputs(
    session: Session,
    outputs: Iterable[IncomingOutput],
    methods: NDArray[np.int64],
    prompts: NDArray[np.int64],
) -> int:
    """Store outputs, leaving those that are there already as they are; returns how many are new."""
    connection = session.connection()
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    statement = dialect.insert(Output).on_conflict_do_nothing().returning(col(Output.id))
    rows = (
        {
            "method_id": int(methods[output.model]),
            "prompt_id": int(prompts[output.prompt]),
            "text": output.text,
            "finish_reason": "imported",
            "input_tokens": 0,
            "output_tokens": 0,
            "latency_ms": 0.0,
            "details": output.details,
            "created_at": utc_now(),
        }
        for output in outputs
    )
    new = 0
    while batch := list(islice(rows, OUTPUTS_AT_ONCE)):
        new += len(connection.execute(statement, batch).all())
    return new


def _announce(session: Session, benchmark: Benchmark, report: ImportReport, *, changed: bool) -> None:
    """Move the benchmark's revisions on and say so in events, where anything changed."""
    assert benchmark.id is not None
    which = {"benchmark_id": benchmark.id, "benchmark": benchmark.name}
    if report.prompts_new:
        revision = catalog.bump_prompts_revision(session, benchmark)
        added = {"prompts_revision": revision, "added": report.prompts_new}
        emit(session, "prompts.added", {**which, **added})
    if changed:
        bump_revision(session, benchmark.id)
    if report.scores_new:
        emit(session, "scores.imported", {**which, "scores": report.scores_new, "models": report.models})
