"""Pseudo-labels of an estimator version: made, checked on real answers, kept in its artifact."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from assay.errors import BadInputError
from assay.matrix import ScoreMatrix
from estimators import (
    ColdStartEstimator,
    Estimator,
    LabelCheck,
    PseudoLabels,
    check_labels,
    make_pseudo_labels,
)

__all__ = ["LABELS_FILE", "Labelling", "label", "load_labels", "save_labels"]

LABELS_FILE = "pseudo-labels.safetensors"


@dataclass(frozen=True)
class Labelling:
    """The labels that a version made, what became of them, and the estimator that came out.

    Attributes:
        labels: Made anew by this version; cells with a score have none.
        threshold: Largest predictive variance of a label.
        check: What real answers said.
        estimator: Fitted with the labels where they helped, else without.
    """

    labels: PseudoLabels
    threshold: float
    check: LabelCheck
    estimator: Estimator

    def findings(self) -> dict[str, Any]:
        """What people may want to read."""
        return {"pseudo-labels": len(self.labels), "pseudo-labels were": self.check.reason}


def label(estimator: Estimator, learned: ScoreMatrix, threshold: float) -> Labelling | None:
    """Semi-supervised training on prompts without history; None where there are none, or labels are off.

    Args:
        estimator: Just fitted to `learned`.
        learned: (M, N) history.
        threshold: Largest predictive variance of a label; 0 = make none.
    """
    if threshold <= 0 or not isinstance(estimator, ColdStartEstimator) or not estimator.cold_.any():
        return None
    labels = make_pseudo_labels(estimator, learned, threshold)
    check = check_labels(estimator, learned, labels)
    used = estimator.with_labels(labels.added_to(learned)) if check.kept else estimator
    return Labelling(labels, threshold, check, used)


def save_labels(labelling: Labelling, folder: Path) -> None:
    """Write them into an artifact's folder: the version that holds them is the one that made them."""
    methods, rows = np.unique(np.array(labelling.labels.methods, dtype=str), return_inverse=True)
    prompts, columns = np.unique(np.array(labelling.labels.prompts, dtype=str), return_inverse=True)
    about = {
        "methods": json.dumps(methods.tolist()),
        "prompts": json.dumps(prompts.tolist()),
        "threshold": str(labelling.threshold),
        "used": str(labelling.check.kept).lower(),
        "reason": labelling.check.reason,
    }
    arrays = {
        "rows": rows.astype(np.int32),
        "columns": columns.astype(np.int32),
        "values": labelling.labels.values,
        "uncertainty": labelling.labels.uncertainty,
    }
    save_file(arrays, folder / LABELS_FILE, metadata=about)


def load_labels(folder: Path) -> tuple[PseudoLabels, dict[str, str]] | None:
    """A version's labels, and how they came about (threshold, used, reason); None where it made none.

    Raises:
        BadInputError: The file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    path = folder / LABELS_FILE
    if not path.exists():
        return None
    try:
        arrays = load_file(path)
        with safe_open(path, framework="numpy") as file:
            about = dict(file.metadata())
        methods, prompts = json.loads(about.pop("methods")), json.loads(about.pop("prompts"))
        labels = PseudoLabels(
            tuple(methods[i] for i in arrays["rows"]),
            tuple(prompts[j] for j in arrays["columns"]),
            arrays["values"],
            arrays["uncertainty"],
        )
    except (SafetensorError, KeyError, ValueError, IndexError) as error:
        raise BadInputError(f"{path} cannot be read: {error}", "retrain the estimator") from None
    return labels, about
