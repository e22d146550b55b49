"""Training of the neural process: random contexts and targets, the objective, averaged weights."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from estimators._neural_process_losses import ScoreHead, kl_divergence, marginal_logit, quadrature
from estimators._neural_process_network import ContextSet, Gaussian, Logits, NeuralProcessNetwork

__all__ = ["Model", "Split", "Training", "gather_context", "log_marginal", "train", "validation_loss"]

NODES, NODE_WEIGHTS = quadrature(7)


class Model(nn.Module):
    """The network and the likelihood, trained together."""

    def __init__(self, network: NeuralProcessNetwork, head: ScoreHead) -> None:
        super().__init__()
        self.network, self.head = network, head


@dataclass(frozen=True)
class Training:
    """Settings of a training run.

    Attributes:
        steps: Gradient steps.
        batch: Rows per step.
        max_context: Largest number of observed scores trained for.
        targets: Targets per row and step.
        rate: Peak learning rate (linear warm-up, cosine decay to a twentieth).
        item_rate: The same for the item parameters, as a share of `rate`.
        decay: Weight decay of the layers.
        elbo: Weight of the evidence lower bound (eq. 3), per target.
        marginal: Weight of the predictive likelihood under the prior, per target.
        score: Weight of the squared error of the targets' weighted mean.
        average: Decay of the running average of the weights.
        checks: How often at most the averaged weights are tried on the validation rows.
    """

    steps: int
    batch: int = 32
    max_context: int = 400
    targets: int = 128
    rate: float = 2e-3
    item_rate: float = 0.3
    decay: float = 0.01
    elbo: float = 0.5
    marginal: float = 1.0
    score: float = 10.0
    average: float = 0.998
    checks: int = 10


class Split(NamedTuple):
    """Scores to train on.

    Attributes:
        values: (M, N) scores, NaN where missing.
        weights: (N,) weight of each prompt in the benchmark score.
    """

    values: Tensor
    weights: Tensor


class Draw(NamedTuple):
    """A batch: disjoint context and targets of B rows, and both together."""

    context: ContextSet
    targets: ContextSet
    both: ContextSet


def gather_context(values: Tensor) -> ContextSet:
    """The present scores of (B, N) rows as padded pairs, in column order."""
    seen = ~torch.isnan(values)
    length = int(seen.sum(1).max())
    index = torch.argsort((~seen).to(torch.uint8), dim=1, stable=True)[:, :length]
    mask = seen.gather(1, index)
    return ContextSet(index, torch.where(mask, values.gather(1, index), 0.0), mask)


def draw_batch(split: Split, settings: Training, generator: torch.Generator) -> Draw:
    """Random rows, a context size log-uniform over 0..max_context, disjoint context and targets."""
    rows, prompts = split.values.shape
    picked = torch.randint(rows, (min(settings.batch, rows),), generator=generator)
    values = split.values[picked.to(split.values.device)]
    order = torch.rand(values.shape, generator=generator).to(values.device)
    order = torch.argsort(order + 2.0 * torch.isnan(values), dim=1)
    top = min(settings.max_context, prompts - 1)
    size = _context_size(float(torch.rand((), generator=generator)), top)
    index = order[:, : size + settings.targets]
    scores = values.gather(1, index)
    mask = ~torch.isnan(scores)
    both = ContextSet(index, torch.nan_to_num(scores), mask)
    parts = [ContextSet(*(part[:, cut] for part in both)) for cut in (slice(size), slice(size, None))]
    return Draw(parts[0], parts[1], both)


def _context_size(uniform: float, top: int) -> int:
    """0..top, log-uniform but for the smallest: a sixth of the draws is below 5 for a top of 400."""
    return round(4.0 * math.exp(uniform * math.log((top + 4.0) / 4.0))) - 4


def log_marginal(model: Model, logits: Logits, latent: Gaussian, targets: ContextSet) -> Tensor:
    """(B, T) log predictive density of each target, the latent integrated out by quadrature."""
    mean, std = marginal_logit(logits, latent)
    terms = [
        model.head.log_likelihood(
            targets.scores, mean + node * std, logits.log_concentration, targets.columns
        )
        + math.log(weight)
        for node, weight in zip(NODES, NODE_WEIGHTS, strict=True)
    ]
    return torch.logsumexp(torch.stack(terms), dim=0)


def expected(model: Model, logits: Logits, latent: Gaussian, index: Tensor) -> Tensor:
    """(B, T) expected scores, the latent integrated out."""
    mean, std = marginal_logit(logits, latent)
    parts = [
        weight * model.head.moments(mean + node * std, logits.log_concentration, index)[0]
        for node, weight in zip(NODES, NODE_WEIGHTS, strict=True)
    ]
    return torch.stack(parts).sum(0)


def objective(
    model: Model, draw: Draw, split: Split, settings: Training, generator: torch.Generator
) -> Tensor:
    """What training minimises: negative ELBO and predictive likelihood per target, and the score's error."""
    network, (context, targets, both) = model.network, draw
    prior, tokens = network.encode(context)
    logits = network.decode(
        targets.columns, targets.mask | ~targets.mask.any(1, keepdim=True), context, tokens, prior
    )
    present = targets.mask.to(prior.mean.dtype)
    count = present.sum().clamp_min(1.0)
    loss = prior.mean.new_zeros(())
    if settings.elbo:
        posterior, _ = network.encode(both)
        noise = torch.randn(posterior.mean.shape, generator=generator).to(posterior.mean.device)
        z = posterior.mean + (posterior.root @ noise[:, :, None])[:, :, 0]
        eta = logits.offset + (logits.slope @ z[:, :, None])[:, :, 0]
        fit = model.head.log_likelihood(targets.scores, eta, logits.log_concentration, targets.columns)
        loss = loss - settings.elbo * ((fit * present).sum() - kl_divergence(posterior, prior).sum()) / count
    if settings.marginal:
        loss = (
            loss - settings.marginal * (log_marginal(model, logits, prior, targets) * present).sum() / count
        )
    if settings.score:
        weight = split.weights[targets.columns] * present
        gap = (expected(model, logits, prior, targets.columns) - targets.scores) * weight
        error = gap.sum(1) / weight.sum(1).clamp_min(1e-9)
        loss = loss + settings.score * error.square().mean()
    return loss


