"""Training curves of a learned policy, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from assay.errors import UsageError

__all__ = ["save_curves"]

SHOWN = {
    "return": "return of an episode",
    "error": "error of the benchmark score at its end",
    "approximate_kl": "approximate KL",
    "clip_fraction": "share of decisions clipped",
    "entropy": "entropy, nats per prompt",
    "value_loss": "value loss",
    "explained_variance": "explained variance of the critic",
    "validation_error": "lowest error on rows kept back",
}


def save_curves(curve: Sequence[dict[str, float]], path: Path) -> None:
    """Draw each figure against the number of the update.

    Raises:
        UsageError: There is no curve, as of a version that is not a learned policy's.
    """
    if not curve:
        raise UsageError("this version has no training curves", "only learned policies have them")
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(2, 4, figsize=(14.0, 6.0), layout="constrained")
    for axes, (key, label) in zip(panels.flat, SHOWN.items(), strict=True):
        axes.plot(range(1, len(curve) + 1), [figures.get(key, float("nan")) for figures in curve], lw=1.2)
        axes.set_title(label, fontsize=9)
        axes.set_xlabel("update", fontsize=8)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)
