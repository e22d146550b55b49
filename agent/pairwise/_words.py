"""What a comparison has found, in words for a terminal."""

from __future__ import annotations

from typing import Any

__all__ = ["comparison_facts", "risk_words"]

SHOWN = 10
#: What a risk may be relied on for, in words.
RISK_KINDS = {
    "anytime": "valid under early stopping",
    "heuristic": "heuristic",
    "posterior": "heuristic: a posterior, looked at again and again",
}


def comparison_facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    """(label, text) lines of a study's findings; none where there are none yet."""
    if not found:
        return []
    counts = (
        f"{found['verdicts']} ({found['bought']} by this study): {found['ties']} ties,"
        f" {found['flips']} flipped with the order, {found['refusals']} refused"
    )
    return [*_pair(found), *_ranking(found), ("verdicts", counts)]


def risk_words(kind: str) -> str:
    """What a risk of this kind may be relied on for."""
    return RISK_KINDS.get(kind, kind)


def _pair(found: dict[str, Any]) -> list[tuple[str, str]]:
    if "distance" not in found:
        return []
    if found["winner"]:
        named = f"{found['winner']} is better"
    elif found["leader"]:
        named = f"not decided; {found['leader']} leads"
    else:
        named = "not decided"
    interval = f"{found['distance']:+.3f}, {found['low']:+.3f} to {found['high']:+.3f}"
    wins = ", ".join(f"{name} {count}" for name, count in found["wins"].items())
    return [
        ("result", f"{named}; risk of error {found['risk']:.3f} ({risk_words(found['risk_kind'])})"),
        ("winning distance", f"{interval} ({found['distance_kind']})"),
        ("wins that count", wins),
    ]


def _ranking(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (
            f"rank {row['best_rank']} to {row['worst_rank']}",
            f"{row['method']}: strength {row['strength']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f}),"
            f" Bradley-Terry {row['bradley_terry']:+.2f}"
            f" ({row['bradley_terry_low']:+.2f} to {row['bradley_terry_high']:+.2f}),"
            f" best with probability {row['probability_best']:.3f}",
        )
        for row in found.get("ranking", [])[:SHOWN]
    ]