@torch.no_grad()
def validation_loss(model: Model, split: Split, settings: Training, seed: int) -> float:
    """The mean objective over fixed draws from validation rows, without noise between calls.

    The ELBO is left out, as it is noisy; the predictive likelihood always counts, since with an objective of
    the ELBO alone there would be nothing left to choose weights by.
    """
    generator = torch.Generator().manual_seed(seed)
    total = 0.0
    draws = 16
    quiet = replace(settings, elbo=0.0, marginal=settings.marginal or 1.0)
    for _ in range(draws):
        draw = draw_batch(split, quiet, generator)
        total += float(objective(model, draw, split, quiet, generator))
    return total / draws


def train(model: Model, split: Split, validation: Split | None, settings: Training, seed: int) -> float:
    """Train in place; leaves the averaged weights that did best on the validation rows (else the last).

    Returns:
        The validation loss of the weights kept (NaN without validation rows).
    """
    generator = torch.Generator().manual_seed(seed)
    optimiser = _optimiser(model, settings)
    averaged = copy.deepcopy(model)
    best, kept = math.inf, None
    if validation is not None:
        best, kept = validation_loss(model, validation, settings, seed), copy.deepcopy(model.state_dict())
    every = max(settings.steps // max(min(settings.steps // 50, settings.checks), 1), 1)
    for step in range(1, settings.steps + 1):
        _rate(optimiser, settings, step)
        loss = objective(model, draw_batch(split, settings, generator), split, settings, generator)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        _average(averaged, model, min(settings.average, step / (step + 10.0)))
        if validation is not None and step % every == 0:
            found = validation_loss(averaged, validation, settings, seed)
            if found < best:
                best, kept = found, copy.deepcopy(averaged.state_dict())
    model.load_state_dict(averaged.state_dict() if kept is None else kept)
    return math.nan if validation is None else best


def _optimiser(model: Model, settings: Training) -> torch.optim.Optimizer:
    items = [model.network.loadings, model.network.intercepts]
    known = {id(parameter) for parameter in items}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in known]
    return torch.optim.AdamW(
        [
            {"params": rest, "weight_decay": settings.decay, "share": 1.0},
            {"params": items, "weight_decay": 0.0, "share": settings.item_rate},
        ],
        lr=settings.rate,
    )


def _rate(optimiser: torch.optim.Optimizer, settings: Training, step: int) -> None:
    warm = max(settings.steps // 20, 1)
    progress = min(step / warm, 1.0)
    cosine = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / settings.steps))
    for group in optimiser.param_groups:
        group["lr"] = settings.rate * progress * cosine * group["share"]


@torch.no_grad()
def _average(averaged: Model, model: Model, decay: float) -> None:
    for slow, fast in zip(averaged.parameters(), model.parameters(), strict=True):
        slow.lerp_(fast, 1.0 - decay)
