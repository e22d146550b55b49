"""An estimator for benchmarks some of whose prompts have no history."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from assay.errors import BadInputError
from assay.matrix import BoolArray, FloatArray, ScoreMatrix
from estimators._base import (
    Estimator,
    Linearization,
    Prediction,
    ScoreEstimate,
    SupportsLinearization,
    SupportsPromptFeatures,
    check_observed,
)
from estimators._cold_group import ColdGroup, GroupPosterior, TransferPrior, fit_group
from estimators._draws import binary_prompts, draw_scores
from estimators._folds import row_folds

__all__ = [
    "ColdStartEstimator",
    "cold_prompts",
    "estimator_for",
    "full_rows",
    "history_rows",
    "prompts_without_history",
]

FEWEST_ANSWERS = 30
LEAST_SHARE = 0.5  # of the benchmark's weight, for a row to count as full ...
LEAST_OF_LARGEST = 0.75  # ... or of the largest row's, where no row has the newest prompts ...
SPARSE = 0.1  # ... unless even that row has no more than this
FEWEST_ROWS = 20
CAUTION = 2.0  # few datasets say how unlike one may be; chosen on training models of Open LLM
EDGE = 0.02  # expected scores are kept this far from 0 and 1 on the logit scale
Array = NDArray[Any]


@dataclass(frozen=True)
class _Known:
    """What a row's answers say: the base on warm prompts, each group on its own.

    Attributes:
        warm: (B, W) scores on warm prompts, NaN = not acquired.
        expected: (B, W) scores that the base expects there.
        groups: The posterior of each cold group.
    """

    warm: Array
    expected: Array
    groups: list[GroupPosterior]


class ColdStartEstimator(Estimator):
    """`cold-start:<base>`: the base where prompts have a history, pooled answers where they have none.

    A prompt is cold while fewer than `fewest` methods of the history have answered it. The base learns from
    the full rows on the warm prompts alone, as if there were no others. Each dataset's cold prompts are a
    group with a level per method (`_cold_group`): predicted from what the base expects of the method on
    warm prompts, with coefficients learned from the answers that all methods gave so far, corrected by the
    method's own answers. Rows with a few answers, which are no history for the base, all count here.

    Without cold prompts it is the base.

    Args:
        base: Name of the estimator of warm prompts.
        base_params: Its hyper-parameters.
        fewest: Answers of full rows from which on a prompt is warm; where the history has less than twice as
            many full rows, half of them.
        seed: Seed of samples; the base keeps its own.
    """

    name: ClassVar[str] = "cold-start"

    def __init__(
        self,
        *,
        base: str = "linear-gaussian",
        base_params: dict[str, Any] | None = None,
        fewest: int = FEWEST_ANSWERS,
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        self.base = base
        self.base_params = base_params
        self.fewest = fewest

    def params(self) -> dict[str, Any]:
        """See `Estimator.params`."""
        return {
            "base": self.base,
            "base_params": self.base_params,
            "fewest": self.fewest,
            "seed": self.seed,
        }

    def settled_params(self) -> dict[str, Any]:
        """See `Estimator.settled_params`."""
        return {**self.params(), "base_params": self.base_.settled_params()}

    def findings(self) -> dict[str, Any]:
        """The base's, and how many prompts are cold with how many answers."""
        answers = int(self.answers_[self.cold_].sum())
        return {**self.base_.findings(), "cold prompts": int(self.cold_.sum()), "answers there": answers}

    def candidates_per_choice(self) -> int:
        """The base's."""
        return self.base_.candidates_per_choice()

    def affordable_to_refit(self) -> bool:
        """No: the rows that teach it about cold prompts are not complete."""
        return not self.cold_.any() and self.base_.affordable_to_refit()

    # --- fitting -------------------------------------------------------------------------------------------

    def _fit(self, history: ScoreMatrix, warm_start: Self | None) -> None:
        full = history.rows(full_rows(history))
        self.cold_: BoolArray = cold_prompts(full, self.fewest)
        self.answers_: NDArray[np.int64] = history.observed.sum(axis=0)
        self.binary_ = binary_prompts(history)
        known = on_prompts(full, ~self.cold_)
        self.base_: Estimator = self._make_base(self.base_params).fit(
            known, warm_start=self._start(warm_start)
        )
        self._prepare()
        levels = self._dataset_logits(known.values.astype(np.float64))
        self.centre_: Array = levels.mean(axis=0)
        self.groups_: list[ColdGroup] = []
        if self.cold_.any():
            self.transfer_ = _learn_transfer(levels, known)
            self._learn_groups(history)

    def with_labels(self, labelled: ScoreMatrix) -> ColdStartEstimator:
        """The same base, with what is known of cold prompts learned anew from a history with pseudo-labels.

        Only straight after `fit`; which prompts count as cold, and as answered, stays as it was.
        """
        other = copy.copy(self)
        other.groups_ = []
        other._learn_groups(labelled)
        return other

    def cross_fitted(self, history: ScoreMatrix, labelled: ScoreMatrix | None = None) -> Array:
        """(M, N) answers on cold prompts, predicted from the row's warm ones by fits to other rows' answers.

        Only straight after `fit`; NaN where there is no answer on a cold prompt to predict.

        Args:
            history: (M, N) what `fit` was given.
            labelled: The same with pseudo-labels, where the other rows' are to be learned from too.
        """
        source = history if labelled is None else labelled
        asked = history.observed & self.cold_
        rows = np.flatnonzero(asked.any(axis=1))
        predicted = np.full(asked.shape, np.nan)
        shown = np.where(self.cold_, np.nan, history.values)
        for _, test in row_folds(len(rows), self.seed, every=True) if len(rows) > 1 else []:
            others = np.setdiff1d(np.arange(history.n_methods), rows[test])
            predicted[rows[test]] = self.with_labels(source.rows(others)).predict(shown[rows[test]]).mean
        return np.where(asked, predicted, np.nan)

    def _learn_groups(self, history: ScoreMatrix) -> None:
        """Pool the answers on cold prompts of all rows that have any."""
        rows = np.flatnonzero(history.observed[:, self.cold_].any(axis=1))
        values = history.values[rows].astype(np.float64)
        logits = np.empty((0, len(self.warm_datasets_)))
        if len(rows):
            logits = self._dataset_logits(self.base_.predict(values[:, ~self.cold_]).mean)
        for g, columns in enumerate(self.columns_):
            prior = self.transfer_.of(self._own(g), self.centre_, self._main(g))
            self.groups_.append(fit_group(self._features(logits, g), values[:, columns], prior))

    def _make_base(self, params: dict[str, Any] | None) -> Estimator:
        from estimators import make_estimator

        return make_estimator(self.base, **(params or {}))

    def _start(self, warm_start: Estimator | None) -> Any:
        """An earlier base, alone or in another of this kind, where its prompts are the first warm ones."""
        if isinstance(warm_start, ColdStartEstimator):
            before, earlier = np.flatnonzero(~warm_start.cold_), warm_start.base_
        elif warm_start is not None:
            before, earlier = np.arange(warm_start.n_prompts_ or 0), warm_start
        else:
            return None
        alike = earlier.params() == self._make_base(self.base_params).params()
        same_prompts = np.array_equal(before, np.flatnonzero(~self.cold_)[: len(before)])
        return earlier if alike and same_prompts and type(earlier) is type(self._make_base(None)) else None

    def _prepare(self) -> None:
        """What follows from the weights and from which prompts are cold."""
        index = self.dataset_index_
        self.columns_ = [np.flatnonzero(self.cold_ & (index == d)) for d in np.unique(index[self.cold_])]
        self.warm_datasets_ = np.unique(index[~self.cold_])
        inside = index[~self.cold_] == self.warm_datasets_[:, None]
        share = inside * self.weights_[~self.cold_]
        self.share_: Array = share / np.maximum(share.sum(axis=1, keepdims=True), 1e-12)  # (Dw, W)
        self.warm_weight_ = float(self.weights_[~self.cold_].sum())

    def _dataset_logits(self, expected: Array) -> Array:
        """(B, Dw) logit of each row's mean on the warm prompts of each dataset that has some."""
        seen = ~np.isnan(expected)
        total = np.where(seen, expected, 0.0) @ self.share_.T
        mean = total / np.maximum(seen @ self.share_.T, 1e-12)
        return np.asarray(logit(np.clip(mean, EDGE, 1.0 - EDGE)))

    def _own(self, g: int) -> int | None:
        """Place among the warm datasets of the group's own, where it has warm prompts too."""
        at = np.flatnonzero(self.warm_datasets_ == self.dataset_index_[self.columns_[g][0]])
        return int(at[0]) if len(at) else None

    def _main(self, g: int) -> Array:
        """(Dw,) how the group's main feature is made of the dataset logits."""
        own, count = self._own(g), len(self.warm_datasets_)
        return np.full(count, 1.0 / count) if own is None else np.eye(count)[own]

    def _features(self, logits: Array, g: int) -> Array:
        """(B, 2 + Dw) one, the main feature, and each dataset's difference from it, centred."""
        off = logits - self.centre_
        main = off @ self._main(g)
        return np.column_stack([np.ones(len(logits)), main, off - main[:, None]])

    # --- answering -----------------------------------------------------------------------------------------

    def _known(self, observed: Array) -> _Known:
        warm = observed[:, ~self.cold_]
        expected = self.base_.predict(warm).mean
        logits = self._dataset_logits(expected)
        groups = [
            group.posterior(self._features(logits, g), observed[:, columns])
            for g, (group, columns) in enumerate(zip(self.groups_, self.columns_, strict=True))
        ]
        return _Known(warm, expected, groups)

    def predict(self, observed: FloatArray) -> Prediction:
        """See `Estimator.predict`."""
        observed = check_observed(self, observed)
        if not self.groups_:
            return self.base_.predict(observed)
        mean, variance = np.empty(observed.shape), np.zeros(observed.shape)
        base = self.base_.predict(observed[:, ~self.cold_])
        mean[:, ~self.cold_], variance[:, ~self.cold_] = base.mean, base.variance
        for columns, known in zip(self.columns_, self._known(observed).groups, strict=True):
            mean[:, columns], variance[:, columns] = known.level, known.level * (1.0 - known.level)
        seen = ~np.isnan(observed)
        return Prediction(np.where(seen, observed, mean), np.where(seen, 0.0, variance))

    def benchmark_score(self, observed: FloatArray) -> ScoreEstimate:
        """See `Estimator.benchmark_score`; the parts' variances add up."""
        observed = check_observed(self, observed)
        if not self.groups_:
            return self.base_.benchmark_score(observed)
        known = self._known(observed)
        base = self.base_.benchmark_score(known.warm)
        mean, variance = self.warm_weight_ * base.mean, (self.warm_weight_ * base.std) ** 2
        for columns, group in zip(self.columns_, known.groups, strict=True):
            seen = ~np.isnan(observed[:, columns])
            left = np.where(seen, 0.0, self.weights_[columns])
            mean = mean + np.where(seen, observed[:, columns], group.level) @ self.weights_[columns]
            variance = variance + (left * group.slope).sum(axis=1) ** 2 * group.variance
            variance = variance + (left**2 * group.level * (1.0 - group.level)).sum(axis=1)
        return ScoreEstimate(np.clip(mean, 0.0, 1.0), np.sqrt(variance))

    def sample(self, observed: FloatArray, n: int, rng: np.random.Generator) -> Array:
        """See `Estimator.sample`; the base's on warm prompts, levels and scores drawn on cold ones."""
        observed = check_observed(self, observed)
        if not self.groups_:
            return self.base_.sample(observed, n, rng)
        known = self._known(observed)
        draws = np.empty((len(observed), n, observed.shape[1]))
        draws[:, :, ~self.cold_] = self.base_.sample(known.warm, n, rng)
        for columns, group in zip(self.columns_, known.groups, strict=True):
            off = rng.standard_normal((len(observed), n, 1)) * np.sqrt(group.variance)[:, None, None]
            level = np.clip(group.level[:, None] + group.slope[:, None] * off, 0.0, 1.0)
            draws[:, :, columns] = draw_scores(level, level * (1.0 - level) / 4.0, self.binary_[columns], rng)
        return np.where(np.isnan(observed)[:, None], draws, observed[:, None])

    def linearize(self, observed: FloatArray) -> Linearization:
        """See `SupportsLinearization`: the base's latent, and one number more for each group's level.

        Raises:
            BadInputError: The base cannot be linearised.
        """
        observed = check_observed(self, observed)
        base = linearized(self.base_, observed[:, ~self.cold_])
        if not self.groups_:
            return base
        known = self._known(observed)
        (b, n), d, extra = observed.shape, base.covariance.shape[1], len(self.groups_)
        loadings, noise, mean = np.zeros((b, n, d + extra)), np.empty((b, n)), np.empty((b, n))
        covariance = np.zeros((b, d + extra, d + extra))
        loadings[:, ~self.cold_, :d], covariance[:, :d, :d] = base.loadings, base.covariance
        noise[:, ~self.cold_], mean[:, ~self.cold_] = base.noise, base.mean
        drift = self._drift(known.expected, base.loadings)
        for g, (columns, group) in enumerate(zip(self.columns_, known.groups, strict=True)):
            carried = group.carried[:, None] * (self._slope_by_logits(g) @ drift)  # (B, D)
            loadings[:, columns, :d] = group.slope[:, :, None] * carried[:, None]
            loadings[:, columns, d + g] = group.slope
            covariance[:, d + g, d + g] = group.variance
            mean[:, columns], noise[:, columns] = group.level, group.level * (1.0 - group.level)
        return Linearization(np.where(np.isnan(observed), mean, observed), loadings, covariance, noise)

    def _drift(self, expected: Array, loadings: Array) -> Array:
        """(B, Dw, D) derivative of the dataset logits by the base's latent."""
        mean = np.clip(expected @ self.share_.T, EDGE, 1.0 - EDGE)
        moved = self.share_ @ (loadings if loadings.ndim == 3 else loadings[None])
        return np.asarray(moved / (mean * (1.0 - mean))[:, :, None])

    def _slope_by_logits(self, g: int) -> Array:
        """(Dw,) derivative of the group's level by the dataset logits."""
        c, main = self.groups_[g].coefficients, self._main(g)
        return np.asarray(c[1] * main + c[2:] - c[2:].sum() * main)

    def prompt_features(self) -> Array:
        """See `SupportsPromptFeatures`: the base's; their mean, moved by the difficulty, on cold prompts."""
        assert isinstance(self.base_, SupportsPromptFeatures)
        known = self.base_.prompt_features()
        features = np.tile(known.mean(axis=0), (len(self.cold_), 1))
        features[~self.cold_] = known
        for columns, group in zip(self.columns_, self.groups_, strict=True):
            features[columns, -1] += group.difficulty
        return features

    # --- saving --------------------------------------------------------------------------------------------

    def _arrays(self) -> dict[str, Array]:
        settled = np.frombuffer(json.dumps(self.base_.params()).encode(), dtype=np.uint8)
        learned = {"cold": self.cold_, "answers": self.answers_, "binary": self.binary_, "settled": settled}
        learned["centre"] = self.centre_
        for g, group in enumerate(self.groups_):
            for key, value in vars(group).items():
                learned[f"group.{g}.{key}"] = np.atleast_1d(value)
        return {**learned, **{f"base.{key}": value for key, value in self.base_._arrays().items()}}

    def _restore(self, arrays: dict[str, Array]) -> None:
        self.cold_, self.answers_ = arrays["cold"], arrays["answers"]
        self.binary_, self.centre_ = arrays["binary"], arrays["centre"]
        self.base_ = self._make_base(json.loads(arrays["settled"].tobytes()))
        weights = self.weights_[~self.cold_]
        self.base_.n_prompts_, self.base_.weights_ = len(weights), weights / weights.sum()
        self.base_.dataset_index_ = self.dataset_index_[~self.cold_]
        self.base_._restore({k.removeprefix("base."): v for k, v in arrays.items() if k.startswith("base.")})
        self._prepare()
        self.groups_ = [
            ColdGroup(
                arrays[f"group.{g}.coefficients"],
                arrays[f"group.{g}.covariance"],
                float(arrays[f"group.{g}.between"][0]),
                arrays[f"group.{g}.difficulty"],
                arrays[f"group.{g}.doubt"],
            )
            for g in range(len(self.columns_))
        ]


