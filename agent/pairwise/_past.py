"""Outputs of other methods as history: what their lengths and formatting had to do with winning."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sqlmodel import Session, col, func, select

from agent.pairwise._reading import Contest
from estimators import FEATURES, text_features
from storage.tables import Method, Output

__all__ = ["described_outputs"]

MOST_KEPT = 256
_described: OrderedDict[tuple[int, int, int], NDArray[np.float64]] = OrderedDict()


def described_outputs(
    session: Session, contest: Contest, names: Sequence[str], most: int
) -> NDArray[np.float64] | None:
    """(M, N, p) features of these methods' outputs; NaN for those that have not answered everything.

    At most `most` methods are described. What was described once is kept in memory: outputs never change.
    """
    wanted = [int(pk) for pk in contest.columns.prompt_pks]
    complete = _complete(session, names, len(wanted), contest.columns.benchmark_id, wanted)
    features = np.full((len(names), len(wanted), len(FEATURES)), np.nan)
    for row, name in enumerate(names):
        if name in complete and most > 0:
            features[row] = _features(session, complete[name], wanted, contest)
            most -= 1
    return features if complete else None


def _complete(
    session: Session, names: Sequence[str], count: int, benchmark_id: int, wanted: Sequence[int]
) -> dict[str, int]:
    """Method id of those that have an output for every prompt."""
    query = (
        select(Method.name, Method.id)
        .join(Output, col(Output.method_id) == col(Method.id))
        .where(col(Method.name).in_(list(names)), col(Output.prompt_id).in_(list(wanted)))
        .group_by(col(Method.name), col(Method.id))
        .having(func.count() == count)
    )
    return {name: int(method_id or 0) for name, method_id in session.exec(query).all()}


def _features(
    session: Session, method_id: int, wanted: Sequence[int], contest: Contest
) -> NDArray[np.float64]:
    key = (id(session.get_bind()), method_id, hash(tuple(wanted)))
    if key not in _described:
        query = select(Output.prompt_id, Output.text).where(
            Output.method_id == method_id, col(Output.prompt_id).in_(list(wanted))
        )
        texts = dict(session.exec(query).all())
        _described[key] = text_features([texts[pk] for pk in wanted])
        if len(_described) > MOST_KEPT:
            _described.popitem(last=False)
    return _described[key]
