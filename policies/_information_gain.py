"""Information gain about a method's latent (Li et al., Active Evaluation Acquisition, equation 6)."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from assay.matrix import FloatArray, ScoreMatrix, ScoreType
from estimators import Estimator, Linearization, SupportsLinearization
from policies._base import Policy, PolicyState, Selection
from policies._row_design import choose_greedily, row_designs

__all__ = ["InformationGainPolicy", "SupportsLatentEntropy"]

CHUNK_ROWS = 512
Floats = NDArray[np.float64]


@runtime_checkable
class SupportsLatentEntropy(Protocol):
    """An estimator that can say how uncertain it is about a method's latent (a neural process's prior)."""

    def latent_entropy(self, observed: FloatArray) -> Floats:
        """(B,) differential entropy, in nats, of the Gaussian p(z | observed) of each row (B, N)."""
        ...


class InformationGainPolicy(Policy):
    """Chooses the cell whose answer is expected to lower the entropy of the method's latent most, per cost.

    Where the estimator can be linearised, H(z) - E[H(z | y_j)] = log(1 + l_j' S l_j / noise_j) / 2 in closed
    form, and a batch is chosen one by one as if those before were answered. Otherwise the expectation over
    y_j is taken over its two values (binary scores, exactly) or over draws from its prediction, and a batch
    takes the best n.

    Args:
        seed: Seed of the policy.
        samples: Draws of y_j for scores that are not binary.
        shortlist: Only that many candidates per row, those of largest predictive variance, are tried by
            sampling (0 = all).
    """

    name: ClassVar[str] = "information-gain"
    needs_estimator: ClassVar[bool] = True
    design: ClassVar[str] = "variance-reduction"
    uses_total: ClassVar[bool] = False

    def __init__(self, *, seed: int = 0, samples: int = 4, shortlist: int = 0) -> None:
        super().__init__(seed=seed)
        self.samples = samples
        self.shortlist = shortlist
        self._binary: NDArray[np.bool_] | None = None

    def params(self) -> dict[str, int]:
        """See `Policy.params`."""
        return {"seed": self.seed, "samples": self.samples, "shortlist": self.shortlist}

    def prepare(self, history: ScoreMatrix, estimator: Estimator | None) -> None:
        """See `Policy.prepare`: which prompts have binary scores."""
        kinds = np.array([kind is ScoreType.BINARY for kind in history.score_types])
        self._binary = kinds[history.dataset_index]

    def _select(self, state: PolicyState, n: int) -> Selection:
        if isinstance(state.estimator, SupportsLinearization):
            return _closed_form(state.estimator.linearize(state.scores), state, n)
        if isinstance(state.estimator, SupportsLatentEntropy):
            return self._by_sampling(state.estimator, state, n)
        assert state.estimator is not None
        raise BadInputError(
            f"policy '{self.name}' needs an estimator with a latent, '{state.estimator.name}' has none",
            "use mirt, linear-gaussian or neural-process, or the policy 'uncertainty'",
        )

    def _by_sampling(self, latent: SupportsLatentEntropy, state: PolicyState, n: int) -> Selection:
        assert state.estimator is not None
        prediction = state.estimator.predict(state.scores)
        before = latent.latent_entropy(state.scores)
        cells = self._tried(state, prediction.variance)
        values, shares = self._answers(prediction.mean[*cells.T], prediction.variance[*cells.T], cells)
        after = np.zeros(len(cells))
        for value, share in zip(values.T, shares.T, strict=True):
            after += share * _entropies(latent, state.scores, cells, value)
        gain = before[cells[:, 0]] - after
        per_cost = gain / state.cost[*cells.T]
        best = np.lexsort((np.arange(len(cells)), -per_cost.round(12)))[:n]
        return Selection.of(cells[best, 0], cells[best, 1], gain=gain[best])

    def _tried(self, state: PolicyState, variance: Floats) -> NDArray[np.intp]:
        """(C, 2) candidates to try."""
        free = state.candidates
        if not self.shortlist:
            return np.argwhere(free)
        value = np.where(free, variance, -1.0)
        best = np.argsort(-value, axis=1, kind="stable")[:, : self.shortlist]
        kept = np.zeros_like(free)
        np.put_along_axis(kept, best, True, axis=1)
        return np.argwhere(kept & free)

    def _answers(self, mean: Floats, variance: Floats, cells: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """(C, V) possible answers of each cell and their probabilities."""
        binary = np.zeros(len(mean), dtype=bool) if self._binary is None else self._binary[cells[:, 1]]
        if binary.all():
            p = np.clip(mean, 0.0, 1.0)
            return np.broadcast_to([0.0, 1.0], (len(mean), 2)), np.column_stack([1.0 - p, p])
        points = np.random.default_rng(self.seed).standard_normal(self.samples)
        drawn = np.clip(mean[:, None] + points * np.sqrt(variance)[:, None], 0.0, 1.0)
        grid = (np.arange(self.samples) + 0.5) / self.samples
        levels = (grid > 1.0 - mean[:, None]).astype(np.float64)
        return np.where(binary[:, None], levels, drawn), np.full(drawn.shape, 1.0 / self.samples)


def _entropies(
    latent: SupportsLatentEntropy, scores: Floats, cells: NDArray[np.intp], values: Floats
) -> Floats:
    """(C,) entropy of the latent if each cell, alone, were answered with its value."""
    parts = []
    for start in range(0, len(cells), CHUNK_ROWS):
        group = cells[start : start + CHUNK_ROWS]
        answered = scores[group[:, 0]].copy()
        answered[np.arange(len(group)), group[:, 1]] = values[start : start + CHUNK_ROWS]
        parts.append(latent.latent_entropy(answered))
    return np.concatenate(parts)


def _closed_form(lines: Linearization, state: PolicyState, n: int) -> Selection:
    designs = row_designs(lines, state)
    return choose_greedily(state, n, lambda i: designs[i].latent_gains(), lambda i, j: designs[i].take(j))
