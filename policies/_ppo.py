"""The learned policy: proximal policy optimisation over history models (Li et al., eq. 7 and 9)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from assay.errors import BadInputError, NotFittedError, UsageError
from assay.matrix import ScoreMatrix
from estimators import Estimator, load_estimator
from estimators._folds import row_folds
from policies._base import Policy, PolicyState, Selection
from policies._ppo_episodes import Crossfit, choose
from policies._ppo_network import ActorCritic
from policies._ppo_training import Curve, PpoSettings, train
from policies._ppo_view import Representation, look, relative_gain

__all__ = ["PpoPolicy"]

FORMAT = 1
DESCRIPTION, ARRAYS = "policy.json", "policy.safetensors"
ROWS_AT_ONCE = 64
LEAST_TO_CROSSFIT = 12  # history rows; with fewer the estimator itself judges the episodes


class PpoPolicy(Policy):
    """Chooses by a network that was trained on the history's models by reinforcement learning.

    `prepare` trains it (minutes to an hour), unless `restore` has loaded what was trained before. The
    estimator is asked once per decision; a batch is chosen one by one, each as if those before were
    answered at their means. Choices are the likeliest ones, not draws. With several rows the one with the
    fewest known scores goes first.

    Args:
        seed: Seed of the training.
        settings: Fields of `PpoSettings`.
    """

    name: ClassVar[str] = "ppo"
    needs_estimator: ClassVar[bool] = True
    uses_total: ClassVar[bool] = False
    design: ClassVar[str] = "variance-reduction"

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        super().__init__(seed=seed)
        known = {field.name for field in fields(PpoSettings)}
        if unknown := sorted(settings.keys() - known):
            raise UsageError(
                f"policy 'ppo' has no setting '{unknown[0]}'", f"settings: {', '.join(sorted(known))}"
            )
        self.settings = PpoSettings(**settings)
        self.settings.check()
        self.curve: Curve = []
        self._network: ActorCritic | None = None
        self._frozen: Representation | None = None
        self._vectors: Tensor | None = None

    def params(self) -> dict[str, Any]:
        """See `Policy.params`."""
        return {"seed": self.seed, **asdict(self.settings)}

    def prepare(self, history: ScoreMatrix, estimator: Estimator | None) -> None:
        """See `Policy.prepare`: trains where nothing was restored, then lays out the present prompts."""
        if estimator is None:
            raise BadInputError(f"policy '{self.name}' needs an estimator", "choose one with --estimator")
        if self._network is None:
            self.train(history, estimator)
        assert self._frozen is not None
        present = self._frozen.extended(history, estimator)
        self._vectors = torch.from_numpy(present.vectors).float()

    def train(
        self,
        history: ScoreMatrix,
        estimator: Estimator,
        *,
        warm_start: Self | None = None,
        checkpoint: Path | None = None,
        on_update: Callable[[int, dict[str, float]], None] | None = None,
        sources: Sequence[Crossfit] = (),
    ) -> None:
        """Train on the history's rows.

        Args:
            history: (M, N) rows that the estimator has learned from too.
            estimator: Fitted; its prompt representation is frozen, and refits of it judge the episodes.
            warm_start: A trained policy to start from.
            checkpoint: Folder that keeps what is done, so that an interrupted training goes on.
            on_update: Called with the number of each update and its figures.
            sources: Rows to play with estimators that have not learned from them, on the prompts that the
                training plays with; default by cross-fitting.
        """
        frozen = Representation.freeze(history, estimator)
        if warm_start is not None and warm_start._frozen is not None:
            frozen = warm_start._frozen.extended(history, estimator)
        played = self._played_prompts(history.n_prompts)
        vectors = torch.from_numpy(frozen.vectors[played]).float()
        network = self._build(vectors.shape[1])
        if warm_start is not None and warm_start._network is not None and _alike(network, warm_start):
            network.load_state_dict(warm_start._network.state_dict())
        if not sources and len(played) < history.n_prompts:
            history = history.columns(played)
            if history.n_methods < LEAST_TO_CROSSFIT:
                estimator = estimator.settled().fit(history)
        sources = sources or crossfits(history, estimator, self.settings.folds, self.seed, checkpoint)
        self.curve = train(
            network,
            vectors,
            sources,
            self.settings,
            self.seed,
            checkpoint=checkpoint,
            on_update=on_update,
        )
        self._network, self._frozen = network, frozen

    def _played_prompts(self, n_prompts: int) -> NDArray[np.intp]:
        """Prompts that the training plays with, ascending."""
        if n_prompts <= self.settings.most_prompts:
            return np.arange(n_prompts)
        order = np.random.default_rng([self.seed, 5]).permutation(n_prompts)
        return np.sort(order[: self.settings.most_prompts])

    def _build(self, size: int) -> ActorCritic:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return ActorCritic(
                size, self.settings.width, auxiliary=self.settings.auxiliary, prior=self.settings.prior
            )

    def _select(self, state: PolicyState, n: int) -> Selection:
        rows = self._shares_of_rows(state, n)
        chosen = {i: self._columns([_one_row(state, i)], k)[0] for i, k in rows.items()}
        return _interleaved(chosen, state)

    def select_each(self, states: Sequence[PolicyState], n: int) -> list[Selection]:
        """See `Policy.select_each`: one look at the estimator for many rows."""
        chosen: dict[int, Selection] = {}
        together: list[int] = []
        for i, state in enumerate(states):
            if _shareable(state, states[0], n):
                together.append(i)
            else:
                chosen[i] = self.select(state, n)
        for start in range(0, len(together), ROWS_AT_ONCE):
            group = together[start : start + ROWS_AT_ONCE]
            for i, columns in zip(group, self._columns([states[i] for i in group], n), strict=True):
                chosen[i] = Selection.of(0, columns)
        return [chosen[i] for i in range(len(states))]

    def _shares_of_rows(self, state: PolicyState, n: int) -> dict[int, int]:
        """How many of n cells each row gets: the rows with the fewest known or pending come first."""
        left = state.candidates.sum(axis=1)
        have = (~np.isnan(state.scores) | state.pending).sum(axis=1)
        shares: dict[int, int] = {}
        for _ in range(min(n, int(left.sum()))):
            i = int(np.where(left > 0, have, np.iinfo(np.int64).max).argmin())
            shares[i] = shares.get(i, 0) + 1
            have[i], left[i] = have[i] + 1, left[i] - 1
        return shares

    @torch.no_grad()
    def _columns(self, states: Sequence[PolicyState], n: int) -> NDArray[np.intp]:
        """(B, n) prompts for B states of one row each, in the order of choice."""
        if self._network is None or self._vectors is None:
            raise NotFittedError(f"policy '{self.name}' is not trained", "call prepare(history, estimator)")
        first = states[0]
        assert first.estimator is not None
        free = torch.from_numpy(np.concatenate([s.candidates for s in states]))
        cost = torch.from_numpy(np.concatenate([s.cost for s in states])).float()
        observed = np.concatenate([s.scores for s in states])
        pending = torch.from_numpy(first.pending & np.isnan(first.scores)) if len(states) == 1 else None
        view, ahead, _ = look(first.estimator, observed, free, first.weights, cost, pending)
        h, _ = self._network(view, self._vectors)

        def after(columns: Tensor) -> Tensor:
            ahead.take(columns)
            return relative_gain(ahead, free, cost)

        columns, _ = choose(self._network, view, h, self._vectors, n, after)
        return columns.numpy().astype(np.intp)

    def findings(self) -> dict[str, Any]:
        """What people may want to know of a training: its settings and curves."""
        return {"settings": asdict(self.settings), "curve": self.curve}

    def save(self, folder: Path) -> None:
        """Write the trained policy as JSON and safetensors; the description last."""
        if self._network is None or self._frozen is None:
            raise NotFittedError(f"policy '{self.name}' is not trained", "call prepare(history, estimator)")
        tensors = {f"network.{key}": value.contiguous() for key, value in self._network.state_dict().items()}
        for key in ("vectors", "shift", "scale"):
            tensors[key] = torch.from_numpy(np.ascontiguousarray(getattr(self._frozen, key)))
        content = dump_tensors(tensors)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ARRAYS).write_bytes(content)
        description = {
            "format": FORMAT,
            "name": self.name,
            "params": self.params(),
            "prompt_ids": list(self._frozen.prompt_ids),
            "curve": self.curve,
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        (folder / DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")

    def restore(self, folder: Path) -> None:
        """Take back what `save` wrote, with the settings it was trained with.

        Raises:
            BadInputError: The folder is incomplete, of another format, or fails its checksum.
        """
        try:
            described = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
            content = (folder / ARRAYS).read_bytes()
        except (OSError, ValueError) as error:
            raise BadInputError(f"{folder} holds no complete policy: {error}", "train it again") from None
        if described.get("format") != FORMAT or described.get("name") != self.name:
            raise BadInputError(f"{folder} does not hold a policy 'ppo' of format {FORMAT}", "train it again")
        if hashlib.sha256(content).hexdigest() != described["sha256"]:
            raise BadInputError(f"{folder / ARRAYS} does not match its checksum", "train it again")
        tensors = parse_tensors(content)
        params = {key: value for key, value in described["params"].items() if key != "seed"}
        self.settings, self.curve = PpoSettings(**params), described["curve"]
        arrays = {key: tensors.pop(key).numpy() for key in ("vectors", "shift", "scale")}
        self._frozen = Representation(tuple(described["prompt_ids"]), **arrays)
        self._network = self._build(arrays["vectors"].shape[1])
        self._network.load_state_dict({k.removeprefix("network."): v for k, v in tensors.items()})
        self._vectors = torch.from_numpy(arrays["vectors"]).float()


def crossfits(
    history: ScoreMatrix, estimator: Estimator, folds: int, seed: int, keep: Path | None = None
) -> list[Crossfit]:
    """Rows of the history to play, each part with a refit of the estimator that has not learned from it.

    Args:
        history: (M, N) history.
        estimator: Fitted; its settled parameters are used again.
        folds: Parts; with 200 rows or more only the first is played, which costs one refit.
        seed: Draws the parts.
        keep: Folder that keeps the refits, so that an interrupted training need not repeat them.
    """
    if history.n_methods < LEAST_TO_CROSSFIT:
        return [Crossfit(estimator, history)]
    found = []
    for i, (rest, part) in enumerate(row_folds(history.n_methods, seed, folds=folds)):
        folder = None if keep is None else keep / f"crossfit-{i}"
        if folder is not None and (folder / "estimator.json").exists():
            refit = load_estimator(folder)
        else:
            refit = estimator.settled().fit(history.rows(rest))
            if folder is not None:
                refit.save(folder)
        found.append(Crossfit(refit, history.rows(part)))
    return found


def _alike(network: ActorCritic, other: PpoPolicy) -> bool:
    assert other._network is not None
    mine, theirs = network.state_dict(), other._network.state_dict()
    return {k: v.shape for k, v in mine.items()} == {k: v.shape for k, v in theirs.items()}


def _shareable(state: PolicyState, first: PolicyState, n: int) -> bool:
    """Whether a state can be looked at together with others: one row, nothing pending, enough left."""
    same = state.estimator is first.estimator and state.estimator is not None
    plain = len(state.scores) == 1 and not (state.pending & np.isnan(state.scores)).any()
    return same and plain and 1 <= n <= int(state.candidates.sum())


def _one_row(state: PolicyState, i: int) -> PolicyState:
    part = slice(i, i + 1)
    return replace(
        state,
        scores=state.scores[part],
        pending=state.pending[part],
        available=state.available[part],
        cost=state.cost[part],
    )


def _interleaved(chosen: dict[int, NDArray[np.intp]], state: PolicyState) -> Selection:
    """The rows' choices in turns."""
    rows, columns = [], []
    for place in range(max(len(found) for found in chosen.values())):
        for i in sorted(chosen):
            if place < len(chosen[i]):
                rows.append(i)
                columns.append(int(chosen[i][place]))
    return Selection.of(rows, columns)
