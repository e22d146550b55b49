"""Low-rank completion of one partly observed matrix by an ensemble of alternating least squares fits.

Shapes: m rows, n columns, r rank, C members, e observed entries.

The members are one batch: their factors are (m, C, r) and (n, C, r) arrays, an entry of `keep` (e, C) says
which member sees which observed entry, and the normal equations of all members are two sparse-dense
products. Mean and standard deviation over the members need no (C, m, n) array:
sum_c U_c V_c' and sum_c (U_c V_c')^2 are matrix products as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from assay.errors import BadInputError
from assay.matrix import FloatArray

__all__ = ["Factors", "LowRankEnsemble", "LowRankFit", "dropped_entries"]

Sums = tuple[Any, Any]  # matrices of ones and of scores, csr_matrix or dense
DENSE = 0.4  # share of observed entries from which dense products are faster
TABLE = 16_000_000  # cells x members up to which the hash is kept
CHUNK = 8_000_000  # entries x members looked at at once; bounds the memory on large histories


@dataclass(frozen=True)
class Factors:
    """One factorization: entry (i, j) is predicted as rows[i] . columns[j].

    Attributes:
        rows: (m, r).
        columns: (n, r).
    """

    rows: NDArray[np.float64]
    columns: NDArray[np.float64]


@dataclass(frozen=True)
class LowRankFit:
    """An ensemble fitted to one matrix.

    Attributes:
        full: The fit to all observed entries.
        rows: (m, C, r) members' row factors.
        columns: (n, C, r) members' column factors; member c of `rows` belongs to member c of `columns`.
        noise: Residual variance of the full fit, corrected for the parameters spent.
        drop: Share of the entries that each member did not see.
    """

    full: Factors
    rows: NDArray[np.float64]
    columns: NDArray[np.float64]
    noise: float
    drop: float

    @property
    def scale(self) -> float:
        """Factor from the members' spread to a standard error.

        Members that leave out a share d of the data differ by less than fits to fresh data would: by the
        delete-d jackknife the sampling variance is (1 - d) / d times the variance over the members.
        """
        return float(np.sqrt((1.0 - self.drop) / self.drop)) if self.drop > 0 else 0.0

    @cached_property
    def mean(self) -> NDArray[np.float64]:
        """(m, n) mean of the members' predictions (equation 3)."""
        m, n, members = len(self.rows), len(self.columns), self.rows.shape[1]
        mean: NDArray[np.float64] = self.rows.reshape(m, -1) @ self.columns.reshape(n, -1).T / members
        return mean

    @cached_property
    def spread(self) -> NDArray[np.float64]:
        """(m, n) standard deviation of the members' predictions (equation 4, before the mask)."""
        members, rank = self.rows.shape[1:]
        square = np.zeros((len(self.rows), len(self.columns)))
        for k, j in zip(*np.triu_indices(rank), strict=True):  # (sum_k u_k v_k)^2, pair by pair
            pair = (self.rows[:, :, k] * self.rows[:, :, j]) @ (
                self.columns[:, :, k] * self.columns[:, :, j]
            ).T
            square += pair if k == j else 2.0 * pair
        spread: NDArray[np.float64] = np.sqrt(np.maximum(square / members - self.mean**2, 0.0))
        return spread

    def row_scores(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """(m, C) each member's weighted sum over the columns, for weights (m, n)."""
        m, members, rank = self.rows.shape
        columns = (weights @ self.columns.reshape(len(self.columns), -1)).reshape(m, members, rank)
        scores: NDArray[np.float64] = np.einsum("mcr,mcr->mc", self.rows, columns)
        return scores


@dataclass(frozen=True)
class LowRankEnsemble:
    """Alternating least squares with an ensemble for the spread (Zhou et al., section 3.2).

    The fit to all observed entries is iterated until it stands still; the members start there, each without
    its dropped entries, and run `member_sweeps` more sweeps. A member thus costs two sweeps instead of ten,
    members cannot end in different sign or rotation, and a fit depends on the matrix alone, never on the
    order in which it was filled.

    Which member drops which entry is a hash of the seed, the row and the column: an entry keeps its members
    when other entries, rows or columns are added.

    Attributes:
        rank: r; 1 is best at low budgets.
        members: C; 0 for the full fit only.
        drop: Share of the observed entries that each member does not see.
        ridge: Penalty on the distance of each factor from the mean factor of its side.
        sweeps: Most sweeps of the full fit.
        member_sweeps: Sweeps of the members from there.
        tolerance: The full fit stops when no row's predicted mean moved by more in a sweep.
        seed: Of the dropped entries and of the start (ranks above 1).
    """

    rank: int = 1
    members: int = 64
    drop: float = 0.05
    ridge: float = 0.1
    sweeps: int = 30
    member_sweeps: int = 2
    tolerance: float = 2e-4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rank < 1 or self.members < 0 or not 0 <= self.drop < 1 or self.ridge <= 0:
            raise BadInputError(
                f"low-rank needs rank >= 1, members >= 0, 0 <= drop < 1 and ridge > 0, got"
                f" {self.rank}, {self.members}, {self.drop:g}, {self.ridge:g}"
            )

    def fit(self, scores: FloatArray, *, start: Factors | None = None) -> LowRankFit:
        """Fit a partly observed matrix.

        Args:
            scores: (m, n), NaN = not observed.
            start: Factors to start the full fit from, of an earlier fit whose matrix may have had fewer rows
                and columns (new ones are taken to come last).

        Raises:
            BadInputError: Nothing is observed.
        """
        cells = _Cells.of(scores)
        full = self._full(cells, start)
        rows, columns = self._ensemble(cells, full)
        return LowRankFit(full, rows, columns, _noise(cells, full), self.drop)

    def _full(self, cells: _Cells, start: Factors | None) -> Factors:
        rows, columns = self._start(cells, start)
        level = np.full(len(rows), np.inf)
        for _ in range(self.sweeps):
            columns = cells.solve_columns(rows, None, self.ridge)
            rows = cells.solve_rows(columns, None, self.ridge)
            before, level = level, rows[:, 0] @ columns[:, 0].mean(axis=0)
            if np.abs(level - before).max() <= self.tolerance:
                break
        return Factors(rows[:, 0], columns[:, 0])

    def _start(self, cells: _Cells, start: Factors | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Row and column factors (m, 1, r), (n, 1, r): row means, or an earlier fit's and their mean."""
        m, n = cells.shape
        if start is None:
            noise = np.random.default_rng(self.seed).normal(size=(m, self.rank))
            rows = np.column_stack([cells.row_means(), noise[:, 1:]])
            return rows[:, None], np.zeros((n, 1, self.rank))
        rows = np.broadcast_to(start.rows.mean(axis=0), (m, self.rank)).copy()
        rows[: len(start.rows)] = start.rows
        return rows[:, None], np.zeros((n, 1, self.rank))

    def _ensemble(self, cells: _Cells, full: Factors) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Factors of all members, computed in groups that fit in memory."""
        m, n = cells.shape
        rows = np.empty((m, self.members, self.rank))
        columns = np.empty((n, self.members, self.rank))
        group = max(1, CHUNK // max(1, len(cells.values)))
        for first in range(0, self.members, group):
            index = np.arange(first, min(first + group, self.members))
            dropped = self._dropped(cells, index)
            rows[:, index], columns[:, index] = self._members(cells, full, _Dropped.of(cells, dropped))
        return rows, columns

    def _dropped(self, cells: _Cells, members: NDArray[np.intp]) -> NDArray[np.bool_]:
        """(e, C) what each member leaves out; small matrices are hashed once for all fits."""
        m, n = cells.shape
        if m * n * self.members > TABLE:
            return dropped_entries(cells.rows, cells.columns, members, self.drop, self.seed)
        table = _drop_table(m, n, self.members, self.drop, self.seed)
        chosen: NDArray[np.bool_] = table.take(cells.rows * n + cells.columns, axis=0)
        return chosen[:, members[0] : members[-1] + 1]

    def _members(
        self, cells: _Cells, full: Factors, dropped: _Dropped
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        shape = (len(full.rows), dropped.members, self.rank)
        rows = np.broadcast_to(full.rows[:, None], shape)
        columns = np.empty(0)
        for _ in range(self.member_sweeps):
            columns = cells.solve_columns(rows, dropped, self.ridge)
            rows = cells.solve_rows(columns, dropped, self.ridge)
        return rows, columns


@dataclass(frozen=True)
class _Dropped:
    """The (entry, member) pairs that are left out, d of them.

    Attributes:
        members: How many members there are.
        rows, columns, member: (d,) each.
        values: (d,) the scores left out.
    """

    members: int
    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    member: NDArray[np.intp]
    values: NDArray[np.float64]

    @classmethod
    def of(cls, cells: _Cells, dropped: NDArray[np.bool_]) -> _Dropped:
        entry, member = np.divmod(np.flatnonzero(dropped), dropped.shape[1])
        return cls(dropped.shape[1], cells.rows[entry], cells.columns[entry], member, cells.values[entry])

    def transposed(self) -> _Dropped:
        return _Dropped(self.members, self.columns, self.rows, self.member, self.values)


@dataclass(frozen=True)
class _Cells:
    """The e observed entries, as lists and as (m, n) matrices of ones and of scores.

    `by_column` holds the transposes, so that both sides are products with a matrix from the left.
    """

    shape: tuple[int, int]
    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    values: NDArray[np.float64]
    by_row: Sums
    by_column: Sums

    @classmethod
    def of(cls, scores: FloatArray) -> _Cells:
        scores = np.asarray(scores, dtype=np.float64)
        if scores.ndim != 2 or np.isinf(scores).any():
            raise BadInputError(f"scores must be a finite matrix with NaN for missing, got {scores.shape}")
        rows, columns = np.nonzero(~np.isnan(scores))
        if len(rows) == 0:
            raise BadInputError("no entry is observed", "acquire some scores at random first")
        values: NDArray[np.float64] = np.asarray(scores[rows, columns], dtype=np.float64)
        m, n = scores.shape
        order = np.argsort(columns, kind="stable")
        by_row = _sparse(rows, columns, values, (m, n))
        by_column = _sparse(columns[order], rows[order], values[order], (n, m))
        return cls((m, n), rows, columns, values, by_row, by_column)

    def row_means(self) -> NDArray[np.float64]:
        """(m,) mean of each row's entries, shrunk to the overall mean by one pseudo-entry."""
        count = np.bincount(self.rows, minlength=self.shape[0])
        total = np.bincount(self.rows, weights=self.values, minlength=self.shape[0])
        means: NDArray[np.float64] = (total + self.values.mean()) / (count + 1.0)
        return means

    def solve_rows(
        self, columns: NDArray[np.float64], dropped: _Dropped | None, ridge: float
    ) -> NDArray[np.float64]:
        """(m, C, r) row factors that fit best, given column factors (n, C, r)."""
        return _solve(self.by_row, columns, dropped, ridge)

    def solve_columns(
        self, rows: NDArray[np.float64], dropped: _Dropped | None, ridge: float
    ) -> NDArray[np.float64]:
        """(n, C, r) column factors that fit best, given row factors (m, C, r)."""
        return _solve(self.by_column, rows, None if dropped is None else dropped.transposed(), ridge)


def _sparse(
    rows: NDArray[np.intp], columns: NDArray[np.intp], values: NDArray[np.float64], shape: tuple[int, int]
) -> Sums:
    """Matrices of ones and of values from entries in row order; compressed unless many are seen."""
    if len(values) > DENSE * shape[0] * shape[1]:
        ones, scores = np.zeros(shape), np.zeros(shape)
        ones[rows, columns] = 1.0
        scores[rows, columns] = values
        return ones, scores
    bounds = np.searchsorted(rows, np.arange(shape[0] + 1))
    return (
        csr_matrix((np.ones(len(values)), columns, bounds), shape=shape),
        csr_matrix((values, columns, bounds), shape=shape),
    )


def _solve(
    sums: Sums,
    factors: NDArray[np.float64],
    dropped: _Dropped | None,
    ridge: float,
) -> NDArray[np.float64]:
    """Ridge regressions of all groups and members at once.

    A member's sums are those over all entries less those over its dropped entries: the first need no
    (e, C) array, the second are few.

    Args:
        sums: (g, q) matrices of ones and of scores at the observed entries.
        factors: (q, C, r) factors of the other side.
        dropped: What each member leaves out, with the g side as `rows`; None = nothing.
        ridge: Penalty.

    Returns:
        (g, C, r) coefficients, shrunk towards their pooled regression.
    """
    ones, scores = sums
    rank = factors.shape[2]
    planes = [np.ascontiguousarray(factors[:, :, k]) for k in range(rank)]
    left_out = [] if dropped is None else [plane[dropped.columns, dropped.member] for plane in planes]
    target = np.stack([scores @ plane for plane in planes], axis=-1)
    gram = np.empty((*target.shape, rank))
    for k in range(rank):
        if dropped is not None:
            target[:, :, k] -= _scatter(dropped, left_out[k] * dropped.values, target.shape[:2])
        for other in range(k + 1):
            total = ones @ (planes[k] * planes[other])
            if dropped is not None:
                total -= _scatter(dropped, left_out[k] * left_out[other], target.shape[:2])
            gram[:, :, k, other] = gram[:, :, other, k] = total
    return _shrunk(gram, target, ridge)


def _scatter(dropped: _Dropped, values: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Sums of (d,) values into (g, C) by group and member."""
    place = dropped.rows * shape[1] + dropped.member
    flat = np.bincount(place, weights=values, minlength=shape[0] * shape[1])
    sums: NDArray[np.float64] = flat.astype(np.float64).reshape(shape)
    return sums


def _shrunk(gram: NDArray[Any], target: NDArray[Any], ridge: float) -> NDArray[Any]:
    """Solve (gram + ridge I) x = target + ridge centre, the centre being the pooled regression (C, r)."""
    rank = target.shape[2]
    identity = ridge * np.eye(rank, dtype=target.dtype)
    centre = _divide(gram.sum(axis=0) + identity, target.sum(axis=0))
    return _divide(gram + identity, target + np.asarray(ridge, dtype=target.dtype) * centre)


def _divide(gram: NDArray[Any], target: NDArray[Any]) -> NDArray[Any]:
    """gram^-1 target over the leading axes; division at rank 1."""
    if target.shape[-1] == 1:
        quotient: NDArray[Any] = target / gram[..., 0]
        return quotient
    solved: NDArray[Any] = np.linalg.solve(gram, target[..., None])[..., 0]
    return solved


def _noise(cells: _Cells, full: Factors) -> float:
    """Residual variance, with the parameters taken off the degrees of freedom (at least a tenth is left)."""
    fitted = np.einsum("er,er->e", full.rows[cells.rows], full.columns[cells.columns])
    e, rank = len(cells.values), full.rows.shape[1]
    freedom = max(e - rank * sum(cells.shape), 0.1 * e)
    return float(((cells.values - fitted) ** 2).sum() / freedom)


def dropped_entries(
    rows: NDArray[np.intp], columns: NDArray[np.intp], members: NDArray[np.intp], drop: float, seed: int
) -> NDArray[np.bool_]:
    """(e, C) True where a member does not see an entry: 16 bits of a hash below the share to drop."""
    mask = np.uint64(0xFFFFFFFFFFFFFFFF)
    place = (rows.astype(np.uint64) << np.uint64(32)) | columns.astype(np.uint64)
    words = np.unique(members // 4)
    salt = _mix(np.array([seed & int(mask)], dtype=np.uint64))
    keys = _mix(place ^ salt)[:, None] + (words.astype(np.uint64) + np.uint64(1)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    bits = _mix(keys).view(np.uint16)  # (e, 4 * words)
    wanted = members - 4 * words[0]
    below: NDArray[np.bool_] = bits[:, wanted] < round(drop * 65536)
    return below


@lru_cache(maxsize=4)
def _drop_table(m: int, n: int, members: int, drop: float, seed: int) -> NDArray[np.bool_]:
    """(m * n, C) `dropped_entries` of a whole matrix."""
    rows, columns = np.divmod(np.arange(m * n), n)
    return dropped_entries(rows, columns, np.arange(members), drop, seed)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The splitmix64 finalizer (Steele, Lea and Flood, 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed
