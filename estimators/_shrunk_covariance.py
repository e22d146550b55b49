"""The sample covariance of few rows, with a shared level and each prompt's own noise added.

With fewer methods than about a hundred, factors found by maximum likelihood overfit and promise far too much.
The whole sample covariance does not choose between directions; what it lacks is added: a shift of all
prompts or of a dataset that no history method showed, and noise. On AlpacaEval's 41 history methods this
nearly halves the error of the best fitted rank (docs/benchmarks.md). How much is added is for
cross-validation on the history to say.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators._factor_analysis import FactorModel, column_moments, expected_scores

__all__ = ["SHRINKAGES", "USUAL", "Shrinkage", "shrunk_covariance"]

Array = NDArray[np.floating]
PSEUDO_ROWS = 5.0  # with which a prompt's variance is shrunk to the mean variance
IMPUTATIONS = 3


class Shrinkage(NamedTuple):
    """What is added to the sample covariance.

    Attributes:
        noise: Share of a prompt's variance, independent of all else.
        level: Share of the mean variance: a shift common to all prompts; a third of it goes to one common to
            a dataset.
    """

    noise: float = 0.5
    level: float = 0.03


#: Where nothing was compared.
USUAL = Shrinkage()
#: What cross-validation compares.
SHRINKAGES = tuple(Shrinkage(noise, level) for noise in (0.25, 0.5, 1.0, 2.0) for level in (0.003, 0.03, 0.3))


def shrunk_covariance(values: Array, groups: NDArray[np.intp], shrinkage: Shrinkage = USUAL) -> FactorModel:
    """A factor model of rank M + 1 + D whose covariance is the shrunk sample covariance.

    Missing scores are replaced by their expectation given the row's other scores, a few times over.

    Args:
        values: (M, N) scores, NaN = missing; a column may be empty.
        groups: (N,) dataset of each prompt (D datasets).
        shrinkage: What is added.
    """
    missing = np.isnan(values)
    prior = column_moments(values, groups)
    filled = np.where(missing, prior.mean, values)
    model = _model(filled, missing, prior, groups, shrinkage)
    for _ in range(IMPUTATIONS if missing.any() else 0):
        filled = np.where(missing, expected_scores(model, values), values)
        model = _model(filled, missing, prior, groups, shrinkage)
    return model


def _model(
    filled: Array,
    missing: NDArray[np.bool_],
    prior: FactorModel,
    groups: NDArray[np.intp],
    shrinkage: Shrinkage,
) -> FactorModel:
    m, n = filled.shape
    seen = m - missing.sum(axis=0)
    average = float((prior.noise * seen).sum() / max(seen.sum(), 1))
    variance = (prior.noise * seen + PSEUDO_ROWS * average) / (seen + PSEUDO_ROWS)
    datasets = np.eye(int(groups.max()) + 1)[groups]
    loadings = np.column_stack(
        [
            (filled - prior.mean).T / np.sqrt(m),
            np.full(n, np.sqrt(shrinkage.level * average)),
            datasets * np.sqrt(shrinkage.level / 3.0 * average),
        ]
    )
    return FactorModel(prior.mean, loadings, shrinkage.noise * variance)
