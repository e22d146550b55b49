"""The attentive neural process as an estimator (Li et al., Active Evaluation Acquisition, sec. 2.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.errors import BadInputError
from assay.matrix import FloatArray, ScoreMatrix
from estimators._base import Estimator, Linearization, Prediction, ScoreEstimate, check_observed
from estimators._folds import keep_at_random
from estimators._neural_process_layout import TOKENS, Layout, PromptFeatures, id_hashes, score_kinds
from estimators._neural_process_losses import ScoreHead, marginal_logit
from estimators._neural_process_network import Gaussian, Logits, NeuralProcessNetwork, Shape
from estimators._neural_process_training import (
    NODE_WEIGHTS,
    NODES,
    Model,
    Split,
    Training,
    gather_context,
    train,
)

__all__ = ["NeuralProcessEstimator"]

FEW_ROWS = 40  # below, set layers overfit (appendix A.2): linear ones take their place
CELLS = 64 * 1100  # rows x prompts per forward pass, so that memory does not grow with the batch
LATENT_DRAWS = 64
WARM_STEPS = 0.15  # of the cold steps: a warm refit takes at most a quarter of the time
KNOTS = (0, 5, 12, 25, 50, 100, 200, 400)


class State(NamedTuple):
    """What a forward pass says of b rows: the latent's prior given the context, and all N logits."""

    rows: slice
    unseen: Tensor
    columns: Tensor
    latent: Gaussian
    logits: Logits


