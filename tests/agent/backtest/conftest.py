"""Small matrix folders."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest


def write_matrix(folder: Path, n_models: int = 24, n_prompts: int = 30, test_share: float = 0.25) -> Path:
    """A matrix folder with two datasets, a split, two families and one missing score."""
    folder.mkdir()
    rng = np.random.default_rng(11)
    ability, difficulty = rng.normal(size=(n_models, 1)), rng.normal(size=(1, n_prompts))
    scores = (ability - difficulty + 0.5 * rng.normal(size=(n_models, n_prompts)) > 0).astype(np.int8)
    scores[-1, 0] = -1
    np.savez_compressed(folder / "scores.npz", scores=scores)
    prompts = [
        {"id": f"p{j}", "dataset": "ab"[j % 3 == 0], "text": f"question {j} about {'maths' * (j % 2)}"}
        for j in range(n_prompts)
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(p) + "\n" for p in prompts), encoding="utf-8")
    first_test = n_models - round(n_models * test_share)
    with (folder / "models.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "family", "split"])
        for i in range(n_models):
            writer.writerow([f"m{i}", "xy"[i % 4 == 0], "test" if i >= first_test else "train"])
    return folder


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    return write_matrix(tmp_path / "matrix")
