"""What a backtest was asked to do, checked and recorded with its results."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from assay.errors import UsageError
from assay.matrix_folder import Weighting
from assay.plugins import Registry
from estimators import ESTIMATORS
from estimators._encoders import ENCODERS
from policies import POLICIES

__all__ = ["BacktestSettings"]


@dataclass(frozen=True)
class BacktestSettings:
    """All that decides a backtest's results.

    Attributes:
        matrix: Matrix folder; history = its rows with split "train", test = those with split "test".
        test_matrix: Folder with the test rows (same prompts); the history is then all rows of `matrix`.
        objective: Registered objective; what budgets and metrics mean follows from it.
        policies: Policy names.
        estimators: Estimator names; none = the objective's default.
        budgets: Budgets, ascending (estimate: prompts per method).
        seeds: How many seeds; they are 0, 1, ...
        datasets: Keep only the prompts of these datasets (none = all).
        prompts: Keep only that many of the prompts, drawn at random (0 = all).
        test_rows: Try only that many of the test rows, drawn at random (0 = all).
        batch: Cells asked for per decision.
        weighting: What the benchmark score is: "dataset" = mean of dataset means, "prompt" = plain mean.
        random_splits: Draw the history at random this often instead (0 = use the split column).
        train_share: Share of the rows that a random split gives to the history.
        leave_one_out: Test each row against a history of all others instead.
        holdout_group: "column=A,B": test = rows with one of these values in models.csv, history = the others.
        intervals: "posterior" = the estimator's own, "conformal" = rescaled on held-out history rows.
        encoder: What embeds the prompts' texts, where a policy or estimator looks at them.
        cold_datasets: Datasets whose scores are removed from the history, as if their prompts were new.
        pooled: So many test rows come earlier: their answers are pooled before the others are tried.
        pooled_prompts: Prompts that each of those acquires.
        cold_share: Share of a study that is drawn among prompts without history; None = by their weight.
        subset: Objective compare: share of the prompts that a seed treats as the whole test set.
        risk: Objective compare: stop each pair at this risk (None = sample sizes are the budgets).
        least_labels: Objective compare: first sample size of iterative runs.
        force: Let policies run that refuse because they would take too long.
        policy_settings: Constructor arguments of policies, by policy name.
    """

    matrix: str
    test_matrix: str | None = None
    objective: str = "estimate"
    policies: tuple[str, ...] = ("uniform",)
    estimators: tuple[str, ...] = ()
    budgets: tuple[float, ...] = (25, 50, 100, 200)
    seeds: int = 3
    datasets: tuple[str, ...] = ()
    prompts: int = 0
    test_rows: int = 0
    batch: int = 1
    weighting: Weighting = "dataset"
    random_splits: int = 0
    train_share: float = 0.7
    leave_one_out: bool = False
    holdout_group: str | None = None
    intervals: Literal["posterior", "conformal"] = "posterior"
    encoder: str = "tfidf-svd"
    cold_datasets: tuple[str, ...] = ()
    pooled: int = 0
    pooled_prompts: int = 100
    cold_share: float | None = None
    subset: float = 0.8
    risk: float | None = None
    least_labels: int = 5
    force: bool = False
    policy_settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    def check(self, policies: Registry[Any] = POLICIES) -> None:
        """Raise UsageError where the settings make no sense, before anything is run."""
        for name in self.policies:
            policies.get(name)
        for name, given in self.policy_settings.items():
            _require(name in self.policies, f"--policy-settings: '{name}' is not among the policies")
            _check_settings(policies, name, given)
        for name in self.estimators:
            ESTIMATORS.get(name)
        ENCODERS.get(self.encoder)
        _require(bool(self.policies), "at least one policy is needed")
        _require(bool(self.budgets) and min(self.budgets) > 0, "budgets must be positive numbers")
        _require(self.seeds >= 1, "--seeds must be at least 1")
        _require(self.test_rows >= 0, "--test-rows must not be negative")
        _require(self.prompts >= 0, "--prompts must not be negative")
        _require(self.batch >= 1, "--batch must be at least 1")
        _require(0 < self.train_share < 1, "--train-share must lie between 0 and 1")
        _require(0 < self.subset <= 1, "--subset must lie in (0, 1]")
        _require(self.risk is None or 0 < self.risk < 1, "--risk must lie between 0 and 1")
        _require(self.least_labels >= 1, "--least-labels must be at least 1")
        _require(self.random_splits >= 0, "--random-splits must not be negative")
        ways = [bool(self.test_matrix), self.random_splits > 0, self.leave_one_out, bool(self.holdout_group)]
        _require(
            sum(ways) <= 1,
            "choose one of --test-matrix, --random-splits, --leave-one-out and --holdout-group",
        )
        self._check_cold()
        for folder in (self.matrix, self.test_matrix):
            _require(folder is None or Path(folder).is_dir(), f"no matrix folder at {folder}")

    def _check_cold(self) -> None:
        share = self.cold_share
        _require(share is None or 0 <= share <= 1, "--cold-share must lie between 0 and 1")
        _require(self.pooled >= 0 and self.pooled_prompts >= 1, "--pooled takes a number of models")
        _require(not self.pooled or bool(self.cold_datasets), "--pooled needs --cold-datasets")
        plain = self.objective == "estimate" and self.intervals == "posterior"
        _require(
            not self.cold_datasets or plain,
            "--cold-datasets goes with the objective 'estimate' and posterior intervals",
        )

    def to_json(self) -> dict[str, Any]:
        """The settings as they stand in the result file."""
        plain = asdict(self)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}


def _check_settings(policies: Registry[Any], name: str, given: dict[str, Any]) -> None:
    try:
        policies.get(name)(**given)
    except TypeError:
        raise UsageError(
            f"--policy-settings: policy '{name}' does not take {', '.join(sorted(given))}",
            "its settings are its constructor's arguments, docs/reference.md",
        ) from None


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
