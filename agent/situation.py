"""A study as it stands: read from the database in one snapshot, given out as arrays and plain rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from sqlmodel import Session, func, select

from agent.context import AgentContext
from agent.costs import expected_costs, specs_of
from agent.row_features import features_of, with_templates
from agent.verdicts import judges_of
from assay.specs import ModelSpec
from estimators import Estimator
from estimators.distribution import ScoreDistribution, score_distribution
from estimators.intervals import ConformalIntervals
from estimators.quantile_intervals import QuantileFactors
from policies import Policy, PolicyState, Selection
from policies.acquisition import build_state
from storage import jobs, studies, versions
from storage.matrices import BenchmarkColumns, load_rows
from storage.tables import Benchmark, EstimatorVersion, Job, JobState, Method, Study

__all__ = ["Situation", "read_situation", "unjudged"]


@dataclass(frozen=True)
class Situation:
    """Everything that a step decides on. Shapes: R methods of the study, N prompts of the benchmark.

    Attributes:
        study: The study's row.
        version: The estimator version it works with.
        estimator: That version, fitted.
        intervals: Factors learned for the way in which the policy chooses, where there are any.
        quantile_factors: The same for intervals of quantiles over the rows.
        policy: The study's policy, prepared.
        methods: R methods.
        specs: R model descriptions.
        columns: The benchmark's columns.
        state: What the policy may look at.
        bought: Cells that the study has asked for so far.
    """

    study: Study
    version: EstimatorVersion
    estimator: Estimator
    intervals: ConformalIntervals | None
    quantile_factors: QuantileFactors | None
    policy: Policy
    methods: list[Method]
    specs: list[ModelSpec]
    columns: BenchmarkColumns
    state: PolicyState
    bought: int

    @cached_property
    def distribution(self) -> ScoreDistribution:
        """What is believed of the rows' scores together; drawn once, by the study's seed and step."""
        rng = np.random.default_rng([self.study.seed, self.study.step])
        return score_distribution(self.estimator, self.state.scores, rng)

    @property
    def study_id(self) -> int:
        """The study's number."""
        assert self.study.id is not None
        return self.study.id

    @property
    def may_buy(self) -> int:
        """How many cells the next step may ask for."""
        if self.study.max_prompts is None:
            return self.study.batch_size
        return min(self.study.batch_size, self.study.max_prompts - self.bought)


def read_situation(session: Session, context: AgentContext, study_id: int, version_id: int) -> Situation:
    """Read the study.

    Raises:
        UnknownPriceError: A model's price is not known.
        UsageError: The policy is unknown.
    """
    study = studies.find(session, study_id)
    version = versions.find(session, version_id)
    columns = context.columns(session, session.get_one(Benchmark, study.benchmark_id))
    methods = studies.methods_of(session, study_id)
    specs = specs_of(session, methods)
    policy = context.policy(session, study, version)
    estimator = with_templates(session, context, version_id, columns, methods)
    bought = _bought(session, study_id)
    return Situation(
        study=study,
        version=version,
        estimator=estimator,
        intervals=_intervals(session, context, version_id, policy),
        quantile_factors=context.quantile_factors(session, version_id).get(study.policy),
        policy=policy,
        methods=methods,
        specs=specs,
        columns=columns,
        state=_state(session, context, study, columns, methods, specs, estimator, bought, policy),
        bought=bought,
    )


def _state(
    session: Session,
    context: AgentContext,
    study: Study,
    columns: BenchmarkColumns,
    methods: list[Method],
    specs: list[ModelSpec],
    estimator: Estimator,
    bought: int,
    policy: Policy,
) -> PolicyState:
    pks = np.array([method.id for method in methods], dtype=np.int64)
    scores = load_rows(session, columns, pks)
    pending = _mask(columns, pks, jobs.open_cells(session, pks.tolist()))
    known = int((~np.isnan(scores) | pending).sum())
    return build_state(
        scores,
        seed=study.seed,
        methods=[method.name for method in methods],
        weights=columns.weights,
        dataset_index=columns.dataset_index,
        estimator=estimator,
        total=0 if study.max_prompts is None else known + study.max_prompts - bought,
        pending=pending,
        available=~_mask(columns, pks, jobs.parked_cells(session, pks.tolist())),
        cost=expected_costs(session, context, columns, methods, specs),
        embeddings=context.embeddings(columns) if policy.uses_embeddings else None,
        row_features=features_of(session, policy.row_features, methods, context.settings)
        if policy.row_features
        else None,
    )


def _bought(session: Session, study_id: int) -> int:
    """Cells that the study has asked for: an answer and its verdict are one."""
    cells = (
        select(Job.method_id, Job.prompt_id, Job.scorer_id)
        .where(Job.study_id == study_id, Job.state != JobState.CANCELLED)
        .distinct()
        .subquery()
    )
    return int(session.exec(select(func.count()).select_from(cells)).one())


def unjudged(session: Session, situation: Situation) -> Selection | None:
    """The study's cells whose answer is there and whose verdict is not: they come before any new choice.

    Returns:
        The cells to judge; none of them where another study has asked for the verdicts (they will count here
        too); None where no verdict is missing.
    """
    columns, state = situation.columns, situation.state
    if not judges_of(session, columns.scorer_pks):
        return None
    row_of = {method.id: i for i, method in enumerate(situation.methods)}
    found = [
        (row_of[job.method_id], columns.position[job.prompt_id], job)
        for job in jobs.answered_cells(session, situation.study_id)
        if job.prompt_id in columns.position and job.method_id in row_of
    ]
    missing = [cell for cell in found if np.isnan(state.scores[cell[:2]]) and state.available[cell[:2]]]
    free = [cell for cell in missing if not state.pending[cell[:2]]]
    if not missing:
        return None
    return Selection.of(
        [row for row, _, _ in free],
        [column for _, column, _ in free],
        probability=[_or_nan(job.probability) for _, _, job in free],
        gain=[_or_nan(job.gain) for _, _, job in free],
    )


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value


def _mask(
    columns: BenchmarkColumns, method_pks: NDArray[np.int64], cells: set[tuple[int, int, int]]
) -> NDArray[np.bool_]:
    """(R, N) True at the given (method, prompt, scorer) cells that belong to the benchmark."""
    mask = np.zeros((len(method_pks), columns.n_prompts), dtype=bool)
    row_of = {int(pk): i for i, pk in enumerate(method_pks)}
    for method_pk, prompt_pk, scorer_pk in cells:
        column = columns.position.get(prompt_pk)
        if column is not None and columns.scorer_pks[columns.dataset_index[column]] == scorer_pk:
            mask[row_of[method_pk], column] = True
    return mask


def _intervals(
    session: Session, context: AgentContext, version_id: int, policy: Policy
) -> ConformalIntervals | None:
    known = context.intervals(session, version_id)
    return known.get(policy.design)
