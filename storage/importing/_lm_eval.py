"""Reading per-sample logs of lm-evaluation-harness (`--log_samples`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from assay.errors import BadInputError
from storage.importing._reading import first_text, json_file, json_lines, prompt_text, unit_score
from storage.importing._rows import Rows

__all__ = ["read_lm_eval"]

NAME = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d\-:.]+)\.jsonl")
#: Where a row does not say which of its keys are scores.
METRICS = ("acc", "exact_match", "acc_norm", "em", "f1", "mcc", "pass@1", "pass_at_1", "score")
NO_FILTER = "none"


def read_lm_eval(
    path: Path,
    *,
    model: str | None = None,
    dataset: str | None = None,
    metric: str | None = None,
    wanted: str | None = None,
) -> Rows:
    """Read `samples_<task>_<date>.jsonl`, or all of a folder.

    A row names neither model nor task: the model is in `results_<date>.json` beside it (`model_name`) or is
    the folder's name, the task is in the file's name. A document is known by its hash, so that ids do not
    depend on an order. A row is written per filter; one is taken, the others score the same answer.

    Args:
        path: The file or folder.
        model: Name of the model, where it is not to be found.
        dataset: Name of the dataset instead of the task's.
        metric: Key of the score; default the first that the row names in `metrics`, else a usual one.
        wanted: Filter to take; default the first in the file.

    Raises:
        BadInputError: A line is no JSON object, or no model can be found.
    """
    rows = Rows(path)
    files = sorted(path.rglob("samples_*.jsonl")) if path.is_dir() else [path]
    for file in files:
        _read_file(rows, file, model, dataset, metric, wanted)
    return rows


def _read_file(
    rows: Rows, file: Path, model: str | None, dataset: str | None, metric: str | None, wanted: str | None
) -> None:
    named = NAME.fullmatch(file.name)
    model = model or _model_of(file, named)
    dataset = dataset or (named["task"] if named else file.stem)
    metrics: set[str] = set()
    taken: set[str] = set()
    for place, row in json_lines(file):
        kind = str(row.get("filter") or NO_FILTER)
        wanted = wanted or kind
        if kind != wanted:
            rows.skip(f"filter '{kind}' is not the one taken ('{wanted}')")
            continue
        key = _key(row, place)
        found = _score(row, metric)
        if key in taken:
            rows.skip("the same document again")
        elif found is None:
            rows.skip(f"no score in [0, 1] under '{metric}'" if metric else "no score in [0, 1]")
        else:
            taken.add(key)
            metrics.add(found[0])
            _take(rows, place, row, model, dataset, key, found[1])
    rows.notes += [f"{file.name}: scored by {', '.join(sorted(metrics))}"] if metrics else []


def _take(
    rows: Rows, place: str, row: dict[str, Any], model: str, dataset: str, key: str, score: float
) -> None:
    rows.add(
        place,
        model=model,
        dataset=dataset,
        prompt_id=key,
        score=score,
        # The document, not the request: few-shot examples and chat templates differ between models.
        prompt=prompt_text(row.get("doc", "")),
        output=_output(row),
    )


def _model_of(file: Path, named: re.Match[str] | None) -> str:
    if named:
        results = file.with_name(f"results_{named['date']}.json")
        if results.is_file():
            found = json_file(results)
            name = found.get("model_name") if isinstance(found, dict) else None
            if isinstance(name, str) and name:
                return name
        if file.parent.name:
            return file.parent.name.replace("__", "/")  # as the harness makes a folder's name of a model's
    raise BadInputError(
        f"{file}: nothing names the model",
        "name it with --model, or put results_<date>.json beside it",
    )


def _key(row: dict[str, Any], place: str) -> str:
    for name in ("doc_hash", "doc_id"):
        if row.get(name) is not None and row[name] != "":
            return str(row[name])
    raise BadInputError(f"{place}: neither 'doc_hash' nor 'doc_id'", "is it a samples file of lm-eval?")


def _score(row: dict[str, Any], metric: str | None) -> tuple[str, float] | None:
    for name in _candidates(row, metric):
        value = unit_score(row.get(name))
        if value is not None:
            return name, value
    return None


def _candidates(row: dict[str, Any], metric: str | None) -> Iterator[str]:
    if metric is not None:
        yield metric
        return
    named = row.get("metrics")
    if isinstance(named, Sequence) and not isinstance(named, str):
        yield from (str(name) for name in named)
    yield from METRICS


def _output(row: dict[str, Any]) -> str | None:
    """The generated text; choices by likelihood have none."""
    generated = isinstance(row.get("arguments"), dict) and len(row["arguments"]) > 1
    return None if generated else first_text(row.get("resps"))
