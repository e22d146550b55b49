"""What the outputs and the other methods foretell of a pair, before any verdict.

Learned from history methods whose outputs are known: (1) per prompt, which of two answers wins more often,
from lengths, formatting and from how often the answers won that look like it (LLM judges are known to look at
the first; the second asks what other methods' answers said); (2) over all prompts, how strong a method is,
a Gaussian process on its mean text features.

Shapes: m history methods with outputs, N prompts, p text features, q = p + 3 facts about an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.pairs._base import PairProblem
from policies.pairs._history import PairHistory

__all__ = ["LEAST_METHODS", "Foretold", "PairPredictor"]

Floats = NDArray[np.float64]
MOST_OPPONENTS = 200
LEAST_METHODS = 6  # with outputs; fewer say nothing
TEMPERATURE = 0.07  # of the weights exp(likeness / temperature) of other answers
RIDGE = 1e2  # in answers of one fact at its standard deviation
CLOSE = 0.35  # width of the weights by which close pairs decide the size of predictions
CLIPPED = 4.0  # standard deviations beyond which a method's mean feature is not believed
VARIANCES = (0.05, 0.15, 0.4)  # of strengths
NOISES = (0.02, 0.1, 0.4)  # as shares of the variance


@dataclass(frozen=True)
class Foretold:
    """What is foretold of one pair.

    Attributes:
        controls: (N,) predicted verdicts, minus their mean.
        distance: Expected winning distance.
        variance: Of the distance about what was expected; None = nothing is expected.
    """

    controls: Floats
    distance: float = 0.0
    variance: float | None = None


@dataclass(frozen=True)
class PairPredictor:
    """Fitted to the history methods with outputs.

    Attributes:
        features: (m, N, p) of their answers.
        wins: (m, N) mean verdict of each against other kept methods.
        places: (m,) which of the history's described methods they are.
        weights: (q,) of the facts, in the size of verdicts between close methods.
        typical: Mean of the first feature, the length.
        strength: (m,) mean verdict of each.
        scale: A winning distance per difference of two strengths.
    """

    features: Floats
    wins: Floats
    places: NDArray[np.intp]
    weights: Floats
    typical: float
    strength: Floats
    scale: float

    @classmethod
    def fit(cls, history: PairHistory) -> PairPredictor | None:
        """Learn; None where too few methods have outputs."""
        if history.features is None:
            return None
        places = np.flatnonzero(~np.isin(history.described, history.left_out))
        if len(places) < LEAST_METHODS:
            return None
        rows = np.array(history.described)[places]
        features, wins = history.features[places], _wins(history, rows)
        alike = None if history.likeness is None else history.likeness[np.ix_(places, places)]
        typical = float(features[:, :, 0].mean())
        facts = _within(_facts(features, alike, wins, typical, own=True))
        weights = _ridge(facts - facts.mean(axis=0), _within(wins - wins.mean(axis=0)))
        distances = _distances(history.scores[rows])
        slope = _size(facts @ weights, history.scores[rows], distances)
        strength = wins.mean(axis=1)
        apart = strength[:, None] - strength[None]
        scale = float((apart * distances).sum() / max((apart**2).sum(), 1e-12))
        return cls(features, wins, places, slope * weights, typical, strength, scale)

    def foretell(self, problem: PairProblem) -> Foretold:
        """Both predictions for a pair; nothing where its outputs' features are not known."""
        n, features = problem.n_prompts, problem.features
        if features is None or features.shape[2] != self.features.shape[2]:
            return Foretold(np.zeros(n))
        columns = np.arange(n) if problem.columns is None else problem.columns
        alike = None if problem.likeness is None else problem.likeness[:, self.places]
        facts = _facts(features, alike, self.wins[:, columns], self.typical, own=False)
        if facts.shape[2] != len(self.weights):
            return Foretold(np.zeros(n))
        controls = (facts[0] - facts[1]) @ self.weights
        distance, variance = self._foretell_distance(features.mean(axis=1), columns)
        return Foretold(controls - controls.mean(), distance, variance)

    def _foretell_distance(self, pair: Floats, columns: NDArray[np.intp]) -> tuple[float, float]:
        """Mean and variance of the winning distance, from the pair's mean features (2, p)."""
        past = self.features[:, columns].mean(axis=1)
        center, spread = past.mean(axis=0), past.std(axis=0)
        x = (np.vstack([past, pair]) - center) / np.where(spread > 1e-9, spread, 1.0)
        x = np.clip(x, -CLIPPED, CLIPPED)
        kernel = np.exp(-((x[:, None] - x[None]) ** 2).mean(axis=2) / 2)
        _, mean, covariance = max(
            (_posterior(kernel * v, self.strength, noise * v) for v in VARIANCES for noise in NOISES),
            key=lambda fit: fit[0],
        )
        variance = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
        return self.scale * float(mean[0] - mean[1]), self.scale**2 * float(variance)


