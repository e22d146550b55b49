"""The share of a study that is drawn among prompts without history."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assay.errors import BadInputError
from policies import POLICIES, MixedPolicy, Policy, PolicyState, SupportsRecommendation, make_policy
from tests.policies.factory import N_PROMPTS, build_policy, make_state

COLD = np.arange(N_PROMPTS) % 3 == 0
ESTIMATING = [name for name in POLICIES.names() if not isinstance(make_policy(name), SupportsRecommendation)]


def state(**changes: object) -> PolicyState:
    return replace(make_state(**changes), cold=COLD)  # type: ignore[arg-type]


def mixed(name: str = "expected-variance-reduction", share: float | None = 0.5) -> MixedPolicy:
    return MixedPolicy(build_policy(name), share=share)


def run(policy: Policy, total: int, batch: int) -> list[int]:
    """Columns in the order of acquisition, every answer coming in before the next step."""
    now, order = state(total=total), []
    while len(order) < total:
        chosen = policy.select(now, min(batch, total - len(order)))
        order += chosen.columns.tolist()
        now.scores[chosen.rows, chosen.columns] = 1.0
    return order


@pytest.mark.parametrize("name", ESTIMATING)
@pytest.mark.parametrize("batch", [1, 4])
def test_keeps_to_the_share_at_every_step(name: str, batch: int) -> None:
    policy = mixed(name)
    order = run(policy, 12, batch)
    assert len(set(order)) == 12
    if not policy.inner.needs_no_history:
        drawn = np.cumsum(COLD[order])[batch - 1 :: batch]
        wanted = 0.5 * np.arange(batch, 13, batch)
        assert (np.abs(drawn - wanted) <= 0.5).all()


@pytest.mark.parametrize("name", ESTIMATING)
def test_without_cold_prompts_it_is_the_inner_policy(name: str) -> None:
    for cold in (None, np.zeros(N_PROMPTS, dtype=bool)):
        alone = build_policy(name).select(make_state(known=3), 5)
        around = mixed(name).select(replace(make_state(known=3), cold=cold), 5)
        assert around.columns.tolist() == alone.columns.tolist()


def test_drawn_cells_record_their_probability_and_chosen_ones_do_not() -> None:
    chosen = mixed().select(state(known=2), 8)
    drawn = COLD[chosen.columns]
    assert drawn.any()
    assert not drawn.all()
    assert np.isfinite(chosen.probability[drawn]).all()
    assert np.isnan(chosen.probability[~drawn]).all()


def test_each_cell_is_drawn_as_often_as_it_says() -> None:
    expected, counts = np.zeros(N_PROMPTS), np.zeros(N_PROMPTS)
    for seed in range(600):
        chosen = mixed(share=1.0).select(state(rng=np.random.default_rng(seed)), 1)
        counts[chosen.columns] += 1
        expected[chosen.columns] = chosen.probability
    assert counts[COLD] / 600 == pytest.approx(expected[COLD], abs=0.06)


def test_datasets_get_their_part_of_the_share() -> None:
    order = run(mixed(share=1.0), 4, 2)
    datasets = make_state().dataset_index
    assert set(datasets[order]) == set(datasets[COLD])


def test_takes_what_is_left_where_one_side_runs_out() -> None:
    assert len(set(run(mixed(share=0.0), N_PROMPTS, 5))) == N_PROMPTS
    assert len(set(run(mixed(share=1.0), N_PROMPTS, 5))) == N_PROMPTS


def test_the_default_share_grows_with_the_weight() -> None:
    many = run(MixedPolicy(build_policy("uncertainty")), 10, 1)
    rare = replace(make_state(total=10), cold=np.arange(N_PROMPTS) == 3)
    chosen = MixedPolicy(build_policy("uncertainty")).select(rare, 10)
    assert (chosen.columns == 3).sum() == 1
    assert COLD[many].sum() > 0.4 * 10


def test_many_studies_at_once_choose_as_one_at_a_time() -> None:
    states = [{"known": 4, "seed": 1}, {"known": 9, "seed": 2}, {"known": N_PROMPTS}]
    together = mixed().select_each([state(**s) for s in states], 4)
    alone = [mixed().select(state(**s), 4) for s in states]
    assert [s.columns.tolist() for s in together] == [s.columns.tolist() for s in alone]


def test_a_share_outside_its_range_is_refused() -> None:
    with pytest.raises(BadInputError, match="share of prompts without history"):
        mixed(share=1.5)
