"""Saving and loading fitted estimators: a JSON file that describes, a safetensors file of arrays."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save as dump_tensors

from assay.errors import BadInputError, NotFittedError

if TYPE_CHECKING:
    from estimators._base import Estimator

__all__ = ["load_estimator", "save_estimator"]

FORMAT = 1
DESCRIPTION = "estimator.json"
ARRAYS = "arrays.safetensors"


def save_estimator(estimator: Estimator, folder: Path) -> None:
    """Write a fitted estimator; the description is written last, so a folder without it is incomplete."""
    if estimator.n_prompts_ is None:
        raise NotFittedError(f"estimator '{estimator.name}' is not fitted", "call fit(history) first")
    arrays = {"weights": estimator.weights_, "dataset_index": estimator.dataset_index_, **estimator._arrays()}
    content = dump_tensors({key: np.ascontiguousarray(value) for key, value in arrays.items()})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ARRAYS).write_bytes(content)
    description = {
        "format": FORMAT,
        "name": estimator.name,
        "params": estimator.params(),
        "n_prompts": estimator.n_prompts_,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1), encoding="utf-8")


def load_estimator(folder: Path) -> Estimator:
    """Read a fitted estimator of any registered name back.

    Raises:
        BadInputError: The folder is incomplete, of another format, or fails its checksum.
    """
    from estimators import make_estimator

    description = _description(folder)
    content = (folder / ARRAYS).read_bytes()
    if hashlib.sha256(content).hexdigest() != description["sha256"]:
        raise BadInputError(f"{folder / ARRAYS} does not match its checksum", "retrain the estimator")
    arrays: dict[str, NDArray[Any]] = parse_tensors(content)
    estimator = make_estimator(description["name"], **description["params"])
    estimator.n_prompts_ = int(description["n_prompts"])
    estimator.weights_ = arrays.pop("weights")
    estimator.dataset_index_ = arrays.pop("dataset_index")
    estimator._restore(arrays)
    return estimator


def _description(folder: Path) -> dict[str, Any]:
    try:
        description: dict[str, Any] = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInputError(
            f"{folder} holds no complete estimator: {error}", "retrain the estimator"
        ) from None
    if description.get("format") != FORMAT:
        raise BadInputError(f"{folder} has artifact format {description.get('format')}, expected {FORMAT}")
    return description