def _wins(history: PairHistory, rows: NDArray[np.intp]) -> Floats:
    """(m, N) mean verdict of the rows against other kept methods; no verdict counts as a tie."""
    kept = history.kept
    if len(kept) > MOST_OPPONENTS:
        kept = kept[np.linspace(0, len(kept) - 1, MOST_OPPONENTS).astype(np.intp)]
    mean: Floats = np.stack(
        [
            np.nan_to_num(np.sign(history.scores[i] - history.scores[kept[kept != i]])).mean(axis=0)
            for i in rows
        ]
    )
    return mean


def _facts(
    features: Floats, alike: NDArray[np.float32] | None, wins: Floats, typical: float, *, own: bool
) -> Floats:
    """(r, N, q) facts of r methods' answers; `alike` (r, m, N), where `own` with themselves on the diagonal.

    Beside the features: the squared length, how like the others an answer is, and how often answers like it
    won.
    """
    parts = [features, (features[:, :, :1] - typical) ** 2]
    if alike is not None:
        near = alike.astype(np.float64)
        weights = np.exp(near / TEMPERATURE)
        if own:
            itself = np.arange(len(near))
            weights[itself, itself] = near[itself, itself] = 0.0
        others = near.shape[1] - own
        voted = np.einsum("rmn,mn->rn", weights, wins) / weights.sum(axis=1)
        parts += [(near.sum(axis=1) / others)[:, :, None], voted[:, :, None]]
    return np.concatenate(parts, axis=2)


def _within(values: Floats) -> Floats:
    """Minus each method's mean over the prompts."""
    centered: Floats = values - values.mean(axis=1, keepdims=True)
    return centered


def _ridge(facts: Floats, target: Floats) -> Floats:
    """(q,) weights of (m, N, q) facts for (m, N) targets."""
    x = facts.reshape(-1, facts.shape[2])
    spread = x.std(axis=0)
    spread = np.where(spread > 1e-9, spread, np.inf)
    x = x / spread
    solved = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ target.ravel())
    weights: Floats = solved / spread
    return weights


def _distances(scores: Floats) -> Floats:
    """(m, m) winning distances."""
    found: Floats = np.stack([np.nan_to_num(np.sign(row - scores)).mean(axis=1) for row in scores])
    return found


def _size(predicted: Floats, scores: Floats, distances: Floats) -> float:
    """Slope of verdicts on differences of predictions, pairs weighted by how close they are.

    Verdicts between methods of one strength go more by the answers than those against all others do.
    """
    along = across = 0.0
    for i, row in enumerate(scores):
        difference = predicted[i] - predicted
        weight = np.exp(-(distances[i] ** 2) / (2 * CLOSE**2))
        verdicts = np.nan_to_num(np.sign(row - scores))
        along += float(weight @ (difference * verdicts).sum(axis=1))
        across += float(weight @ (difference**2).sum(axis=1))
    return max(along / across, 0.0) if across > 0 else 0.0


def _posterior(kernel: Floats, known: Floats, noise: float) -> tuple[float, Floats, Floats]:
    """Log evidence, and mean (2,) and covariance (2, 2) of the last two of a Gaussian process.

    Its unknown level is fitted; the noise is part of what two methods' strengths are.
    """
    m = len(known)
    inverse = np.linalg.inv(kernel[:m, :m] + noise * np.eye(m))
    level = float(inverse.sum(axis=0) @ known / inverse.sum())
    solved = inverse @ (known - level)
    across = kernel[m:, :m]
    evidence = -0.5 * float((known - level) @ solved) + 0.5 * float(np.linalg.slogdet(inverse)[1])
    covariance = kernel[m:, m:] - across @ inverse @ across.T + noise * np.eye(2)
    return evidence, level + across @ solved, covariance
