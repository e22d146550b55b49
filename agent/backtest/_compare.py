"""The objective "compare" as a backtest: every pair of test rows, budgets in verdicts per pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agent.backtest._engine import Record, Task
from agent.backtest._outputs import encode_texts
from agent.backtest._settings import BacktestSettings
from agent.backtest._splits import Split
from agent.backtest.compare import PairBench, check_budgets, play_budgets, play_iteratively
from assay.errors import UsageError
from assay.matrix_folder import read_matrix_folder
from assay.settings import load_settings
from estimators import likeness, text_features, word_vectors
from policies.pairs import PAIR_POLICIES, IterativeRule, PairPolicy, make_pair_policy

__all__ = ["CompareObjective"]

ENCODE, REPLAY = 0, 1


class CompareObjective:
    """Each pair of test rows with outputs (of all test rows where the folder has none).

    A verdict is the sign of the difference of the two scores on a prompt. Per seed a share of the prompts
    (`subset`) is treated as if it were the whole test set. History are the other rows: those of the split's
    history, or, where nothing divides the rows, all but the pair's two. With `risk`, runs are iterative and a
    budget is the most verdicts that a pair may cost.
    """

    default_estimator = "aggregate"  # no estimator is asked; the result format names one
    needs_history = False
    policies = PAIR_POLICIES

    def check(self, settings: BacktestSettings, splits: Sequence[Split]) -> None:
        """Policies are pair policies that can be built; budgets are whole numbers."""
        check_budgets(settings.budgets)
        for name in settings.policies:
            make_pair_policy(name)
        for split in splits:
            if len(split.held) < 2:
                raise UsageError("the objective 'compare' needs at least two test rows")

    def tasks(self, settings: BacktestSettings, splits: int) -> list[Task]:
        """See `Objective.tasks`: the outputs are encoded first."""
        name = settings.estimators[0]
        first = [Task(ENCODE, "", name, 0, split) for split in range(splits)]
        return first + [
            Task(REPLAY, policy, name, seed, split)
            for policy in settings.policies
            for seed in range(settings.seeds)
            for split in range(splits)
        ]

    def run(self, task: Task, settings: BacktestSettings, split: Split, folder: Path) -> Record:
        """See `Objective.run`."""
        bench = bench_of(settings, split)
        if task.stage == ENCODE:
            return {"pairs": len(bench.pairs)}
        policy = make_pair_policy(task.policy)
        budgets = check_budgets(settings.budgets)
        if settings.risk is None:
            runs = [play_budgets(policy, bench, p, task.seed, settings.subset, budgets) for p in bench.pairs]
        else:
            rules = [IterativeRule(settings.risk, min(settings.least_labels, most), most) for most in budgets]
            runs = [
                [play_iteratively(policy, bench, p, task.seed, settings.subset, rule) for rule in rules]
                for p in bench.pairs
            ]
        return {"at": [_mean([run[i] for run in runs]) for i in range(len(budgets))]}

    def summarise(
        self, settings: BacktestSettings, splits: Sequence[Split], records: dict[Task, Record]
    ) -> list[Record]:
        """See `Objective.summarise`: metrics are means over the pairs, then over the splits."""
        name = settings.estimators[0]
        return [
            {
                "policy": policy,
                "estimator": name,
                "budget": budget,
                "seed": seed,
                **_mean(
                    [records[Task(REPLAY, policy, name, seed, i)]["at"][place] for i in range(len(splits))]
                ),
            }
            for policy in settings.policies
            for place, budget in enumerate(settings.budgets)
            for seed in range(settings.seeds)
        ]


def bench_of(settings: BacktestSettings, split: Split) -> PairBench:
    """What the settings' policies look at, of the split's rows."""
    kinds = [PAIR_POLICIES.get(name) for name in settings.policies]
    matrix = split.matrix
    outputs = _outputs(settings.test_matrix or settings.matrix, matrix.prompt_ids)
    rows = [int(i) for i in split.held if not outputs or matrix.method_ids[i] in outputs]
    past = split.train if len(split.train) else np.arange(matrix.n_methods)
    bench = PairBench(matrix.values.astype(np.float64), tuple(rows), history=tuple(int(i) for i in past))
    if not outputs:
        _refuse_without_outputs(kinds)
        return bench
    if any(kind.uses_features for kind in kinds):
        bench = replace(
            bench,
            described=tuple(i for i, name in enumerate(matrix.method_ids) if name in outputs),
            features=np.stack(
                [text_features(outputs[name]) for name in matrix.method_ids if name in outputs]
            ),
            likeness=_likeness(outputs, matrix.method_ids),
        )
    if any(kind.uses_vectors for kind in kinds):
        bench = replace(bench, vectors=_vectors(outputs, matrix.method_ids, settings.encoder))
    if any(kind.uses_inputs for kind in kinds):
        bench = replace(bench, inputs=_inputs(settings, matrix.prompt_ids))
    return bench


def _refuse_without_outputs(kinds: Sequence[type[PairPolicy]]) -> None:
    for kind in kinds:
        if kind.uses_vectors:
            raise UsageError(
                f"pair policy '{kind.name}' looks at the outputs, and the folder has no outputs.jsonl",
                "use random, or add the outputs",
            )


@lru_cache(maxsize=2)
def _outputs(path: str, prompt_ids: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Outputs by model, in the matrix's order of prompts."""
    folder = read_matrix_folder(path)
    place = {key: j for j, key in enumerate(folder.matrix.prompt_ids)}
    order = [place[key] for key in prompt_ids]
    return {name: tuple(texts[j] or "" for j in order) for name, texts in folder.outputs().items()}


def _likeness(outputs: dict[str, tuple[str, ...]], names: Sequence[str]) -> NDArray[np.float32]:
    words = [word_vectors(outputs[name]) for name in names if name in outputs]
    alike = np.zeros((len(words), len(words), words[0].shape[0]), dtype=np.float32)
    for i, first in enumerate(words):
        for j, second in enumerate(words[i:], start=i):
            alike[i, j] = alike[j, i] = likeness(first, second)
    return alike


def _vectors(outputs: dict[str, tuple[str, ...]], names: Sequence[str], encoder: str) -> NDArray[np.float32]:
    cache = load_settings().cache_dir
    n = len(next(iter(outputs.values())))
    flat = encode_texts([text for texts in outputs.values() for text in texts], encoder, cache)
    known = dict(zip(outputs, flat.reshape(len(outputs), n, -1), strict=True))
    blank = np.zeros_like(flat[:n])
    return np.stack([known.get(name, blank) for name in names])


def _inputs(settings: BacktestSettings, prompt_ids: Sequence[str]) -> NDArray[np.float32]:
    folder = read_matrix_folder(settings.matrix)
    texts = dict(zip(folder.matrix.prompt_ids, folder.texts, strict=True))
    return encode_texts([texts[key] for key in prompt_ids], settings.encoder, load_settings().cache_dir)


def _mean(entries: Sequence[Record]) -> Record:
    """Each metric's mean; runs without a winner to find count in no success."""
    return {name: float(np.nanmean([entry[name] for entry in entries])) for name in entries[0]}
