"""Pair policies: on which prompts a judge should compare two methods. Arrays in, prompts and verdicts out."""

from __future__ import annotations

from typing import Any

from assay.plugins import Registry, split_name
from policies.pairs._base import PairPlan, PairPolicy, PairProblem, PairVerdict
from policies.pairs._betting import Bets, Draws, bets_for, confidence_bounds, log_capital
from policies.pairs._history import PairHistory
from policies.pairs._iterative import IterativeRule, Progress, progress, run_iteratively
from policies.pairs._prediction_powered import RandomPlan
from policies.pairs._tournament import Ranking, Tournament, bradley_terry, pairs_of
from policies.pairs._votes import hypergeometric_risk

__all__ = [
    "Bets",
    "Draws",
    "PAIR_POLICIES",
    "IterativeRule",
    "PairHistory",
    "PairPlan",
    "PairPolicy",
    "PairProblem",
    "PairVerdict",
    "Progress",
    "RandomPlan",
    "Ranking",
    "Tournament",
    "bets_for",
    "bradley_terry",
    "confidence_bounds",
    "hypergeometric_risk",
    "log_capital",
    "make_pair_policy",
    "pairs_of",
    "progress",
    "run_iteratively",
]

PAIR_POLICIES: Registry[type[PairPolicy]] = Registry(
    "pair policy",
    "assay.pair_policies",
    {
        "cluster-inputs": "policies.pairs._diffuse:ClusterInputsPolicy",
        "diffuse": "policies.pairs._diffuse:DiffusePolicy",
        "max-norm": "policies.pairs._diffuse:MaxNormPolicy",
        "prediction-powered": "policies.pairs._prediction_powered:PredictionPoweredPolicy",
        "random": "policies.pairs._prediction_powered:RandomPairPolicy",
    },
)


def make_pair_policy(name: str, **params: Any) -> PairPolicy:
    """Build a pair policy by name; `diffuse:kmeans+norm` names clustering and representative,
    `random:anytime` the stopping rule.

    Raises:
        UsageError: The name or an option is unknown.
    """
    head, argument = split_name(name)
    kind = PAIR_POLICIES.get(head)
    return kind(**kind.named(argument), **params) if argument else kind(**params)
