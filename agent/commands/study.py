"""`assay study`: create, follow and steer studies."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sqlmodel import Session, col, func, select

from agent import pairwise, steering
from agent.commands._shared import (
    AssayGroup,
    JsonOption,
    console,
    database,
    print_json,
    print_rows,
    say,
)
from agent.steering import MOST_USD, StudyOrder
from agent.text import dollars
from assay.errors import AssayError, UsageError
from assay.settings import load_settings
from assay.statuses import Status
from policies import Recommendation
from policies.hardness import expected_regret
from storage import catalog, estimates, ledger, studies
from storage.database import Database
from storage.quantiles import of_study as quantiles_found
from storage.tables import Benchmark, Estimate, Job, JobState, Method, Study, StudyState

group = typer.Typer(cls=AssayGroup, no_args_is_help=True, help="Studies: pieces of evaluation work.")

SHOWN_ESTIMATES = 10
ESTIMATE_FIELDS = {
    "score",
    "low",
    "high",
    "std",
    "level",
    "interval_kind",
    "acquired",
    "total",
    "cost",
    "probability_best",
}
AT_REST = (StudyState.DONE, StudyState.PAUSED, StudyState.CANCELLED, StudyState.FAILED)


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number that can be reached")
    return value


Usd = Annotated[
    float | None, typer.Option(min=0, max=MOST_USD, callback=_finite, help="Hard cap, US dollars.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(group, name="study")


@group.command("create")
def create(
    benchmark: Annotated[str, typer.Option(help="Benchmark to evaluate on.")],
    model: Annotated[
        list[str] | None, typer.Option(help="Model (or method) to evaluate, a study each; may be repeated.")
    ] = None,
    methods: Annotated[
        list[str] | None, typer.Option(help="Methods that one study compares; may be repeated.")
    ] = None,
    objective: Annotated[
        str, typer.Option(help="What is wanted: estimate, best, compare or distribution.")
    ] = "estimate",
    policy: Annotated[str | None, typer.Option(help="Acquisition policy.")] = None,
    estimator: Annotated[str | None, typer.Option(help="Estimator of what is not bought.")] = None,
    max_usd: Usd = None,
    max_prompts: Annotated[int | None, typer.Option(min=1, help="Stop after so many scores.")] = None,
    until_width: Annotated[
        float | None, typer.Option(min=0, callback=_finite, help="Stop once the interval is so narrow.")
    ] = None,
    until_confidence: Annotated[
        float | None,
        typer.Option(min=0, max=1, callback=_finite, help="Stop once one is so probably the best."),
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Scores per step.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything random.")] = None,
    templates: Annotated[
        list[str] | None, typer.Option(help="distribution: templates, or patterns such as 'short-*'.")
    ] = None,
    quantiles: Annotated[
        str | None, typer.Option(help="distribution: percentages; default 5,25,50,75,95.")
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="compare: the judge's model, INSTRUMENT:MODEL, or people.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it until it is at rest.")] = False,
    json_: JsonOption = False,
) -> None:
    """Create a study per model, or one study that finds the best of several methods.

    Example: assay study create --benchmark openllm --model llama-3-8b --max-prompts 100 --wait

    Example: assay study create --benchmark qa --objective best --methods a --methods b --max-prompts 500

    Example: assay study create --benchmark qa --objective distribution --model a --templates 'short-*'

    Example: assay study create --benchmark qa --objective compare --methods a --methods b --judge gpt
    """
    _check_rows(objective, model or [], methods or [])
    wanted = StudyOrder(
        benchmark=benchmark,
        methods=[*(methods or []), *(model or [])],
        objective=objective,
        policy=policy,
        estimator=estimator,
        max_usd=max_usd,
        max_prompts=max_prompts,
        until_width=until_width,
        until_confidence=until_confidence,
        batch_size=batch,
        seed=seed,
        templates=templates or [],
        quantiles=_quantiles(quantiles),
        judge=judge,
    )
    opened = database()
    with opened.begin() as session:
        ids = steering.order(session, load_settings(), wanted)
    if wait:
        follow(opened, ids)
    _report(opened, ids, json_, created=True)


def _quantiles(listed: str | None) -> list[float]:
    """Shares from percentages."""
    try:
        found = sorted({round(float(part) / 100.0, 6) for part in (listed or "").split(",") if part.strip()})
    except ValueError:
        found = [0.0]
    if any(not 0 < share <= 1 for share in found):
        raise UsageError(f"--quantiles '{listed}' are no percentages", "such as --quantiles 5,25,50,75,95")
    return found


def _check_rows(objective: str, models: list[str], methods: list[str]) -> None:
    """Refuse --methods where each model gets a study of its own."""
    if objective == "estimate" and (not models or methods):
        raise UsageError("the objective 'estimate' takes --model, a study each", "name one or more models")


@group.command("join")
def join(study_id: int, methods: list[str]) -> None:
    """Add methods to a study that is not over.

    Example: assay study join 7 new-model
    """
    with database().begin() as session:
        new = [name for name in methods if studies.join(session, study_id, _method_id(session, name))]
    say(f"{len(new)} methods joined study {study_id}")


@group.command("leave")
def leave(study_id: int, methods: list[str]) -> None:
    """Take methods out of a study that is not over; what was bought for them stays.

    Example: assay study leave 7 old-model
    """
    with database().begin() as session:
        gone = [name for name in methods if studies.leave(session, study_id, _method_id(session, name))]
    say(f"{len(gone)} methods left study {study_id}")


def _method_id(session: Session, name: str) -> int:
    return int(catalog.find_method(session, name).id or 0)


@group.command("sheet")
def sheet(
    study_id: int,
    out: Annotated[Path, typer.Option(help="File to write: JSON lines where it ends in .jsonl, else CSV.")],
) -> None:
    """Write the pairs that wait for people's verdicts, blinded and in random order of the two answers.

    Example: assay study sheet 7 --out pairs.csv
    """
    with database().read() as session:
        count = pairwise.write_sheet(session, study_id, out)
    say(f"{count} pairs in {out}: fill in the column verdict (1, 2, tie or skip)")


@group.command("verdicts")
def verdicts(study_id: int, file: Path, json_: JsonOption = False) -> None:
    """Take in a sheet that people have filled in; all of it, or nothing where a line is wrong.

    Example: assay study verdicts 7 pairs.csv
    """
    with database().begin() as session:
        counts = pairwise.read_sheet(session, study_id, file)
    if json_:
        print_json(counts)
        return
    say(", ".join(f"{number} {what}" for what, number in counts.items()))


@group.command("list")
def list_(json_: JsonOption = False) -> None:
    """List studies, newest first.

    Example: assay study list
    """
    with database().read() as session:
        ids = [int(i or 0) for i in session.exec(select(Study.id).order_by(col(Study.id).desc())).all()]
        shown = [describe(session, study_id) for study_id in ids]
    if json_:
        print_json(shown)
        return
    rows = [
        (
            s["id"],
            s["benchmark"],
            ", ".join(s["methods"]),
            s["state"],
            s["bought"],
            dollars(s["spent"]),
            "" if s["state"] == StudyState.DONE else s["reason"],
        )
        for s in shown
    ]
    columns = ("study", "benchmark", "models", "state", "bought", "spent", "reason")
    print_rows("studies", columns, rows, empty="assay study create --benchmark B --model M")


@group.command("show")
def show(study_id: int, json_: JsonOption = False) -> None:
    """Show a study: settings, progress, money, estimates.

    Example: assay study show 7
    """
    _report(database(), [study_id], json_)


@group.command("wait")
def wait(study_ids: list[int], json_: JsonOption = False) -> None:
    """Follow studies until each is done, paused, cancelled or failed.

    Example: assay study wait 7 8 9
    """
    opened = database()
    follow(opened, study_ids)
    _report(opened, study_ids, json_)


@group.command("pause")
def pause(study_id: int) -> None:
    """Stop asking for more; what is on its way still arrives.

    Example: assay study pause 7
    """
    with database().begin() as session:
        steering.pause(session, study_id)
    say(f"study {study_id} is paused")


@group.command("resume")
def resume(
    study_id: int,
    max_usd: Annotated[
        float | None, typer.Option(min=0, max=MOST_USD, callback=_finite, help="New hard cap, US dollars.")
    ] = None,
    max_prompts: Annotated[int | None, typer.Option(min=1, help="New greatest number of prompts.")] = None,
) -> None:
    """Go on with a paused or failed study, with a higher cap where it ran into one.

    Prompts whose calls failed without being paid for may be chosen again.

    Example: assay study resume 7 --max-usd 5
    """
    cap = None if max_usd is None else steering.micro_dollars(max_usd)
    with database().begin() as session:
        steering.resume(session, study_id, usd_cap=cap, max_prompts=max_prompts)
    say(f"study {study_id} goes on")


@group.command("cancel")
def cancel(study_id: int) -> None:
    """End a study for good; scores that it bought stay.

    Example: assay study cancel 7
    """
    with database().begin() as session:
        steering.cancel(session, study_id)
    say(f"study {study_id} is cancelled")


def follow(opened: Database, study_ids: list[int]) -> None:
    """Show progress until all studies are at rest."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        bars: dict[int, Any] = {}
        while True:
            with opened.read() as session:
                shown = [describe(session, study_id) for study_id in study_ids]
            for study in shown:
                label = f"study {study['id']} {', '.join(study['methods'])}"[:50]
                if study["id"] not in bars:
                    bars[study["id"]] = progress.add_task(label, total=study["max_prompts"])
                progress.update(bars[study["id"]], completed=study["done"])
            if all(study["state"] in AT_REST for study in shown):
                return
            time.sleep(0.2)


