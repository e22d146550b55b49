"""A judge as a pinned instrument: what goes into the scorer's identity, and how it is built from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from assay.errors import AssayError, BadInputError
from assay.plugins import Registry
from assay.specs import ModelSpec
from workers.judges._base import Judge, JudgeFactory
from workers.judges._templates import template_hash

__all__ = ["JUDGES", "is_judge", "judge_name", "make_judge", "pin"]

JUDGES: Registry[JudgeFactory] = Registry(
    "judge",
    "assay.judges",
    {
        "judge-pairwise": "workers.judges._pairs:PairwiseJudge",
        "judge-score": "workers.judges._score:ScoreJudge",
        "judge-weighted": "workers.judges._pairs:WeightedJudge",
    },
)

#: What of a model's description makes another instrument; price, key and limits do not.
INSTRUMENT = {"backend", "base_url", "command", "dtype", "matrix", "max_tokens", "model", "parameters", "row"}

#: Parameters that pinning adds to the judge's own.
PINNED = ("judge", "instrument", "template_hash")


def is_judge(scorer: str) -> bool:
    """Whether a scorer of this name asks a model."""
    return scorer in JUDGES


def judge_name(params: Mapping[str, Any], scorer: str) -> str:
    """The name of the model that judges, from a scorer's parameters.

    Raises:
        BadInputError: None is named.
    """
    name = params.get("judge")
    if not isinstance(name, str) or not name:
        raise BadInputError(
            f"the scorer '{scorer}' names no judge",
            'register its model (assay model add NAME --judge) and set scorer_params = {judge = "NAME"}',
        )
    return name


def pin(scorer: str, params: Mapping[str, Any], model: ModelSpec) -> dict[str, Any]:
    """The full parameters of a judge: its own with their defaults, its model's, and its template's hash.

    Two judges that differ in any of these are two scorers, so their scores never mix. Pinning what is pinned
    changes nothing.

    Raises:
        BadInputError: A parameter is unknown or wrong.
    """
    judge = make_judge(scorer, params)
    own = asdict(judge) if hasattr(judge, "__dataclass_fields__") else _own(params)  # type: ignore[call-overload]
    return {
        **own,
        "judge": model.name,
        "instrument": model.model_dump(mode="json", include=INSTRUMENT, exclude_none=True),
        "template_hash": template_hash(str(own.get("template", ""))),
    }


def make_judge(scorer: str, params: Mapping[str, Any]) -> Judge:
    """Build a judge from a scorer's parameters.

    Raises:
        BadInputError: A parameter is unknown or wrong, or the template is not the one that was pinned.
    """
    own = _own(params)
    try:
        judge = JUDGES.get(scorer)(**own)
    except TypeError as error:
        problem = str(error).partition(") ")[2] or str(error)
        raise BadInputError(
            f"scorer '{scorer}': {problem}", "see docs/judges.md for its parameters"
        ) from None
    except AssayError as error:
        raise BadInputError(f"scorer '{scorer}': {error.message}", error.hint) from None
    pinned = params.get("template_hash")
    if pinned is not None and pinned != template_hash(str(own.get("template", ""))):
        raise BadInputError(
            f"scorer '{scorer}': its template is not the one that it was pinned to",
            "use the program version that made the benchmark, or make a new benchmark with this template",
        )
    return judge


def _own(params: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in params.items() if key not in PINNED}
