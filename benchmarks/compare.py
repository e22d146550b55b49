"""The objective "compare" on AlpacaEval: which of two models is better, by verdicts bought.

    python -m benchmarks.compare budgets      # success at N = 5 to 160, every policy
    python -m benchmarks.compare iterative    # labels, success, error, inconclusive at risk .1 and .2
    python -m benchmarks.compare rouge        # the same as budgets with ROUGE-2 and ties in place of a judge
    python -m benchmarks.compare tournament   # the best of 24, with how many judgements
    python -m benchmarks.compare speed        # time to choose for one pair of 805 prompts

Each writes its section of docs/benchmarks.md. Pairs: all 276 of the 24 models with outputs; "held out" are
the 66 pairs of the 12 models on which no policy's settings were chosen. Standard errors of
differences are paired, over pairs (their seeds averaged). A verdict is the sign of the difference of two
scores on a prompt. --keep FOLDER goes on where an earlier call stopped; --document writes the section.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from agent.backtest import BacktestSettings, build_splits
from agent.backtest._compare import bench_of
from agent.backtest.compare import PairBench, PairRun
from assay.matrix_folder import read_matrix_folder
from benchmarks.report import update_section
from policies.pairs import (
    IterativeRule,
    PairPlan,
    RandomPlan,
    Tournament,
    make_pair_policy,
    pairs_of,
    run_iteratively,
)

Floats = NDArray[np.float64]
BUDGETS = (5, 10, 20, 40, 80, 160)
SHARE = 0.8
POLICIES = ("random", "diffuse", "cluster-inputs", "max-norm", "prediction-powered")
DRAWS = 200  # orders per pair and seed of a policy that draws at random


def read_bench(matrix: Path, policies: Sequence[str], encoder: str) -> PairBench:
    """All models of the folder as history, those with outputs as pairs."""
    settings = BacktestSettings(
        str(matrix),
        objective="compare",
        policies=tuple(policies) or ("random",),
        encoder=encoder,
        weighting="prompt",
    )
    return bench_of(settings, build_splits(settings, needs_history=False)[0])


def halves(bench: PairBench) -> tuple[set[int], set[int]]:
    """The models that the policy was made on, and those that it was not."""
    order = np.random.default_rng(0).permutation(len(bench.rows))
    rows = np.array(bench.rows)
    middle = len(rows) // 2
    return set(rows[order[:middle]].tolist()), set(rows[order[middle:]].tolist())


def part_of(bench: PairBench, part: str) -> list[tuple[int, int]]:
    """The pairs of a part: dev, held or all."""
    dev, held = halves(bench)
    inside = {"dev": dev, "held": held, "all": dev | held}[part]
    return [pair for pair in bench.pairs if set(pair) <= inside]


def success_table(
    bench: PairBench, pairs: Sequence[tuple[int, int]], name: str, seeds: int
) -> dict[str, Floats]:
    """(pairs, seeds, budgets) success, signed error of the distance, coverage and width of its 95 % interval.

    Of policies that draw at random, means over DRAWS orders, the same for all of them.
    """
    policy = make_pair_policy(name)
    shape = (len(pairs), seeds, len(BUDGETS))
    found = {key: np.full(shape, np.nan) for key in ("success", "bias", "covered", "width")}
    for p, pair in enumerate(pairs):
        policy.prepare(bench.past().without(pair))
        for seed in range(seeds):
            run = PairRun.of(bench, pair, seed, SHARE)
            plan = policy.plan(run.problem)
            truth = float(run.answers.mean())
            for i, k in enumerate(BUDGETS):
                many = isinstance(plan, RandomPlan)
                winner, distance, low, high = (_in_many_orders if many else _in_one)(plan, run, k)
                if run.winner:
                    found["success"][p, seed, i] = ((winner == run.winner) + 0.5 * (winner == 0)).mean()
                found["bias"][p, seed, i] = ((distance - truth) * (run.winner or 1)).mean()
                found["covered"][p, seed, i] = ((low <= truth) & (truth <= high)).mean()
                found["width"][p, seed, i] = (high - low).mean()
    return found


def _in_one(plan: PairPlan, run: PairRun, k: int) -> tuple[Floats, Floats, Floats, Floats]:
    """(1,) winner, distance and interval at k verdicts."""
    verdicts, asked = np.full(len(run.answers), np.nan), plan.sample(k)
    verdicts[asked] = run.answers[asked]
    got = plan.verdict(verdicts, k)
    winner, distance, low, high = (np.array([x]) for x in (got.winner, got.distance, got.low, got.high))
    return winner, distance, low, high


def _in_many_orders(plan: RandomPlan, run: PairRun, k: int) -> tuple[Floats, Floats, Floats, Floats]:
    """The same, (DRAWS,), as `RandomPlan.verdict` would find it in each order."""
    drawn = _orders(run.problem.rng_seed, len(run.answers))[:, : min(k, len(run.answers))]
    distance, error = plan.estimate(run.answers[drawn], drawn)
    half = norm.ppf(0.975) * error
    winner = np.sign(plan.sureness(distance, error) - 0.5)
    return winner, distance, np.maximum(distance - half, -1.0), np.minimum(distance + half, 1.0)


@lru_cache(maxsize=1)
def _orders(seed: tuple[int, ...], n: int) -> NDArray[np.intp]:
    rng = np.random.default_rng([1, *seed])
    return np.array([rng.permutation(n)[: max(BUDGETS)] for _ in range(DRAWS)])


def mean_over_pairs(values: Floats) -> Floats:
    """(budgets,) mean over seeds, then pairs."""
    mean: Floats = np.nanmean(np.nanmean(values, axis=1), axis=0)
    return mean


def difference(values: Floats, base: Floats) -> tuple[Floats, Floats]:
    """Mean difference and its standard error over pairs, by budget."""
    by_pair = np.nanmean(values, axis=1) - np.nanmean(base, axis=1)
    by_pair = by_pair[~np.isnan(by_pair).any(axis=1)]
    return by_pair.mean(axis=0), by_pair.std(axis=0, ddof=1) / np.sqrt(len(by_pair))


def budget_lines(tables: dict[str, dict[str, Floats]]) -> str:
    """Markdown: success per policy and budget, the difference to random with its standard error under it."""
    lines = [
        "| success | " + " | ".join(f"N = {k}" for k in BUDGETS) + " |",
        "| --- |" + " ---: |" * len(BUDGETS),
    ]
    for name, table in tables.items():
        cells = [f"{value:.3f}" for value in mean_over_pairs(table["success"])]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
        if name != "random":
            gain, error = difference(table["success"], tables["random"]["success"])
            cells = [f"{g:+.3f} ({e:.3f})" for g, e in zip(gain, error, strict=True)]
            lines.append("| - random (standard error) | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def interval_lines(tables: dict[str, dict[str, Floats]]) -> str:
    """Markdown: coverage and width of the 95 % interval of the winning distance, and its bias to the
    winner.
    """
    lines = ["| coverage / width / bias | " + " | ".join(f"N = {k}" for k in BUDGETS) + " |"]
    lines.append("| --- |" + " ---: |" * len(BUDGETS))
    for name, table in tables.items():
        columns = [mean_over_pairs(table[key]) for key in ("covered", "width", "bias")]
        cells = [f"{c:.3f} / {w:.2f} / {b:+.3f}" for c, w, b in zip(*columns, strict=True)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


# --- iterative ---------------------------------------------------------------------------------------------

OUTCOMES = ("labels", "success", "error", "inconclusive")
NEAR = 0.1  # winning distance below which two models count as close
FIXED = (5, 10, 15, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480)


def iterative_table(
    bench: PairBench, pairs: Sequence[tuple[int, int]], risk: float, name: str, seeds: int
) -> dict[str, Floats]:
    """(pairs, seeds) labels bought and outcome of runs with at least 5 and at most 200 verdicts."""
    policy, rule = make_pair_policy(name), IterativeRule(risk, 5, 200)
    found = {key: np.zeros((len(pairs), seeds)) for key in (*OUTCOMES, "near")}
    for p, pair in enumerate(pairs):
        policy.prepare(bench.past().without(pair))
        for seed in range(seeds):
            run = PairRun.of(bench, pair, seed, SHARE)
            over = run_iteratively(policy.plan(run.problem), run.answers, rule)
            found["labels"][p, seed] = over.bought
            found["success"][p, seed] = over.winner != 0 and over.winner == run.winner
            found["error"][p, seed] = over.winner not in (0, run.winner)
            found["inconclusive"][p, seed] = over.winner == 0
            found["near"][p, seed] = abs(run.answers.mean()) < NEAR
    return found


def random_errors(bench: PairBench, pairs: Sequence[tuple[int, int]], seeds: int) -> Floats:
    """Error of the majority of a fixed number of random verdicts, by FIXED; an even vote errs by half."""
    wrong = np.zeros((len(pairs), seeds, len(FIXED)))
    for p, pair in enumerate(pairs):
        for seed in range(seeds):
            run = PairRun.of(bench, pair, seed, SHARE)
            votes = np.cumsum(run.answers[run.problem.rng.permutation(len(run.answers))])
            signs = np.sign(votes[np.array(FIXED) - 1])
            wrong[p, seed] = np.where(signs == 0, 0.5, signs != run.winner)
    mean: Floats = wrong.mean(axis=(0, 1))
    return mean


def iterative_lines(tables: dict[tuple[str, float], dict[str, Floats]], errors: Floats) -> str:
    """Markdown: a line per policy and risk, and the fixed N at which random votes err as often."""
    lines = [
        "| policy | risk | labels | success | error | inconclusive | error of conclusive |"
        " error, close pairs | fixed random N |"
    ]
    lines.append("| --- |" + " ---: |" * 8)
    for (name, risk), table in tables.items():
        labels, success, error, open_ = (float(table[key].mean()) for key in OUTCOMES)
        wrong = error / max(success + error, 1e-9)
        near = table["near"] > 0
        close = float(table["error"][near].mean()) if near.any() else np.nan
        enough = [n for n, e in zip(FIXED, errors, strict=True) if e <= wrong]
        fixed = str(enough[0]) if enough else f"over {FIXED[-1]}"
        shares = " | ".join(f"{share:.3f}" for share in (success, error, open_, wrong, close))
        lines.append(f"| {name} | {risk:g} | {labels:.1f} | {shares} | {fixed} |")
    return "\n".join(lines)


# --- a reference-based metric ------------------------------------------------------------------------------


def rouge_2(text: str, reference: str) -> float:
    """F1 of word pairs, tokens as rouge-score makes them without a stemmer."""
    one, other = (_bigrams(x) for x in (text, reference))
    shared = sum((one & other).values())
    if not shared:
        return 0.0
    precision, recall = shared / sum(one.values()), shared / sum(other.values())
    return 2 * precision * recall / (precision + recall)


def _bigrams(text: str) -> Counter[tuple[str, str]]:
    words = [word for word in re.sub(r"[^a-z0-9]+", " ", text.lower()).split() if word]
    return Counter(pairwise(words))


def rouge_scores(matrix: Path, bench: PairBench, reference: str) -> Floats:
    """(M, N) ROUGE-2 of each output against that of the reference, NaN without outputs."""
    folder = read_matrix_folder(matrix)
    outputs, names = folder.outputs(), folder.matrix.method_ids
    order = {key: j for j, key in enumerate(folder.matrix.prompt_ids)}
    settings = BacktestSettings(str(matrix), objective="compare", policies=("random",), weighting="prompt")
    ids = build_splits(settings, needs_history=False)[0].matrix.prompt_ids
    scores = np.full(bench.scores.shape, np.nan)
    for i, name in enumerate(names):
        if name in outputs:
            pairs = [(outputs[name][order[k]] or "", outputs[reference][order[k]] or "") for k in ids]
            scores[i] = [rouge_2(*pair) for pair in pairs]
    return scores


def rouge_bench(matrix: Path, bench: PairBench, scores: Floats, reference: str) -> PairBench:
    """The same methods, scored by ROUGE-2 against the outputs of one of them, which is left out."""
    names = read_matrix_folder(matrix).matrix.method_ids
    rows = tuple(i for i in bench.rows if names[i] != reference)
    return replace(bench, scores=scores, rows=rows, history=rows)


# --- tournament --------------------------------------------------------------------------------------------

MARKS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15)


def tournaments(bench: PairBench, seeds: Sequence[int], risk: float) -> dict[str, Floats]:
    """(seeds, MARKS) whether the best was named at each share of the judgements, and where a run stopped.

    A run that has stopped keeps its answer at the shares beyond.
    """
    rows = np.array(bench.rows)
    every = pairs_of(len(rows))
    known = np.nan_to_num(
        np.array([np.sign(bench.scores[rows[a]] - bench.scores[rows[b]]) for a, b in every])
    )
    game = Tournament(len(rows), known.shape[1])
    best = game.rank(known.sum(axis=1), np.full(len(every), known.shape[1])).best
    named = np.zeros((len(seeds), len(MARKS)))
    stopped, right = np.full(len(seeds), np.nan), np.zeros(len(seeds))
    for row, seed in enumerate(seeds):
        rng = np.random.default_rng([seed])
        order = rng.permutation(known.shape[1])
        running = np.hstack([np.zeros((len(every), 1)), np.cumsum(known[:, order], axis=1)])
        counts, sums = np.zeros(len(every), dtype=np.intp), np.zeros(len(every))
        for i, mark in enumerate(MARKS):
            while counts.sum() < mark * known.size and np.isnan(stopped[row]):
                chosen = game.choose(
                    sums, counts, min(100, int(mark * known.size) + 1 - int(counts.sum())), rng
                )
                counts += np.bincount(chosen, minlength=len(every))
                sums = running[np.arange(len(every)), counts]
                ranking = game.rank(sums, counts, level=1.0 - risk)
                if ranking.worst_rank[ranking.best] == 1:
                    stopped[row], right[row] = counts.sum() / known.size, ranking.best == best
            named[row, i] = game.rank(sums, counts).best == best
    return {"named": named, "stopped": stopped, "right": right}


def tournament_lines(tables: dict[float, dict[str, Floats]]) -> str:
    """Markdown: a line per risk at which runs stop."""
    lines = ["| best named, stopping at risk | " + " | ".join(f"{mark:.1%}" for mark in MARKS) + " |"]
    lines.append("| --- |" + " ---: |" * len(MARKS))
    for risk, found in tables.items():
        named = " | ".join(f"{x:.2f}" for x in found["named"].mean(axis=0))
        lines.append(f"| {risk:g} | {named} |")
    lines += [
        "",
        "Columns: share of all judgements. Runs stop, as live studies do, once no other method can be",
    ]
    lines.append("the best at the risk (Bonferroni over the pairs).\n")
    lines += [_stops(risk, found) for risk, found in tables.items()]
    return "\n".join(lines)


def _stops(risk: float, found: dict[str, Floats]) -> str:
    over = ~np.isnan(found["stopped"])
    if not over.any():
        return f"At {risk:g} none stopped."
    share = found["stopped"][over]
    return (
        f"At {risk:g}, {over.mean():.2f} of the runs stopped, at {np.median(share):.1%} of the judgements"
        f" (median; {share.max():.1%} at most), and {found['right'][over].mean():.2f} of those were right."
    )


# --- speed -------------------------------------------------------------------------------------------------


def speed_lines(bench: PairBench, names: Sequence[str]) -> str:
    """Markdown: milliseconds of CPU to learn of the history and to choose 40 of all prompts, median of 9."""
    lines = [
        "| policy | prompts | learn from history, CPU ms | choose 40 prompts, CPU ms |",
        "| --- | ---: | ---: | ---: |",
    ]
    pair = bench.pairs[0]
    run = PairRun.of(bench, pair, 0, 1.0)
    for name in names:
        policy, learn, choose = make_pair_policy(name), [], []
        for _ in range(9):
            start = time.process_time()  # the machine is shared
            policy.prepare(bench.past().without(pair))
            middle = time.process_time()
            policy.plan(run.problem).sample(40)
            learn.append(middle - start)
            choose.append(time.process_time() - middle)
        times = " | ".join(f"{1e3 * np.median(taken):.0f}" for taken in (learn, choose))
        lines.append(f"| {name} | {run.problem.n_prompts} | {times} |")
    return "\n".join(lines)


# --- the command -------------------------------------------------------------------------------------------


def _kept(
    options: argparse.Namespace, name: str, measure: Callable[[], dict[str, Floats]]
) -> dict[str, Floats]:
    """What was measured before, from --keep, else measured now."""
    if options.keep is None:
        return measure()
    path = options.keep / f"{options.what}-{options.part}-{options.seeds}-{name}.npz"
    if not path.exists():
        options.keep.mkdir(parents=True, exist_ok=True)
        np.savez(path, **measure())  # type: ignore[arg-type]
    with np.load(path, allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}


def _budgets(options: argparse.Namespace, bench: PairBench, names: Sequence[str]) -> str:
    pairs = part_of(bench, options.part)
    tables = {
        name: _kept(options, name, partial(success_table, bench, pairs, name, options.seeds))
        for name in names
    }
    parts = [budget_lines(tables), interval_lines(tables)]
    if options.part == "all":
        held = [i for i, pair in enumerate(pairs) if pair in set(part_of(bench, "held"))]
        mine = {name: {key: values[held] for key, values in t.items()} for name, t in tables.items()}
        parts.append("On the held-out pairs alone:\n\n" + budget_lines(mine))
    return "\n\n".join(parts)


def _iterative(options: argparse.Namespace, bench: PairBench, names: Sequence[str]) -> str:
    pairs = part_of(bench, options.part)
    tables = {
        (name, risk): _kept(
            options, f"{name}-{risk:g}", partial(iterative_table, bench, pairs, risk, name, options.seeds)
        )
        for risk in options.risks
        for name in names
    }
    return iterative_lines(tables, random_errors(bench, pairs, options.seeds))


def _rouge(options: argparse.Namespace, bench: PairBench, names: Sequence[str]) -> str:
    held = _kept(
        options, "scores", lambda: {"scores": rouge_scores(options.matrix, bench, options.reference)}
    )
    scored = rouge_bench(options.matrix, bench, held["scores"], options.reference)
    tables = {
        name: _kept(options, name, partial(success_table, scored, scored.pairs, name, options.seeds))
        for name in names
    }
    ties = np.mean([(PairRun.of(scored, pair, 0, 1.0).answers == 0).mean() for pair in scored.pairs])
    stopped = {
        (name, risk): _kept(
            options,
            f"{name}-{risk:g}",
            partial(iterative_table, scored, scored.pairs, risk, name, options.seeds),
        )
        for risk in options.risks
        for name in names
    }
    lines = iterative_lines(stopped, random_errors(scored, scored.pairs, options.seeds))
    return (
        f"{len(scored.pairs)} pairs, {ties:.1%} of the verdicts are ties.\n\n{budget_lines(tables)}\n\n"
        f"Stopping at a risk, at least 5 and at most 200 verdicts:\n\n{lines}"
    )


TITLES = {
    "budgets": "Which of two is better: success by verdicts bought, AlpacaEval",
    "iterative": "Which of two is better: stopping at a risk, AlpacaEval",
    "rouge": "Which of two is better: ROUGE-2 in place of a judge, AlpacaEval outputs",
    "tournament": "The best of 24 by pairwise judgements, AlpacaEval",
    "speed": "Which of two is better: time to choose",
}


def main() -> None:
    """Measure, print, document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=list(TITLES))
    parser.add_argument("--matrix", type=Path, default=Path("../shared/data/alpacaeval"))
    parser.add_argument("--policy", default="")
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--part", default="all", choices=["dev", "held", "all"])
    parser.add_argument("--seeds", type=int, default=0, help="default 5; tournament 50")
    parser.add_argument("--first-seed", type=int, default=0, help="of the tournament")
    parser.add_argument(
        "--risks",
        type=lambda given: [float(x) for x in given.split(",")],
        default=None,
        help="default 0.1,0.2; tournament 0.1,0.03",
    )
    parser.add_argument("--reference", default="FuseChat-Gemma-2-9B-Instruct")
    parser.add_argument("--keep", type=Path, default=None, help="folder of results per policy, to go on from")
    parser.add_argument("--document", action="store_true", help="write the section of docs/benchmarks.md")
    options = parser.parse_args()
    options.seeds = options.seeds or (50 if options.what == "tournament" else 5)
    options.risks = options.risks or ([0.1, 0.03] if options.what == "tournament" else [0.1, 0.2])
    few = "random,diffuse,prediction-powered"
    everything = options.what in ("budgets", "speed")
    names = (options.policy or (",".join(POLICIES) if everything else few)).split(",")
    bench = read_bench(options.matrix, [] if options.what == "tournament" else names, options.encoder)
    made = {
        "budgets": _budgets,
        "iterative": _iterative,
        "rouge": _rouge,
        "tournament": lambda o, b, n: tournament_lines(
            {
                risk: _kept(o, f"{o.first_seed}-{risk:g}", partial(tournaments, b, _seeds(o), risk))
                for risk in o.risks
            }
        ),
        "speed": lambda o, b, n: speed_lines(b, n),
    }[options.what](options, bench, names)
    print(made)
    if options.document:
        document(options, made)