def describe(session: Session, study_id: int) -> dict[str, Any]:
    """A study as JSON-able facts."""
    study = studies.find(session, study_id)
    counts = dict(
        session.exec(
            select(Job.state, func.count())
            .where(Job.study_id == study_id, Job.status != Status.ANSWERED)  # its verdict counts
            .group_by(col(Job.state))
        ).all()
    )
    budget = next(iter(ledger.budgets_of(session, [("study", study_id)])), None)
    newest = {estimate.method_id: estimate for estimate in estimates.history(session, study_id)}
    methods = studies.methods_of(session, study_id)
    return {
        "id": study_id,
        "objective": study.objective,
        "benchmark": session.get_one(Benchmark, study.benchmark_id).name,
        "methods": [method.name for method in methods],
        "policy": study.policy,
        "estimator": study.estimator,
        "version": study.version_id,
        "seed": study.seed,
        "batch_size": study.batch_size,
        "state": study.state,
        "reason": study.reason,
        "step": study.step,
        "max_prompts": study.max_prompts,
        "until_width": study.until_width,
        "bought": sum(count for state, count in counts.items() if state != JobState.CANCELLED),
        "done": counts.get(JobState.DONE, 0) + counts.get(JobState.PARKED, 0),
        "parked": counts.get(JobState.PARKED, 0),
        "spent": budget.spent if budget else 0,
        "cap": budget.cap if budget else 0,
        "estimates": [
            {"method": method.name, **newest[method.id or 0].model_dump(include=ESTIMATE_FIELDS)}
            for method in methods
            if method.id in newest
        ],
        **_winner(study, methods, newest),
        **_quantiles_of(session, study_id),
        **({"comparison": study.findings} if study.objective == "compare" else {}),
    }


