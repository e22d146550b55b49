"""The best of many templates by sequential elimination: half of the rows are dropped each round."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import replace
from math import ceil, log2
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from assay.errors import BadInputError
from assay.matrix import ScoreMatrix
from estimators import ScoreEstimate, make_estimator
from policies._balanced import BalancedPolicy
from policies._base import Policy, PolicyState, Recommendation, Selection
from policies._rows import RowMeans, probability_best

__all__ = ["SequentialEliminationPolicy", "TripleGsePolicy", "TripleMlpGsePolicy"]

Array = NDArray[np.float64]
BATCH = 25


class _Elimination(Policy):
    """Rounds of balanced sampling over the rows that are left (Maia Polo et al. 2024, section 6.2).

    The study's cells are split over ceil(log2 R) rounds; in each, cells are drawn in balance over the
    surviving rows, the scores of all rows are predicted, and the better half survives. Of the last two the
    one with the better observed mean is named.

    Which rows survive is judged by all that is known at the time, so that a study that is restarted goes on
    as it would have: a row that was dropped comes back where later answers speak for it.

    Args:
        batch: Cells that the policy wants to choose at once.
        seed: Seed of the predictor.
    """

    def __init__(self, *, batch: int = BATCH, seed: int = 0) -> None:
        super().__init__(seed=seed)
        if batch < 1:
            raise BadInputError(f"batch must be 1 or more, got {batch}")
        self.batch = batch
        self._balanced = BalancedPolicy(seed=seed)

    def params(self) -> dict[str, Any]:
        """See `Policy.params`."""
        return {"batch": self.batch, **super().params()}

    def recommend(self, state: PolicyState) -> Recommendation:
        """See `SupportsRecommendation.recommend`."""
        found = self._reported(state)
        mean, last = found.mean.copy(), _best(found.mean, 2)
        if len(last) == 2:
            observed = RowMeans.of(state).mean[last]
            known = (~np.isnan(state.scores[last])).any(axis=1).all()
            if known and observed[1] > observed[0]:  # the runner-up has the better observed mean
                mean[last] = mean[last[::-1]]
        return Recommendation(mean, found.std, probability_best(mean, found.std), "predicted")

    def _select(self, state: PolicyState, n: int) -> Selection:
        asked = int((~np.isnan(state.scores) | state.pending).sum())
        order = np.argsort(-self._scores(state).mean, kind="stable")
        cells, parts = int(state.candidates.sum()), []
        total = state.total or asked + cells
        while (left := min(n, int(state.candidates.sum()))) > 0:
            survivors, until = _round(len(order), asked, total)
            open_ = np.zeros(len(order), dtype=bool)
            open_[_open_rows(state, order, survivors)] = True
            narrowed = replace(state, available=state.available & open_[:, None])
            part = self._balanced.select(narrowed, min(left, max(until - asked, 1)))
            pending = state.pending.copy()
            pending[part.rows, part.columns] = True
            state, n, asked = replace(state, pending=pending), n - len(part), asked + len(part)
            parts.append(part)
        return _joined(parts)

    @abstractmethod
    def _scores(self, state: PolicyState) -> ScoreEstimate:
        """Predicted scores of all rows, by which half of them survive."""

    def _reported(self, state: PolicyState) -> ScoreEstimate:
        """Scores of all rows as they are reported: complete rows have their true means."""
        return self._scores(state)


class SequentialEliminationPolicy(_Elimination):
    """Sequential elimination with scores from X-pIRT: the study's estimator where it is one, else one-hot."""

    name: ClassVar[str] = "sequential-elimination"

    def _scores(self, state: PolicyState) -> ScoreEstimate:
        estimator = state.estimator
        if estimator is None or not estimator.joint:
            width = state.scores.shape[1]
            prompts = ScoreMatrix.build(np.full((1, width), np.nan), weights=state.weights)
            estimator = make_estimator("x-pirt", seed=self.seed).fit(prompts)
        found = estimator.benchmark_score(state.scores)
        if np.isnan(state.scores).all():  # rows differ by nothing but the estimator's draws
            return ScoreEstimate(_common(found.mean), _common(found.std))
        return found


