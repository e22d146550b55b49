"""Outputs of other methods as history: what lengths, formatting and words had to do with winning."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sqlmodel import Session, col, func, select

from agent.pairwise._reading import Contest
from estimators import likeness, text_features, word_vectors
from policies.pairs import PairHistory
from storage.tables import Method, Output

__all__ = ["Past", "read_past"]

MOST_METHODS = 30  # described, where there are more; AlpacaEval's 24 were enough
MOST_ANSWERS = 30_000  # of described methods, together; at least LEAST_METHODS are described all the same
LEAST_METHODS = 6
ANSWERS_KEPT = 100_000  # in memory, about 2 KB each
PAIRS_KEPT = 2_000

Key = tuple[int, int, int]


@dataclass(frozen=True)
class Described:
    """One method's answers: (N, p) features and (N, d) word vectors."""

    features: NDArray[np.float64]
    words: csr_matrix


_described: OrderedDict[Key, Described] = OrderedDict()
_alike: OrderedDict[tuple[Key, Key], NDArray[np.float32]] = OrderedDict()


@dataclass(frozen=True)
class Past:
    """The history of a pair, and the word vectors of its described methods, in their order."""

    history: PairHistory
    words: list[csr_matrix]

    def of_pair(self, texts: Sequence[Sequence[str]]) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """(2, N, p) features of two methods' answers and their (2, r, N) likeness to the described ones."""
        features = np.stack([text_features(one) for one in texts])
        vectors = [word_vectors(one) for one in texts]
        return features, np.array([[likeness(one, known) for known in self.words] for one in vectors])


def read_past(session: Session, contest: Contest, names: Sequence[str], scores: NDArray[np.float64]) -> Past:
    """The history of these methods, described where they have answered everything.

    What was described once is kept in memory: outputs never change.

    Args:
        session: An open session.
        contest: The comparison.
        names: M other methods.
        scores: (M, N) their scores.
    """
    wanted = [int(pk) for pk in contest.columns.prompt_pks]
    keys = _keys(session, names, wanted)
    if not keys:
        return Past(PairHistory(scores), [])
    known = [_describe(session, key, wanted) for key in keys.values()]
    words = [one.words for one in known]
    features = np.stack([one.features for one in known])
    history = PairHistory(scores, tuple(keys), features, _likeness(list(keys.values()), words))
    return Past(history, words)


def _keys(session: Session, names: Sequence[str], wanted: Sequence[int]) -> dict[int, Key]:
    """What describes each row that has an output for every prompt; the first of `names`, where many have."""
    query = (
        select(Method.name, Method.id)
        .join(Output, col(Output.method_id) == col(Method.id))
        .where(col(Method.name).in_(list(names)), col(Output.prompt_id).in_(list(wanted)))
        .group_by(col(Method.name), col(Method.id))
        .having(func.count() == len(wanted))
    )
    complete = {name: int(method_id or 0) for name, method_id in session.exec(query).all()}
    rows = [row for row, name in enumerate(names) if name in complete]
    most = min(MOST_METHODS, max(MOST_ANSWERS // max(len(wanted), 1), LEAST_METHODS))
    prompts = hash(tuple(wanted))
    return {row: (id(session.get_bind()), complete[names[row]], prompts) for row in rows[:most]}


def _describe(session: Session, key: Key, wanted: Sequence[int]) -> Described:
    if key not in _described:
        query = select(Output.prompt_id, Output.text).where(
            Output.method_id == key[1], col(Output.prompt_id).in_(list(wanted))
        )
        texts = dict(session.exec(query).all())
        ordered = [texts[pk] for pk in wanted]
        _described[key] = Described(text_features(ordered), word_vectors(ordered))
        while len(_described) > 1 and sum(len(one.features) for one in _described.values()) > ANSWERS_KEPT:
            _described.popitem(last=False)
    return _described[key]


def _likeness(keys: Sequence[Key], words: Sequence[csr_matrix]) -> NDArray[np.float32]:
    alike = np.zeros((len(words), len(words), words[0].shape[0]), dtype=np.float32)
    for i, first in enumerate(keys):
        for j, second in enumerate(keys[i:], start=i):
            if (first, second) not in _alike:
                _alike[first, second] = likeness(words[i], words[j])
            alike[i, j] = alike[j, i] = _alike[first, second]
    while len(_alike) > PAIRS_KEPT:
        _alike.popitem(last=False)
    return alike
