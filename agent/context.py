"""What an agent process holds: the database, the way to the workers, and caches of what is expensive to load.

Everything here can be thrown away at any moment; the database says what is true.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlmodel import Session, col, func, select

from agent.lengths import AnswerLengths
from assay.errors import UsageError
from assay.settings import Settings
from estimators import Estimator, load_estimator
from estimators.intervals import ConformalIntervals
from estimators.quantile_intervals import QuantileFactors
from policies import (
    POLICIES,
    MixedPolicy,
    Policy,
    SupportsRecommendation,
    SupportsTraining,
    make_policy,
)
from storage import versions
from storage.database import Database
from storage.matrices import BenchmarkColumns, load_columns, load_matrix
from storage.tables import Benchmark, Dataset, EstimatorVersion, Prompt, Study
from workers.calibration import load_intervals
from workers.embedding import embed_prompts
from workers.rehearsal import load_factors

__all__ = ["AgentContext"]

#: Retraining makes new versions without end, and an agent runs for months.
MOST_KEPT = 32

K = TypeVar("K")
V = TypeVar("V")


class _Recent(dict[K, V]):
    """A cache that forgets its oldest entry when it is full."""

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > MOST_KEPT:
            del self[next(iter(self))]


@dataclass
class AgentContext:
    """Shared by the loop, the rules and the studies of one agent process.

    Attributes:
        database: The database.
        settings: The configuration.
        send_jobs: Names stored jobs to the workers: (ids, kind).
        send_training: Names a wanted version to the workers.
        template_effects: By version and rows, what earlier models' scores say of the rows' templates.
    """

    database: Database
    settings: Settings
    send_jobs: Callable[[Sequence[int], str], None]
    send_training: Callable[[int], None]
    template_effects: _Recent[tuple[int, tuple[int, ...]], NDArray[np.float64]] = field(
        default_factory=_Recent
    )
    _columns: _Recent[int, BenchmarkColumns] = field(default_factory=_Recent)
    _lengths: _Recent[tuple[int, int], NDArray[np.int64]] = field(default_factory=_Recent)
    _answers: _Recent[int, AnswerLengths] = field(default_factory=_Recent)
    _embeddings: _Recent[tuple[int, int], NDArray[np.float32]] = field(default_factory=_Recent)
    _estimators: _Recent[int, Estimator] = field(default_factory=_Recent)
    _intervals: _Recent[int, dict[str, ConformalIntervals]] = field(default_factory=_Recent)
    _factors: _Recent[int, dict[str, QuantileFactors]] = field(default_factory=_Recent)
    _policies: _Recent[tuple[str, str, int, int, int], Policy] = field(default_factory=_Recent)

    def columns(self, session: Session, benchmark: Benchmark) -> BenchmarkColumns:
        """The benchmark's columns, read again when its prompts changed."""
        assert benchmark.id is not None
        known = self._columns.get(benchmark.id)
        if known is None or known.prompts_revision != benchmark.prompts_revision:
            known = self._columns[benchmark.id] = load_columns(session, benchmark)
        return known

    def prompt_lengths(self, session: Session, columns: BenchmarkColumns) -> NDArray[np.int64]:
        """(N,) length of each prompt's text, in characters."""
        key = (columns.benchmark_id, columns.prompts_revision)
        if key not in self._lengths:
            query = (
                select(Prompt.id, func.length(Prompt.text))
                .join(Dataset, col(Dataset.id) == col(Prompt.dataset_id))
                .where(Dataset.benchmark_id == columns.benchmark_id)
            )
            by_id: dict[Any, int] = dict(session.exec(query).all())
            self._lengths[key] = np.array([by_id[int(pk)] for pk in columns.prompt_pks], dtype=np.int64)
        return self._lengths[key]

    def answer_lengths(self, session: Session, columns: BenchmarkColumns) -> AnswerLengths:
        """How long the answers of each dataset are, brought up to date by the answers that came since."""
        lengths = self._answers.setdefault(columns.benchmark_id, AnswerLengths())
        lengths.update(session, columns)
        return lengths

    def embeddings(self, columns: BenchmarkColumns) -> NDArray[np.float32]:
        """(N, d) vectors of the benchmark's prompts."""
        key = (columns.benchmark_id, columns.prompts_revision)
        if key not in self._embeddings:
            self._embeddings[key] = embed_prompts(self.database, columns, self.settings.encoder)
        return self._embeddings[key]

    def estimator(self, session: Session, version_id: int) -> Estimator:
        """A fitted estimator by its version."""
        if version_id not in self._estimators:
            folder = versions.artifact_folder(session, version_id, self.settings.cache_dir)
            self._estimators[version_id] = load_estimator(folder)
        return self._estimators[version_id]

    def intervals(self, session: Session, version_id: int) -> dict[str, ConformalIntervals]:
        """A version's conformal intervals by design; empty where it has none."""
        if version_id not in self._intervals:
            folder = versions.artifact_folder(session, version_id, self.settings.cache_dir)
            self._intervals[version_id] = load_intervals(folder)
        return self._intervals[version_id]

    def quantile_factors(self, session: Session, version_id: int) -> dict[str, QuantileFactors]:
        """A version's factors of the quantiles' intervals by policy; empty where it has none."""
        if version_id not in self._factors:
            folder = versions.artifact_folder(session, version_id, self.settings.cache_dir)
            self._factors[version_id] = load_factors(folder)
        return self._factors[version_id]

    def policy(self, session: Session, study: Study, version: EstimatorVersion) -> Policy:
        """The study's policy, prepared for the version's history; a learned one as its champion stands.

        Raises:
            UsageError: The policy must be trained first.
        """
        assert version.id is not None
        learned = self._learned(session, study.policy, study.policy_params, version)
        params = json.dumps(study.policy_params, sort_keys=True)
        key = (study.policy, params, study.seed, version.id, learned or 0)
        if key not in self._policies:
            policy = make_policy(study.policy, seed=study.seed, **study.policy_params)
            self.restore_policy(session, policy, version, study.policy_params)
            self._prepare(session, policy, version)
            if not isinstance(policy, SupportsRecommendation):
                policy = MixedPolicy(policy, share=self.settings.cold_share)
            self._policies[key] = policy
        return self._policies[key]

    def restore_policy(
        self,
        session: Session,
        policy: Policy,
        version: EstimatorVersion,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        """Load what a learned policy has learned; nothing where it is not one.

        Raises:
            UsageError: It was not trained yet for this benchmark and estimator.
        """
        learned = self._learned(session, policy.name, dict(params or {}), version)
        if learned is not None and isinstance(policy, SupportsTraining):
            policy.restore(versions.artifact_folder(session, learned, self.settings.cache_dir))

    def _learned(
        self, session: Session, name: str, params: dict[str, Any], version: EstimatorVersion
    ) -> int | None:
        """The champion of a learned policy; None for a policy that is not learned."""
        if not issubclass(POLICIES.get(name), SupportsTraining):
            return None
        champion = versions.champion(session, version.benchmark_id, version.estimator, params, policy=name)
        if champion is None:
            benchmark = session.get_one(Benchmark, version.benchmark_id).name
            raise UsageError(
                f"policy '{name}' has not been trained on '{benchmark}' with estimator '{version.estimator}'",
                f"train it: assay retrain {benchmark} --policy {name} --estimator {version.estimator} --wait",
            )
        return champion.id

    def _prepare(self, session: Session, policy: Policy, version: EstimatorVersion) -> None:
        if type(policy).prepare is Policy.prepare:
            return  # nothing to compute, so the history need not be loaded
        assert version.id is not None
        benchmark = session.get_one(Benchmark, version.benchmark_id)
        stored = load_matrix(session, benchmark, self.settings.cache_dir)
        vectors = self.embeddings(stored.columns) if policy.uses_embeddings else None
        matrix = replace(stored.matrix, embeddings=vectors)
        learned_from = set(version.history.get("methods", []))
        rows = np.flatnonzero([name in learned_from for name in matrix.method_ids])
        policy.prepare(matrix.rows(rows), self.estimator(session, version.id))
