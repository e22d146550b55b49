"""What a comparison asks for next, or what it has found out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlmodel import Session

from agent.context import AgentContext
from agent.pairwise._past import Past, read_past
from agent.pairwise._reading import Contest
from agent.pairwise._words import risk_words
from policies.pairs import (
    IterativeRule,
    PairPlan,
    PairPolicy,
    PairProblem,
    PairVerdict,
    Ranking,
    Tournament,
    make_pair_policy,
    progress,
)
from storage.matrices import load_matrix
from storage.tables import Benchmark
from workers.embedding import embed_texts

__all__ = ["LEAST_VERDICTS", "RISK", "TOURNAMENT", "Choice", "choose"]

#: Policy of studies with more than two methods.
TOURNAMENT = "tournament"
RISK = 0.1
LEAST_VERDICTS = 5


@dataclass(frozen=True)
class Choice:
    """The next step of a comparison.

    Attributes:
        cells: (pair, column) to be judged, in order of choice.
        outputs: (row, column) answers wanted before anything can be chosen.
        findings: What the verdicts say so far, JSON-able, for the study's row.
        over: Why the study is over, or None.
    """

    cells: list[tuple[int, int]] = field(default_factory=list)
    outputs: list[tuple[int, int]] = field(default_factory=list)
    findings: dict[str, Any] = field(default_factory=dict)
    over: str | None = None


def choose(session: Session, context: AgentContext, contest: Contest) -> Choice:
    """The next step: a pair goes by its pair policy, more methods by the tournament."""
    choice = _choose_pair(session, context, contest) if len(contest.methods) == 2 else _choose_pairs(contest)
    return replace(choice, findings={**choice.findings, **_counts(contest)})


def _risk(contest: Contest) -> float:
    wanted = contest.study.until_confidence
    return RISK if wanted is None else min(max(1.0 - wanted, 1e-9), 1 - 1e-9)


# --- two methods -------------------------------------------------------------------------------------------


def _choose_pair(session: Session, context: AgentContext, contest: Contest) -> Choice:
    policy = make_pair_policy(contest.study.policy, **contest.study.policy_params)
    past = _past(session, context, contest) if policy.uses_history else None
    looking = policy.wants_outputs(0 if past is None else len(past.words))
    if looking:
        missing = ~contest.answered & ~contest.unanswerable
        if missing.any():  # both methods answer everything first: that is what the policy chooses by
            return Choice(outputs=[(int(i), int(j)) for i, j in np.argwhere(missing)])
    policy.prepare(None if past is None else past.history)
    plan = _plan(context, contest, policy, past if looking else None)
    study, verdicts = contest.study, contest.verdicts[0]
    most = min(study.max_prompts or len(verdicts), len(verdicts))
    rule = IterativeRule(_risk(contest), min(LEAST_VERDICTS, most), most, study.batch_size)
    now = progress(plan, verdicts, rule, level=study.level, closed=contest.closed[0])
    names = [method.name for method in contest.methods]
    if now.winner is None:
        cells = [(0, int(j)) for j in now.missing[: study.batch_size] if not contest.open[0, j]]
        found = plan.verdict(verdicts, now.k, level=study.level)
        return Choice(cells=cells, findings=_findings(found, names))
    assert now.verdict is not None
    return Choice(
        findings=_findings(now.verdict, names, now.winner), over=_in_words(now.verdict, names, now.winner)
    )


def _plan(context: AgentContext, contest: Contest, policy: PairPolicy, past: Past | None) -> PairPlan:
    texts = [_texts(contest, row) for row in (0, 1)]
    vectors: list[NDArray[np.float32] | None] = [None, None]
    if policy.uses_vectors:
        both = embed_texts(context.database, [*texts[0], *texts[1]], context.settings.encoder)
        vectors = [both[: len(texts[0])], both[len(texts[0]) :]]
    features, alike = (None, None) if past is None else past.of_pair(texts)
    return policy.plan(
        PairProblem(
            n_prompts=len(contest.prompts),
            first=vectors[0],
            second=vectors[1],
            inputs=context.embeddings(contest.columns) if policy.uses_inputs else None,
            features=features,
            likeness=alike,
            rng_seed=(contest.study.seed, contest.study_id),
        )
    )


def _texts(contest: Contest, row: int) -> list[str]:
    blank = [contest.answers.get((row, column)) for column in range(len(contest.prompts))]
    return ["" if answer is None else answer.text for answer in blank]


def _past(session: Session, context: AgentContext, contest: Contest) -> Past:
    """The benchmark's other methods: their scores, and the outputs of those that answered everything."""
    benchmark = session.get_one(Benchmark, contest.columns.benchmark_id)
    matrix = load_matrix(session, benchmark, context.settings.cache_dir).matrix
    own = {method.name for method in contest.methods}
    rows = [i for i, name in enumerate(matrix.method_ids) if name not in own]
    scores = matrix.values[rows].astype(np.float64)
    names = [matrix.method_ids[i] for i in rows]
    return read_past(session, contest, names, scores)


