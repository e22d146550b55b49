"""Matrix folders: the format for importing, exporting and replaying a whole score matrix.

A folder holds `scores.npz` (array `scores`, methods x prompts; integers with -1 or floats with NaN for
missing), `prompts.jsonl` or `prompts.jsonl.xz` (id, dataset, text; in column order), `models.csv` (column
`model`, then any others; in row order) and, where there are any, `outputs.jsonl.xz`
({"model", "outputs": [...]}) and `datasets.csv` (columns `dataset` and `weight`; equal weights without it).
"""

from __future__ import annotations

import csv
import json
import lzma
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from assay.matrix import ScoreMatrix

__all__ = ["MatrixFolder", "Weighting", "read_matrix_folder"]

Weighting = Literal["dataset", "prompt"]
LAYOUT = "a matrix folder holds scores.npz, prompts.jsonl (or .jsonl.xz) and models.csv"


@dataclass(frozen=True)
class MatrixFolder:
    """What a matrix folder holds.

    Attributes:
        path: The folder.
        matrix: All M rows and N columns, in the order of the files.
        models: M rows of models.csv, as text by column name.
        texts: N prompt texts ("" where the file has none).
        weights: Weight of each dataset that datasets.csv names; empty where there is no such file.
    """

    path: Path
    matrix: ScoreMatrix
    models: tuple[dict[str, str], ...]
    texts: tuple[str, ...]
    weights: dict[str, float] = field(default_factory=dict)

    def split(self, name: str) -> NDArray[np.intp]:
        """Row indices whose `split` column says `name`; all rows where there is no such column."""
        return np.array(
            [i for i, model in enumerate(self.models) if model.get("split", name) == name], dtype=np.intp
        )

    def outputs(self) -> dict[str, tuple[str | None, ...]]:
        """Outputs by model, in prompt order; read from disk at each call, empty where the folder has none.

        Raises:
            BadInputError: An unknown model, a model twice, or a wrong number of outputs.
        """
        path = _either(self.path, "outputs.jsonl")
        if path is None:
            return {}
        known = set(self.matrix.method_ids)
        outputs: dict[str, tuple[str | None, ...]] = {}
        for place, row in _records(path):
            model = _text(row, "model", place)
            answers = row.get("outputs")
            if model not in known or model in outputs:
                raise BadInputError(f"{place}: model '{model}' is unknown or given twice")
            if not isinstance(answers, list) or len(answers) != self.matrix.n_prompts:
                raise BadInputError(f"{place}: expected {self.matrix.n_prompts} outputs of '{model}'")
            outputs[model] = tuple(answers)
        return outputs


def read_matrix_folder(path: Path | str, *, weighting: Weighting = "dataset") -> MatrixFolder:
    """Read a matrix folder.

    Args:
        path: The folder.
        weighting: What the benchmark score is: "dataset" = mean of the datasets' means (weighted as
            datasets.csv says, where there is one), "prompt" = plain mean over the prompts.

    Raises:
        BadInputError: A file is missing or cannot be read, lengths disagree, an id occurs twice, or a score
            is outside [0, 1].
    """
    folder = Path(path)
    if weighting not in ("dataset", "prompt"):
        raise BadInputError(f"unknown weighting '{weighting}'", "use 'dataset' or 'prompt'")
    if not folder.is_dir():
        raise BadInputError(f"no folder at {folder}", LAYOUT)
    scores = _scores(folder / "scores.npz")
    prompts = list(_prompts(folder))
    models = _models(folder / "models.csv")
    given = _dataset_weights(folder / "datasets.csv")
    if scores.shape != (len(models), len(prompts)):
        raise BadInputError(
            f"{folder}: scores are {scores.shape[0]} x {scores.shape[1]},"
            f" but models.csv has {len(models)} rows and prompts.jsonl {len(prompts)}"
        )
    matrix = ScoreMatrix.build(
        scores,
        method_ids=_unique([model["model"] for model in models], "model", folder / "models.csv"),
        prompt_ids=_unique([prompt[0] for prompt in prompts], "prompt id", folder / "prompts.jsonl"),
        prompt_datasets=[prompt[1] for prompt in prompts],
        weights=_prompt_weights([prompt[1] for prompt in prompts], given, weighting),
    )
    return MatrixFolder(folder, matrix, tuple(models), tuple(prompt[2] for prompt in prompts), given)


