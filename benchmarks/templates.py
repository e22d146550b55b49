"""Templates with planted effects: what earlier models' rows are worth, and which policy finds the best.

    python -m benchmarks.templates --data ../shared/data

No scores of many templates by many models are at hand, so they are planted: the prompts' parameters are those
of a two-dimensional logistic model fitted to the training models of Open LLM on TruthfulQA, the models are
test models' latents under it. A template's effect on all models is in equal parts due to its formatting
(discrete features of its text) and its own; each model adds an effect of its own. What is drawn from such a
model says how estimators compare where it holds, not how accurate they are on real templates. Writes its
section of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.backtest.best import BestTruth, replay_best
from agent.template_variants import generate_variants
from assay.matrix import ScoreMatrix
from benchmarks.distribution import BATCH, openllm
from benchmarks.report import update_section
from estimators import Estimator, SupportsRowFeatures, make_estimator
from estimators._logistic_posterior import latent_posterior
from estimators._mirt import MirtEstimator
from estimators.distribution import QUANTILES, quantiles_of, score_distribution, wasserstein
from estimators.template_effects import template_effects
from estimators.template_features import template_features
from policies import make_policy
from policies.replay import replay_cells

Array = NDArray[np.float64]
TEMPLATES = 60
BASE = "Question: {text}\nHint: {hint}\nAnswer:"
COMMON, OWN = 0.6, 0.3  # standard deviations of templates' effects, logits: on all models, on one model alone
EARLIER = 5  # models studied by the same templates before
EARLIER_CELLS = 10  # of each of their rows
BUDGETS = (120, 240, 480, 960)  # 2, 4, 8, 16 cells per template
SEEDS = 5
DISTRIBUTION = (
    ("x-pirt", "balanced"),
    ("x-pirt-discrete", "balanced"),
    ("x-pirt-embedding", "balanced"),
    ("x-pirt-history, prompts only", "balanced"),
    ("x-pirt-history", "balanced"),
    ("x-pirt-history, effects of half", "balanced"),
    ("x-pirt-history, tuned", "balanced"),
    ("mirt-group", "quantile-variance"),
)
BEST = (
    ("row-mean", "", ""),
    ("ucb-e", "", ""),
    ("triple-gse", "", "embedding"),
    ("triple-gse", "", "discrete"),
    ("triple-mlp-gse", "", "embedding"),
    ("triple-mlp-gse", "", "discrete"),
    ("sequential-elimination", "x-pirt", ""),
    ("sequential-elimination", "x-pirt-discrete", "discrete"),
    ("sequential-elimination", "x-pirt-embedding", "embedding"),
    ("sequential-elimination", "x-pirt-history", "effects"),
)


@dataclass(frozen=True)
class Planted:
    """One model's scores by T templates on N prompts, and what is known of templates and other models.

    Attributes:
        study: (T, N) scores.
        history: Scores of the models of the history by their own template.
        features: By kind, (T, p) covariates of the templates; "effects" from the earlier models' cells.
    """

    study: ScoreMatrix
    history: ScoreMatrix
    features: dict[str, Array]


def plant(data: Path, seed: int) -> Planted:
    """Draw templates, their effects, earlier models and the model that is studied."""
    test, history = openllm(data, seed, 1)
    fitted = make_estimator("mirt", dimensions=2).fit(history)
    assert isinstance(fitted, MirtEstimator)
    rng = np.random.default_rng([11, seed])
    texts = [variant.text for variant in generate_variants(BASE, TEMPLATES, rng)]
    discrete = template_features("discrete", texts)
    explained = discrete @ rng.normal(size=discrete.shape[1])
    common = COMMON * np.sqrt(0.5) * (explained / explained.std() + rng.standard_normal(TEMPLATES))
    latents = latent_posterior(fitted.model_, test.values[: EARLIER + 1].astype(np.float64)).mean
    logits = latents @ fitted.model_.slopes.T + fitted.model_.intercepts
    rows = [_scores(logit, common, rng) for logit in logits]
    earlier = np.concatenate(rows[:-1])
    seen = rng.random(earlier.shape).argsort(axis=1) < EARLIER_CELLS
    shown = np.where(seen, earlier, np.nan)
    features = {kind: template_features(kind, texts) for kind in ("discrete", "embedding")}
    features["effects"] = _effects(shown, features["discrete"])
    shown[np.tile(np.arange(TEMPLATES) % 2 > 0, EARLIER)] = np.nan  # half of the templates are new
    features["effects of half"] = _effects(shown, None)
    features["tuned"] = _effects(shown, features["discrete"])
    return Planted(ScoreMatrix.build(rows[-1], weights=test.weights), history, features)


def _effects(shown: Array, looks: Array | None) -> Array:
    """(T, 1) of the earlier models' cells, with or without what the templates look like."""
    models = np.repeat(np.arange(EARLIER), TEMPLATES).tolist()
    templates = np.tile(np.arange(TEMPLATES), EARLIER).tolist()
    return template_effects(shown, models, templates, TEMPLATES, looks)[:, None]


def _scores(logit: Array, common: Array, rng: np.random.Generator) -> Array:
    """(T, N) scores of a model with these (N,) logits by templates with these (T,) common effects."""
    theta = common + OWN * rng.standard_normal(len(common))
    chance = 1.0 / (1.0 + np.exp(-(theta[:, None] + logit)))
    return (rng.random(chance.shape) < chance).astype(np.float64)


