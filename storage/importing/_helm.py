"""Reading HELM's run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from assay.errors import BadInputError
from storage.importing._reading import first_text, json_file, mapping, unit_score
from storage.importing._rows import Rows

__all__ = ["read_helm"]

#: Most telling first, where the user names none.
METRICS = (
    "exact_match",
    "quasi_exact_match",
    "prefix_exact_match",
    "quasi_prefix_exact_match",
    "exact_match@5",
    "f1_score",
    "math_equiv_chain_of_thought",
    "math_equiv",
    "code_eval_acc",
    "rouge_l",
    "ndcg_10",
)


def read_helm(
    path: Path, *, model: str | None = None, dataset: str | None = None, metric: str | None = None
) -> Rows:
    """Read a run folder (run_spec.json, per_instance_stats.json, scenario_state.json), or all below a folder.

    Args:
        path: The folder.
        model: Name of the model instead of the run's.
        dataset: Name of the dataset instead of the run's own (its name without the model).
        metric: Name of the statistic; default the first usual one that the run has.

    Raises:
        BadInputError: A file is missing or not of that form.
    """
    rows = Rows(path)
    specs = sorted(path.rglob("run_spec.json"))
    if not specs:
        raise BadInputError(f"no run_spec.json in {path}", "name a run folder of HELM, or a folder of them")
    for spec in specs:
        _read_run(rows, spec.parent, model, dataset, metric)
    return rows


def _read_run(rows: Rows, run: Path, model: str | None, dataset: str | None, metric: str | None) -> None:
    spec = mapping(json_file(run / "run_spec.json"), f"{run.name}/run_spec.json")
    stats = json_file(run / "per_instance_stats.json")
    if not isinstance(stats, list):
        raise BadInputError(f"{run}/per_instance_stats.json: expected a list")
    texts = _texts(run)
    metric = metric or _metric(stats)
    seen: set[str] = set()
    for number, entry in enumerate(stats, start=1):
        place = f"{run.name}, entry {number}"
        key, reason = _wanted(mapping(entry, place), seen, place)
        value = None if reason else _mean(entry, metric)
        if reason or value is None:
            rows.skip(reason or f"no score in [0, 1] under '{metric}'")
            continue
        seen.add(key)
        prompt, output = texts.get(key, (None, None))
        rows.add(
            place,
            model=model or _model_of(spec, run),
            dataset=dataset or _dataset_of(spec, run),
            prompt_id=key,
            score=value,
            prompt=prompt,
            output=output,
        )
    rows.notes.append(f"{run.name}: scored by {metric}")


def _wanted(entry: dict[str, Any], seen: set[str], place: str) -> tuple[str, str]:
    """An entry's instance, and why it is left out."""
    key = entry.get("instance_id")
    if not isinstance(key, str) or not key:
        raise BadInputError(f"{place}: 'instance_id' is missing")
    if entry.get("perturbation") is not None:
        return key, "a perturbed instance"
    if entry.get("train_trial_index", 0) != 0:
        return key, "a further trial"
    return key, "the same instance again" if key in seen else ""


def _statistics(entry: dict[str, Any]) -> dict[str, Any]:
    """Means by name, perturbed ones left out."""
    found: dict[str, Any] = {}
    for stat in entry.get("stats") or []:
        name = stat.get("name") if isinstance(stat, dict) else None
        if isinstance(name, dict) and name.get("perturbation") is None:
            found.setdefault(str(name.get("name")), stat.get("mean"))
    return found


def _mean(entry: dict[str, Any], metric: str) -> float | None:
    return unit_score(_statistics(entry).get(metric))


def _metric(stats: list[Any]) -> str:
    known = {name for entry in stats if isinstance(entry, dict) for name in _statistics(entry)}
    for name in METRICS:
        if name in known:
            return name
    raise BadInputError(
        "none of the usual statistics is there", f"name one with --metric: {', '.join(sorted(known)[:30])}"
    )


def _model_of(spec: dict[str, Any], run: Path) -> str:
    adapter = spec.get("adapter_spec")
    name = adapter.get("model") or adapter.get("model_deployment") if isinstance(adapter, dict) else None
    if not isinstance(name, str) or not name:
        raise BadInputError(f"{run}/run_spec.json names no model", "name it with --model")
    return name


def _dataset_of(spec: dict[str, Any], run: Path) -> str:
    """The run's name without its model: runs of several models are one dataset."""
    scenario, _, arguments = str(spec.get("name") or run.name).partition(":")
    kept = [part for part in arguments.split(",") if part and not part.startswith("model=")]
    return f"{scenario}:{','.join(kept)}" if kept else scenario


def _texts(run: Path) -> dict[str, tuple[str | None, str | None]]:
    """Prompt and output of each unperturbed instance; empty where the run has no scenario_state.json."""
    path = run / "scenario_state.json"
    if not path.is_file():
        return {}
    found: dict[str, tuple[str | None, str | None]] = {}
    for state in mapping(json_file(path), path.name).get("request_states") or []:
        instance = state.get("instance") or {}
        if instance.get("perturbation") is None and state.get("train_trial_index", 0) == 0:
            completions = (state.get("result") or {}).get("completions") or [{}]
            text = (instance.get("input") or {}).get("text")
            found.setdefault(
                str(instance.get("id")), (first_text(text), first_text(completions[0].get("text")))
            )
    return found
