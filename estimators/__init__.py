"""Estimators: what predicts the scores that were not acquired. Arrays in, arrays out."""

from __future__ import annotations

from typing import Any

from assay.plugins import Registry, split_name
from estimators._artifact import load_estimator
from estimators._base import (
    Estimator,
    Linearization,
    Prediction,
    ScoreEstimate,
    SupportsLinearization,
    SupportsPromptFeatures,
    SupportsRowFeatures,
    SupportsScoreDraws,
    check_observed,
)
from estimators._cold_start import (
    ColdStartEstimator,
    cold_prompts,
    estimator_for,
    full_rows,
    history_rows,
    prompts_without_history,
)
from estimators._encoders import ENCODERS, Encoder, make_encoder
from estimators._likeness import likeness, word_vectors
from estimators._pseudo_labels import LabelCheck, PseudoLabels, check_labels, make_pseudo_labels
from estimators._text_features import FEATURES, text_features

__all__ = [
    "ColdStartEstimator",
    "ENCODERS",
    "ESTIMATORS",
    "Encoder",
    "Estimator",
    "FEATURES",
    "LabelCheck",
    "Linearization",
    "Prediction",
    "PseudoLabels",
    "ScoreEstimate",
    "SupportsLinearization",
    "SupportsPromptFeatures",
    "SupportsRowFeatures",
    "SupportsScoreDraws",
    "check_labels",
    "check_observed",
    "cold_prompts",
    "estimator_for",
    "full_rows",
    "history_rows",
    "likeness",
    "make_encoder",
    "load_estimator",
    "make_estimator",
    "make_pseudo_labels",
    "prompts_without_history",
    "text_features",
    "word_vectors",
]

ESTIMATORS: Registry[type[Estimator]] = Registry(
    "estimator",
    "assay.estimators",
    {
        "aggregate": "estimators._aggregate:AggregateEstimator",
        "auto": "estimators._auto:AutoEstimator",
        "cold-start": "estimators._cold_start:ColdStartEstimator",
        "corrected": "estimators._corrected:CorrectedEstimator",
        "gp-irt": "estimators._gp_irt:GpIrtEstimator",
        "linear-gaussian": "estimators._linear_gaussian:LinearGaussianEstimator",
        "low-rank": "estimators._low_rank:LowRankEstimator",
        "mirt": "estimators._mirt:MirtEstimator",
        "mirt-group": "estimators._mirt_group:MirtGroupEstimator",
        "ridge": "estimators._ridge:RidgeEstimator",
        "neural-process": "estimators._neural_process:NeuralProcessEstimator",
        "x-pirt": "estimators._x_pirt:XPirtEstimator",
        "x-pirt-discrete": "estimators._x_pirt:XPirtDiscreteEstimator",
        "x-pirt-embedding": "estimators._x_pirt:XPirtEmbeddingEstimator",
        "x-pirt-history": "estimators._x_pirt:XPirtHistoryEstimator",
        "x-pirt-examples": "estimators._x_pirt:XPirtExamplesEstimator",
    },
)


def make_estimator(name: str, **params: Any) -> Estimator:
    """Build an unfitted estimator by its registered name; `head:argument` passes the argument as `base`."""
    head, argument = split_name(name)
    if argument is not None:
        params["base"] = argument
    return ESTIMATORS.get(head)(**params)
