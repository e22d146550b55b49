"""The learned policy with the neural process on Open LLM: against other policies, ablated, its curves.

    python -m benchmarks.learned_policy compare --seed 0 --keep FOLDER   # a seed: fits, training, test rows
    python -m benchmarks.learned_policy ablation --keep FOLDER           # on train rows only
    python -m benchmarks.learned_policy write                            # the tables and the plot

Fits, refits and checkpoints are kept in a folder, and finished parts in a file of benchmarks/results/, so
that an interrupted run goes on. Each part runs in one process with one thread.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agent.backtest._replay import replay
from agent.backtest._settings import BacktestSettings
from agent.backtest._splits import build_splits, true_scores
from agent.curves import save_curves
from assay.errors import UsageError
from assay.matrix import ScoreMatrix
from benchmarks.report import markdown_table, update_section
from estimators import Estimator, load_estimator, make_estimator
from policies import Policy, make_policy
from policies._ppo import PpoPolicy, crossfits
from policies._ppo_episodes import Crossfit

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "learned_policy.json"
PLOT = ROOT / "docs" / "images" / "ppo-training.png"
BUDGETS = (25, 50, 100)
STATIC = ("uniform", "stratified", "cluster-embed", "cluster-score", "cluster-irt", "static-design")
COMPARED = (*STATIC, "ppo", "expected-variance-reduction", "uncertainty", "combinatorial")
ABLATION: dict[str, dict[str, Any]] = {
    "as trained": {},
    "no training": {"updates": 1, "episodes": 1, "rate": 1e-12},
    "without intermediate reward": {"intermediate": False},
    "without auxiliary information": {"auxiliary": False},
}
SHORT: dict[str, Any] = {"updates": 6, "prompts": 40, "episodes": 24}


def history_and_test(matrix: str) -> tuple[ScoreMatrix, ScoreMatrix]:
    """Train and test rows, with the prompt vectors that cluster-embed looks at."""
    settings = BacktestSettings(matrix=matrix, policies=("cluster-embed",), estimators=("neural-process",))
    split = build_splits(settings)[0]
    return split.history, split.test


def plain(history: ScoreMatrix) -> ScoreMatrix:
    """The history as `assay backtest` gives it to an estimator that does not ask for prompt vectors."""
    return replace(history, embeddings=None)


def fitted(history: ScoreMatrix, seed: int, keep: Path) -> tuple[Estimator, float]:
    """The neural process of a seed, fitted once, and the seconds it took."""
    folder = keep / f"full{seed}"
    if not (folder / "seconds").exists():
        start = time.perf_counter()
        estimator = make_estimator("neural-process", seed=seed).fit(plain(history))
        estimator.save(folder)
        (folder / "seconds").write_text(str(time.perf_counter() - start), encoding="utf-8")
    return load_estimator(folder), float((folder / "seconds").read_text(encoding="utf-8"))


def errors(
    policy: Policy, estimator: Estimator, rows: ScoreMatrix, budgets: tuple[int, ...]
) -> dict[str, Any]:
    """Mean absolute error at each budget, one prompt at a time, and milliseconds per decision."""
    truth, found, spent, taken = true_scores(rows), {}, 0.0, 0
    for budget, now in replay(
        rows, policy, estimator, budgets=budgets, seed=policy.seed, embeddings=rows.embeddings
    ):
        parts = [estimator.benchmark_score(now.observed[i : i + 64]).mean for i in range(0, len(truth), 64)]
        found[str(budget)] = float(np.abs(np.concatenate(parts) - truth).mean())
        spent, taken = now.seconds, now.decisions
    return {"mae": found, "decision_ms": 1000 * spent / max(taken, 1)}


def learned(
    history: ScoreMatrix, estimator: Estimator, seed: int, keep: Path, updates: int
) -> tuple[Policy, dict[str, float]]:
    """A trained policy, and the CPU seconds of its training (zero where it was trained before)."""
    folder = keep / f"ppo{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    policy = PpoPolicy(seed=seed, **({"updates": updates} if updates else {}))
    start, cpu = time.perf_counter(), time.process_time()
    policy.train(history, estimator, checkpoint=folder, on_update=lambda n, f: print(n, f, flush=True))
    return policy, {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}


def compare(given: argparse.Namespace) -> None:
    """One seed: every policy on the test rows with the same neural process."""
    history, test = history_and_test(given.matrix)
    estimator, seconds = fitted(history, given.seed, given.keep)
    record("fit", given.seed, {"seconds": seconds})
    for name in given.policy or COMPARED:
        if known("compare", given.seed, name):
            continue
        start = time.perf_counter()
        entry: dict[str, Any] = {}
        if name == "ppo":
            policy, times = learned(plain(history), estimator, given.seed, given.keep, given.updates)
            entry = {"training": times, "curve": policy.findings()["curve"]}  # type: ignore[attr-defined]
        else:
            policy = make_policy(name, seed=given.seed)
        policy.prepare(history, estimator)
        entry["prepare_seconds"] = time.perf_counter() - start
        try:
            entry |= errors(policy, estimator, test, BUDGETS)
        except UsageError as error:
            entry["refused"] = error.message
        record("compare", given.seed, entry, name)


def ablation(given: argparse.Namespace) -> None:
    """Short trainings on two thirds of the held-out part of the history, measured on the other third."""
    history, _ = history_and_test(given.matrix)
    estimator, _ = fitted(history, given.seed, given.keep)
    folder = given.keep / f"ppo{given.seed}"
    settings = PpoPolicy().settings
    whole = crossfits(plain(history), estimator, settings.folds, given.seed, folder)[0]
    cut = 2 * whole.rows.n_methods // 3
    order = np.random.default_rng(given.seed).permutation(whole.rows.n_methods)
    played = Crossfit(whole.estimator, whole.rows.rows(np.sort(order[:cut])))
    rest = whole.rows.rows(np.sort(order[cut:]))
    for name, changes in ABLATION.items():
        if known("ablation", given.seed, name):
            continue
        policy = PpoPolicy(seed=given.seed, **{**SHORT, **changes})
        start = time.process_time()
        policy.train(plain(history), whole.estimator, sources=[played])
        seconds = time.process_time() - start
        policy.prepare(history, whole.estimator)
        entry = errors(policy, whole.estimator, rest, (25,))
        record("ablation", given.seed, {**entry, "cpu_seconds": seconds}, name)
        print(name, entry, flush=True)


def results() -> dict[str, Any]:
    """What is finished."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return found


def known(part: str, seed: int, name: str) -> bool:
    """Whether a part is finished."""
    return f"{part}/{seed}/{name}" in results()


def record(part: str, seed: int, entry: dict[str, Any], name: str = "") -> None:
    """Keep a finished part; several seeds may be at work at once."""
    RESULTS.parent.mkdir(exist_ok=True)
    with (Path(tempfile.gettempdir()) / "assay-learned-policy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = results()
        found[f"{part}/{seed}/{name}"] = entry
        RESULTS.write_text(json.dumps(found, indent=1), encoding="utf-8")


def write(given: argparse.Namespace) -> None:
    """The sections of docs/benchmarks.md, from what is finished."""
    found = results()
    seeds = sorted({key.split("/")[1] for key in found if key.startswith("compare/")})
    trained = [found[f"compare/{seed}/ppo"] for seed in seeds if f"compare/{seed}/ppo" in found]
    notes, updates = [], max((len(entry["curve"]) for entry in trained), default=0)
    if trained:
        save_curves(trained[0]["curve"], PLOT)
        minutes = [entry["training"]["cpu_seconds"] / 60 for entry in trained]
        refits = [entry["training"].get("refit_seconds", 0.0) / 60 for entry in trained]
        notes.append(
            f"{updates} updates took {_listed(minutes)} minutes of one core; the refit that judges episodes"
            f" {_listed(refits)} minutes by the clock of a loaded machine (3.1 of one core). No GPU was at"
            " hand. The last column is by the clock too, the estimator's work included."
            f"{_against_reduction(found, seeds)}\n\n![curves](images/ppo-training.png)"
        )
    table = markdown_table(
        (
            "policy",
            *(f"MAE, K = {b}" for b in BUDGETS),
            "ppo is lower by, K = 50",
            "K = 100",
            "prepare s",
            "ms",
        ),
        [line(name, found, seeds) for name in COMPARED if any(f"compare/{s}/{name}" in found for s in seeds)],
    )
    update_section(
        "The learned policy with the neural process on Open LLM",
        f"python -m benchmarks.learned_policy compare --seed {' --seed '.join(seeds)} --updates {updates}",
        table,
        data="openllm, 300 test rows",
        seeds=", ".join(seeds),
        notes="\n\n".join(notes),
    )
    rows = [
        (name, f"{entry['mae']['25']:.4f}", f"{entry['cpu_seconds']:.0f}")
        for key, entry in found.items()
        if key.startswith("ablation/") and (name := key.split("/", 2)[2])
    ]
    if rows:
        update_section(
            "The learned policy: ablation",
            "python -m benchmarks.learned_policy ablation",
            markdown_table(("training", "MAE, K = 25", "CPU s"), rows),
            data="openllm, train rows that the estimator has not seen: trained on 289, measured on 145",
            seeds=str(given.seed),
            notes=f"Short trainings, equal but for what is named: {SHORT}. With 145 rows, differences below"
            " about .002 say nothing.",
        )
    print(table)


def line(name: str, found: dict[str, Any], seeds: list[str]) -> tuple[object, ...]:
    """One policy's row: errors, how much lower ppo's are on the same seeds, times."""
    mine = {s: found[f"compare/{s}/{name}"] for s in seeds if f"compare/{s}/{name}" in found}
    first = next(iter(mine.values()))
    if "refused" in first:
        return (name, f"refused: {first['refused']}", *[""] * (len(BUDGETS) + 3))
    cells = [_spread([entry["mae"][str(b)] for entry in mine.values()]) for b in BUDGETS]
    both = [s for s in mine if f"compare/{s}/ppo" in found]
    lower = []
    for budget in (50, 100):
        own = np.mean([found[f"compare/{s}/ppo"]["mae"][str(budget)] for s in both]) if both else np.nan
        other = np.mean([mine[s]["mae"][str(budget)] for s in both]) if both else np.nan
        lower.append("" if name == "ppo" or not both else f"{1 - own / other:.0%}")
    times = [
        f"{np.mean([entry[key] for entry in mine.values()]):.1f}"
        for key in ("prepare_seconds", "decision_ms")
    ]
    return (name, *cells, *lower, *times)


def _against_reduction(found: dict[str, Any], seeds: list[str]) -> str:
    """What training adds to the policy that the network begins as, on the seeds that have both."""
    name = "expected-variance-reduction"
    both = [s for s in seeds if all(f"compare/{s}/{policy}" in found for policy in ("ppo", name))]
    if not both:
        return ""
    means = {
        policy: [np.mean([found[f"compare/{s}/{policy}"]["mae"][str(b)] for s in both]) for b in BUDGETS]
        for policy in ("ppo", name)
    }
    told = [" / ".join(f"{value:.4f}" for value in means[policy]) for policy in ("ppo", name)]
    return (
        f" Against {name}, which it begins as a soft form of, ppo has {told[0]} where that has {told[1]}"
        f" at K = {' / '.join(map(str, BUDGETS))}, on the same seeds ({', '.join(both)})."
    )


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def _spread(values: list[float]) -> str:
    mean = f"{np.mean(values):.4f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.4f} to {max(values):.4f})"


def main() -> None:
    """Do one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", choices=["compare", "ablation", "write"])
    parser.add_argument("--matrix", default="../shared/data/openllm")
    parser.add_argument("--keep", type=Path, default=RESULTS.parent / "learned_policy.work")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=0, help="default: the policy's own")
    parser.add_argument("--policy", type=lambda text: text.split(","), default=None)
    parser.add_argument("--clean", action="store_true", help="remove what was kept")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.clean:
        shutil.rmtree(given.keep, ignore_errors=True)
    {"compare": compare, "ablation": ablation, "write": write}[given.part](given)


if __name__ == "__main__":
    main()
