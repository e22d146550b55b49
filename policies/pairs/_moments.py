"""Second moments of verdicts over all pairs of history methods, and what their outputs' features foretell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import eigsh

from policies.pairs._history import PairHistory

__all__ = ["FeatureForecast", "factor_model", "fit_forecast", "mixed_factors", "verdict_moments"]

Floats = NDArray[np.float64]
SWEEPS = 6
LEAST_NOISE = 0.05
FACTORS, COMPONENTS, LEVEL = 0.5, 0.35, 0.15  # shares of the mixed covariance
MOST_COMPONENTS = 80
RIDGE = 1e3  # in prompts of one feature at its standard deviation: about one pair's worth
_totals: dict[int, tuple[Floats, Floats]] = {}  # of the history used last: its scores and their moments


def verdict_moments(history: PairHistory) -> Floats:
    """(N, N) mean over ordered pairs (c, d) of kept methods of verdict_j * verdict_k; no verdict counts as 0.

    A pair and its reverse both count, so the mean verdict is 0 and these are covariances. Moments over all
    rows are remembered, and those of pairs with a left-out method subtracted: a history per pair costs
    milliseconds.
    """
    scores, out = history.scores, list(history.left_out)
    n_kept = len(scores) - len(out)
    if n_kept < 2:
        return np.zeros((scores.shape[1],) * 2)
    if 2 * len(out) > len(scores):
        total = _sum_over(scores[history.kept])
    else:
        total = _total(scores).copy()
        for i in out:
            gram = _gram(scores[i], scores)
            total -= 2.0 * gram
        if out:
            total += _sum_over(scores[out])
    return total / (n_kept * (n_kept - 1))


def _total(scores: Floats) -> Floats:
    known = _totals.get(id(scores))
    if known is None or known[0] is not scores:
        _totals.clear()
        _totals[id(scores)] = known = (scores, _sum_over(scores))
    return known[1]


def _sum_over(scores: Floats) -> Floats:
    total = np.zeros((scores.shape[1],) * 2)
    for row in scores:
        total += _gram(row, scores)
    return total


def _gram(row: Floats, scores: Floats) -> Floats:
    verdicts = np.nan_to_num(np.sign(row - scores)).astype(np.float32)
    gram: Floats = (verdicts.T @ verdicts).astype(np.float64)
    return gram


def factor_model(moments: Floats, rank: int) -> tuple[Floats, Floats]:
    """Principal-axis factoring: (N, rank) loadings and (N,) own variances with loadings^2 + own =
    diagonal.
    """
    rank = min(rank, len(moments) - 2)
    diagonal = np.diag(moments)
    own = diagonal / 2
    loadings = np.zeros((len(moments), max(rank, 0)))
    if rank < 1 or not diagonal.any():
        return loadings, np.maximum(diagonal, LEAST_NOISE)
    start = np.ones(len(moments))  # the same at every call: eigsh draws one otherwise
    for _ in range(SWEEPS):
        values, vectors = eigsh(moments - np.diag(own), k=rank, which="LA", v0=start)
        loadings = vectors * np.sqrt(np.maximum(values, 0.0))
        own = np.clip(diagonal - (loadings**2).sum(axis=1), LEAST_NOISE, None)
    return loadings, own


def mixed_factors(moments: Floats, rank: int) -> tuple[Floats, Floats]:
    """(N, f) factors F and (N,) own variances: half a factor model, half the moments as they are, shrunk.

    The factor model alone chooses prompts best while there are few verdicts, the moments (their principal
    components, with a share of a common level) when there are many; their mean does well at both.
    """
    loadings, _ = factor_model(moments, rank)
    level = np.full((len(moments), 1), np.sqrt(max(float(moments.mean()), 0.0)))
    parts = [(FACTORS, loadings), (COMPONENTS, _components(moments)), (LEVEL, level)]
    factors = np.hstack([np.sqrt(share) * part for share, part in parts])
    own: Floats = np.maximum(np.diag(moments) - (factors**2).sum(axis=1), LEAST_NOISE)
    return factors, own


def _components(moments: Floats) -> Floats:
    """(N, at most 80) principal components, scaled."""
    count = min(MOST_COMPONENTS, len(moments) - 2)
    if count < 1 or not moments.any():
        return np.zeros((len(moments), 0))
    values, vectors = eigsh(moments, k=count, which="LA", v0=np.ones(len(moments)))
    scaled: Floats = vectors * np.sqrt(np.maximum(values, 0.0))
    return scaled


@dataclass(frozen=True)
class FeatureForecast:
    """A winning distance foretold from the difference of two methods' text features.

    Attributes:
        weights: (p,) of a linear regression of verdicts on feature differences over history pairs.
        slope: Of true winning distances on the forecasts, both methods of each pair held out.
        error: Mean squared error of slope * forecast there; inf where there are no such pairs.
        spread: Mean squared winning distance of those pairs.
    """

    weights: Floats
    slope: float = 0.0
    error: float = np.inf
    spread: float = 0.0

    def distance(self, features: Floats) -> float:
        """Foretold winning distance of a pair, (n, p) feature differences."""
        return self.slope * float(np.mean(features @ self.weights))


def fit_forecast(history: PairHistory) -> FeatureForecast | None:
    """Learn from the kept methods whose features are known; None with fewer than six of them."""
    if history.features is None:
        return None
    kept = [int(i) for i in history.kept if np.isfinite(history.features[i]).all()]
    if len(kept) < 6:
        return None
    sums = _PairSums.of(history.scores[kept], history.features[kept])
    foretold, true = [], []
    for a in range(len(kept)):
        for b in range(a):
            weights = sums.weights((a, b))
            foretold.append(float(sums.mean[a, b] @ weights))
            true.append(float(sums.distance[a, b]))
    g, theta = np.array(foretold), np.array(true)
    # Between nothing and what the regression says: a fitted factor beyond that follows chance.
    slope = float(np.clip(g @ theta / (g @ g), 0.0, 1.0)) if g.any() else 0.0
    error, spread = float(np.mean((theta - slope * g) ** 2)), float(np.mean(theta**2))
    return FeatureForecast(sums.weights(()), slope, error, spread)


@dataclass(frozen=True)
class _PairSums:
    """Normal equations of each pair (m methods): products (m, m, p, p), with verdicts (m, m, p), means."""

    products: Floats
    with_verdicts: Floats
    mean: Floats
    distance: Floats
    scale: Floats

    @classmethod
    def of(cls, scores: Floats, features: Floats) -> _PairSums:
        scale = features.reshape(-1, features.shape[2]).std(axis=0)
        scale = np.where(scale > 0, scale, 1.0)
        x = features / scale
        verdicts = np.nan_to_num(np.sign(scores[:, None] - scores[None]))
        cross = np.einsum("anp,bnq->abpq", x, x, optimize=True)
        own = cross[np.arange(len(x)), np.arange(len(x))]
        products = own[:, None] + own[None] - cross - cross.transpose(1, 0, 2, 3)
        mine = np.stack([verdicts[a] @ x[a] for a in range(len(x))])  # (m, m, p) verdict of (a, b) times x_a
        means = x.mean(axis=1)
        return cls(
            products,
            mine + mine.transpose(1, 0, 2),  # the verdict of (b, a) is that of (a, b) turned round
            means[:, None] - means[None],
            verdicts.mean(axis=2),
            scale,
        )

    def weights(self, left_out: tuple[int, ...]) -> Floats:
        """(p,) ridge regression over the pairs without these methods, for features as given; for `mean`
        scaled features where methods are left out.
        """
        m = len(self.products)
        kept = np.setdiff1d(np.arange(m), left_out)
        grid = np.ix_(kept, kept)
        products = self.products[grid].sum(axis=(0, 1)) / 2
        target = self.with_verdicts[grid].sum(axis=(0, 1)) / 2
        solved: Floats = np.linalg.solve(products + RIDGE * np.eye(len(target)), target)
        return solved if left_out else solved / self.scale
