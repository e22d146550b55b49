"""Reading logs of Inspect (`.eval`); needs the package inspect-ai."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from assay.errors import BadInputError
from storage.importing._reading import unit_score
from storage.importing._rows import Rows

__all__ = ["read_inspect", "take_log"]

#: Inspect's letters: correct, incorrect, partial, no answer.
LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}


def read_inspect(
    path: Path, *, model: str | None = None, dataset: str | None = None, scorer: str | None = None
) -> Rows:
    """Read a log, or all of a folder. A sample's score is its mean over epochs.

    Args:
        path: The file or folder.
        model: Name of the model instead of the log's.
        dataset: Name of the dataset instead of the task's.
        scorer: Which of several scorers; default the first.

    Raises:
        BadInputError: inspect-ai is not installed, or cannot read the file.
    """
    rows = Rows(path)
    for file in sorted(path.rglob("*.eval")) if path.is_dir() else [path]:
        take_log(rows, file.name, _log(file), model=model, dataset=dataset, scorer=scorer)
    return rows


def _log(file: Path) -> Any:
    try:
        from inspect_ai.log import read_eval_log
    except ImportError:
        raise BadInputError(
            f"{file}: reading Inspect's logs needs the package inspect-ai", "pip install 'assay[inspect]'"
        ) from None
    try:
        return read_eval_log(str(file))
    except Exception as error:  # noqa: BLE001  # whatever the package raises, it is the file
        raise BadInputError(f"{file} cannot be read: {str(error).splitlines()[0]}") from None


def take_log(
    rows: Rows, name: str, log: Any, *, model: str | None, dataset: str | None, scorer: str | None
) -> None:
    """Take the samples of a log that is read already."""
    if log.status != "success":
        rows.notes.append(f"{name}: the run's status is {log.status}; what it scored is taken")
    values: dict[str, list[float]] = defaultdict(list)
    first: dict[str, Any] = {}
    for sample in log.samples or []:
        chosen = scorer or next(iter(sample.scores or {}), None)
        if sample.error is not None:
            rows.skip("the sample ended in an error")
        elif chosen is None or chosen not in (sample.scores or {}):
            rows.skip("no score" if scorer is None else f"no score by '{scorer}'")
        elif (value := _value(sample.scores[chosen].value)) is None:
            rows.skip("a score that is no number in [0, 1] and none of C, I, P, N")
        else:
            key = str(sample.id)
            values[key].append(value)
            first.setdefault(key, sample)
    for key, scores in values.items():
        rows.add(
            f"{name}, sample {key}",
            model=model or str(log.eval.model),
            dataset=dataset or str(log.eval.task),
            prompt_id=key,
            score=sum(scores) / len(scores),
            prompt=_text(first[key].input),
            output=str(first[key].output.completion) if first[key].output else None,
        )
    _note_epochs(rows, name, values)


def _note_epochs(rows: Rows, name: str, values: Mapping[str, list[float]]) -> None:
    repeated = sum(len(scores) - 1 for scores in values.values())
    if repeated:
        rows.reasons["a further epoch of a sample (its score is the mean)"] += repeated
        rows.notes.append(f"{name}: scores are means over epochs")


def _value(value: Any) -> float | None:
    return LETTERS.get(value) if isinstance(value, str) else unit_score(value)


def _text(content: Any) -> str:
    """A sample's input: a text, or messages of which the user's are taken."""
    if isinstance(content, str):
        return content
    return "\n\n".join(_said(content))


def _said(messages: Iterable[Any]) -> Iterable[str]:
    for message in messages:
        if message.role == "user":
            yield message.text
