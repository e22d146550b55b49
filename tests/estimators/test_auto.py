import numpy as np
import pytest
from scipy.special import ndtr

from assay.errors import BadInputError
from estimators import make_estimator
from estimators._artifact import load_estimator
from estimators._scoring import ranked_probability_score
from tests.data import real_matrix
from tests.estimators.matrices import partly, planted


def test_chooses_the_candidate_with_the_least_held_out_error_and_keeps_the_table(tmp_path):
    history = planted("binary", rows=90)
    estimator = make_estimator("auto", candidates=["aggregate", "linear-gaussian"], budget=8, design="random")
    estimator.fit(history)
    errors = {line["estimator"]: line["error"] for line in estimator.table_}
    assert errors["linear-gaussian"] < errors["aggregate"]
    assert estimator.chosen_.name == "linear-gaussian"
    assert estimator.reason_.startswith("linear-gaussian: loss")
    assert "8 prompts" in estimator.reason_
    assert "next aggregate" in estimator.reason_
    estimator.save(tmp_path)
    loaded = load_estimator(tmp_path)
    assert (loaded.reason_, loaded.table_) == (estimator.reason_, estimator.table_)
    observed = partly(history.values[:3], 5)
    np.testing.assert_array_equal(
        loaded.benchmark_score(observed).mean, estimator.chosen_.benchmark_score(observed).mean
    )


def test_ranked_probability_score_matches_its_definition():
    grid = np.linspace(-8.0, 8.0, 160_001)
    error, std = np.array([0.3, -1.2]), np.array([0.5, 2.0])
    for e, s, score in zip(error, std, ranked_probability_score(error, std), strict=True):
        below = ndtr(grid / s)
        integral = ((below - (grid >= e)) ** 2).sum() * (grid[1] - grid[0])
        assert score == pytest.approx(integral, rel=1e-3)
    assert ranked_probability_score(np.array([-0.25]), np.zeros(1))[0] == pytest.approx(0.25)


def test_warm_start_keeps_its_choice_until_the_history_has_grown(monkeypatch):
    history = planted("binary", rows=90)
    first = make_estimator("auto", candidates=["aggregate", "linear-gaussian"]).fit(history.rows(range(60)))

    def refuse(*_):
        raise AssertionError("compared again")

    monkeypatch.setattr(type(first), "_compare", refuse)
    again = make_estimator("auto", **first.params()).fit(history.rows(range(70)), warm_start=first)
    assert (again.winner_, again.reason_) == (first.winner_, first.reason_)
    with pytest.raises(AssertionError, match="compared again"):
        make_estimator("auto", **first.params()).fit(history, warm_start=first)


def test_says_when_there_is_too_little_to_compare_on():
    estimator = make_estimator("auto").fit(planted("binary", rows=5))
    assert "too little to compare on" in estimator.reason_
    assert estimator.table_ == []


def test_cannot_linearise_what_the_chosen_one_cannot():
    estimator = make_estimator("auto", candidates=["ridge"]).fit(planted("binary"))
    with pytest.raises(BadInputError, match="'ridge' cannot be linearised"):
        estimator.linearize(np.full((1, 30), np.nan))


@pytest.mark.parametrize(
    "params", [{"design": "clairvoyant"}, {"budget": 0}, {"candidates": []}, {"candidates": ["nothing"]}]
)
def test_refuses_bad_settings(params):
    with pytest.raises(Exception, match=r"design|budget|choose|unknown"):
        make_estimator("auto", **params).fit(planted("binary"))


@pytest.mark.data
def test_chooses_a_linear_estimator_where_methods_are_few():
    matrix = real_matrix("alpacaeval", "prompt").matrix
    estimator = make_estimator("auto", budget=50).fit(matrix.rows(range(0, 58, 2)))
    assert estimator.chosen_.name == "linear-gaussian"
