"""Proximal policy optimisation of an acquisition policy (Schulman et al., 2017; Li et al., appendix B).

One update: play episodes, estimate advantages, improve the clipped objective for some epochs. Everything
random comes from one generator, which is part of a checkpoint: a training that was interrupted goes on to
the same weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from assay.errors import UsageError
from policies._ppo_episodes import Crossfit, Potential, Rollout, draw_rows, log_shares, roll_out
from policies._ppo_network import ActorCritic

__all__ = ["Curve", "PpoSettings", "generalised_advantages", "train", "update"]

Curve = list[dict[str, float]]
CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class PpoSettings:
    """All that decides a training.

    Attributes:
        updates: Updates of the policy.
        episodes: Episodes per update, played side by side.
        prompts: Prompts acquired per episode at the end of the curriculum (at most half of the benchmark).
        first_prompts: Prompts per episode at its start; they grow over the first half of the updates.
        batch: Prompts per decision: the estimator and the network are asked once for so many.
        reward: Potential whose rise is rewarded: "score" (absolute error of the benchmark score) or "mse"
            (the paper's: squared error per unobserved prompt).
        scale: Rewards are multiplied by it, so that returns are of the order of 1.
        intermediate: Reward every decision (eq. 8); False gives all of it at the end.
        auxiliary: Let the network see the estimator's mean, deviation and expected gain of each prompt.
        prior: The actor's weight on the log expected gain before training; 0 begins with no preference.
        discount: gamma.
        smoothing: lambda of the generalised advantage estimation.
        clip: Largest change of a decision's probability, as a share, that the objective rewards.
        epochs: Passes over the transitions of an update.
        minibatch: Decisions per gradient step.
        rate: Learning rate, falling linearly to a tenth.
        critic_rate: The same for the critic's own layers, as a multiple.
        value_weight: Weight of the critic's loss.
        entropy: Weight of the actor's entropy (0; 0.001 where prompts without history are expected).
        most_kl: Stops the epochs of an update early once the policy has moved so far.
        width: Width of the network.
        folds: Parts of the history for cross-fitting; with 200 rows or more only one part is played.
        most_prompts: Prompts that a training plays with: a benchmark of more is played on as many, drawn at
            random, with refits of the estimator on these; choices are then among all.
        validation: Share of the rows to play that is kept back to choose the weights by (at least 8 rows, or
            none are).
        checks: How often the weights are tried on them; those before training compete too.
    """

    updates: int = 24
    episodes: int = 48
    prompts: int = 100
    first_prompts: int = 25
    batch: int = 5
    reward: Potential = "score"
    scale: float = 100.0
    intermediate: bool = True
    auxiliary: bool = True
    prior: float = 10.0
    discount: float = 0.99
    smoothing: float = 0.95
    clip: float = 0.2
    epochs: int = 3
    minibatch: int = 256
    rate: float = 3e-4
    critic_rate: float = 10.0
    value_weight: float = 0.5
    entropy: float = 0.0
    most_kl: float = 0.05
    width: int = 32
    folds: int = 3
    most_prompts: int = 2000
    validation: float = 0.25
    checks: int = 4

    def check(self) -> None:
        """Raise UsageError where the settings make no sense."""
        counts = (self.updates, self.episodes, self.prompts, self.first_prompts, self.batch, self.epochs)
        if min(*counts, self.minibatch) < 1:
            raise UsageError(
                "ppo: updates, episodes, prompts, batch, epochs and minibatch must be at least 1"
            )
        if self.most_prompts < 2:
            raise UsageError("ppo: a training needs at least 2 prompts")
        if not 0 <= self.discount <= 1 or not 0 <= self.smoothing <= 1 or not 0 < self.clip < 1:
            raise UsageError("ppo: discount and smoothing lie in [0, 1], clip between 0 and 1")
        if self.reward not in ("score", "mse"):
            raise UsageError(f"ppo: unknown reward '{self.reward}'", "known: score, mse")
        if self.width % 4 or self.folds < 2:
            raise UsageError("ppo: the width must be a multiple of 4, and folds at least 2")


def generalised_advantages(rewards: Tensor, values: Tensor, discount: float, smoothing: float) -> Tensor:
    """(T, B) generalised advantage estimates (Schulman et al., 2016, eq. 16) of episodes that end after T.

    Args:
        rewards: (T, B).
        values: (T + 1, B) V(s); the last row is what is left after the end (0 for a true end).
        discount: gamma.
        smoothing: lambda.
    """
    advantages = torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[0])
    for t in range(len(rewards) - 1, -1, -1):
        surprise = rewards[t] + discount * values[t + 1] - values[t]
        following = surprise + discount * smoothing * following
        advantages[t] = following
    return advantages


def update(
    network: ActorCritic,
    optimiser: torch.optim.Optimizer,
    played: Rollout,
    vectors: Tensor,
    settings: PpoSettings,
    generator: torch.Generator,
) -> dict[str, float]:
    """One PPO update from one rollout.

    Returns:
        What curves are drawn of: approximate KL, clip fraction, entropy, value loss, explained variance.
    """
    advantages = generalised_advantages(played.rewards, played.values, settings.discount, settings.smoothing)
    returns = (advantages + played.values[:-1]).flatten()
    old_values = played.values[:-1].flatten()
    # One step's decisions are compared with each other: early ones always gain more than late ones.
    advantages = advantages - advantages.mean(1, keepdim=True)
    flat = (advantages / (advantages.std() + 1e-8)).flatten()
    seen: list[dict[str, float]] = []
    for _ in range(settings.epochs):
        order = torch.randperm(len(flat), generator=generator)
        for index in torch.split(order, settings.minibatch):
            view, actions = played.views.rows(index), played.actions[index]
            h, value = network(view, vectors)
            shares = log_shares(network, h, view, played.gains[index], actions, vectors)
            now = shares.gather(2, actions[:, :, None])[:, :, 0].sum(1)
            change = now - played.log_probability[index]
            ratio = change.exp()
            bounded = ratio.clamp(1 - settings.clip, 1 + settings.clip)
            gain = torch.minimum(ratio * flat[index], bounded * flat[index]).mean()
            value_loss = 0.5 * (value - returns[index]).square().mean()
            entropy = -(shares.exp() * shares.clamp_min(-1e4)).sum(2).mean()
            loss = settings.value_weight * value_loss - gain - settings.entropy * entropy
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            optimiser.step()
            with torch.no_grad():
                seen.append(
                    {
                        "approximate_kl": float((ratio - 1 - change).mean()),
                        "clip_fraction": float(((ratio - 1).abs() > settings.clip).float().mean()),
                        "entropy": float(entropy),
                        "value_loss": float(value_loss),
                    }
                )
        if seen[-1]["approximate_kl"] > settings.most_kl:
            break
    means = {key: sum(entry[key] for entry in seen) / len(seen) for key in seen[0]}
    unexplained = (returns - old_values).var(correction=0) / returns.var(correction=0).clamp_min(1e-12)
    return {**means, "explained_variance": float(1 - unexplained)}


def train(
    network: ActorCritic,
    vectors: Tensor,
    sources: Sequence[Crossfit],
    settings: PpoSettings,
    seed: int,
    *,
    checkpoint: Path | None = None,
    every: int = 5,
    on_update: Callable[[int, dict[str, float]], None] | None = None,
) -> Curve:
    """Train in place; leaves the weights that did best on rows kept back, be they those before training.

    Args:
        network: Actor and critic.
        vectors: (N, F) representations of the prompts.
        sources: Rows to play, with estimators that have not learned from them; taken in turns.
        settings: All settings.
        seed: Seed of everything random.
        checkpoint: Folder that keeps the state of the training; an interrupted one goes on from there.
        every: Updates between two checkpoints.
        on_update: Called with the number of the update and its figures.

    Returns:
        The figures of every update, in order.
    """
    generator = torch.Generator().manual_seed(seed)
    parts = [_keep_back(source, settings, seed) for source in sources]
    critic = list(network.critic.parameters())
    rest = [value for key, value in network.named_parameters() if not key.startswith("critic.")]
    groups = [{"params": rest, "share": 1.0}, {"params": critic, "share": settings.critic_rate}]
    optimiser = torch.optim.Adam(groups, lr=settings.rate, eps=1e-5)
    progress = Progress(network, optimiser, generator)
    if not (checkpoint is not None and progress.resume(checkpoint)):
        progress.compete(_path_error(network, vectors, parts, settings))
    for number in range(len(progress.curve), settings.updates):
        for group in optimiser.param_groups:
            group["lr"] = settings.rate * group["share"] * (1.0 - 0.9 * number / settings.updates)
        source = parts[number % len(parts)][0]
        played = roll_out(
            network,
            vectors,
            source.estimator,
            draw_rows(source.rows, settings.episodes, generator),
            source.rows.weights.astype(np.float64),
            prompts=_curriculum(settings, number, len(vectors)),
            batch=settings.batch,
            kind=settings.reward,
            scale=settings.scale,
            intermediate=settings.intermediate,
            generator=generator,
        )
        figures = update(network, optimiser, played, vectors, settings, generator)
        figures |= {"return": float(played.rewards.sum(0).mean()), "error": played.error}
        figures["prompts"] = float(len(played.rewards) * played.actions.shape[1])
        if (number + 1) % max(settings.updates // settings.checks, 1) == 0:
            progress.compete(_path_error(network, vectors, parts, settings))
        if not math.isnan(progress.best_error):
            figures["validation_error"] = progress.best_error
        progress.curve.append(figures)
        if on_update is not None:
            on_update(number + 1, figures)
        if checkpoint is not None and ((number + 1) % every == 0 or number + 1 == settings.updates):
            progress.keep(checkpoint)
    network.load_state_dict(progress.best)
    return progress.curve


def _keep_back(source: Crossfit, settings: PpoSettings, seed: int) -> tuple[Crossfit, Crossfit | None]:
    """Rows to play and rows to choose the weights by."""
    count = round(settings.validation * source.rows.n_methods)
    if count < 8:
        return source, None
    order = np.random.default_rng([seed, 4]).permutation(source.rows.n_methods)
    played, kept = np.sort(order[count:]), np.sort(order[:count])
    return replace(source, rows=source.rows.rows(played)), replace(source, rows=source.rows.rows(kept))


def _path_error(
    network: ActorCritic,
    vectors: Tensor,
    parts: Sequence[tuple[Crossfit, Crossfit | None]],
    settings: PpoSettings,
) -> float:
    """Error of the benchmark score over episodes of the likeliest choices on rows kept back; NaN without."""
    errors = [
        roll_out(
            network,
            vectors,
            kept.estimator,
            kept.rows.values.astype(np.float64),
            kept.rows.weights.astype(np.float64),
            prompts=max(1, min(settings.prompts, len(vectors) // 2)),
            batch=settings.batch,
            kind=settings.reward,
            scale=settings.scale,
            intermediate=True,
            generator=None,
        ).path_error
        for _, kept in parts
        if kept is not None
    ]
    return float(np.mean(errors)) if errors else math.nan


def _curriculum(settings: PpoSettings, number: int, n_prompts: int) -> int:
    """Prompts per episode of an update: from `first_prompts` to `prompts` over the first half."""
    first = min(settings.first_prompts, settings.prompts)
    share = min(1.0, 2.0 * number / max(settings.updates, 1))
    wanted = first + math.ceil(share * (settings.prompts - first))
    return max(1, min(wanted, n_prompts // 2))


class Progress:
    """The state of a training: everything that a checkpoint must hold.

    Attributes:
        curve: Figures of the updates so far.
        best: The weights that did best on the rows kept back (the latest where there are none).
        best_error: Their error there; NaN where there are no such rows.
    """

    def __init__(self, network: ActorCritic, optimiser: torch.optim.Adam, generator: torch.Generator) -> None:
        self.network, self.optimiser, self.generator = network, optimiser, generator
        self.curve: Curve = []
        self.best: dict[str, Tensor] = {}
        self.best_error = math.nan

    def compete(self, error: float) -> None:
        """Keep the present weights where their error is the lowest yet."""
        if not error >= self.best_error:
            self.best = {key: value.clone() for key, value in self.network.state_dict().items()}
            self.best_error = error

    def keep(self, folder: Path) -> None:
        """Write a checkpoint beside the old one, then put it in its place."""
        tensors = {f"network.{key}": value.contiguous() for key, value in self.network.state_dict().items()}
        tensors |= {f"best.{key}": value.contiguous() for key, value in self.best.items()}
        for i, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"adam.{i}.{key}": value.clone() for key, value in state.items()}
        tensors["generator"] = self.generator.get_state()
        about = json.dumps({"curve": self.curve, "best_error": str(self.best_error)})
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f"{CHECKPOINT}.new"
        save_file(tensors, new, metadata={"about": about})
        new.replace(folder / f"{CHECKPOINT}.safetensors")

    def resume(self, folder: Path) -> bool:
        """Take a checkpoint back; False where there is none."""
        path = folder / f"{CHECKPOINT}.safetensors"
        if not path.exists():
            return False
        with safe_open(path, framework="pt") as opened:
            about = json.loads(opened.metadata()["about"])
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        self.network.load_state_dict(_under("network.", tensors))
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in _under("adam.", tensors).items():
            number, name = key.split(".")
            state.setdefault(int(number), {})[name] = value
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": state})
        self.generator.set_state(tensors["generator"])
        self.curve, self.best = about["curve"], _under("best.", tensors)
        self.best_error = float(about["best_error"])
        return True


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
