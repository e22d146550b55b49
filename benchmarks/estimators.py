"""Measure the estimators: speed, calibration, intervals, scale. Errors are measured by `assay backtest`.

python -m benchmarks.estimators [speed] [calibration] [intervals] [scale] [auto]    (default: all but scale)

Reads ../shared/data; prints Markdown. Times are process CPU seconds of one thread (set OMP_NUM_THREADS=1).
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.matrix import ScoreMatrix
from assay.matrix_folder import MatrixFolder, read_matrix_folder
from benchmarks.report import markdown_table, update_section
from estimators import Estimator, make_estimator
from estimators._designs import simulate
from estimators._folds import keep_at_random
from estimators.intervals import calibrate, cross_fit

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
BUDGETS = (50, 100, 200)
MADE: list[str] = []
Array = NDArray[Any]


def table(title: str, head: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print a Markdown table, and keep it for the document."""
    made = f"{title}:\n\n{markdown_table(list(head), rows)}"
    print(f"\n{made}", flush=True)
    MADE.append(made)


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of `work`, and its result."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def openllm() -> tuple[MatrixFolder, ScoreMatrix, ScoreMatrix]:
    """The folder, its history rows and its test rows."""
    folder = read_matrix_folder(DATA / "openllm")
    return folder, folder.matrix.rows(folder.split("train")), folder.matrix.rows(folder.split("test"))


def held_out_loss(estimator: Estimator, truth: Array, observed: Array) -> float:
    """Mean negative log-likelihood of the binary scores that were not observed."""
    hidden = np.isnan(observed) & ~np.isnan(truth)
    p = np.clip(estimator.predict(observed).mean[hidden], 1e-6, 1 - 1e-6)
    return float(-np.log(np.where(truth[hidden] == 1, p, 1 - p)).mean())


def speed() -> None:
    """Cold and warm fits, and the answer for one row."""
    _, train, test = openllm()
    truth = test.values.astype(np.float64)
    observed = keep_at_random(truth, 50, np.random.default_rng(0))
    most = train.rows(range(round(train.n_methods / 1.05)))
    rows = []
    for name, params in (("mirt", {"dimensions": 8}), ("linear-gaussian", {"rank": 32})):
        earlier = make_estimator(name, **params).fit(most)
        cold_s, cold = seconds(lambda: make_estimator(name, **params).fit(train))  # noqa: B023
        warm_s, warm = seconds(lambda: make_estimator(name, **params).fit(train, warm_start=earlier))  # noqa: B023
        losses = [held_out_loss(estimator, truth, observed) for estimator in (cold, warm)]
        rows.append([name, params, f"{cold_s:.2f}", f"{warm_s:.2f}", *(f"{loss:.4f}" for loss in losses)])
    for name in ("mirt", "linear-gaussian", "ridge", "gp-irt"):
        auto_s, _ = seconds(lambda: make_estimator(name).fit(train))  # noqa: B023
        rows.append([name, "defaults", f"{auto_s:.2f}", "", "", ""])
    head = ["estimator", "parameters", "cold fit, s", "warm refit, s", "held-out loss, cold", "warm"]
    table("Fits on openllm (1,300 x 1,075); warm: 5 % new rows", head, rows)
    latency(train, truth)


def latency(train: ScoreMatrix, truth: Array) -> None:
    """Milliseconds to estimate and predict one row."""
    counts = (10, 50, 100, 200)
    rows = []
    for name, params in (("mirt", {"dimensions": 8}), ("linear-gaussian", {"rank": 32}), ("ridge", {})):
        estimator = make_estimator(name, **params).fit(train)
        times = []
        for count in counts:
            observed = keep_at_random(truth[:100], count, np.random.default_rng(1))
            spent, _ = seconds(lambda: [estimator.predict(row[None]) for row in observed])  # noqa: B023
            times.append(f"{10 * spent:.2f}")
        rows.append([name, params, *times])
    head = ["estimator", "parameters", *(f"K = {count}" for count in counts)]
    table("Posterior and prediction of one row, ms (N = 1,075)", head, rows)


def calibration() -> None:
    """Reliability of predicted probabilities, and expected calibration error."""
    _, train, test = openllm()
    truth = test.values.astype(np.float64)
    for name in ("mirt", "linear-gaussian"):
        estimator = make_estimator(name).fit(train)
        p, y = [], []
        for count in BUDGETS:
            observed = keep_at_random(truth, count, np.random.default_rng(count))
            hidden = np.isnan(observed)
            p.append(estimator.predict(observed).mean[hidden])
            y.append(truth[hidden])
        predicted, score = np.concatenate(p), np.concatenate(y)
        place = np.minimum((predicted * 10).astype(int), 9)
        rows, error = [], 0.0
        for k in range(10):
            here = place == k
            gap = predicted[here].mean() - score[here].mean()
            error += abs(gap) * here.mean()
            shown = (f"{k / 10:.1f}", f"{predicted[here].mean():.3f}", f"{score[here].mean():.3f}")
            rows.append([*shown, f"{here.mean():.3f}"])
        head = ["from", "predicted", "measured", "share"]
        table(f"Reliability of {name} (expected calibration error {error:.4f})", head, rows)