def _shown(arguments: Sequence[str]) -> list[str]:
    """The arguments without the folders of one machine."""
    hidden = {
        i + shift for i, one in enumerate(arguments) if one in ("--keep", "--matrix") for shift in (0, 1)
    }
    return [one for i, one in enumerate(arguments) if i not in hidden]


def _seeds(options: argparse.Namespace) -> range:
    return range(options.first_seed, options.first_seed + options.seeds)


def document(options: argparse.Namespace, made: str) -> None:
    """Write the section."""
    update_section(
        TITLES[options.what],
        " ".join(["python -m benchmarks.compare", *_shown(sys.argv[1:])]),
        made,
        data=f"alpacaeval, 24 models with outputs, vectors by {options.encoder}; history = all other models",
        seeds=f"{_seeds(options)[0]} to {_seeds(options)[-1]}"
        + (
            ""
            if options.what in ("tournament", "speed")
            else f", each a subset of {SHARE:.0%} of the prompts"
        ),
        notes=NOTES.get(options.what, ""),
    )


CLOSE = (
    f"Close pairs: winning distance under {NEAR:g}; error counts all runs, as the risk that is promised does."
)
NOTES: dict[str, str] = {
    "budgets": "Intervals are those of a sample of fixed size. random and prediction-powered: means over"
    f" {DRAWS} orders per pair and seed, the same for both. Held out are the pairs of 12 of the models; they"
    " were looked at twice, with a first version that trusted what was foretold three times as much, and with"
    " this one, chosen on the pairs of the other 12.",
    "iterative": "At least 5 and at most 200 verdicts. Fixed random N: the smallest of some sizes at which"
    f" the majority of that many random verdicts errs as seldom. {CLOSE}",
    "rouge": "References: the outputs of FuseChat-Gemma-2-9B-Instruct, the highest-scoring real model"
    f" (NullModel, which scores higher, answers every prompt with the same text). {CLOSE}",
}


if __name__ == "__main__":
    main()