def _findings(found: PairVerdict, names: list[str], winner: int | None = None) -> dict[str, Any]:
    return {
        "winner": None if not winner else names[0 if winner > 0 else 1],
        "leader": None if not found.winner else names[0 if found.winner > 0 else 1],
        "distance": found.distance,
        "low": found.low,
        "high": found.high,
        "distance_kind": found.distance_kind,
        "risk": found.risk,
        "risk_kind": found.risk_kind,
        "wins": {names[0]: found.a, names[1]: found.b},
    }


def _in_words(found: PairVerdict, names: list[str], winner: int) -> str:
    interval = f"winning distance {abs(found.distance):.3f} ({found.distance_kind})"
    if not winner:
        return f"inconclusive: {interval}, risk {found.risk:.3f} ({risk_words(found.risk_kind)})"
    name = names[0 if winner > 0 else 1]
    return f"{name} is better, {interval}, risk {found.risk:.3f} ({risk_words(found.risk_kind)})"


# --- more than two -----------------------------------------------------------------------------------------


def _choose_pairs(contest: Contest) -> Choice:
    study, known = contest.study, ~np.isnan(contest.verdicts)
    game = Tournament(len(contest.methods), len(contest.prompts))
    sums, counts = np.nan_to_num(contest.verdicts).sum(axis=1), known.sum(axis=1)
    ranking = game.rank(sums, counts, level=study.level)
    findings = _standings(contest, ranking)
    best, chance = contest.methods[ranking.best].name, float(ranking.probability_best[ranking.best])
    # Not the probability: looked at again and again, it passes any level too soon. Bonferroni over all pairs.
    sure = game.rank(sums, counts, level=1.0 - _risk(contest)).worst_rank[ranking.best] == 1
    if counts.min() >= game.first and sure:
        return Choice(
            findings={**findings, "winner": best}, over=f"{best} is the best with probability {chance:.3f}"
        )
    left = len(known.ravel()) if study.max_prompts is None else study.max_prompts - contest.bought
    if left <= 0:
        return Choice(
            findings=findings, over=f"bought {contest.bought} of at most {study.max_prompts} verdicts"
        )
    taken = known | contest.closed | contest.open
    wanted = min(study.batch_size, left)
    asked = taken.sum(axis=1)
    rng = np.random.default_rng([study.seed, int(asked.sum())])
    # Verdicts that will not come count as asked for, so that a pair is not chosen for them again and again.
    pairs = game.choose(sums, asked, wanted, rng)
    cells = _next_prompts(contest, pairs, taken)
    over = None if cells or contest.open.any() else "nothing is left to judge"
    return Choice(cells=cells, findings=findings, over=over)


def _next_prompts(contest: Contest, pairs: list[int], taken: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Every pair goes through the prompts in one order."""
    order = np.random.default_rng([contest.study.seed]).permutation(len(contest.prompts))
    taken, cells = taken.copy(), []
    for pair in pairs:
        free = order[~taken[pair, order]]
        if len(free):
            taken[pair, free[0]] = True
            cells.append((pair, int(free[0])))
    return cells


def _standings(contest: Contest, ranking: Ranking) -> dict[str, Any]:
    """The ranking, best first."""
    order = np.argsort(-ranking.strength, kind="stable")
    return {
        "leader": contest.methods[ranking.best].name,
        "winner": None,
        "ranking": [
            {
                "method": contest.methods[i].name,
                "strength": float(ranking.strength[i]),
                "low": float(ranking.low[i]),
                "high": float(ranking.high[i]),
                "bradley_terry": float(ranking.bradley_terry[i]),
                "bradley_terry_low": float(ranking.bt_low[i]),
                "bradley_terry_high": float(ranking.bt_high[i]),
                "best_rank": int(ranking.best_rank[i]),
                "worst_rank": int(ranking.worst_rank[i]),
                "probability_best": float(ranking.probability_best[i]),
            }
            for i in order
        ],
    }


def _counts(contest: Contest) -> dict[str, Any]:
    known = ~np.isnan(contest.verdicts)
    return {
        "verdicts": int(known.sum()),
        "ties": int((contest.verdicts == 0).sum()),
        "flips": contest.flips,
        "refusals": int(contest.refused.sum()),
        "answers_missing": int(contest.unanswerable.sum()),
        "bought": contest.bought,
    }