def estimator_for(name: str, planted: Planted) -> Estimator | None:
    """The fitted estimator, told of the templates where it looks at them; None for no name."""
    if not name:
        return None
    estimator = make_estimator(name.split(",")[0]).fit(planted.history)
    told = name.partition(", ")[2] or estimator.row_features
    if not isinstance(estimator, SupportsRowFeatures) or told not in planted.features:
        return estimator
    return estimator.with_rows(planted.features[told])


def distribution(planted: Planted, seed: int) -> list[dict[str, Any]]:
    """W1, mean error of the quantiles and of the rows' scores, by estimator, policy and budget."""
    entries: list[dict[str, Any]] = []
    truth = planted.study.benchmark_scores()
    for name, policy in DISTRIBUTION:
        estimator, chooser = estimator_for(name, planted), make_policy(policy, seed=seed)
        assert estimator is not None
        chooser.prepare(planted.history, estimator)
        runs = replay_cells(planted.study, chooser, estimator, BUDGETS, batch=BATCH, seed=seed)
        for budget, observed in zip(BUDGETS, runs, strict=True):
            found = score_distribution(estimator, observed, np.random.default_rng(seed))
            off = np.abs(found.quantiles(QUANTILES) - quantiles_of(truth, QUANTILES))
            entries.append(
                {
                    "estimator": name,
                    "policy": policy,
                    "budget": budget,
                    "seed": seed,
                    "w1": wasserstein(found.order, truth),
                    "quantiles": float(off.mean()),
                    "rows": float(np.abs(found.scores - truth).mean()),
                }
            )
    return entries


def best(planted: Planted, seed: int) -> list[dict[str, Any]]:
    """Regret of the template that is named, by policy, its estimator and budget."""
    entries: list[dict[str, Any]] = []
    truth = BestTruth.of(planted.study)
    shares = [budget / planted.study.values.size for budget in BUDGETS]
    for policy, name, kind in BEST:
        runs = replay_best(
            make_policy(policy, seed=seed),
            planted.study,
            truth,
            shares=shares,
            seed=seed,
            estimator=estimator_for(name, planted),
            batch=BATCH,
            row_features=planted.features[kind] if kind and not name else None,
        )
        label = f"{policy}, {name or kind}".removesuffix(", ")
        entries += [
            {"policy": label, "budget": budget, "seed": seed, "regret": run["regret"]}
            for budget, run in zip(BUDGETS, runs, strict=True)
        ]
    return entries


def table(entries: list[dict[str, Any]], keys: tuple[str, ...], metric: str) -> str:
    """Markdown: a line per combination of the keys, a column per budget, mean and standard error."""
    lines = [f"| {' | '.join(keys)} | " + " | ".join(f"{budget} cells" for budget in BUDGETS) + " |"]
    lines.append("|" + " --- |" * len(keys) + " ---: |" * len(BUDGETS))
    for line in dict.fromkeys(tuple(str(entry[key]) for key in keys) for entry in entries):
        mine = [entry for entry in entries if tuple(str(entry[key]) for key in keys) == line]
        cells = []
        for budget in BUDGETS:
            values = np.array([entry[metric] for entry in mine if entry["budget"] == budget])
            error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
            cells.append(f"{values.mean():.4f} ± {error:.4f}")
        lines.append(f"| {' | '.join(line)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, store, write the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/templates.json"))
    options = parser.parse_args()
    stored: dict[str, list[dict[str, Any]]] = {"distribution": [], "best": []}
    for seed in range(options.seeds):
        planted = plant(options.data, seed)
        stored["distribution"] += distribution(planted, seed)
        stored["best"] += best(planted, seed)
        print(f"seed {seed} is done", flush=True)
    options.out.write_text(json.dumps(stored, indent=1) + "\n")
    keys = ("estimator", "policy")
    update_section(
        "Templates with planted effects",
        "python -m benchmarks.templates",
        "W1 of the estimated distribution:\n\n"
        + table(stored["distribution"], keys, "w1")
        + "\n\nMean absolute error of a template's score:\n\n"
        + table(stored["distribution"], keys, "rows")
        + "\n\nRegret of the template that is named the best:\n\n"
        + table(stored["best"], ("policy",), "regret"),
        data="planted: prompts and models as fitted to openllm (TruthfulQA), templates' effects drawn",
        seeds=f"{options.seeds} (0 to {options.seeds - 1})",
        notes=NOTES,
    )


NOTES = (
    f"{TEMPLATES} formatting variants x 136 prompts of one model. Templates' effects have a standard"
    f" deviation of {COMMON} logits over all models, half of its square explained by discrete features of the"
    f" text, and {OWN} for the model alone. x-pirt-history knows {EARLIER_CELLS} cells of each template for"
    f" {EARLIER} earlier models, what the templates look like, and the prompts' scores of 1,300 models. Of"
    " these it knows the last alone with 'prompts only'; with 'effects of half' no earlier model was asked by"
    " every other template; with 'tuned' neither, but these borrow from templates that look alike. Means"
    " and standard errors over the seeds. The scores are drawn: they compare methods where the model holds."
)


if __name__ == "__main__":
    main()
