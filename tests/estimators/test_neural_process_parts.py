"""The neural process's parts: item parameters, network, likelihoods, batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import MultivariateNormal
from torch.distributions import kl_divergence as reference_kl

from assay.matrix import ScoreMatrix, ScoreType
from estimators._neural_process_factors import Factors, fit_factors, row_posterior
from estimators._neural_process_layout import TOKENS, Layout, score_kinds
from estimators._neural_process_losses import EDGE, ScoreHead, kl_divergence, marginal_logit, quadrature
from estimators._neural_process_network import ContextSet, Gaussian, Logits, NeuralProcessNetwork, Shape
from estimators._neural_process_training import (
    Model,
    Split,
    Training,
    draw_batch,
    gather_context,
    train,
    validation_loss,
)
from tests.estimators.matrices import planted

N, L = 12, 3


def shape(**changes) -> Shape:
    sizes = {
        "prompts": N,
        "features": 5,
        "tokens": TOKENS,
        "types": 1,
        "latent": L,
        "width": 16,
        "heads": 4,
        "induced": 3,
        "layers": 1,
        "x_size": 8,
        "y_size": 4,
        "attentive": True,
        "direct": True,
    }
    return Shape(**sizes | changes)


def network(**changes) -> NeuralProcessNetwork:
    """A network with no weight at its neutral start, so that every path is live."""
    torch.manual_seed(0)
    built = NeuralProcessNetwork(shape(**changes))
    built.features.normal_()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return built.eval()


def random_gaussian(rows: int = 4) -> Gaussian:
    root = torch.randn(rows, L, L, dtype=torch.float64).tril() + 2 * torch.eye(L, dtype=torch.float64)
    log_determinant = 2 * root.diagonal(dim1=1, dim2=2).abs().log().sum(-1)
    return Gaussian(torch.randn(rows, L, dtype=torch.float64), root, torch.linalg.inv(root), log_determinant)


def observed(columns: list[int], rows: int = 2) -> torch.Tensor:
    values = torch.full((rows, N), torch.nan)
    values[:, columns] = (torch.arange(rows * len(columns)) % 2).reshape(rows, -1).float()
    return values


@torch.no_grad()
def run(net: NeuralProcessNetwork, context: ContextSet, columns: torch.Tensor) -> tuple[Gaussian, Logits]:
    latent, tokens = net.encode(context)
    targets = torch.ones_like(columns, dtype=torch.bool)
    return latent, net.decode(columns, targets, context, tokens, latent)


class TestFactors:
    def test_recover_planted_probabilities(self):
        rng = np.random.default_rng(0)
        z, a, d = rng.standard_normal((400, 2)), rng.standard_normal((60, 2)), rng.standard_normal(60)
        truth = 1 / (1 + np.exp(-(z @ a.T + d)))
        values = (rng.random(truth.shape) < truth).astype(float)
        values[rng.random(truth.shape) < 0.2] = np.nan
        found = fit_factors(values, 2)
        mean, _ = row_posterior(found, np.nan_to_num(values), ~np.isnan(values), sweeps=10)
        fitted = 1 / (1 + np.exp(-(mean @ found.loadings.T + found.intercepts)))
        assert np.abs(fitted - truth).mean() < 0.1

    def test_a_new_column_joins_the_known_basis(self):
        values = planted("binary", rows=300, missing=0.0).values
        known = fit_factors(values[:, :-1], 2)
        start = Factors(np.vstack([known.loadings, np.zeros(2)]), np.append(known.intercepts, 0.0))
        grown = fit_factors(values, 2, sweeps=2, start=start)
        assert np.abs(grown.loadings[:-1] - known.loadings).max() < 0.3
        assert np.abs(grown.loadings[-1]).max() > 0.3


class TestNetwork:
    @pytest.mark.parametrize("changes", [{}, {"attentive": False}, {"direct": False}, {"types": 2}])
    def test_the_order_of_the_context_does_not_matter(self, changes):
        net = network(**changes)
        context = gather_context(observed([1, 4, 6, 7]))
        columns = torch.arange(N).expand(2, -1)
        order = torch.tensor([2, 0, 3, 1])
        turned = ContextSet(*(part[:, order] for part in context))
        latent, logits = run(net, context, columns)
        other_latent, other_logits = run(net, turned, columns)
        torch.testing.assert_close(latent.mean, other_latent.mean, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(logits.offset, other_logits.offset, atol=1e-4, rtol=1e-4)

    @pytest.mark.parametrize("attentive", [True, False])
    def test_the_order_of_the_targets_is_the_order_of_the_answers(self, attentive):
        net, context = network(attentive=attentive), gather_context(observed([1, 4]))
        order = torch.randperm(N)
        _, plain = run(net, context, torch.arange(N).expand(2, -1))
        _, turned = run(net, context, order.expand(2, -1))
        torch.testing.assert_close(plain.slope[:, order], turned.slope, atol=1e-4, rtol=1e-4)

    def test_padding_changes_nothing(self):
        net = network()
        short, long = observed([1, 4]), observed([0, 1, 4, 5, 8, 9])
        together = gather_context(torch.cat([short, long]))
        columns = torch.arange(N)
        _, alone = run(net, gather_context(short), columns.expand(2, -1))
        _, padded = run(net, together, columns.expand(4, -1))
        torch.testing.assert_close(alone.offset, padded.offset[:2], atol=1e-4, rtol=1e-4)

    @pytest.mark.parametrize("direct", [True, False])
    def test_nothing_observed_gives_a_finite_prior(self, direct):
        latent, logits = run(
            network(direct=direct), gather_context(observed([])), torch.arange(N).expand(2, -1)
        )
        assert torch.isfinite(latent.mean).all()
        assert torch.isfinite(logits.offset).all()

    def test_the_gaussian_is_consistent_with_itself(self):
        latent, _ = run(network(), gather_context(observed([1, 4, 9])), torch.arange(N).expand(2, -1))
        product = latent.root @ latent.inverse
        torch.testing.assert_close(product, torch.eye(L).expand(2, -1, -1), atol=1e-4, rtol=1e-4)
        covariance = latent.root @ latent.root.transpose(1, 2)
        torch.testing.assert_close(torch.logdet(covariance), latent.log_determinant, atol=1e-3, rtol=1e-3)

    def test_an_untrained_network_is_the_factor_model(self):
        values = planted("binary", rows=100, missing=0.0).values
        factors = fit_factors(values, 2)
        net = NeuralProcessNetwork(shape(prompts=30, latent=2))
        with torch.no_grad():
            net.loadings.copy_(torch.from_numpy(factors.loadings))
            net.intercepts.copy_(torch.from_numpy(factors.intercepts))
        seen = np.arange(30) < 10
        rows = torch.from_numpy(np.where(seen, values[:5], np.nan).astype(np.float32))
        latent, logits = run(net, gather_context(rows), torch.arange(30).expand(5, -1))
        mean, covariance = row_posterior(factors, values[:5], np.broadcast_to(seen, (5, 30)), sweeps=4)
        np.testing.assert_allclose(latent.mean.numpy(), mean, atol=2e-3)
        np.testing.assert_allclose((latent.root @ latent.root.transpose(1, 2)).numpy(), covariance, atol=2e-3)
        centre, _ = marginal_logit(logits, latent)
        np.testing.assert_allclose(centre.numpy(), mean @ factors.loadings.T + factors.intercepts, atol=1e-2)

    def test_sizes_survive_being_numbers(self):
        assert Shape.from_numbers(shape(attentive=False).as_numbers()) == shape(attentive=False)


class TestLikelihoods:
    def head(self, kind: int, levels: list[float]) -> ScoreHead:
        head = ScoreHead(N, [np.array(levels)])
        head.type_index.fill_(kind)
        return head

    def test_binary_is_bernoulli(self):
        eta, columns = torch.linspace(-3, 3, N)[None], torch.arange(N)[None]
        ones, zeros = torch.ones(1, N), torch.zeros(1, N)
        head = self.head(0, [0.0, 1.0])
        p = torch.sigmoid(eta)
        torch.testing.assert_close(head.log_likelihood(ones, eta, zeros, columns), p.log())
        torch.testing.assert_close(head.log_likelihood(zeros, eta, zeros, columns), (1 - p).log())

    def test_real_is_beta(self):
        rng = np.random.default_rng(0)
        y, eta, log_c = rng.uniform(EDGE, 1 - EDGE, N), rng.standard_normal(N), rng.standard_normal(N)
        level = 1 / (1 + np.exp(-eta))
        expected = stats.beta.logpdf(y, level * np.exp(log_c) + 1e-3, (1 - level) * np.exp(log_c) + 1e-3)
        parts = [torch.from_numpy(part)[None] for part in (y, eta, log_c)]
        found = self.head(1, [0.0, 1.0]).log_likelihood(*parts, torch.arange(N)[None])
        np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-6)

    def test_two_categories_are_bernoulli(self):
        eta, columns = torch.linspace(-3, 3, N)[None], torch.arange(N)[None]
        scores, zeros = (torch.arange(N) % 2).float()[None], torch.zeros(1, N)
        binary, categorical = self.head(0, [0.0, 1.0]), self.head(2, [0.0, 1.0])
        torch.testing.assert_close(
            categorical.log_likelihood(scores, eta, zeros, columns),
            binary.log_likelihood(scores, eta, zeros, columns),
            atol=1e-4,
            rtol=1e-4,
        )

    def test_even_categories_start_with_the_mean_of_the_logit(self):
        eta, columns = torch.linspace(-3, 3, N)[None], torch.arange(N)[None]
        mean, variance = self.head(2, [0.0, 0.25, 0.5, 0.75, 1.0]).moments(eta, torch.zeros(1, N), columns)
        torch.testing.assert_close(mean, torch.sigmoid(eta), atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(
            variance, torch.sigmoid(eta) * torch.sigmoid(-eta) / 4, atol=1e-4, rtol=1e-3
        )

    @pytest.mark.parametrize(("kind", "levels"), [(0, [0.0, 1.0]), (1, [0.0, 1.0]), (2, [0.0, 0.3, 1.0])])
    def test_draws_have_the_moments(self, kind, levels):
        head, rows = self.head(kind, levels), 4000
        eta = torch.linspace(-2, 2, N).expand(rows, -1)
        columns, log_c = torch.arange(N).expand(rows, -1), torch.full((rows, N), 1.0)
        draws = head.draw(eta, log_c, columns, np.random.default_rng(0))
        mean, variance = head.moments(eta, log_c, columns)
        torch.testing.assert_close(draws.mean(0), mean[0], atol=0.03, rtol=0.0)
        torch.testing.assert_close(draws.var(0), variance[0], atol=0.02, rtol=0.0)

    def test_kl_is_that_of_two_normals(self):
        torch.manual_seed(0)
        q, p = random_gaussian(), random_gaussian()
        first, second = (MultivariateNormal(g.mean, g.root @ g.root.transpose(1, 2)) for g in (q, p))
        torch.testing.assert_close(kl_divergence(q, p), reference_kl(first, second))

    def test_quadrature_integrates_against_a_standard_normal(self):
        nodes, weights = quadrature(7)
        assert math.isclose(sum(weights), 1.0)
        assert math.isclose(sum(w * x**2 for x, w in zip(nodes, weights, strict=True)), 1.0)
        assert math.isclose(sum(w * x**4 for x, w in zip(nodes, weights, strict=True)), 3.0)


class TestTraining:
    def split(self, missing: float = 0.2) -> Split:
        matrix = planted("binary", missing=missing)
        return Split(torch.from_numpy(matrix.values), torch.from_numpy(matrix.weights.astype(np.float32)))

    def test_context_and_targets_are_disjoint_and_present(self):
        split, generator = self.split(), torch.Generator().manual_seed(0)
        for _ in range(20):
            draw = draw_batch(split, Training(steps=1, batch=8, max_context=10, targets=6), generator)
            for row in range(8):
                sides = [
                    set(side.columns[row][side.mask[row]].tolist()) for side in (draw.context, draw.targets)
                ]
                assert not sides[0] & sides[1]
            assert not torch.isnan(draw.both.scores).any()

    def test_context_sizes_cover_the_range(self):
        split, generator = self.split(), torch.Generator().manual_seed(0)
        settings = Training(steps=1, batch=2, max_context=10, targets=6)
        sizes = {draw_batch(split, settings, generator).context.columns.shape[1] for _ in range(300)}
        assert sizes == set(range(11))

    def test_learns_what_a_blank_network_cannot_know(self):
        matrix = planted("binary", rows=120, missing=0.1)
        kinds, _, levels = score_kinds(matrix)
        layout = Layout.build(matrix, 2, "all")
        torch.manual_seed(0)
        net = NeuralProcessNetwork(shape(prompts=30, features=layout.features.shape[1]))
        net.features.copy_(torch.from_numpy(layout.features))
        model = Model(net, ScoreHead(len(kinds), levels))
        split = Split(torch.from_numpy(matrix.values), torch.from_numpy(matrix.weights.astype(np.float32)))
        held = Split(split.values[:30], split.weights)
        settings = Training(steps=50, batch=16, max_context=15, targets=15, rate=1e-2)
        before = train(model, held, held, Training(steps=1, rate=0.0, targets=15), 0)
        assert train(model, Split(split.values[30:], split.weights), held, settings, 0) < 0.93 * before

    @pytest.mark.parametrize("parts", [{"elbo": 1.0, "marginal": 0.0, "score": 0.0}, {}])
    def test_validation_tells_weights_apart_whatever_the_objective(self, parts):
        split, net = self.split(), network(prompts=30)
        model = Model(net, ScoreHead(30, [np.array([0.0, 1.0])] * 2))
        settings = Training(steps=1, batch=8, max_context=10, targets=10, **parts)
        before = validation_loss(model, split, settings, 0)
        with torch.no_grad():
            net.intercepts.add_(2.0)
        assert validation_loss(model, split, settings, 0) > before + 0.05


class TestLayout:
    def test_types_and_levels_follow_the_datasets(self):
        values = np.array([[0, 1, 0.5, 0.25], [1, 0, 0.1, 0.75]])
        matrix = ScoreMatrix.build(
            values,
            prompt_datasets=["b", "b", "r", "c"],
            score_types={"b": ScoreType.BINARY, "r": ScoreType.REAL, "c": ScoreType.CATEGORICAL},
        )
        kinds, groups, levels = score_kinds(matrix)
        assert kinds.tolist() == [0, 0, 1, 2]
        assert groups.tolist() == [0, 0, 1, 2]
        np.testing.assert_array_equal(levels[2], [0.25, 0.75])

    def test_columns_and_datasets_keep_their_place_when_others_join(self):
        matrix = planted("binary", missing=0.0)
        first = Layout.build(matrix, 2, "all")
        order = np.r_[29, 0:29]
        moved = ScoreMatrix.build(
            matrix.values[:, order],
            prompt_ids=[matrix.prompt_ids[i] for i in order],
            prompt_datasets=[matrix.datasets[matrix.dataset_index[i]] for i in order],
            embeddings=matrix.embeddings[order],
        )
        second = Layout.build(moved, 2, "all", first)
        np.testing.assert_array_equal(second.dataset_keys, first.dataset_keys)
        here, there = first.shared(second.prompt_keys)
        np.testing.assert_array_equal(order[here], there)
        np.testing.assert_array_equal(second.features[here][:, -2:], first.features[there][:, -2:])

    def test_prompts_without_scores_take_item_parameters_from_their_text(self):
        rng = np.random.default_rng(0)
        text = rng.standard_normal((200, 1))
        level = 1 / (1 + np.exp(-(rng.standard_normal((300, 1)) + 2.0 * text.T)))
        values = (rng.random(level.shape) < level).astype(float)
        values[:, 150:] = np.nan
        layout = Layout.build(ScoreMatrix.build(values, embeddings=text), 1, "all")
        assert np.corrcoef(layout.factors[150:, -1], text[150:, 0])[0, 1] > 0.9
