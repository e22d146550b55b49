"""Run the project's own backtests and write their tables into docs/benchmarks.md.

    python benchmarks/backtests.py [NAME ...] [--list] [--document]

Each section is one `assay backtest` command or a few, shown with its table; results go to
benchmarks/results/NAME.json (NAME-2.json, ...) and an interrupted run goes on where it stopped. The data lies
in ../shared/data. With --document, sections are written from results that are there.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import update_section

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
OPENLLM = "--matrix ../shared/data/openllm"
ALPACA = "--matrix ../shared/data/alpacaeval --weighting prompt --random-splits 10 --train-share 0.707"
MMLUPRO = "--matrix ../shared/data/mmlupro --leave-one-out"
FAMILIES = "--holdout-group family=MixtralForCausalLM,FalconForCausalLM,GPT2LMHeadModel"
COLD = "--cold-datasets mmlu,winogrande"
NONE = float("nan")
CLUSTERS = "cluster-embed,cluster-score,cluster-irt"
STATIC = f"uniform,stratified,{CLUSTERS},static-design"


@dataclass(frozen=True)
class Section:
    """One table.

    Attributes:
        title: Heading in docs/benchmarks.md.
        arguments: Of `assay backtest`, without --out.
        bound: Mean absolute error to stay within, at each budget, where there is one, else NaN.
        more: Arguments of further commands, whose lines join the table.
        note: A remark below the table.
    """

    title: str
    arguments: str
    bound: tuple[float, ...] = ()
    more: tuple[str, ...] = ()
    note: str = ""


SECTIONS = {
    "estimators": Section(
        "Estimators on Open LLM, prompts drawn uniformly",
        f"{OPENLLM} --policy uniform --estimator aggregate,ridge,linear-gaussian,mirt,gp-irt,low-rank"
        " --intervals conformal",
    ),
    "estimators-alpaca": Section(
        "Estimators on AlpacaEval, prompts drawn uniformly, 10 random splits",
        f"{ALPACA} --policy uniform --estimator aggregate,ridge,linear-gaussian,mirt",
        (0.0225, 0.0172, 0.0124, 0.0096),
    ),
    "auto-alpaca": Section(
        "The estimator auto on AlpacaEval, 10 random splits",
        f"{ALPACA} --policy uniform --estimator auto --seeds 1",
        (0.0225, 0.0172, 0.0124, 0.0096),
    ),
    "neural": Section(
        "Neural process on Open LLM, prompts drawn uniformly",
        f"{OPENLLM} --policy uniform --estimator neural-process",
        (0.0385, 0.0285, 0.0210, 0.0165),
    ),
    "evr": Section(
        "Expected variance reduction on Open LLM, one at a time",
        f"{OPENLLM} --policy expected-variance-reduction --estimator corrected:mirt",
        (0.0165, 0.0115, 0.0083, 0.0053),
    ),
    "evr-batch": Section(
        "Expected variance reduction on Open LLM, batches of 10",
        f"{OPENLLM} --policy expected-variance-reduction --estimator corrected:mirt --batch 10",
        (0.0200, 0.0120, 0.0085, 0.0058),
    ),
    "alpaca": Section(
        "Static design on AlpacaEval, 10 random splits",
        f"{ALPACA} --policy static-design --estimator linear-gaussian",
        (0.0215, 0.0155, 0.0118, 0.0093),
    ),
    "openllm-policies": Section(
        "All policies on Open LLM",
        f"{OPENLLM} --policy {STATIC},uncertainty,information-gain,expected-variance-reduction"
        " --estimator mirt --budgets 25,50,100 --test-rows 100",
        more=(
            f"{OPENLLM} --policy combinatorial,ppo --estimator mirt --budgets 25,50,100 --test-rows 100"
            ' --policy-settings \'{"ppo": {"updates": 4}}\'',
        ),
        note="`combinatorial` looks at 64 history models. `ppo` had 4 updates of 48 episodes, one training"
        " a seed.",
    ),
    "alpaca-policies": Section(
        "All policies on AlpacaEval",
        f"{ALPACA} --policy {STATIC},combinatorial,uncertainty,information-gain,ppo"
        ",expected-variance-reduction"
        " --estimator linear-gaussian --budgets 25,50,100"
        ' --policy-settings \'{"ppo": {"updates": 2, "episodes": 24}}\'',
        note="`ppo` had 2 updates of 24 episodes on each split, `combinatorial` all history models."
        " `static-design` and `expected-variance-reduction` choose alike under this estimator, among as many"
        " drawn candidates as there are history models.",
    ),
    "mmlupro-policies": Section(
        "Policies on MMLU-Pro, leaving one model out",
        f"{MMLUPRO} --policy uniform,stratified,cluster-embed,static-design,expected-variance-reduction"
        " --estimator linear-gaussian --budgets 25,50,100",
        more=(
            f"{MMLUPRO} --policy combinatorial,uncertainty,information-gain"
            " --estimator linear-gaussian --budgets 25,50,100 --seeds 1",
            f"{MMLUPRO} --policy cluster-score,cluster-irt --estimator linear-gaussian --budgets 25,50,100"
            " --seeds 1",
            f"{MMLUPRO} --policy ppo --estimator linear-gaussian --budgets 25,50,100"
            ' --policy-settings \'{"ppo": {"updates": 2, "episodes": 12, "most_prompts": 1000}}\'',
        ),
        note="`ppo` had 2 updates of 12 episodes on each split, on 1,000 of the prompts."
        " `static-design` and `expected-variance-reduction` choose among as many drawn candidates as there"
        " are history models; among all prompts, one seed, they had .0425 / .0353 / .0294 and covered .786 at"
        " K = 50, where `uniform` had .0364 / .0293 / .0258 (other draws, which make the difference to this"
        " table). At K = 100 the design's intervals cover .845, those of `uniform` .952.",
    ),
    "families": Section(
        "Held-out families on Open LLM",
        f"{OPENLLM} {FAMILIES} --policy expected-variance-reduction --estimator corrected:mirt",
        more=(
            f"{OPENLLM} {FAMILIES} --policy stratified,uniform --estimator aggregate",
            f"{OPENLLM} {FAMILIES} --policy expected-variance-reduction --estimator auto --seeds 1",
        ),
    ),
    "cold": Section(
        "Cold start on Open LLM: first new models",
        f"{OPENLLM} --policy expected-variance-reduction --estimator corrected:mirt {COLD}",
        (NONE, NONE, 0.0205, NONE),
        more=(f"{OPENLLM} --policy stratified,uniform --estimator aggregate {COLD}",),
    ),
    "cold-pooled": Section(
        "Cold start on Open LLM: after 50 earlier new models",
        f"{OPENLLM} --policy expected-variance-reduction --estimator corrected:mirt {COLD} --pooled 50",
        (NONE, NONE, 0.0150, NONE),
    ),
}


def table(results: Sequence[dict[str, Any]], bound: Sequence[float]) -> str:
    """Error at each budget (mean, and range over the seeds), intervals and times, by policy and estimator."""
    budgets = sorted({entry["budget"] for entry in results})
    head = [f"MAE, K = {budget}" for budget in budgets]
    last = f"K = {budgets[len(budgets) // 2]}"
    head += [f"coverage, {last}", f"width, {last}", "fit s", "prepare s", "ms per decision"]
    lines = ["| policy | estimator | " + " | ".join(head) + " |", "| --- | --- |" + " ---: |" * len(head)]
    pairs = dict.fromkeys((entry["policy"], entry["estimator"]) for entry in results)
    for policy, estimator in pairs:
        mine = [e for e in results if (e["policy"], e["estimator"]) == (policy, estimator)]
        cells = [_errors([e["mae"] for e in mine if e["budget"] == budget]) for budget in budgets]
        middle = [e for e in mine if e["budget"] == budgets[len(budgets) // 2]]
        for name, digits in (("coverage", 3), ("mean_width", 4)):
            cells.append(f"{np.mean([e[name] for e in middle]):.{digits}f}")
        times = ("fit_seconds", "prepare_seconds", "decision_ms")
        cells += [f"{np.mean([e[name] for e in mine]):.2f}" for name in times]
        lines.append(f"| {policy} | {estimator} | " + " | ".join(cells) + " |")
    if bound:
        cells = ["" if np.isnan(most) else f"{most:.4f}" for most in bound] + [""] * 5
        lines.append("| at most | | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _errors(values: Sequence[float]) -> str:
    mean = f"{np.mean(values):.4f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.4f} to {max(values):.4f})"


def run(name: str, jobs: int, document_only: bool = False) -> None:
    """Run one section's commands, unless their results are only to be written down, and write its table."""
    section = SECTIONS[name]
    RESULTS.mkdir(exist_ok=True)
    parts, documents = (section.arguments, *section.more), []
    for number, arguments in enumerate(parts, start=1):
        out = RESULTS / (f"{name}.json" if number == 1 else f"{name}-{number}.json")
        if not document_only:
            command = [sys.executable, "-m", "agent", "backtest", *shlex.split(arguments)]
            subprocess.run([*command, "--jobs", str(jobs), "--out", str(out)], cwd=ROOT, check=True)
        documents.append(json.loads(out.read_text(encoding="utf-8")))
    made = table([entry for document in documents for entry in document["results"]], section.bound)
    seeds = "; ".join(
        ", ".join(str(seed) for seed in range(document["settings"]["seeds"])) for document in documents
    )
    data = Path(documents[0]["settings"]["matrix"]).name
    commands = "`; `".join(f"assay backtest {arguments}" for arguments in parts)
    update_section(section.title, commands, made, data=data, seeds=seeds, notes=section.note)
    print(made)


def main() -> None:
    """Run the named sections, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", default=[], help="sections; default all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--document", action="store_true", help="write sections from results that are there")
    given = parser.parse_args()
    if given.list:
        for name, section in SECTIONS.items():
            for arguments in (section.arguments, *section.more):
                print(f"{name}: assay backtest {arguments}")
        return
    for name in given.names or SECTIONS:
        run(name, given.jobs, given.document)


if __name__ == "__main__":
    main()
