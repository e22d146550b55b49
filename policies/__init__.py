"""Acquisition policies: which (method, prompt) scores to buy next. Arrays in, cells out."""

from __future__ import annotations

from typing import Any

from assay.plugins import Registry
from policies._base import Policy, PolicyState, Selection

__all__ = ["POLICIES", "Policy", "PolicyState", "Selection", "make_policy"]

POLICIES: Registry[type[Policy]] = Registry(
    "policy",
    "assay.policies",
    {
        "expected-variance-reduction": "policies._expected_variance:ExpectedVarianceReductionPolicy",
        "information-gain": "policies._information_gain:InformationGainPolicy",
        "static-design": "policies._static_design:StaticDesignPolicy",
        "stratified": "policies._stratified:StratifiedPolicy",
        "uncertainty": "policies._uncertainty:UncertaintyPolicy",
        "uniform": "policies._uniform:UniformPolicy",
    },
)


def make_policy(name: str, **params: Any) -> Policy:
    """Build a policy by its registered name."""
    return POLICIES.get(name)(**params)