class TripleGsePolicy(_Elimination):
    """TRIPLE-GSE (Shi et al. 2024): the same rounds, scores by logistic regression on template features.

    Without features of the templates each row has a feature of its own.
    """

    name: ClassVar[str] = "triple-gse"
    row_features: ClassVar[str] = "embedding"

    def _scores(self, state: PolicyState) -> ScoreEstimate:
        rows, columns = np.nonzero(~np.isnan(state.scores))
        values = state.scores[rows, columns]
        believed = RowMeans.of(state)
        if not 0.0 < values.sum() < len(values):
            return ScoreEstimate(believed.mean, believed.std)
        features = np.eye(len(state.scores)) if state.row_features is None else state.row_features
        both = np.concatenate([features[rows], features[rows]])  # a score of .3 is 30 % right, 70 % wrong
        labels = np.repeat([1, 0], len(values))
        weights = np.concatenate([values, 1.0 - values])
        kept = weights > 0
        mean = self._predict(both[kept], labels[kept], weights[kept], features)
        return ScoreEstimate(mean, believed.std)

    def _reported(self, state: PolicyState) -> ScoreEstimate:
        found, believed = self._scores(state), RowMeans.of(state)
        share = (~np.isnan(state.scores)) @ state.weights / state.weights.sum()
        return ScoreEstimate(share * believed.mean + (1.0 - share) * found.mean, found.std)

    def _predict(self, x: Array, y: NDArray[np.intp], weights: Array, wanted: Array) -> Array:
        model = LogisticRegression(C=1.0, max_iter=500).fit(x, y, sample_weight=weights)
        return np.asarray(model.predict_proba(wanted)[:, 1])


class TripleMlpGsePolicy(TripleGsePolicy):
    """`triple-gse` with a multi-layer perceptron of 30 hidden units on scaled features (appendix H)."""

    name: ClassVar[str] = "triple-mlp-gse"

    def _predict(self, x: Array, y: NDArray[np.intp], weights: Array, wanted: Array) -> Array:
        drawn = np.random.default_rng(self.seed).choice(len(y), len(y), p=weights / weights.sum())
        drawn = drawn if len(np.unique(y[drawn])) == 2 else np.arange(len(y))
        network = MLPClassifier((30,), alpha=1.0, max_iter=60, random_state=self.seed, tol=1e-3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it is asked again with more scores
            model = make_pipeline(StandardScaler(), network).fit(x[drawn], y[drawn])
        return np.asarray(model.predict_proba(wanted)[:, 1])


def _round(rows: int, asked: int, total: int) -> tuple[int, int]:
    """How many rows survive when `asked` of `total` cells are asked for, and the cells at which that ends."""
    rounds = max(1, ceil(log2(max(rows, 2))))
    number = min(rounds - 1, asked * rounds // max(total, 1))
    until = total if number == rounds - 1 else -(-(number + 1) * total // rounds)
    return max(2, ceil(rows / 2**number)), until


def _open_rows(state: PolicyState, order: NDArray[np.intp], survivors: int) -> NDArray[np.intp]:
    """The best `survivors` rows; where none of them has an open cell, as many more as it takes."""
    has_open = np.asarray(state.candidates.any(axis=1))[order]
    first = int(np.argmax(has_open))
    return order[: max(survivors, first + 1)]


def _common(values: Array) -> Array:
    return np.full_like(values, values.mean())


def _best(mean: Array, count: int) -> NDArray[np.intp]:
    return np.argsort(-mean, kind="stable")[:count]


def _joined(parts: list[Selection]) -> Selection:
    return Selection.of(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.columns for part in parts]),
        probability=np.concatenate([part.probability for part in parts]),
    )