def linearized(base: Estimator, observed: Array) -> Linearization:
    """The base's linearisation, or a clear refusal."""
    if not isinstance(base, SupportsLinearization):
        raise BadInputError(f"estimator '{base.name}' cannot be linearised", "choose another one")
    return base.linearize(observed)


def estimator_for(history: ScoreMatrix, name: str, params: dict[str, Any] | None = None) -> Estimator:
    """The unfitted estimator of that name for this history: around it, what pools answers on cold prompts.

    Estimators that learn from no history, and those that tell prompts apart by their vectors, stay as they
    are.
    """
    from estimators import make_estimator

    plain = make_estimator(name, **(params or {}))
    copes = not plain.needs_history or plain.uses_embeddings or isinstance(plain, ColdStartEstimator)
    if copes or not cold_prompts(history.rows(full_rows(history))).any():
        return plain
    return ColdStartEstimator(base=name, base_params=params)


def history_rows(matrix: ScoreMatrix) -> NDArray[np.intp]:
    """Rows to learn from: the full ones, and those with answers to prompts that are cold among them."""
    full = full_rows(matrix)
    cold = cold_prompts(matrix.rows(full))
    some = np.flatnonzero(matrix.observed[:, cold].any(axis=1))
    return np.union1d(full, some)


def prompts_without_history(estimator: Estimator) -> BoolArray | None:
    """(N,) True where the estimator knows too few answers to say what a prompt is worth; None = nowhere.

    Pooled answers count here: once enough methods have answered a prompt, whoever they are, a policy may
    choose it by what the estimator expects.
    """
    if not isinstance(estimator, ColdStartEstimator) or not estimator.cold_.any():
        return None
    few: BoolArray = estimator.cold_ & (estimator.answers_ < estimator.fewest)
    return few if few.any() else None


