"""Anchor prompts by clustering: the prompt nearest each centroid (Li et al. 2.3; tinyBenchmarks)."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from assay.errors import BadInputError, NotFittedError
from assay.matrix import ScoreMatrix
from estimators import Estimator, SupportsPromptFeatures, make_estimator
from policies._base import Policy, PolicyState, Selection

__all__ = ["ClusterEmbedPolicy", "ClusterIrtPolicy", "ClusterPolicy", "ClusterScorePolicy"]

Floats = NDArray[np.float64]
MOST_DIMENSIONS = 64  # of the history's columns, beyond which they are projected on principal components


class ClusterPolicy(Policy):
    """k-means with K = the study's total on some representation of the prompts; a static policy.

    Clusters are served largest first, each by its available prompt nearest the centroid; a cluster that
    has a known or pending prompt already comes after those that have none. Asked for more than there are
    clusters, it takes the next nearest of each. The clustering follows from the policy's seed alone.
    """

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self._clusterings: dict[int, tuple[NDArray[np.intp], Floats]] = {}
        self._features: Floats | None = None

    def prepare(self, history: ScoreMatrix, estimator: Estimator | None) -> None:
        """See `Policy.prepare`: the prompts' representation."""
        self._features = self._represent(history, estimator)
        self._clusterings.clear()

    @abstractmethod
    def _represent(self, history: ScoreMatrix, estimator: Estimator | None) -> Floats | None:
        """(N, d) vectors to cluster, or None where they come with the state."""

    def _select(self, state: PolicyState, n: int) -> Selection:
        n_rows, n_prompts = state.scores.shape
        used = ~np.isnan(state.scores) | state.pending
        total = state.total or int(used.sum()) + n
        cluster, rank = self._clustering(state, min(n_prompts, max(1, -(-total // n_rows))))
        free = state.candidates
        rows, columns = np.nonzero(free)
        level = _levels(cluster, rank, used, free)[rows, columns]
        order = np.lexsort((rows, rank[columns], cluster[columns], level))[:n]
        return Selection.of(rows[order], columns[order])

    def _clustering(self, state: PolicyState, k: int) -> tuple[NDArray[np.intp], Floats]:
        """Cluster of each prompt, largest first, and each prompt's distance to its centroid; remembered."""
        if k not in self._clusterings:
            features = self._features if self._features is not None else self._of_state(state)
            self._clusterings[k] = cluster_prompts(features, k, self.seed)
        return self._clusterings[k]

    def _of_state(self, state: PolicyState) -> Floats:
        raise NotFittedError(
            f"policy '{self.name}' is not prepared", "call prepare(history, estimator) first"
        )


class ClusterEmbedPolicy(ClusterPolicy):
    """Clusters prompt embeddings; works for prompts that nobody has scored."""

    name: ClassVar[str] = "cluster-embed"
    uses_embeddings: ClassVar[bool] = True
    needs_no_history: ClassVar[bool] = True

    def _represent(self, history: ScoreMatrix, estimator: Estimator | None) -> Floats | None:
        return None if history.embeddings is None else history.embeddings.astype(np.float64)

    def _of_state(self, state: PolicyState) -> Floats:
        if state.embeddings is None:
            raise BadInputError(
                "policy 'cluster-embed' needs prompt embeddings", "embed the prompts, or use 'cluster-score'"
            )
        return state.embeddings.astype(np.float64)


class ClusterScorePolicy(ClusterPolicy):
    """Clusters the columns of the history: prompts that the same methods get right lie together."""

    name: ClassVar[str] = "cluster-score"

    def _represent(self, history: ScoreMatrix, estimator: Estimator | None) -> Floats | None:
        return score_features(history)


class ClusterIrtPolicy(ClusterPolicy):
    """Clusters item parameters (loadings and intercept) of a logistic factor model of the history.

    The model is the study's estimator where that is `mirt` or `corrected:mirt`, else one fitted to the
    history in `prepare`.
    """

    name: ClassVar[str] = "cluster-irt"

    def _represent(self, history: ScoreMatrix, estimator: Estimator | None) -> Floats | None:
        own = estimator is not None and "mirt" in (estimator.name, getattr(estimator, "base", None))
        model = estimator if own else make_estimator("mirt", seed=self.seed).fit(history)
        assert isinstance(model, SupportsPromptFeatures)
        return model.prompt_features()


def score_features(history: ScoreMatrix) -> Floats:
    """(N, d) columns of the history, missing entries at the row's mean, reduced to 64 dimensions."""
    values = history.values.astype(np.float64)
    seen = ~np.isnan(values)
    count = seen.sum(axis=1, keepdims=True)
    mean = np.where(seen, values, 0.0).sum(axis=1, keepdims=True) / np.maximum(count, 1)
    columns: Floats = np.where(seen, values, np.where(count > 0, mean, 0.5)).T
    if columns.shape[1] <= MOST_DIMENSIONS:
        return columns
    centred = columns - columns.mean(axis=0)
    eigenvalues, vectors = np.linalg.eigh(centred.T @ centred)
    kept = np.argsort(eigenvalues)[::-1][:MOST_DIMENSIONS]
    projected: Floats = centred @ vectors[:, kept]
    return projected


def cluster_prompts(features: Floats, k: int, seed: int) -> tuple[NDArray[np.intp], Floats]:
    """k-means: (N,) cluster of each prompt, the largest being 0, and (N,) distance to its centroid."""
    distinct = len(np.unique(features, axis=0))
    means = KMeans(min(k, distinct), n_init=3, random_state=seed).fit(features)
    distance = np.linalg.norm(features - means.cluster_centers_[means.labels_], axis=1)
    size = np.bincount(means.labels_, minlength=means.n_clusters)
    place = np.empty(len(size), dtype=np.intp)
    place[np.argsort(-size, kind="stable")] = np.arange(len(size))
    return place[means.labels_], distance


def _levels(
    cluster: NDArray[np.intp], distance: Floats, used: NDArray[np.bool_], free: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """(R, N) how many prompts of its cluster come before each candidate in its row."""
    levels = np.zeros(used.shape, dtype=np.intp)
    for i in range(len(used)):
        taken = np.bincount(cluster[used[i]], minlength=int(cluster.max()) + 1)
        columns = np.flatnonzero(free[i])
        order = columns[np.lexsort((columns, distance[columns], cluster[columns]))]
        of = cluster[order]
        first = np.concatenate([[True], of[1:] != of[:-1]])
        start = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
        levels[i, order] = taken[of] + np.arange(len(order)) - start
    return levels
