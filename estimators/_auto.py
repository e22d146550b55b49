"""The estimator that predicts this history's held-out methods best at the study's budget."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from assay.matrix import ScoreMatrix
from estimators._around import EstimatorAround
from estimators._base import (
    Estimator,
)
from estimators._corrected import restore_inside
from estimators._designs import DESIGNS, simulate
from estimators._folds import known_scores, row_folds
from estimators._scoring import ranked_probability_score

__all__ = ["AutoEstimator"]

CANDIDATES = ("linear-gaussian", "mirt")
FEWEST_ROWS = 8  # with fewer history rows nothing can be compared
GROWTH = 1.2  # a warm start keeps its choice until the history has grown by this factor
CORRECTED_ROWS = 100  # from here on, the winner is tried with a correction too
LARGEST_BUDGET = 100


class AutoEstimator(EstimatorAround):
    """Chooses among estimators by nested cross-validation on the history, and keeps the table.

    Each candidate is fitted on a part of the history, hyper-parameters included; the other rows then acquire
    scores as a study would. What counts is the loss of the estimated benchmark score as a distribution (the
    continuous ranked probability score; it is the absolute error where the deviation is 0, and punishes false
    certainty). A candidate stays unless a later one is better beyond chance: by two standard errors of the
    rows' differences. From 100 rows on, the winner is compared with itself corrected (`corrected:<winner>`).
    With many methods a logistic model wins, with few a linear one; it is measured, never assumed. A warm
    start keeps its choice until the history has a fifth more methods.

    Attributes:
        reason_: Why the chosen one was chosen, in a sentence.
        table_: One dict per candidate: estimator, loss, error (mean absolute), standard_error (of the loss),
            coverage (of 95 % intervals), rows.

    Args:
        candidates: Names to choose from, simplest first; None for linear-gaussian and mirt.
        budget: Number of acquired prompts to compare at; None for a tenth of the prompts, at most 100.
        design: How held-out rows acquire: "variance-reduction" as adaptive policies do, or "random".
        seed: Seed of folds and random acquisition.
    """

    name: ClassVar[str] = "auto"

    def __init__(
        self,
        *,
        candidates: list[str] | None = None,
        budget: int | None = None,
        design: str = "variance-reduction",
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        self.candidates = candidates
        self.budget = budget
        self.design = design
        self.winner_: str = ""
        self.reason_: str = ""

    def params(self) -> dict[str, Any]:
        """See `Estimator.params`."""
        return {
            "candidates": self.candidates,
            "budget": self.budget,
            "design": self.design,
            "seed": self.seed,
        }

    def findings(self) -> dict[str, Any]:
        """The estimator that was chosen, why, and how all did."""
        return {"chosen": self.winner_, "why": self.reason_, "candidates": self.table_}

    def settled(self) -> Estimator:
        """The estimator that was chosen, settled."""
        return self.chosen_.settled()

    def affordable_to_refit(self) -> bool:
        """As for the estimator that was chosen."""
        return self.chosen_.affordable_to_refit()

    def _fit(self, history: ScoreMatrix, warm_start: Self | None) -> None:
        self._check()
        names = list(CANDIDATES) if self.candidates is None else self.candidates
        rows = history.rows(np.flatnonzero(history.observed.any(axis=1)))
        self.table_: list[dict[str, Any]] = []
        self.chosen_on_ = rows.n_methods
        if warm_start is not None and self._still_holds(warm_start, rows.n_methods):
            winner, self.reason_, self.table_ = warm_start.winner_, warm_start.reason_, warm_start.table_
            self.chosen_on_ = warm_start.chosen_on_
        elif len(names) == 1 or rows.n_methods < FEWEST_ROWS:
            winner = names[0]
            self.reason_ = (
                f"{winner}: too little to compare on ({rows.n_methods} methods, {len(names)} candidates)"
            )
        else:
            winner = self._compare(rows, names)
        same = warm_start is not None and warm_start.chosen_.name == _built(winner).name
        start = warm_start.chosen_ if same and warm_start is not None else None
        self.winner_ = winner
        self.chosen_: Estimator = _built(winner).fit(history, warm_start=start)

    def _still_holds(self, earlier: Self, n_methods: int) -> bool:
        """Whether an earlier choice was made with the same settings and on nearly as many methods."""
        return earlier.params() == self.params() and n_methods < GROWTH * earlier.chosen_on_

    def _check(self) -> None:
        if self.design not in DESIGNS:
            raise BadInputError(f"unknown design '{self.design}'", f"known: {', '.join(DESIGNS)}")
        if self.budget is not None and self.budget < 1:
            raise BadInputError(f"the budget to compare at must be 1 or more, got {self.budget}")
        if self.candidates is not None and not self.candidates:
            raise BadInputError("no estimator to choose from")

    def _compare(self, history: ScoreMatrix, names: list[str]) -> str:
        """Fill the table and the reason; give the winner's name."""
        budget = self._budget(history.n_prompts)
        losses = {names[0]: self._losses(names[0], history, budget)}
        winner = names[0]
        for name in names[1:]:
            losses[name] = self._losses(name, history, budget)
            winner = _better(winner, name, losses)
        corrected = f"corrected:{winner}"
        if history.n_methods >= CORRECTED_ROWS and self.candidates is None:
            losses[corrected] = self._losses(corrected, history, budget)
            winner = _better(winner, corrected, losses)
        self.reason_ = _reason(winner, losses, budget, self.design)
        return winner

    def _budget(self, n_prompts: int) -> int:
        if self.budget is not None:
            return min(self.budget, n_prompts)
        return max(1, min(LARGEST_BUDGET, n_prompts // 10))

    def _losses(self, name: str, history: ScoreMatrix, budget: int) -> NDArray[np.float64]:
        """Losses of held-out rows; adds the candidate's line to the table."""
        errors, stds = [], []
        for train, test in row_folds(history.n_methods, self.seed):
            candidate = _built(name).fit(history.rows(train))
            truth = history.values[test].astype(np.float64)
            rng = np.random.default_rng(self.seed)
            (observed,) = simulate(self.design, candidate, truth, [budget], rng)
            score = candidate.benchmark_score(observed)
            errors.append(np.abs(score.mean - known_scores(truth, history.weights)))
            stds.append(score.std)
        error, std = np.concatenate(errors), np.concatenate(stds)
        loss = ranked_probability_score(error, std)
        self.table_.append(
            {
                "estimator": name,
                "loss": float(loss.mean()),
                "error": float(error.mean()),
                "standard_error": float(loss.std() / np.sqrt(len(loss))),
                "coverage": float((error <= 1.96 * std).mean()),
                "rows": len(loss),
            }
        )
        return loss

    @property
    def inner(self) -> Estimator:
        """The estimator that was chosen."""
        return self.chosen_

    def _arrays(self) -> dict[str, NDArray[Any]]:
        description = {
            "winner": self.winner_,
            "params": self.chosen_.params(),
            "reason": self.reason_,
            "table": self.table_,
            "chosen_on": self.chosen_on_,
        }
        text = np.frombuffer(json.dumps(description).encode(), dtype=np.uint8)
        return {"choice": text, **{f"chosen.{key}": value for key, value in self.chosen_._arrays().items()}}

    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        description = json.loads(arrays["choice"].tobytes())
        self.winner_, self.reason_ = description["winner"], description["reason"]
        self.table_, self.chosen_on_ = description["table"], description["chosen_on"]
        self.chosen_ = _built(self.winner_, description["params"])
        restore_inside(self, self.chosen_, arrays, "chosen.")


def _built(name: str, params: dict[str, Any] | None = None) -> Estimator:
    from estimators import make_estimator

    return make_estimator(name, **(params or {}))


def _beyond_chance(worse: NDArray[np.float64], better: NDArray[np.float64]) -> bool:
    """Whether the mean difference exceeds two standard errors of the rows' differences."""
    gap = worse - better
    return bool(gap.mean() > 2.0 * gap.std() / np.sqrt(len(gap)))


def _better(current: str, later: str, losses: dict[str, NDArray[np.float64]]) -> str:
    return later if _beyond_chance(losses[current], losses[later]) else current


def _reason(winner: str, losses: dict[str, NDArray[np.float64]], budget: int, design: str) -> str:
    """Why the winner, with the one that came nearest and whether the difference is beyond chance."""
    means = {name: float(loss.mean()) for name, loss in losses.items()}
    second = min((name for name in means if name != winner), key=lambda name: means[name])
    sure = "beyond" if _beyond_chance(losses[second], losses[winner]) else "within"
    stays = ", so the simpler one stays" if means[second] < means[winner] else ""
    return (
        f"{winner}: loss {means[winner]:.4f} of the benchmark score at {budget} prompts ({design})"
        f" on {len(losses[winner])} held-out methods; next {second} with {means[second]:.4f}"
        f" ({sure} chance{stays})"
    )
