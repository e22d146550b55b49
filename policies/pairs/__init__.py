"""Pair policies: on which prompts a judge should compare two methods. Arrays in, prompts and verdicts out."""

from __future__ import annotations

from typing import Any

from assay.plugins import Registry, split_name
from policies.pairs._base import PairPlan, PairPolicy, PairProblem, PairVerdict
from policies.pairs._history import PairHistory
from policies.pairs._iterative import IterativeRule, Progress, progress, run_iteratively
from policies.pairs._tournament import Ranking, Tournament, bradley_terry, pairs_of
from policies.pairs._votes import hypergeometric_risk

__all__ = [
    "PAIR_POLICIES",
    "IterativeRule",
    "PairHistory",
    "PairPlan",
    "PairPolicy",
    "PairProblem",
    "PairVerdict",
    "Progress",
    "Ranking",
    "Tournament",
    "bradley_terry",
    "hypergeometric_risk",
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
        "forecast": "policies.pairs._forecast:ForecastPolicy",
        "max-norm": "policies.pairs._diffuse:MaxNormPolicy",
        "random": "policies.pairs._diffuse:RandomPairPolicy",
    },
)


def make_pair_policy(name: str, **params: Any) -> PairPolicy:
    """Build a pair policy by name; `diffuse:kmeans+norm` names clustering and representative.

    Raises:
        UsageError: The name or an option is unknown.
    """
    head, argument = split_name(name)
    kind = PAIR_POLICIES.get(head)
    if argument:
        clustering, _, representative = argument.partition("+")
        params |= {"clustering": clustering} | ({"representative": representative} if representative else {})
    return kind(**params)
