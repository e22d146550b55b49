"""Who is history and who is tested: the ways to divide a matrix's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.backtest._settings import BacktestSettings
from assay.errors import BadInputError, UsageError
from assay.matrix import BoolArray, ScoreMatrix
from assay.matrix_folder import MatrixFolder, read_matrix_folder
from estimators import ESTIMATORS
from estimators._encoders import make_encoder
from policies import POLICIES

__all__ = ["Split", "build_splits", "true_scores"]


@dataclass(frozen=True)
class Split:
    """History rows to learn from and test rows to try on, of one matrix.

    Attributes:
        matrix: All rows.
        train: Indices of the history's rows.
        held: Indices of the test rows.
        hidden: (N,) True where the history's scores are removed; None = nowhere.
    """

    matrix: ScoreMatrix
    train: NDArray[np.intp]
    held: NDArray[np.intp]
    hidden: BoolArray | None = None

    @property
    def history(self) -> ScoreMatrix:
        """The rows to learn from."""
        rows = self.matrix.rows(self.train)
        if self.hidden is None:
            return rows
        return replace(rows, values=np.where(self.hidden, np.float32(np.nan), rows.values))

    @property
    def test(self) -> ScoreMatrix:
        """The rows to try on."""
        return self.matrix.rows(self.held)


def build_splits(settings: BacktestSettings, *, needs_history: bool = True) -> list[Split]:
    """Divide the rows as the settings say: one split, or as many as random or leave-one-out splits make.

    Args:
        settings: The backtest's settings.
        needs_history: Whether rows that nothing divides are refused; else all of them are test rows.

    Raises:
        BadInputError: A folder cannot be read, or the test matrix has other prompts.
        UsageError: The folder has no split column and no other way was chosen, or a group is unknown.
    """
    folder = read_matrix_folder(settings.matrix, weighting=settings.weighting)
    matrix = _by_dataset(_some_prompts(_embed(folder.matrix, folder.texts, settings), settings))
    if settings.test_matrix is not None:
        other = _some_prompts(read_matrix_folder(settings.test_matrix).matrix, settings)
        split = _other_folder(matrix, _by_dataset(other))
        return [replace(split, held=_some(split.held, settings.test_rows), hidden=_hidden(matrix, settings))]
    divided: list[tuple[NDArray[np.intp], NDArray[np.intp]]]
    if settings.leave_one_out:
        every = np.arange(matrix.n_methods)
        divided = [(np.delete(every, i), every[i : i + 1]) for i in every]
    elif settings.random_splits:
        divided = [
            _random_rows(matrix.n_methods, settings.train_share, i) for i in range(settings.random_splits)
        ]
    elif settings.holdout_group is not None:
        divided = [_by_group(folder, settings.holdout_group)]
    else:
        divided = [_by_column(folder, needs_history)]
    hidden = _hidden(matrix, settings)
    return [Split(matrix, train, _some(held, settings.test_rows), hidden) for train, held in divided]


def _hidden(matrix: ScoreMatrix, settings: BacktestSettings) -> BoolArray | None:
    """(N,) the prompts of the cold datasets, which the history is to know nothing about."""
    if not settings.cold_datasets:
        return None
    unknown = [name for name in settings.cold_datasets if name not in matrix.datasets]
    if unknown or len(settings.cold_datasets) >= len(matrix.datasets):
        wrong = f"no dataset '{unknown[0]}'" if unknown else "no dataset would be left with a history"
        raise UsageError(f"--cold-datasets: {wrong}", f"datasets: {', '.join(matrix.datasets)}")
    return np.isin(matrix.dataset_index, [matrix.datasets.index(name) for name in settings.cold_datasets])


def true_scores(test: ScoreMatrix) -> NDArray[np.float64]:
    """(B,) benchmark score of each row over its present prompts, each dataset keeping its weight."""
    present = test.observed
    onehot = np.eye(len(test.datasets))[test.dataset_index]
    share = (test.weights[:, None] * onehot).sum(axis=0)
    left = (present * test.weights) @ onehot
    total = (np.where(present, test.values, 0.0) * test.weights) @ onehot
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(left > 0, total / left, 0.0)
    kept = np.where(left > 0, share, 0.0)
    scores: NDArray[np.float64] = (mean * kept).sum(axis=1) / kept.sum(axis=1)
    return scores


def _other_folder(history: ScoreMatrix, other: ScoreMatrix) -> Split:
    if other.prompt_ids != history.prompt_ids:
        raise BadInputError(
            "the test matrix has other prompts than the matrix",
            "both folders must list the same prompt ids in the same order",
        )
    everything = ScoreMatrix.build(
        np.concatenate([history.values, other.values]),
        method_ids=[*history.method_ids, *other.method_ids],
        prompt_ids=history.prompt_ids,
        prompt_datasets=[history.datasets[i] for i in history.dataset_index],
        weights=history.weights,
        embeddings=history.embeddings,
    )
    rows = np.arange(everything.n_methods)
    return Split(everything, rows[: history.n_methods], rows[history.n_methods :])


def _by_dataset(matrix: ScoreMatrix) -> ScoreMatrix:
    """The matrix with each dataset's prompts side by side, in the order that storage gives a live study."""
    order = np.argsort(matrix.dataset_index, kind="stable")
    return replace(
        matrix,
        values=matrix.values[:, order],
        prompt_ids=tuple(matrix.prompt_ids[int(j)] for j in order),
        dataset_index=matrix.dataset_index[order],
        weights=matrix.weights[order],
        embeddings=None if matrix.embeddings is None else matrix.embeddings[order],
    )


