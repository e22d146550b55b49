"""Greedy combinatorial choice (Li et al., Active Evaluation Acquisition, equation 4 and algorithm 1)."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from assay.errors import NotFittedError, UsageError
from assay.matrix import ScoreMatrix
from estimators import Estimator, Linearization, SupportsLinearization
from policies._base import Policy, PolicyState, Selection
from policies._row_design import LEAST_NOISE

__all__ = ["CombinatorialPolicy", "errors_by_one_look"]

CHUNK_BYTES = 2**26


class CombinatorialPolicy(Policy):
    """A static design: each next prompt leaves the least mean squared error of prediction on history models.

    The greedy order costs one prediction per candidate, history model and place in the order. Where the
    estimator can be linearised, all candidates' predictions of a place follow from one look at it, as an
    answer moves them along one direction (`errors_by_one_look`): exactly so for linear-gaussian, but for the
    clipping to [0, 1]; to first order for logistic ones. With others candidates are tried in batches. The
    order is found as far as it is asked for, and kept. Before that the time is estimated from one batch, and
    the policy refuses what would take longer than `limit_seconds`.

    Args:
        seed: Draws the history models and candidates that are tried.
        models: At most that many history models.
        candidates: At most that many candidates per step, drawn at random (0 = all).
        limit_seconds: Longest time to spend on finding the order.
        force: Spend it whatever the estimate says.
    """

    name: ClassVar[str] = "combinatorial"
    needs_estimator: ClassVar[bool] = True
    uses_total: ClassVar[bool] = False  # the order is the same for all; only the refusal looks at the total

    def __init__(
        self,
        *,
        seed: int = 0,
        models: int = 64,
        candidates: int = 0,
        limit_seconds: float = 600.0,
        force: bool = False,
    ) -> None:
        super().__init__(seed=seed)
        self.models = models
        self.candidates = candidates
        self.limit_seconds = limit_seconds
        self.force = force
        self._truth: NDArray[np.float64] | None = None
        self._estimator: Estimator | None = None
        self._order: list[int] = []

    def params(self) -> dict[str, Any]:
        """See `Policy.params`."""
        return {
            "seed": self.seed,
            "models": self.models,
            "candidates": self.candidates,
            "limit_seconds": self.limit_seconds,
            "force": self.force,
        }

    def prepare(self, history: ScoreMatrix, estimator: Estimator | None) -> None:
        """See `Policy.prepare`: draws the history models to try on."""
        rng = np.random.default_rng([self.seed, 1])
        rows = np.sort(rng.permutation(history.n_methods)[: self.models])
        self._truth = history.values[rows].astype(np.float64)
        self._estimator = estimator
        self._order = []

    def _select(self, state: PolicyState, n: int) -> Selection:
        n_rows, n_prompts = state.scores.shape
        used = int((~np.isnan(state.scores) | state.pending).sum(axis=1).max())
        order = self._extend(min(n_prompts, max(-(-state.total // n_rows), used + -(-n // n_rows))))
        while state.candidates[:, order].sum() < n and len(order) < n_prompts:
            order = self._extend(len(order) + 1)
        free = state.candidates
        place = np.full(n_prompts, n_prompts)
        place[order] = np.arange(len(order))
        rows, columns = np.nonzero(free)
        best = np.lexsort((rows, columns, place[columns]))[:n]
        return Selection.of(rows[best], columns[best])

    def _extend(self, size: int) -> list[int]:
        """The greedy order, at least as far as `size`."""
        if self._truth is None or self._estimator is None:
            raise NotFittedError(f"policy '{self.name}' is not prepared", "call prepare(history, estimator)")
        if len(self._order) < size and not self.force:
            self._refuse_if_too_long(size)
        while len(self._order) < size:
            tried = self._tried(len(self._order))
            errors = self._errors(tried).round(12)
            self._order.append(int(tried[int(np.argmin(errors))]))
        return self._order

    def _tried(self, place: int) -> NDArray[np.intp]:
        """Candidates for a place in the order, ascending."""
        assert self._truth is not None
        left = np.setdiff1d(np.arange(self._truth.shape[1]), self._order)
        if not self.candidates:
            return left
        rng = np.random.default_rng([self.seed, 2, place])
        return np.sort(rng.permutation(left)[: self.candidates])

    def _errors(self, tried: NDArray[np.intp]) -> NDArray[np.float64]:
        """(C,) mean squared error on the history models' unobserved scores with each candidate observed."""
        assert self._truth is not None
        if isinstance(self._estimator, SupportsLinearization):
            observed = np.full(self._truth.shape, np.nan)
            observed[:, self._order] = self._truth[:, self._order]
            lines = self._estimator.linearize(observed)
            return errors_by_one_look(lines, observed, self._truth)[tried]
        step = max(1, CHUNK_BYTES // (8 * 16 * self._truth.size))
        parts = [self._errors_of_batch(tried[i : i + step]) for i in range(0, len(tried), step)]
        return np.concatenate(parts)

    def _errors_of_batch(self, tried: NDArray[np.intp]) -> NDArray[np.float64]:
        assert self._truth is not None
        assert self._estimator is not None
        shape = (len(tried), *self._truth.shape)  # (C, M, N)
        observed = np.full(shape, np.nan)
        observed[:, :, self._order] = self._truth[:, self._order]
        observed[np.arange(len(tried)), :, tried] = self._truth[:, tried].T
        mean = self._estimator.predict(observed.reshape(-1, shape[2])).mean.reshape(shape)
        wanted = np.isnan(observed) & ~np.isnan(self._truth)
        squares = np.where(wanted, (mean - np.nan_to_num(self._truth)) ** 2, 0.0)
        errors: NDArray[np.float64] = squares.sum(axis=(1, 2)) / np.maximum(wanted.sum(axis=(1, 2)), 1)
        return errors

    def _refuse_if_too_long(self, size: int) -> None:
        assert self._truth is not None
        tried = self._tried(len(self._order))
        whole = isinstance(self._estimator, SupportsLinearization)
        batch = tried if whole else tried[: max(1, CHUNK_BYTES // (8 * 16 * self._truth.size))]
        start = time.perf_counter()
        self._errors(batch)
        each = (time.perf_counter() - start) / len(batch)
        seconds = each * len(tried) * (size - len(self._order))
        if seconds > self.limit_seconds:
            raise UsageError(
                f"policy '{self.name}' would take about {_duration(seconds)} to choose {size} of"
                f" {self._truth.shape[1]} prompts on {len(self._truth)} history models",
                "force it (--force), give it fewer models or candidates, or use static-design",
            )


def errors_by_one_look(
    lines: Linearization, observed: NDArray[np.float64], truth: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(N,) mean squared error of predicting what stays unobserved, with each prompt observed in turn.

    With S the latent's covariance, E the errors of the predicted means and v_j = l_j' S l_j + noise_j, the
    answer to j moves the mean of k by l_k' S l_j E_j / v_j. Summed over the unobserved k, the squares are
    E'E - 2 (E_j / v_j) (S l_j)' sum_k E_k l_k + (E_j / v_j)^2 (S l_j)' (sum_k l_k l_k') (S l_j), of which
    j's own share is taken off: no loop over pairs of prompts.

    Args:
        lines: The M rows' linearisation, given what is observed.
        observed: (M, N) scores, NaN = not observed.
        truth: (M, N) true scores, NaN = missing; a prompt whose score is missing teaches its row nothing.
    """
    wanted = np.isnan(observed) & ~np.isnan(truth)
    error = np.where(wanted, np.nan_to_num(truth) - lines.mean, 0.0)
    total = np.zeros(truth.shape[1])
    for rows in _alike(lines, np.concatenate([wanted, np.isnan(observed)], axis=1)):
        i = rows[0]
        loadings = lines.loadings if lines.loadings.ndim == 2 else lines.loadings[i]
        shifted = loadings @ lines.covariance[i]  # (N, D)
        explained = (shifted * loadings).sum(axis=1)
        variance = np.maximum(explained + lines.noise[i], LEAST_NOISE)
        open_loadings = loadings[wanted[i]]
        curve = ((shifted @ (open_loadings.T @ open_loadings)) * shifted).sum(axis=1)
        share = error[rows] / variance  # (rows, N)
        slope = (error[rows] @ loadings) @ shifted.T
        own = error[rows] - share * explained
        total += (np.square(error[rows]).sum(axis=1, keepdims=True) - own**2).sum(axis=0)
        total += (share**2 * curve - 2.0 * share * slope).sum(axis=0)
    count = wanted.sum() - wanted.sum(axis=0)
    errors: NDArray[np.float64] = total / np.maximum(count, 1)
    return errors


def _alike(lines: Linearization, masks: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """Rows in groups that share loadings, noise and masks, and with them the posterior covariance."""
    shared = lines.loadings.ndim == 2 and bool((lines.noise == lines.noise[:1]).all())
    groups: dict[bytes, list[int]] = {}
    for i, mask in enumerate(np.packbits(masks, axis=1)):
        groups.setdefault(mask.tobytes() if shared else str(i).encode(), []).append(i)
    return [np.array(rows) for rows in groups.values()]


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{seconds / 60:.0f} minutes"
