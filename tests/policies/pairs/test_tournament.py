"""The tournament of several methods, and Bradley-Terry strengths."""

from __future__ import annotations

import numpy as np
import pytest

from assay.errors import UsageError
from policies.pairs import Tournament, bradley_terry, pairs_of

M, N = 6, 120


def verdicts(seed: int = 0) -> np.ndarray:
    """(P, N) verdicts between methods of planted strengths, the last the best."""
    rng = np.random.default_rng(seed)
    worth = np.linspace(-1.0, 1.0, M)[:, None] + rng.normal(size=(M, N))
    return np.array([np.sign(worth[a] - worth[b]) for a, b in pairs_of(M)])


def play(seed: int, budget: int) -> tuple[Tournament, np.ndarray, np.ndarray]:
    game, rng, known = Tournament(M, N), np.random.default_rng(seed), verdicts()
    counts, sums = np.zeros(len(known), dtype=np.intp), np.zeros(len(known))
    while counts.sum() < budget:
        for pair in game.choose(sums, counts, min(10, budget - int(counts.sum())), rng):
            sums[pair] += known[pair, counts[pair]]
            counts[pair] += 1
    return game, sums, counts


def test_every_pair_is_looked_at_then_the_leaders() -> None:
    game, _, counts = play(0, 300)
    assert counts.min() >= game.first
    of = np.zeros(M)
    for (a, b), n in zip(pairs_of(M), counts, strict=True):
        of[a], of[b] = of[a] + n, of[b] + n
    assert set(np.argsort(-of)[:2].tolist()) == {M - 2, M - 1}


def test_the_best_is_found_with_a_third_of_the_verdicts() -> None:
    found = []
    for seed in range(10):
        game, sums, counts = play(seed, len(pairs_of(M)) * N // 3)
        found.append(game.rank(sums, counts).best == M - 1)
    assert np.mean(found) >= 0.9


def test_a_full_round_robin_is_certain_and_buys_nothing_more() -> None:
    known = verdicts()
    game, counts = Tournament(M, N), np.full(len(known), N)
    ranking = game.rank(known.sum(axis=1), counts)
    np.testing.assert_allclose(ranking.low, ranking.high)
    assert ranking.probability_best[ranking.best] == 1.0
    assert ranking.best_rank.tolist() == ranking.worst_rank.tolist()
    assert game.choose(known.sum(axis=1), counts, 5, np.random.default_rng(0)) == []


def test_rank_ranges_hold_the_true_rank() -> None:
    truth = Tournament(M, N).rank(verdicts().sum(axis=1), np.full(15, N))
    rank = np.argsort(np.argsort(-truth.strength)) + 1
    for seed in range(10):
        game, sums, counts = play(seed, 200)
        ranking = game.rank(sums, counts)
        assert ((ranking.best_rank <= rank) & (rank <= ranking.worst_rank)).all()


def test_bradley_terry_recovers_odds_and_ranks_a_balanced_table_by_wins() -> None:
    odds = np.array([[0.0, 100.0], [300.0, 0.0]])
    strength, covariance = bradley_terry(odds)
    assert strength[1] - strength[0] == pytest.approx(np.log(3), abs=0.05)
    assert covariance[0, 0] > 0
    unanimous, _ = bradley_terry(np.array([[0.0, 9.0], [0.0, 0.0]]))
    assert np.isfinite(unanimous).all()
    game, known = Tournament(M, N), verdicts()
    ranking = game.rank(known.sum(axis=1), np.full(len(known), N))
    assert np.argsort(ranking.bradley_terry).tolist() == np.argsort(ranking.strength).tolist()


def test_same_generator_same_choice_and_nonsense_is_refused() -> None:
    game, sums, counts = play(1, 100)
    one, two = (game.choose(sums, counts, 20, np.random.default_rng(3)) for _ in range(2))
    assert one == two
    with pytest.raises(UsageError, match="no tournament of 1 methods"):
        Tournament(1, 10)