def _quantiles_of(session: Session, study_id: int) -> dict[str, Any]:
    """What the objective "distribution" has found so far."""
    found = quantiles_found(session, study_id)
    fields = {"at", "value", "low", "high", "level", "interval_kind", "rows"}
    return {"quantiles": [quantile.model_dump(include=fields) for quantile in found]} if found else {}


def _winner(study: Study, methods: list[Method], newest: dict[int, Estimate]) -> dict[str, Any]:
    """What the objective "best" has found so far."""
    rows = [(method.name, newest[method.id or 0]) for method in methods if method.id in newest]
    if study.objective != "best" or not rows:
        return {}
    name, best = max(rows, key=lambda row: row[1].score)
    belief = Recommendation(
        mean=np.array([estimate.score for _, estimate in rows]),
        std=np.array([estimate.std for _, estimate in rows]),
        probability_best=np.array([estimate.probability_best or 0.0 for _, estimate in rows]),
    )
    return {
        "winner": name,
        "probability_best": best.probability_best,
        "simple_regret": expected_regret(belief),
    }


def _report(opened: Database, study_ids: list[int], json_: bool, *, created: bool = False) -> None:
    with opened.read() as session:
        shown = [describe(session, study_id) for study_id in study_ids]
    if json_:
        print_json(shown if len(shown) > 1 else shown[0])
        return
    for study in shown:
        _print_study(study)
    if created and any(study["state"] == StudyState.WAITING for study in shown):
        say("the agent takes it from here (start it with: assay up)")
    failed = [study for study in shown if study["state"] == StudyState.FAILED]
    if failed:
        raise AssayError(
            f"study {failed[0]['id']} failed: {failed[0]['reason']}", "mend it, then: assay study resume"
        )


def _print_study(study: dict[str, Any]) -> None:
    facts = [
        ("study", f"{study['id']} ({study['objective']})"),
        ("benchmark", study["benchmark"]),
        ("models", ", ".join(study["methods"])),
        ("policy, estimator", f"{study['policy']}, {study['estimator']} (version {study['version'] or '-'})"),
        ("state", f"{study['state']}" + (f": {study['reason']}" if study["reason"] else "")),
        ("prompts bought", f"{study['done']} of at most {study['max_prompts']}, {study['parked']} set aside"),
        ("spent", f"{dollars(study['spent'])} of at most {dollars(study['cap'])}"),
    ]
    if "winner" in study:
        facts.append(
            (
                "best",
                f"{study['winner']}, with probability {study['probability_best']:.3f};"
                f" expected loss by choosing it {study['simple_regret']:.4f}",
            )
        )
    facts += [
        (
            f"{100 * q['at']:g} % quantile",
            f"{q['value']:.4f}, {q['level']:.0%} interval {q['low']:.4f} to {q['high']:.4f}"
            f" ({q['interval_kind']})",
        )
        for q in study.get("quantiles", [])
    ]
    facts += pairwise.comparison_facts(study.get("comparison") or {})
    facts += [(f"estimate of {e['method']}", _in_words(e)) for e in _best_first(study["estimates"])]
    print_rows("facts", ("", ""), facts, empty="")


def _best_first(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The estimates worth a line: the best ten."""
    return sorted(found, key=lambda e: -float(e["score"]))[:SHOWN_ESTIMATES]


def _in_words(e: dict[str, Any]) -> str:
    chance = "" if e["probability_best"] is None else f", best with probability {e['probability_best']:.3f}"
    return (
        f"{e['score']:.4f}, {e['level']:.0%} interval {e['low']:.4f} to {e['high']:.4f}"
        f" ({e['interval_kind']}), {e['acquired']} of {e['total']} prompts known{chance}"
    )