def _some_prompts(matrix: ScoreMatrix, settings: BacktestSettings) -> ScoreMatrix:
    """The matrix with the chosen datasets' prompts only, or some of them drawn at random."""
    unknown = [name for name in settings.datasets if name not in matrix.datasets]
    if unknown:
        raise UsageError(f"the matrix has no dataset '{unknown[0]}'", f"known: {', '.join(matrix.datasets)}")
    names = np.array(matrix.datasets)[matrix.dataset_index]
    kept = np.flatnonzero(np.isin(names, settings.datasets)) if settings.datasets else np.arange(len(names))
    if settings.prompts and settings.prompts < len(kept):
        kept = np.sort(np.random.default_rng([1, len(kept)]).permutation(kept)[: settings.prompts])
    return matrix if len(kept) == len(names) else matrix.columns(kept)


def _embed(matrix: ScoreMatrix, texts: Sequence[str], settings: BacktestSettings) -> ScoreMatrix:
    """The matrix with its prompts' vectors, where a policy or estimator of the backtest looks at them."""
    readers: list[Any] = [POLICIES.get(name) for name in settings.policies if name in POLICIES]
    readers += [ESTIMATORS.get(name) for name in settings.estimators]
    if not any(texts) or not any(getattr(reader, "uses_embeddings", False) for reader in readers):
        return matrix
    encoder = make_encoder(settings.encoder).fit(texts)
    return replace(matrix, embeddings=encoder.encode(texts))


def _some(rows: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """All rows, or `count` of them drawn at random, in their order."""
    if not count or count >= len(rows):
        return rows
    return np.sort(np.random.default_rng([0, len(rows)]).permutation(rows)[:count])


def _random_rows(n: int, share: float, number: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    order = np.random.default_rng([number]).permutation(n)
    cut = round(n * share)
    return order[:cut], order[cut:]


def _by_column(folder: MatrixFolder, needs_history: bool) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    if not folder.models or "split" not in folder.models[0]:
        if not needs_history:
            return np.arange(0), np.arange(folder.matrix.n_methods)
        raise UsageError(
            f"{folder.path}/models.csv has no column 'split'",
            "choose --random-splits N, --leave-one-out, --holdout-group or --test-matrix",
        )
    train, test = folder.split("train"), folder.split("test")
    if not len(train) or not len(test):
        raise UsageError(f"{folder.path}/models.csv needs rows with split 'train' and with split 'test'")
    return train, test


def _by_group(folder: MatrixFolder, group: str) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    column, _, listed = group.partition("=")
    wanted = {value.strip() for value in listed.split(",") if value.strip()}
    known = {model[column] for model in folder.models if column in model}
    if not wanted or not wanted <= known:
        missing = ", ".join(sorted(wanted - known)) or "no value"
        raise UsageError(
            f"--holdout-group {group}: {missing} not in models.csv",
            f"values of '{column}': {', '.join(sorted(known)) or 'no such column'}",
        )
    held = np.array([model[column] in wanted for model in folder.models])
    train = np.array([model.get("split", "train") == "train" for model in folder.models])
    return np.flatnonzero(train & ~held), np.flatnonzero(held)
