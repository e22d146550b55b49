"""What earlier models say of the templates, and what the next study makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from assay.errors import BadInputError
from assay.matrix import ScoreMatrix
from estimators import make_estimator
from estimators.distribution import score_distribution, wasserstein
from estimators.template_effects import template_effects

TEMPLATES, PROMPTS, EARLIER = 30, 40, 5


def planted(
    rng: np.random.Generator, effects: np.ndarray, easiness: np.ndarray, own: float = 0.2
) -> np.ndarray:
    """One model's (T, N) scores by all templates."""
    theta = rng.normal(0.5, 1.0) + effects + rng.normal(0.0, own, len(effects))
    chance = 1.0 / (1.0 + np.exp(-(theta[:, None] + easiness)))
    return (rng.random(chance.shape) < chance).astype(float)


def world(seed: int) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    effects, easiness = rng.normal(0.0, 0.8, TEMPLATES), rng.normal(0.0, 1.2, PROMPTS)
    models = [planted(rng, effects, easiness) for _ in range(EARLIER + 1)]
    return effects, models[:-1], models[-1]


def earlier_effects(models: list[np.ndarray], share: float = 0.3) -> np.ndarray:
    rng = np.random.default_rng(0)
    scores = np.concatenate(models)
    scores = np.where(rng.random(scores.shape) < share, scores, np.nan)
    model = np.repeat(np.arange(len(models)), TEMPLATES)
    return template_effects(
        scores, model.tolist(), np.tile(np.arange(TEMPLATES), len(models)).tolist(), TEMPLATES
    )


def test_effects_are_found_and_shrunk_where_little_is_known() -> None:
    effects, models, _ = world(0)
    found, little = earlier_effects(models), earlier_effects(models[:1], 0.05)
    assert np.corrcoef(found, effects)[0, 1] > 0.75
    assert np.abs(found - (effects - effects.mean())).mean() < 0.4
    assert little.std() < found.std()


def test_unknown_templates_have_no_effect_and_nothing_says_nothing() -> None:
    found = template_effects(np.array([[1.0, 0.0], [1.0, 1.0]]), [7, 9], [0, 0], 3)
    assert found[1] == found[2] == 0.0
    np.testing.assert_array_equal(template_effects(np.zeros((0, 4)), [], [], 2), np.zeros(2))
    with pytest.raises(BadInputError, match="numbered from 0 to 1"):
        template_effects(np.zeros((1, 4)), [0], [2], 2)


def test_templates_that_nobody_was_asked_by_borrow_from_those_that_look_alike() -> None:
    rng = np.random.default_rng(3)
    features = rng.normal(size=(TEMPLATES, 2))
    effects, easiness = features @ [0.8, -0.4], rng.normal(0.0, 1.2, PROMPTS)
    known = TEMPLATES * 2 // 3
    scores = np.concatenate([planted(rng, effects[:known], easiness) for _ in range(EARLIER)])
    model, template = np.repeat(np.arange(EARLIER), known), np.tile(np.arange(known), EARLIER)
    found = template_effects(scores, model.tolist(), template.tolist(), TEMPLATES, features)
    assert np.corrcoef(found[known:], effects[known:])[0, 1] > 0.8
    blind = template_effects(scores, model.tolist(), template.tolist(), TEMPLATES)
    np.testing.assert_array_equal(blind[known:], 0.0)


def test_the_next_models_distribution_is_closer_with_what_others_showed() -> None:
    told, plain = [], []
    for seed in range(4):
        _, models, fresh = world(seed)
        history = ScoreMatrix.build(np.stack([model.mean(axis=0) > 0.5 for model in models]).astype(float))
        seen = np.random.default_rng(seed).random(fresh.shape) < 0.06
        observed, truth = np.where(seen, fresh, np.nan), fresh.mean(axis=1)
        knowing = make_estimator("x-pirt-history").fit(history).with_rows(earlier_effects(models)[:, None])
        for kept, estimator in ((told, knowing), (plain, make_estimator("x-pirt").fit(history))):
            found = score_distribution(estimator, observed, np.random.default_rng(0))
            kept.append((wasserstein(found.order, truth), np.abs(found.scores - truth).mean()))
    assert np.mean(told, axis=0)[1] < 0.95 * np.mean(plain, axis=0)[1]
