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
    SupportsTraining,
)
from policies._mixed import MixedPolicy

__all__ = [
    "POLICIES",
    "MixedPolicy",
    "Policy",
    "PolicyState",
    "Recommendation",
    "Selection",
    "SupportsRecommendation",
    "SupportsReplay",
    "SupportsTraining",
    "make_policy",
]

POLICIES: Registry[type[Policy]] = Registry(
    "policy",
    "assay.policies",
    {
        "balanced": "policies._balanced:BalancedPolicy",
        "cluster-embed": "policies._cluster:ClusterEmbedPolicy",
        "cluster-irt": "policies._cluster:ClusterIrtPolicy",
        "cluster-score": "policies._cluster:ClusterScorePolicy",
        "combinatorial": "policies._combinatorial:CombinatorialPolicy",
        "expected-variance-reduction": "policies._expected_variance:ExpectedVarianceReductionPolicy",
        "filled-subset": "policies._filled_subset:FilledSubsetPolicy",
        "information-gain": "policies._information_gain:InformationGainPolicy",
        "lrf": "policies._ucb_e_lrf:LrfPolicy",
        "ppo": "policies._ppo:PpoPolicy",
        "quantile-variance": "policies._quantile_variance:QuantileVariancePolicy",
        "row-mean": "policies._row_mean:RowMeanPolicy",
        "sequential-elimination": "policies._sequential_elimination:SequentialEliminationPolicy",
        "static-design": "policies._static_design:StaticDesignPolicy",
        "stratified": "policies._stratified:StratifiedPolicy",
        "top-two": "policies._top_two:TopTwoPolicy",
        "triple-gse": "policies._sequential_elimination:TripleGsePolicy",
        "triple-mlp-gse": "policies._sequential_elimination:TripleMlpGsePolicy",
        "ucb-e": "policies._ucb_e:UcbEPolicy",
        "ucb-e-lrf": "policies._ucb_e_lrf:UcbELrfPolicy",
        "ucb-e-lrf-score-only": "policies._ucb_e_lrf:UcbELrfScoreOnlyPolicy",
        "uncertainty": "policies._uncertainty:UncertaintyPolicy",
        "uniform": "policies._uniform:UniformPolicy",
    },
)


def make_policy(name: str, **params: Any) -> Policy:
    """Build a policy by its registered name."""
    return POLICIES.get(name)(**params)