class NeuralProcessEstimator(Estimator):
    """Attentive latent neural process: learns to predict a row from any subset of it.

    A new row needs no fitting: one forward pass over its acquired scores gives a Gaussian over the method's
    latent and, by attention from every prompt to the acquired ones, the distribution of all other scores.
    Prompts are represented by what the history says of them (item parameters of a logistic factor model) and
    by their text (the matrix's embeddings, where it has them), so that new prompts can be predicted too.

    Args:
        steps: Gradient steps of a cold fit; a warm one takes 15 % of them.
        batch: Rows per step.
        targets: Targets per row and step.
        max_context: Largest number of acquired scores trained for; more may be given.
        rate: Peak learning rate.
        latent: Latent dimensions, or "auto": 2 to 16, one for every 20 rows.
        width, heads, induced, layers: Sizes of the set layers (encoder and decoder alike).
        attentive: Set layers and attention (True) or linear layers (False); "auto" is linear below 40 rows.
        features: "all", or only those from the history ("score") or from the text ("text").
        factor_path: Start the latent from a factor model's posterior (False: the paper's plain network).
        elbo, marginal, score: Weights of the parts of the objective (see `Training`).
        validation: Share of the rows held out to choose the weights and to calibrate on; 0 for none.
        device: "cpu", "cuda", or "auto" for CUDA where present.
        seed: Seed of everything random.
    """

    name: ClassVar[str] = "neural-process"

    def __init__(
        self,
        *,
        steps: int = 1500,
        batch: int = 32,
        targets: int = 128,
        max_context: int = 400,
        rate: float = 2e-3,
        latent: int | Literal["auto"] = "auto",
        width: int = 32,
        heads: int = 4,
        induced: int = 8,
        layers: int = 2,
        attentive: bool | Literal["auto"] = "auto",
        features: PromptFeatures = "all",
        factor_path: bool = True,
        elbo: float = 0.5,
        marginal: float = 1.0,
        score: float = 10.0,
        validation: float = 0.08,
        device: str = "auto",
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        self.steps, self.batch, self.targets, self.max_context = steps, batch, targets, max_context
        self.rate, self.latent = rate, latent
        self.width, self.heads, self.induced, self.layers = width, heads, induced, layers
        self.attentive, self.features, self.factor_path = attentive, features, factor_path
        self.elbo, self.marginal, self.score = elbo, marginal, score
        self.validation, self.device = validation, device

    def params(self) -> dict[str, Any]:
        """See `Estimator.params`."""
        keys = (
            "steps batch targets max_context rate latent width heads induced layers attentive features"
            " factor_path elbo marginal score validation device seed"
        )
        return {key: getattr(self, key) for key in keys.split()}

    def affordable_to_refit(self) -> bool:
        """No: a fit takes minutes."""
        return False

    def _fit(self, history: ScoreMatrix, warm_start: Self | None) -> None:
        self._check_params()
        kinds, groups, levels = score_kinds(history)
        held = self._held_out(history)
        kept = history.rows(~held)
        rank = self._rank(kept) if warm_start is None else warm_start.layout_.factors.shape[1] - 1
        previous = None if warm_start is None else warm_start.layout_
        self.layout_: Layout = Layout.build(kept, rank, self.features, previous)
        self.std_scales_: NDArray[np.float64] = np.ones(len(KNOTS))
        device = self._device()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.model_: Model = self._build(kinds, groups, levels, kept.n_methods)
        if warm_start is not None:
            self._take_over(warm_start)
        self.model_.to(device)
        self.validation_loss_: float = train(
            self.model_,
            self._split(kept, device),
            self._split(history.rows(held), device) if held.any() else None,
            self._training(warm=warm_start is not None),
            self.seed,
        )
        self.model_.eval()
        if held.sum() >= 10:
            self.std_scales_ = self._calibrate(history.values[held].astype(np.float64))

    def _check_params(self) -> None:
        if self.steps < 1 or self.batch < 1 or self.targets < 1 or self.max_context < 1:
            raise BadInputError("steps, batch, targets and max_context must be at least 1")
        if self.width % self.heads:
            raise BadInputError(f"the width {self.width} must be a multiple of the {self.heads} heads")

    def _held_out(self, history: ScoreMatrix) -> NDArray[np.bool_]:
        """(M,) rows kept from training; none where there are so few rows that each is needed."""
        held = np.zeros(history.n_methods, dtype=bool)
        scored = np.nonzero(history.observed.any(axis=1))[0]
        if self.validation > 0 and len(scored) >= 20:
            count = min(max(round(self.validation * len(scored)), 4), 200)
            # By a hash of the id, so that a warm refit does not validate on rows learned from before.
            keys = id_hashes([f"{self.seed}/{history.method_ids[i]}" for i in scored])
            held[scored[np.argsort(keys, kind="stable")[:count]]] = True
        return held

    def _rank(self, history: ScoreMatrix) -> int:
        if self.latent != "auto":
            return self.latent
        return int(np.clip(history.n_methods // 20, 2, 16))

    def _device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    def _shape(self, kinds: NDArray[np.int64], rows: int) -> Shape:
        attentive = rows >= FEW_ROWS if self.attentive == "auto" else self.attentive
        return Shape(
            prompts=len(kinds),
            features=self.layout_.features.shape[1],
            tokens=TOKENS,
            types=len(np.unique(kinds)),
            latent=self.layout_.factors.shape[1] - 1,
            width=self.width,
            heads=self.heads,
            induced=self.induced,
            layers=self.layers,
            x_size=16,
            y_size=16,
            attentive=attentive,
            direct=self.factor_path,
        )

    def _build(
        self,
        kinds: NDArray[np.int64],
        groups: NDArray[np.int64],
        levels: list[NDArray[np.float64]],
        rows: int,
    ) -> Model:
        network = NeuralProcessNetwork(self._shape(kinds, rows))
        head = ScoreHead(len(kinds), levels)
        discrete = torch.from_numpy(kinds == 2)
        network.token_base.copy_(2 * discrete)
        network.token_steps.copy_(1 + (TOKENS - 4) * discrete)
        network.features.copy_(torch.from_numpy(self.layout_.features))
        for module in (network, head):
            module.type_index.copy_(torch.from_numpy(kinds))
        head.group.copy_(torch.from_numpy(groups))
        with torch.no_grad():
            network.intercepts.copy_(torch.from_numpy(self.layout_.factors[:, -1]))
            if self.factor_path:
                network.loadings.copy_(torch.from_numpy(self.layout_.factors[:, :-1]))
        return Model(network, head)

    def _take_over(self, previous: Self) -> None:
        """Copy the previous network's weights; what belongs to a prompt goes to the prompt of the same id."""
        old, new = previous.model_.state_dict(), self.model_.state_dict()
        learned = dict(self.model_.named_parameters())
        here, there = (torch.from_numpy(part) for part in previous.layout_.shared(self.layout_.prompt_keys))
        for key, value in new.items():
            source = old[key].cpu() if key in old else value
            if key in ("network.loadings", "network.intercepts"):
                value[here] = source[there]
            elif key == "network.x_layer.weight":
                value[:] = 0.0  # datasets that the previous network did not know start without influence
                value[:, : source.shape[1]] = source
            elif key in learned and value.shape == source.shape:
                value.copy_(source)
        self.model_.load_state_dict(new)

    def _split(self, history: ScoreMatrix, device: torch.device) -> Split:
        scored = history.values[history.observed.any(axis=1)]
        weights = torch.from_numpy(history.weights.astype(np.float32))
        return Split(torch.from_numpy(scored).to(device), weights.to(device))

    def _training(self, *, warm: bool) -> Training:
        return Training(
            steps=max(round(self.steps * WARM_STEPS), 1) if warm else self.steps,
            batch=self.batch,
            max_context=self.max_context,
            targets=self.targets,
            rate=self.rate * (0.5 if warm else 1.0),
            elbo=self.elbo,
            marginal=self.marginal,
            score=self.score,
        )

    def _chunks(self, observed: NDArray[np.float64]) -> Iterator[tuple[slice, Tensor]]:
        device = self.model_.network.features.device
        step = max(CELLS // observed.shape[1], 1)
        for start in range(0, len(observed), step):
            rows = slice(start, min(start + step, len(observed)))
            yield rows, torch.from_numpy(observed[rows].astype(np.float32)).to(device)

    def _forward(self, observed: NDArray[np.float64]) -> Iterator[State]:
        """Run the network over rows, some at a time; to be called without gradients."""
        for rows, values in self._chunks(observed):
            context = gather_context(values)
            latent, tokens = self.model_.network.encode(context)
            unseen = torch.isnan(values)
            columns = torch.arange(values.shape[1], device=values.device).expand(len(values), -1)
            # Prompts look at the unobserved ones, as in training; with none left they look at all.
            targets = unseen | ~unseen.any(1, keepdim=True)
            logits = self.model_.network.decode(columns, targets, context, tokens, latent)
            yield State(rows, unseen, columns, latent, logits)

    def _moments(self, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Mean of each score, variance given the latent (averaged), variance of the mean: (b, N) each."""
        mean, std = marginal_logit(state.logits, state.latent)
        first, second, noise = (torch.zeros_like(mean) for _ in range(3))
        for node, weight in zip(NODES, NODE_WEIGHTS, strict=True):
            level, spread = self.model_.head.moments(
                mean + node * std, state.logits.log_concentration, state.columns
            )
            first, second, noise = first + weight * level, second + weight * level**2, noise + weight * spread
        return first.clamp(0.0, 1.0), noise.clamp_min(0.0), (second - first**2).clamp_min(0.0)

    @torch.no_grad()
    def predict(self, observed: FloatArray) -> Prediction:
        """See `Estimator.predict`; one forward pass, the latent integrated out by quadrature."""
        observed = check_observed(self, observed)
        mean, variance = observed.copy(), np.zeros(observed.shape)
        for state in self._forward(observed):
            level, noise, spread = self._moments(state)
            unseen = state.unseen.cpu().numpy()
            mean[state.rows][unseen] = _array(level)[unseen]
            variance[state.rows][unseen] = _array(noise + spread)[unseen]
        return Prediction(mean, variance)

    @torch.no_grad()
    def sample(self, observed: FloatArray, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Latents from their Gaussian, then scores from their distributions: (B, n, N)."""
        observed = check_observed(self, observed)
        draws = np.repeat(observed[:, None], n, axis=1)
        for state in self._forward(observed):
            unseen = state.unseen.cpu().numpy()
            for i in range(n):
                eta = self._latent_logit(state, rng.standard_normal(state.latent.mean.shape))
                drawn = _array(self.model_.head.draw(eta, state.logits.log_concentration, state.columns, rng))
                draws[state.rows, i][unseen] = drawn[unseen]
        return np.clip(draws, 0.0, 1.0)

    def _latent_logit(self, state: State, noise: NDArray[np.float64]) -> Tensor:
        """(b, N) logits at latents drawn with the given standard normal noise (b, L)."""
        standard = torch.from_numpy(noise).to(state.latent.mean)
        z = state.latent.mean + (state.latent.root @ standard[:, :, None])[:, :, 0]
        return state.logits.offset + (state.logits.slope @ z[:, :, None])[:, :, 0]

    def benchmark_score(self, observed: FloatArray) -> ScoreEstimate:
        """See `Estimator.benchmark_score`; the standard deviation is calibrated on held-out rows."""
        observed = check_observed(self, observed)
        mean, std = self._score(observed)
        count = (~np.isnan(observed)).sum(axis=1)
        return ScoreEstimate(mean, std * np.interp(np.log1p(count), np.log1p(KNOTS), self.std_scales_))

    @torch.no_grad()
    def _score(self, observed: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Benchmark score and its uncalibrated standard deviation, by latent samples common to all rows."""
        noise = np.random.default_rng(self.seed).standard_normal(
            (LATENT_DRAWS // 2, self.model_.network.shape.latent)
        )
        noise = np.concatenate([noise, -noise])
        mean, variance = np.nansum(observed * self.weights_, axis=1), np.zeros(len(observed))
        for state in self._forward(observed):
            weights = torch.from_numpy(self.weights_).to(state.latent.mean) * state.unseen
            level, within, _ = self._moments(state)
            mean[state.rows] += _array((level * weights).sum(1))
            totals = torch.stack([self._total(state, weights, row) for row in noise])
            variance[state.rows] = _array(totals.var(0, correction=0) + (within * weights**2).sum(1))
        return np.clip(mean, 0.0, 1.0), np.sqrt(variance)

    def _total(self, state: State, weights: Tensor, noise: NDArray[np.float64]) -> Tensor:
        eta = self._latent_logit(state, np.broadcast_to(noise, state.latent.mean.shape).copy())
        level, _ = self.model_.head.moments(eta, state.logits.log_concentration, state.columns)
        return (level * weights).sum(1)

    def _calibrate(self, held: NDArray[np.float64]) -> NDArray[np.float64]:
        """(knots,) factors that make the score's standard deviation fit the errors on held-out rows."""
        rng = np.random.default_rng(self.seed)
        scales = np.ones(len(KNOTS))
        complete = held[~np.isnan(held).any(axis=1)]
        if len(complete) < 10:
            return scales
        for i, count in enumerate(KNOTS):
            mean, std = self._score(keep_at_random(complete, min(count, held.shape[1] // 2), rng))
            ratio = (mean - complete @ self.weights_) / np.maximum(std, 1e-6)
            # Ten pseudo-rows at 1 keep few held-out rows from deciding much.
            scales[i] = np.sqrt((np.sum(ratio**2) + 10.0) / (len(complete) + 10.0))
        return np.clip(scales, 0.5, 2.0)

    @torch.no_grad()
    def linearize(self, observed: FloatArray) -> Linearization:
        """See `SupportsLinearization`; derivatives by the latent at its mean."""
        observed = check_observed(self, observed)
        b, n = observed.shape
        size = self.model_.network.shape.latent
        mean, noise = np.zeros((b, n)), np.zeros((b, n))
        loadings, covariance = np.zeros((b, n, size)), np.zeros((b, size, size))
        for state in self._forward(observed):
            level, within, _ = self._moments(state)
            centre, std = marginal_logit(state.logits, state.latent)
            slope = self._derivative(state, centre, std)
            mean[state.rows], noise[state.rows] = _array(level), _array(within.clamp_min(1e-6))
            loadings[state.rows] = _array(slope[:, :, None] * state.logits.slope)
            covariance[state.rows] = _array(state.latent.root @ state.latent.root.transpose(1, 2))
        return Linearization(np.where(np.isnan(observed), mean, observed), loadings, covariance, noise)

    def _derivative(self, state: State, centre: Tensor, std: Tensor) -> Tensor:
        """(b, N) expected derivative of the score by its logit, E[m'] = E[m(eta) (eta - centre)] / std^2."""
        total = torch.zeros_like(centre)
        for node, weight in zip(NODES, NODE_WEIGHTS, strict=True):
            level, _ = self.model_.head.moments(
                centre + node * std, state.logits.log_concentration, state.columns
            )
            total = total + weight * node * level
        return total / std.clamp_min(1e-3)

    @torch.no_grad()
    def prompt_features(self) -> NDArray[np.float64]:
        """(N, 16 + L + 1) the network's representation of each prompt, and its item parameters."""
        network = self.model_.network
        parts = [network.prompts(), network.loadings, network.intercepts[:, None]]
        return _array(torch.cat(parts, dim=1))

    @torch.no_grad()
    def latent_posterior(self, observed: FloatArray) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and log-variance (B, L) of the latent given what was acquired (the prior network of eq. 2)."""
        observed = check_observed(self, observed)
        size = self.model_.network.shape.latent
        mean, log_variance = np.zeros((len(observed), size)), np.zeros((len(observed), size))
        for rows, values in self._chunks(observed):
            latent, _ = self.model_.network.encode(gather_context(values))
            mean[rows] = _array(latent.mean)
            log_variance[rows] = _array(latent.root.square().sum(-1).log())
        return mean, log_variance

    def _arrays(self) -> dict[str, NDArray[Any]]:
        state = {f"model.{key}": value.cpu().numpy() for key, value in self.model_.state_dict().items()}
        shape = np.array(self.model_.network.shape.as_numbers(), dtype=np.int64)
        return {**state, **self.layout_.arrays(), "shape": shape, "std_scales": self.std_scales_}

    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.layout_ = Layout.restore(arrays)
        self.std_scales_ = arrays["std_scales"]
        shape = Shape.from_numbers([int(value) for value in arrays["shape"]])
        levels = arrays["model.head.values"].shape
        model = Model(
            NeuralProcessNetwork(shape), ScoreHead(shape.prompts, [np.zeros(levels[1])] * levels[0])
        )
        state = {
            key.removeprefix("model."): torch.tensor(value)
            for key, value in arrays.items()
            if "model." in key
        }
        model.load_state_dict(state)
        self.model_ = model.to(self._device()).eval()


def _array(tensor: Tensor) -> NDArray[np.float64]:
    return cast("NDArray[np.float64]", tensor.cpu().numpy().astype(np.float64))
