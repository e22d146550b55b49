"""Acquisition policies: which (method, prompt) scores to buy next. Arrays in, cells out."""

from __future__ import annotations

from typing import Any

from assay.plugins import Registry
from policies._base import (
    Policy,
    PolicyState,
    Recommendation,
    Selection,
    SupportsRecommendation,
    SupportsReplay,
)

__all__ = [
    "POLICIES",
    "Policy",
    "PolicyState",
    "Recommendation",
    "Selection",
    "SupportsRecommendation",
    "SupportsReplay",
    "make_policy",
]

POLICIES: Registry[type[Policy]] = Registry(
    "policy",
    "assay.policies",
    {
        "filled-subset": "policies._filled_subset:FilledSubsetPolicy",
        "lrf": "policies._ucb_e_lrf:LrfPolicy",
        "row-mean": "policies._row_mean:RowMeanPolicy",
        "stratified": "policies._stratified:StratifiedPolicy",
        "top-two": "policies._top_two:TopTwoPolicy",
        "ucb-e": "policies._ucb_e:UcbEPolicy",
        "ucb-e-lrf": "policies._ucb_e_lrf:UcbELrfPolicy",
        "ucb-e-lrf-score-only": "policies._ucb_e_lrf:UcbELrfScoreOnlyPolicy",
        "uniform": "policies._uniform:UniformPolicy",
    },
)


def make_policy(name: str, **params: Any) -> Policy:
    """Build a policy by its registered name."""
    return POLICIES.get(name)(**params)
