"""Where the real score data lies; tests that need it skip where it is absent."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from assay.matrix_folder import MatrixFolder, Weighting, read_matrix_folder

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
FIXTURES = DATA.parent / "fixtures"


@cache
def _read(name: str, weighting: Weighting) -> MatrixFolder:
    return read_matrix_folder(DATA / name, weighting=weighting)


def real_matrix(name: str, weighting: Weighting = "dataset") -> MatrixFolder:
    """A matrix folder of ../shared/data, or skip the test; mark the test `data`."""
    if not (DATA / name).is_dir():
        pytest.skip(f"needs the real scores in ../shared/data/{name}")
    return _read(name, weighting)
