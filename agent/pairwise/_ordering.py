"""Ordering a comparison: which judge, which policy, and whether they fit."""

from __future__ import annotations

from typing import Any

from sqlmodel import Session

from agent.pairwise._choosing import TOURNAMENT
from agent.pairwise._reading import PEOPLE
from agent.registration import check_model
from assay.errors import UsageError
from assay.plugins import split_name
from policies.pairs import PAIR_POLICIES, make_pair_policy
from storage import catalog
from storage.tables import Scorer
from workers.judges import JUDGES, make_judge, pin
from workers.work import spec_of

__all__ = ["DEFAULT_PAIR_POLICY", "CompareObjective", "judge_scorer"]

#: More success than `random` at every number of verdicts, and a promise that holds: docs/decisions/0011.
DEFAULT_PAIR_POLICY = "prediction-powered"


class CompareObjective:
    """What the objective "compare" asks of a study's policy and methods."""

    def policy(self, wanted: str | None, methods: int) -> str:
        """The policy's name, checked.

        Raises:
            UsageError: It is unknown, or does not fit the number of methods.
        """
        if methods < 2:
            raise UsageError("the objective 'compare' needs at least two methods", "name them with --methods")
        if methods > 2:
            if wanted not in (None, TOURNAMENT):
                raise UsageError(
                    f"policy '{wanted}' compares two methods, not {methods}",
                    f"leave it out: more than two are compared by the {TOURNAMENT}",
                )
            return TOURNAMENT
        name = wanted or DEFAULT_PAIR_POLICY
        PAIR_POLICIES.get(name)
        make_pair_policy(name)
        return name


def judge_scorer(session: Session, named: str | None) -> Scorer:
    """The judge as a pinned scorer, made where there is none.

    Args:
        session: A writing session.
        named: Name of the judge's model (judged by `judge-pairwise`), `INSTRUMENT:MODEL`, or `people`.

    Raises:
        UsageError: None is named, or it is not registered or does not compare.
        UnknownPriceError: Its price is not known.
    """
    if not named:
        raise UsageError(
            "the objective 'compare' needs a judge",
            "name a judge's model with --judge MODEL (assay model add MODEL --judge), or --judge people",
        )
    if named == PEOPLE:
        return catalog.scorer_of(session, PEOPLE, {})
    head, model_name = split_name(named)
    instrument = head if model_name else "judge-pairwise"
    JUDGES.get(instrument)
    model = spec_of(catalog.find_model(session, model_name or named))
    check_model(model)
    params: dict[str, Any] = {"judge": model.name}
    if not make_judge(instrument, params).compares:
        raise UsageError(f"the judge '{instrument}' does not compare two answers", "use judge-pairwise")
    return catalog.scorer_of(session, instrument, pin(instrument, params, model))