def _prompt_weights(
    datasets: list[str], given: dict[str, float], weighting: Weighting
) -> NDArray[np.float64] | None:
    """(N,) weights that sum to 1; None = equal by dataset."""
    if not datasets:
        return None
    if weighting == "prompt":
        return np.full(len(datasets), 1.0 / len(datasets))
    if not given:
        return None
    sizes = Counter(datasets)
    weights = np.array([given.get(name, 1.0) / sizes[name] for name in datasets])
    total = weights.sum()
    return weights / total if total > 0 else None


def _dataset_weights(path: Path) -> dict[str, float]:
    """What datasets.csv says; empty where there is none."""
    if not path.is_file():
        return {}
    weights: dict[str, float] = {}
    for number, row in enumerate(_csv_rows(path, "dataset"), start=2):
        try:
            weight = float(row.get("weight", ""))
        except ValueError:
            weight = -1.0
        if not 0 <= weight < float("inf") or not row["dataset"] or row["dataset"] in weights:
            raise BadInputError(
                f"{path}, line {number}: expected a dataset, once, and a weight of 0 or more", LAYOUT
            )
        weights[row["dataset"]] = weight
    return weights


def _scores(path: Path) -> NDArray[np.float32]:
    """(M, N) float32 scores with NaN for missing."""
    _require(path)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            raw = archive["scores"]
    except KeyError:
        raise BadInputError(f"{path} has no array named 'scores'", LAYOUT) from None
    except (OSError, ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise BadInputError(f"{path} cannot be read: {error}", LAYOUT) from None
    if raw.ndim != 2 or raw.dtype.kind not in "iufb":
        raise BadInputError(
            f"{path}: 'scores' must be a numeric matrix, got {raw.dtype} of shape {raw.shape}"
        )
    scores: NDArray[np.float32] = raw.astype(np.float32)
    if raw.dtype.kind == "i":
        scores[raw == -1] = np.nan
    return scores


def _prompts(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Id, dataset and text of each prompt."""
    path = _either(folder, "prompts.jsonl")
    if path is None:
        raise BadInputError(f"no prompts.jsonl or prompts.jsonl.xz in {folder}", LAYOUT)
    for place, row in _records(path):
        yield _text(row, "id", place), _text(row, "dataset", place), str(row.get("text") or "")


def _models(path: Path) -> list[dict[str, str]]:
    """The rows of models.csv; every row has a model."""
    _require(path)
    rows = _csv_rows(path, "model")
    for number, row in enumerate(rows, start=2):
        if not row["model"]:
            raise BadInputError(f"{path}, line {number}: the model's name is empty")
    return rows


def _csv_rows(path: Path, column: str) -> list[dict[str, str]]:
    """The rows of a table that has a column of that name."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if column not in (reader.fieldnames or ()):
                raise BadInputError(f"{path} has no column '{column}'", LAYOUT)
            return [{key: value or "" for key, value in row.items() if key} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInputError(f"{path} cannot be read: {error}") from None


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place ("file, line n") and content of each JSON line of a plain or xz-compressed file."""
    try:
        with (
            lzma.open(path, "rt", encoding="utf-8")
            if path.suffix == ".xz"
            else path.open(encoding="utf-8") as file
        ):
            for number, line in enumerate(file, start=1):
                if line.strip():
                    place = f"{path}, line {number}"
                    yield place, _record(line, place)
    except (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError) as error:
        raise BadInputError(f"{path} cannot be read: {error}") from None


def _record(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise BadInputError(f"{place}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise BadInputError(f"{place}: expected a JSON object")
    return row


def _text(row: dict[str, Any], key: str, place: str) -> str:
    value = row.get(key)
    if value is None or value == "":
        raise BadInputError(f"{place}: '{key}' is missing")
    return str(value)


def _unique(names: Sequence[str], what: str, path: Path) -> Sequence[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadInputError(f"{path}: {what} '{name}' occurs twice")
        seen.add(name)
    return names


def _either(folder: Path, name: str) -> Path | None:
    """The plain or the .xz form of a file, whichever is there."""
    return next((path for path in (folder / name, folder / f"{name}.xz") if path.is_file()), None)


def _require(path: Path) -> None:
    if not path.is_file():
        raise BadInputError(f"no {path.name} in {path.parent}", LAYOUT)
