"""The objective "best" on real scores: how often each policy names the best method, and at what price.

    python -m benchmarks.best_arm --matrix ../shared/data/openllm --seeds 50 --policy ucb-e,top-two

Writes one JSON file per matrix to --out (settings and the mean over the seeds of every metric), continues
where a file already has a policy, and prints the tables in Markdown.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from agent.backtest.best import BestTruth, replay_best, save_best_plot
from assay.matrix import ScoreMatrix
from assay.matrix_folder import read_matrix_folder
from benchmarks.report import update_section
from estimators import Estimator, make_estimator
from policies import SupportsRecommendation, make_policy
from policies.hardness import hardness

SHARES = (0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.15, 0.2)
POLICIES = (
    "row-mean",
    "filled-subset",
    "lrf",
    "ucb-e",
    "ucb-e:1",
    "ucb-e:32",
    "ucb-e-lrf",
    "ucb-e-lrf-score-only",
    "top-two",
)


def arms_and_history(folder: Path, arms: int, draw: int) -> tuple[ScoreMatrix, ScoreMatrix | None]:
    """The methods to choose among, and the history rows (None where the matrix has no split)."""
    read = read_matrix_folder(folder, weighting="prompt")
    if "split" not in read.models[0]:
        return read.matrix, None
    drawn = np.random.default_rng(draw).choice(read.split("test"), arms, replace=False)
    return read.matrix.rows(drawn), read.matrix.rows(read.split("train"))


def measure(
    name: str,
    matrix: ScoreMatrix,
    history: ScoreMatrix | None,
    estimator: Estimator | None,
    seeds: int,
    most: float,
) -> list[dict[str, Any]]:
    """One entry per seed and share up to `most`; `name:b` sets the policy's batch."""
    head, _, batch = name.partition(":")
    truth = BestTruth.of(matrix)
    shares = [share for share in SHARES if share <= most]
    entries = []
    for seed in range(seeds):
        policy = make_policy(head, seed=seed, **({"batch": int(batch)} if batch else {}))
        if history is not None:
            policy.prepare(history, estimator)
        if not isinstance(policy, SupportsRecommendation):
            raise SystemExit(f"policy '{head}' cannot name a best method")
        run = replay_best(policy, matrix, truth, shares=shares, seed=seed, estimator=estimator)
        entries += [{"policy": name, "seed": seed, **entry} for entry in run]
    return entries


def table(results: list[dict[str, Any]], metric: str, digits: int = 2) -> str:
    """Markdown: a policy per line, a share per column."""
    lines = [f"| {metric} | " + " | ".join(f"{share:.0%}" for share in SHARES) + " |"]
    lines.append("| --- |" + " ---: |" * len(SHARES))
    for policy in dict.fromkeys(entry["policy"] for entry in results):
        row = [e for e in results if e["policy"] == policy]
        at = [[entry[metric] for entry in row if entry["budget"] == share] for share in SHARES]
        cells = [f"{np.mean(values):.{digits}f}" if values else "-" for values in at]
        lines.append(f"| {policy} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean over the seeds of every metric, by policy and share."""
    groups: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for entry in results:
        groups.setdefault((entry["policy"], entry["budget"]), []).append(entry)
    return [
        {
            "policy": policy,
            "budget": budget,
            "seeds": len(group),
            **{
                key: round(float(np.mean([entry[key] for entry in group])), 5)
                for key in group[0]
                if key not in ("policy", "budget", "seed")
            },
        }
        for (policy, budget), group in groups.items()
    ]


def main() -> None:
    """Measure, store, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--matrix", type=Path, required=True)
    parser.add_argument("--policy", default=",".join(POLICIES))
    parser.add_argument("--estimator", default="mirt")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--most", type=float, default=1.0, help="largest share to go to")
    parser.add_argument("--arms", type=int, default=100, help="methods drawn from the test split")
    parser.add_argument("--draw", type=int, default=0, help="seed of that draw")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--plot", type=Path, default=None)
    options = parser.parse_args()
    matrix, history = arms_and_history(options.matrix, options.arms, options.draw)
    path = options.out / f"best_{options.matrix.name}.json"
    stored = json.loads(path.read_text()) if path.exists() else {"settings": {}, "results": []}
    stored["settings"] |= {
        "matrix": options.matrix.name,
        "methods": matrix.n_methods,
        "prompts": matrix.n_prompts,
        "draw": options.draw if history is not None else None,
        "h1": round(hardness(BestTruth.of(matrix).mean), 1),
    }
    estimator = None
    fresh: list[dict[str, Any]] = []
    for name in options.policy.split(","):
        if name == "top-two" and history is not None and estimator is None:
            start = time.process_time()
            estimator = make_estimator(options.estimator).fit(history)
            stored["settings"]["estimator"] = estimator.params() | {"name": estimator.name}
            stored["settings"]["fit_seconds"] = round(time.process_time() - start, 2)
        entries = measure(
            name, matrix, history, estimator if name == "top-two" else None, options.seeds, options.most
        )
        fresh += entries
        kept = [entry for entry in stored["results"] if entry["policy"] != name]
        stored["results"] = kept + summary(entries)
        options.out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(stored, indent=1) + "\n")
    for metric in ("exact", "within_0_01", "mcnemar_0_01", "mcnemar_0_1", "ndcg_10", "algorithm_seconds"):
        print(table(stored["results"], metric), end="\n\n")
    if options.plot is not None:
        save_best_plot(stored["results"], options.plot)
    document(stored)


SHOWN = {
    "exact": "Share of runs that name the best method exactly",
    "within_0_01": "Share of runs that name a method within .01 of the best",
    "ndcg_10": "NDCG@10",
    "algorithm_seconds": "CPU seconds of the algorithm for a run to that budget",
}


def document(stored: dict[str, Any]) -> None:
    """Write the section of docs/benchmarks.md."""
    settings = stored["settings"]
    name = settings["matrix"]
    runs = ", ".join(
        f"{policy} {count}"
        for policy, count in sorted({(entry["policy"], entry["seeds"]) for entry in stored["results"]})
    )
    tables = [
        f"{title}, by share of the cells:\n\n{table(stored['results'], m)}" for m, title in SHOWN.items()
    ]
    update_section(
        f"Finding the best of {settings['methods']} methods, {name}",
        f"python -m benchmarks.best_arm --matrix ../shared/data/{name}",
        "\n\n".join(tables),
        data=f"{name}, {settings['methods']} methods x {settings['prompts']} prompts, row means, H1 = "
        f"{settings['h1']:,.0f}; top-two with {settings.get('estimator', {}).get('name', 'no history')}",
        seeds=f"runs per policy: {runs}",
        notes=f"![precision against budget](images/best-{name}.png)\n\nPOLICY:N chooses in batches of N.",
    )


if __name__ == "__main__":
    main()
