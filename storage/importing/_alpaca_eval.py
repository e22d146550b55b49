"""Reading AlpacaEval's annotations (scores) and model outputs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from assay.errors import BadInputError
from assay.matrix import ScoreType
from assay.matrix_folder import Weighting
from assay.specs import content_hash
from storage.database import Database
from storage.importing._reading import json_file, mapping
from storage.importing._rows import Rows, import_rows
from storage.importing._store import ImportReport, Incoming, IncomingOutput, check_weighting, store

__all__ = ["import_alpaca_eval", "read_annotations"]

DATASET = "alpaca-eval"
LAYOUT = "a list of annotations (preference, generator_2, ...) or of outputs (generator, output, ...)"


def import_alpaca_eval(
    db: Database, path: Path, benchmark: str, *, dataset: str | None = None, weighting: Weighting = "dataset"
) -> ImportReport:
    """Import `annotations.json` as scores, or `model_outputs.json` as outputs.

    Raises:
        BadInputError: The file is neither, or holds verdicts of several annotators or references.
        StorageError: The database cannot be used.
    """
    entries = _entries(path)
    if any("preference" in entry for _, entry in entries):
        return import_rows(db, read_annotations(path, dataset), benchmark, weighting=weighting)
    check_weighting(weighting)
    return store(db, _outputs(path, entries, dataset), benchmark, weighting)


def _entries(path: Path) -> list[tuple[str, dict[str, Any]]]:
    found = json_file(path)
    if not isinstance(found, list):
        raise BadInputError(f"{path}: expected a list", LAYOUT)
    places = (f"{path.name}, entry {number}" for number in range(1, len(found) + 1))
    return [(place, mapping(entry, place)) for place, entry in zip(places, found, strict=True)]


def read_annotations(path: Path, dataset: str | None = None) -> Rows:
    """Read annotations: the score is the share of the win that generator_2 has against generator_1.

    A preference lies in [1, 2]; null, 0 and -1 say that there is no verdict. Scores by another annotator or
    against another reference are other scores, so one file may hold one of each, and the dataset keeps which.
    """
    rows = Rows(path)
    sides: Counter[tuple[str, str]] = Counter()
    for place, entry in _entries(path):
        preference = entry.get("preference")
        if preference in (None, 0, -1) or isinstance(preference, bool):
            rows.skip("no verdict")
        elif not isinstance(preference, int | float) or not 1 <= preference <= 2:
            rows.skip("a preference outside [1, 2]")
        else:
            sides[_text(entry, "annotator", place), _text(entry, "generator_1", place)] += 1
            instruction = _text(entry, "instruction", place)
            rows.add(
                place,
                model=_text(entry, "generator_2", place),
                dataset=dataset or str(entry.get("dataset") or DATASET),
                prompt_id=_key(instruction),
                score=min(1.0, float(preference) - 1.0),
                prompt=instruction,
                output=entry.get("output_2") if isinstance(entry.get("output_2"), str) else None,
            )
    _refuse_mixture(path, sides)
    for judge, reference in sides:
        rows.scorer_params = {"judge": judge, "reference": reference}
        rows.notes.append(f"share of the win against {reference}, judged by {judge}")
    return rows


def _refuse_mixture(path: Path, sides: Counter[tuple[str, str]]) -> None:
    if len(sides) > 1:
        named = "; ".join(f"{judge} against {reference}" for judge, reference in sorted(sides))
        raise BadInputError(
            f"{path} holds verdicts of several kinds: {named}",
            "import one file of each kind",
        )


def _outputs(path: Path, entries: list[tuple[str, dict[str, Any]]], dataset: str | None) -> Incoming:
    """Outputs alone: no score is made of them."""
    models: dict[str, int] = {}
    datasets: dict[str, int] = {}
    prompts: dict[tuple[int, str], tuple[int, str]] = {}
    outputs: dict[tuple[int, int], str] = {}
    repeated = 0
    for place, entry in entries:
        instruction, text = _text(entry, "instruction", place), entry.get("output")
        if not isinstance(text, str):
            raise BadInputError(f"{place}: 'output' is missing or no text", LAYOUT)
        model = models.setdefault(_text(entry, "generator", place), len(models))
        group = datasets.setdefault(dataset or str(entry.get("dataset") or DATASET), len(datasets))
        column, _ = prompts.setdefault((group, _key(instruction)), (len(prompts), instruction))
        repeated += (model, column) in outputs
        outputs.setdefault((model, column), text)
    if not entries:
        raise BadInputError(f"{path} has no entries", LAYOUT)
    return Incoming(
        path=path,
        models={name: {} for name in models},
        datasets=tuple(datasets),
        score_types=(ScoreType.REAL,) * len(datasets),
        prompt_keys=tuple(key for _, key in prompts),
        prompt_texts=tuple(text for _, text in prompts.values()),
        prompt_datasets=np.array([group for group, _ in prompts], dtype=np.intp),
        score_models=np.zeros(0, dtype=np.intp),
        score_prompts=np.zeros(0, dtype=np.intp),
        values=np.zeros(0),
        outputs=[IncomingOutput(row, column, text, {}) for (row, column), text in outputs.items()],
        rows=len(entries),
        reasons={"the same instruction again": repeated} if repeated else {},
        notes=("outputs only: no scores",),
    )


def _key(instruction: str) -> str:
    """The file has no ids: the content is the id."""
    return content_hash(instruction, {})[:32]


def _text(entry: dict[str, Any], name: str, place: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not value:
        raise BadInputError(f"{place}: '{name}' is missing or no text", LAYOUT)
    return value
