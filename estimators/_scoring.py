"""How good a predicted distribution of a score is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

__all__ = ["ranked_probability_score"]


def ranked_probability_score(error: NDArray[np.float64], std: NDArray[np.float64]) -> NDArray[np.float64]:
    """Continuous ranked probability score of normal predictions (Gneiting and Raftery 2007, eq. 21).

    Args:
        error: Truth minus mean, of either sign.
        std: Standard deviations; 0 gives the absolute error.
    """
    scale = np.maximum(std, 1e-9)
    z = error / scale
    score = scale * (
        z * (2.0 * ndtr(z) - 1.0) + np.exp(-0.5 * z**2) * np.sqrt(2.0 / np.pi) - 1.0 / np.sqrt(np.pi)
    )
    return np.asarray(score)