def intervals() -> None:
    """Coverage of conformal 95 % intervals on the test rows, by budget, score range and family."""
    folder, train, test = openllm()
    truth, scores = test.values.astype(np.float64), test.benchmark_scores()
    families = np.array([folder.models[i]["family"] for i in folder.split("test")])
    groups: dict[str, Array] = {"all": np.ones(len(scores), dtype=bool)}
    groups |= {
        "score < .4": scores < 0.4,
        ".4 - .6": (scores >= 0.4) & (scores < 0.6),
        ">= .6": scores >= 0.6,
    }
    groups |= {name: families == name for name in np.unique(families) if (families == name).sum() >= 15}
    for name, params, design in (
        ("mirt", {"dimensions": 8}, "random"),
        ("mirt", {"dimensions": 8}, "variance-reduction"),
        ("linear-gaussian", {"rank": 32}, "random"),
    ):
        conformal = calibrate(
            cross_fit(partial(make_estimator, name, **params), train, BUDGETS, design=design)
        )
        estimator = make_estimator(name, **params).fit(train)
        rows = []
        for i, count in enumerate(BUDGETS):
            inside, width = [], []
            for seed in range(3 if design == "random" else 1):
                designs = simulate(design, estimator, truth, BUDGETS, np.random.default_rng(seed))
                observed = list(designs)[i]
                low, high = conformal.interval(
                    estimator.benchmark_score(observed), np.full(len(truth), count)
                )
                inside.append((low <= scores) & (scores <= high))
                width.append(high - low)
            covered = np.mean(inside, axis=0)
            rows.append(
                [count, f"{np.mean(width):.4f}", *(f"{covered[g].mean():.3f}" for g in groups.values())]
            )
        head = ["K", "width", *(f"{key} ({group.sum()})" for key, group in groups.items())]
        table(f"Coverage of conformal 95 % intervals: {name}, {design}", head, rows)


def auto() -> None:
    """What `auto` chooses, and why."""
    _, train, _ = openllm()
    alpaca = read_matrix_folder(DATA / "alpacaeval", weighting="prompt").matrix
    rows = [["openllm", make_estimator("auto").fit(train).reason_]]  # type: ignore[attr-defined]
    for seed in range(10):
        kept = np.random.default_rng(seed).permutation(alpaca.n_methods)[:41]
        rows.append([f"alpacaeval, split {seed}", make_estimator("auto").fit(alpaca.rows(kept)).reason_])  # type: ignore[attr-defined]
    table("auto", ["history", "reason"], rows)


def scale() -> None:
    """MIRT on 2,212 x 12,032 scores drawn from real factors (semi-synthetic)."""
    factors = np.load(DATA / "scale" / "mmlupro_factors.npz")
    models, prompts = (factors[key].astype(np.float32) for key in ("model_factors", "prompt_factors"))
    rng = np.random.default_rng(0)
    values = np.empty((len(models), len(prompts)), dtype=np.float32)
    for i in range(0, len(values), 128):
        level = 1.0 / (1.0 + np.exp(-models[i : i + 128] @ prompts.T))
        values[i : i + 128] = rng.random(level.shape, dtype=np.float32) < level
    history = ScoreMatrix.build(values)
    fit_s, estimator = seconds(lambda: make_estimator("mirt", dimensions=8).fit(history))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    observed = keep_at_random(values[:1].astype(np.float64), 100, rng)
    row_s, _ = seconds(lambda: [estimator.predict(observed) for _ in range(50)])
    head = ["fit, s", "peak memory, GiB", "one row, ms (K = 100)"]
    table(
        "mirt D = 8 on 2,212 x 12,032 (semi-synthetic)",
        head,
        [[f"{fit_s:.1f}", f"{peak:.2f}", f"{20 * row_s:.2f}"]],
    )


PARTS = {"speed": speed, "calibration": calibration, "intervals": intervals, "auto": auto, "scale": scale}


def main(names: list[str]) -> None:
    """Run the named parts."""
    for name in names or ["speed", "calibration", "intervals", "auto"]:
        MADE.clear()
        PARTS[name]()
        update_section(
            f"Estimators: {name}",
            f"python -m benchmarks.estimators {name}",
            "\n\n".join(MADE),
            data="openllm" if name != "scale" else "semi-synthetic, drawn from ../shared/data/scale",
            seeds="0",
            notes="CPU seconds of one thread (OMP_NUM_THREADS=1)." if name in ("speed", "scale") else "",
        )


if __name__ == "__main__":
    main(sys.argv[1:])
