"""DiffUse: one vote per cluster of output differences (Label-Efficient Model Selection for Text Generation).

On judge preferences with few ties it does worse than random prompts: clusters are lopsided (at k = 10 the
largest held 64 % of AlpacaEval's prompts) and each has one vote. It is here as published; docs/compare.md
has the figures.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from assay.errors import BadInputError, UsageError
from policies.pairs._base import PairPlan, PairPolicy, PairProblem, PairVerdict
from policies.pairs._hierarchy import (
    REPRESENTATIVES,
    Hierarchy,
    Linkage,
    Representative,
    choose_representative,
)
from policies.pairs._votes import count_votes

__all__ = ["ClusterInputsPolicy", "DiffusePolicy", "MaxNormPolicy"]

Clustering = Literal["ward", "cosine", "kmeans"]
Columns = NDArray[np.intp]
Vectors = NDArray[np.float64]


class DiffusePolicy(PairPolicy):
    """Cluster e(A's output) - e(B's output) into k clusters; the judge sees one prompt of each.

    The estimated distance is biased towards the winner, which is why it decides well where it does; it is
    never an estimate of the winning distance. With a hierarchical clustering, k + 1 clusters are those of k
    with the next one split, and the split cluster's verdict no longer counts (algorithm 1).

    Args:
        clustering: "ward", "cosine" (average linkage) or "kmeans" (greedy k-means++ starts; not nested).
        representative: "cosine", "euclidean" (nearest to the cluster's centre), "random" or "norm" (largest).
    """

    name: ClassVar[str] = "diffuse"
    uses_vectors: ClassVar[bool] = True

    def __init__(self, *, clustering: Clustering = "ward", representative: Representative = "cosine") -> None:
        if clustering not in ("ward", "cosine", "kmeans") or representative not in REPRESENTATIVES:
            raise UsageError(
                f"no clustering '{clustering}' with representative '{representative}'",
                f"clustering: ward, cosine, kmeans; representative: {', '.join(REPRESENTATIVES)}",
            )
        self.clustering, self.representative = clustering, representative

    @classmethod
    def named(cls, argument: str) -> dict[str, Any]:
        """See `PairPolicy.named`."""
        clustering, _, representative = argument.partition("+")
        return {"clustering": clustering} | ({"representative": representative} if representative else {})

    def params(self) -> dict[str, Any]:
        """See `PairPolicy.params`."""
        return {"clustering": self.clustering, "representative": self.representative}

    def plan(self, problem: PairProblem) -> PairPlan:
        """See `PairPolicy.plan`."""
        return ClusterPlan(_differences(problem, self.name), problem, self.clustering, self.representative)


class ClusterInputsPolicy(PairPolicy):
    """The same with the prompts' vectors instead of the outputs' differences: a baseline of the paper."""

    name: ClassVar[str] = "cluster-inputs"
    uses_inputs: ClassVar[bool] = True

    def plan(self, problem: PairProblem) -> PairPlan:
        """See `PairPolicy.plan`."""
        if problem.inputs is None:
            raise BadInputError(
                "pair policy 'cluster-inputs' needs the prompts' vectors", "choose an --encoder"
            )
        return ClusterPlan(problem.inputs.astype(np.float64), problem, "ward", "cosine")


class MaxNormPolicy(PairPolicy):
    """The prompts whose outputs differ most: a baseline of the paper."""

    name: ClassVar[str] = "max-norm"
    uses_vectors: ClassVar[bool] = True

    def plan(self, problem: PairProblem) -> PairPlan:
        """See `PairPolicy.plan`."""
        norms = np.linalg.norm(_differences(problem, self.name), axis=1)
        return OrderPlan(np.argsort(-norms, kind="stable"), "biased")


class OrderPlan:
    """The first k of one order, and their majority."""

    def __init__(self, order: Columns, distance_kind: str) -> None:
        self.order, self.distance_kind = order, distance_kind

    def sample(self, k: int) -> Columns:
        """See `PairPlan.sample`."""
        return self.order[:k]

    def verdict(self, verdicts: Vectors, k: int, *, level: float | None = 0.95) -> PairVerdict:
        """See `PairPlan.verdict`."""
        return count_votes(verdicts[self.order[:k]], len(self.order), level, distance_kind=self.distance_kind)


class ClusterPlan:
    """One prompt of each of k clusters, and their majority."""

    def __init__(
        self, vectors: Vectors, problem: PairProblem, clustering: Clustering, representative: Representative
    ) -> None:
        self.vectors, self.problem = vectors, problem
        self.clustering, self.representative = clustering, representative
        nested: Linkage = "cosine" if clustering == "cosine" else "ward"
        flat = clustering == "kmeans" or len(vectors) < 2
        self._hierarchy = None if flat else Hierarchy(vectors, nested)
        self._of_node: dict[int, int] = {}

    def sample(self, k: int) -> Columns:
        """See `PairPlan.sample`."""
        k = min(k, len(self.vectors))
        if k < 1:
            return np.array([], dtype=np.intp)
        if self._hierarchy is None:
            chosen = [self._choose(members, i) for i, members in enumerate(self._flat(k))]
        else:
            chosen = [self._representative(self._hierarchy, node) for node in self._hierarchy.cut(k)]
        return np.array(chosen, dtype=np.intp)

    def verdict(self, verdicts: Vectors, k: int, *, level: float | None = 0.95) -> PairVerdict:
        """See `PairPlan.verdict`."""
        return count_votes(verdicts[self.sample(k)], len(self.vectors), level, distance_kind="biased")

    def _representative(self, hierarchy: Hierarchy, node: int) -> int:
        if node not in self._of_node:
            self._of_node[node] = self._choose(hierarchy.members(node), node)
        return self._of_node[node]

    def _choose(self, members: Columns, number: int) -> int:
        # A draw depends on the cluster alone, so that a cluster that stays keeps its representative.
        def draw(m: int) -> int:
            return int(np.random.default_rng([*self.problem.rng_seed, number]).integers(m))

        return choose_representative(self.vectors, members, self.representative, draw)

    def _flat(self, k: int) -> list[Columns]:
        if len(self.vectors) <= k:
            return [np.array([i], dtype=np.intp) for i in range(len(self.vectors))]
        state = int(self.problem.rng.integers(2**31))
        labels = KMeans(k, init="k-means++", n_init=1, random_state=state).fit_predict(self.vectors)
        return [members for i in range(k) if len(members := np.flatnonzero(labels == i))]


def _differences(problem: PairProblem, name: str) -> Vectors:
    if problem.first is None or problem.second is None:
        raise BadInputError(f"pair policy '{name}' needs the outputs' vectors", "choose an --encoder")
    return problem.first.astype(np.float64) - problem.second.astype(np.float64)