# --- which prompts are cold --------------------------------------------------------------------------------


def full_rows(matrix: ScoreMatrix) -> NDArray[np.intp]:
    """Rows with at least half of the benchmark's weight, or with nearly as much as any row has."""
    share = matrix.observed @ matrix.weights
    largest = float(share.max(initial=0.0))
    least = min(LEAST_SHARE, LEAST_OF_LARGEST * largest) if largest > SPARSE else LEAST_SHARE
    return np.flatnonzero(share >= least)


def cold_prompts(full: ScoreMatrix, fewest: int = FEWEST_ANSWERS) -> BoolArray:
    """(N,) True where fewer than `fewest` full rows answered a prompt, or than half of those most asked."""
    counts = full.observed.sum(axis=0)
    cold: BoolArray = counts < min(fewest, counts.max(initial=0) / 2.0)
    return cold


def on_prompts(matrix: ScoreMatrix, chosen: BoolArray) -> ScoreMatrix:
    """The same rows with only the chosen prompts, their weights summing to 1."""
    if chosen.all():
        return matrix
    weights = matrix.weights[chosen]
    return replace(
        matrix,
        values=matrix.values[:, chosen],
        prompt_ids=tuple(p for p, keep in zip(matrix.prompt_ids, chosen, strict=True) if keep),
        dataset_index=matrix.dataset_index[chosen],
        weights=weights / weights.sum(),
        embeddings=None if matrix.embeddings is None else matrix.embeddings[chosen],
    )


