"""`assay retrain` and `assay estimators`: versions, champions and what they were judged by."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlmodel import col, select

from agent import retraining
from agent.commands._shared import AssayGroup, JsonOption, database, print_json, print_rows, say
from agent.curves import save_curves
from agent.text import ago
from assay.errors import AssayError, UsageError
from assay.settings import load_settings
from estimators import ESTIMATORS
from policies import POLICIES, SupportsTraining
from storage import catalog, versions
from storage.database import Database
from storage.tables import Benchmark, EstimatorVersion, VersionState, utc_now

group = typer.Typer(cls=AssayGroup, no_args_is_help=True, help="Versions of fitted estimators.")

OPEN = (VersionState.WANTED, VersionState.TRAINING)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("retrain")(retrain)
    app.add_typer(group, name="estimators")


def retrain(
    benchmark: Annotated[str, typer.Argument(help="Name of the benchmark.")],
    estimator: Annotated[str | None, typer.Option(help="Estimator; default the configured one.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="Train this learned policy (ppo) for the estimator's champion instead.")
    ] = None,
    cold: Annotated[bool, typer.Option("--cold", help="Start afresh, not from the champion.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is judged.")] = False,
    json_: JsonOption = False,
) -> None:
    """Fit a challenger; it is promoted only if it predicts held-out methods better than the champion.

    Example: assay retrain openllm --estimator mirt --wait

    Example: assay retrain openllm --policy ppo --estimator neural-process --wait
    """
    name = estimator or load_settings().estimator
    ESTIMATORS.get(name)
    if policy is not None and not issubclass(POLICIES.get(policy), SupportsTraining):
        raise UsageError(
            f"policy '{policy}' is not learned", "only learned policies are trained, such as ppo"
        )
    opened = database()
    with opened.begin() as session:
        found = catalog.find_benchmark(session, benchmark)
        if policy is not None and versions.usable(session, found, name, {}) is None:
            raise UsageError(
                f"there is no estimator '{name}' for the present prompts of '{benchmark}'",
                f"fit it first: assay retrain {benchmark} --estimator {name} --wait",
            )
        version = versions.want(
            session, found, name, {}, policy=policy or "", warm=not cold, reason="asked for by hand"
        )
        version_id = int(version.id or 0)
    if wait:
        _wait(opened, version_id)
    with opened.read() as session:
        shown = _shown(versions.find(session, version_id), benchmark)
    if json_:
        print_json(shown)
    else:
        say(f"version {version_id} of {_what(shown)} on {benchmark}: {shown['state']}. {shown['reason']}")
    if shown["state"] == VersionState.FAILED:
        raise AssayError(f"version {version_id} failed: {shown['reason']}", "see the trainer's log")


def _wait(opened: Database, version_id: int) -> None:
    while True:
        with opened.read() as session:
            if versions.find(session, version_id).state not in OPEN:
                return
        time.sleep(0.2)


@group.command("list")
def list_(
    benchmark: Annotated[str | None, typer.Option(help="Only this benchmark's.")] = None,
    json_: JsonOption = False,
) -> None:
    """List versions, newest first.

    Example: assay estimators list --benchmark openllm
    """
    with database().read() as session:
        query = select(EstimatorVersion, Benchmark.name).join(
            Benchmark, col(Benchmark.id) == col(EstimatorVersion.benchmark_id)
        )
        if benchmark is not None:
            query = query.where(Benchmark.id == catalog.find_benchmark(session, benchmark).id)
        found = session.exec(query.order_by(col(EstimatorVersion.id).desc())).all()
        shown = [_shown(version, name) for version, name in found]
    if json_:
        print_json(shown)
        return
    rows = [
        (
            s["id"],
            s["benchmark"],
            _what(s),
            s["state"],
            _loss(s),
            s["history_methods"],
            s["age"],
            s["reason"],
        )
        for s in shown
    ]
    columns = ("version", "benchmark", "estimator", "state", "held-out loss", "learned from", "age", "reason")
    print_rows("versions", columns, rows, empty="assay retrain BENCHMARK")


@group.command("show")
def show(
    version_id: int,
    plot: Annotated[
        Path | None, typer.Option(help="Draw a learned policy's training curves into this file.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Show a version: what it learned from and how it was judged.

    Example: assay estimators show 3

    Example: assay estimators show 7 --plot curves.png
    """
    with database().read() as session:
        version = versions.find(session, version_id)
        shown = _shown(version, session.get_one(Benchmark, version.benchmark_id).name)
    if plot is not None:
        save_curves(shown["findings"].get("curve", []), plot)
    if json_:
        print_json(shown)
        return
    facts = [(key, value) for key, value in shown.items() if key not in ("validation", "findings")]
    long = ("candidates", "curve")
    facts += [(key, value) for key, value in shown["findings"].items() if key not in long]
    facts += [(f"candidate {c['estimator']}", f"loss {c['loss']:.5f}") for c in _candidates(shown)]
    facts += [(f"validation: {key}", value) for key, value in shown["validation"].items()]
    print_rows("facts", ("", ""), facts, empty="")


@group.command("promote")
def promote(version_id: int) -> None:
    """Make a version the champion by hand, whatever its validation said.

    Example: assay estimators promote 3
    """
    _crown(version_id, "promoted by hand")


@group.command("rollback")
def rollback(version_id: int) -> None:
    """Take a champion back: the version that it replaced becomes champion again.

    Example: assay estimators rollback 5
    """
    with database().read() as session:
        version = versions.find(session, version_id)
    if version.state != VersionState.CHAMPION:
        raise UsageError(f"version {version_id} is {version.state}, not a champion")
    if version.parent_id is None:
        raise UsageError(f"version {version_id} replaced no other", "promote another: assay estimators list")
    _crown(version.parent_id, f"rolled back from version {version_id}")


def _crown(version_id: int, reason: str) -> None:
    with database().begin() as session:
        retraining.promote(session, version_id, reason)
    say(f"version {version_id} is the champion now")


def _candidates(shown: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shown["findings"].get("candidates", [])
    return found


def _what(shown: dict[str, Any]) -> str:
    policy, estimator = shown["policy"], shown["estimator"]
    return f"{policy} for {estimator}" if policy else str(estimator)


def _loss(shown: dict[str, Any]) -> str:
    loss = shown["validation"].get("loss")
    return "" if loss is None else f"{loss:.5f}"


def _shown(version: EstimatorVersion, benchmark: str) -> dict[str, Any]:
    return {
        "id": version.id,
        "benchmark": benchmark,
        "estimator": version.estimator,
        "policy": version.policy,
        "params": version.params,
        "state": version.state,
        "reason": version.reason,
        "parent": version.parent_id,
        "history_methods": len(version.history.get("methods", [])),
        "history_scores": version.history.get("scores", 0),
        "validation": version.validation,
        "findings": version.history.get("findings", {}),
        "age": ago(version.trained_at, utc_now()),
        "trained_at": version.trained_at.isoformat() if version.trained_at else None,
    }