# --- what one dataset says about another -------------------------------------------------------------------


@dataclass(frozen=True)
class _Transfer:
    """What warm datasets show of one another, on the logit scale.

    Attributes:
        shift: Mean square of a dataset's mean less the mean of the others.
        tilt: Mean square of a dataset's slope on the others less 1.
        between: Variance over methods of what the others do not say.
        within: Variance of prompts' difficulties inside a dataset.
        sizes: (Dw,) warm prompts of each dataset.
    """

    shift: float
    tilt: float
    between: float
    within: float
    sizes: Array

    def of(self, own: int | None, centre: Array, main: Array) -> TransferPrior:
        """The prior of a group, its own dataset being the warm one at `own`, if it is warm at all."""
        mean = np.concatenate([[centre @ main, 1.0], np.zeros(len(centre))])
        variance = np.full(len(mean), 0.1)
        if own is None:
            variance[:2] = self.shift, self.tilt
            return TransferPrior(mean, variance, self.between, self.within)
        variance[:2] = self.within / self.sizes[own] + 0.02, 0.05
        return TransferPrior(mean, variance, min(self.between, 0.05), self.within)


def _learn_transfer(levels: Array, known: ScoreMatrix) -> _Transfer:
    """Treat each warm dataset as if it were the cold one; few of them say little, so defaults count as one.

    Args:
        levels: (M, Dw) logits of the full rows' means by warm dataset.
        known: The full rows on the warm prompts.
    """
    shift, tilt, between = [1.0], [0.25], [0.25]
    for d in range(levels.shape[1] if levels.shape[1] > 1 and len(levels) >= FEWEST_ROWS else 0):
        others = np.delete(levels, d, axis=1).mean(axis=1)
        shift.append(float((levels[:, d] - others).mean() ** 2))
        x, y = others - others.mean(), levels[:, d] - levels[:, d].mean()
        slope = float(x @ y / max(x @ x, 1e-9))
        tilt.append((slope - 1.0) ** 2)
        between.append(float(np.mean((y - slope * x) ** 2)))
    values = known.values.astype(np.float64)
    seen = ~np.isnan(values)
    mean = (np.where(seen, values, 0.0).sum(axis=0) + 1.0) / (seen.sum(axis=0) + 2.0)
    difficulty, index = logit(mean), known.dataset_index
    sizes = np.array([(index == d).sum() for d in np.unique(index)])
    spread = [difficulty[index == d].var() for d in np.unique(index)]
    within = float(np.average([*spread, 1.0], weights=[*sizes, 1.0]))
    unlike = CAUTION * float(np.mean(between))
    return _Transfer(float(np.mean(shift)), float(np.mean(tilt)), unlike, max(within, 0.1), sizes)
