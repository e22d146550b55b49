"""`assay budget`: caps per study, benchmark, endpoint and overall, and what is used of them."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer
from sqlmodel import Session, col, select

from agent.commands._shared import AssayGroup, JsonOption, database, print_json, print_rows, say
from agent.text import amount, budget_name, cap_in_words
from assay.errors import UsageError
from storage import catalog, ledger, studies
from storage.tables import Benchmark, Budget, Model
from workers.limits import endpoint_of
from workers.work import spec_of

group = typer.Typer(cls=AssayGroup, no_args_is_help=True, help="Hard caps on what is spent.")

SCOPES = ("overall", "benchmark", "endpoint", "study")

#: More would not fit into the database's integers as micro-dollars.
MOST = 1e9


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(group, name="budget")


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter("must be a finite number")
    return value


@group.command("set")
def set_(
    scope: Annotated[str, typer.Argument(help="overall, benchmark, endpoint or study.")],
    name: Annotated[
        str | None,
        typer.Argument(help="The benchmark's name, the endpoint's base URL or a model at it, the study."),
    ] = None,
    usd: Annotated[float | None, typer.Option(min=0, max=MOST, callback=_finite, help="US dollars.")] = None,
    tokens: Annotated[int | None, typer.Option(min=0, help="Tokens of prompts and answers.")] = None,
    calls: Annotated[int | None, typer.Option(min=0, help="Calls.")] = None,
    gpu_seconds: Annotated[
        float | None, typer.Option(min=0, max=MOST, callback=_finite, help="Seconds of a local GPU.")
    ] = None,
    per: Annotated[str, typer.Option(help="total, month, day or hour (UTC).")] = "total",
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove all caps of this scope and period.")
    ] = False,
) -> None:
    """Set hard caps; studies that wait for one go on when it is raised.

    Example: assay budget set overall --usd 20 --per day
    """
    _check_period(per)
    caps = {"usd": _micro(usd), "tokens": tokens, "calls": calls, "gpu-ms": _milli(gpu_seconds)}
    wanted = {unit: cap for unit, cap in caps.items() if cap is not None}
    if bool(wanted) == remove:
        raise UsageError(
            "nothing to set", "give --usd, --tokens, --calls or --gpu-seconds; or --remove alone"
        )
    with database().begin() as session:
        scope_id = _scope_id(session, scope, name)
        if remove:
            gone = [one for one in ledger.budgets_of(session, [(scope, scope_id)]) if one.period == per]
            for one in gone:
                ledger.drop(session, one)
            said = [f"{len(gone)} caps removed"]
        else:
            found = [
                ledger.set_cap(session, scope, scope_id, unit, cap, period=per)
                for unit, cap in wanted.items()
            ]
            said = [f"{cap_in_words(one)}, {amount(one.spent, one.unit)} spent" for one in found]
    for line in said:
        say(line)


def _micro(usd: float | None) -> int | None:
    return None if usd is None else round(usd * 1e6)


def _milli(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _check_period(per: str) -> None:
    if per not in ledger.PERIODS:
        raise UsageError(f"unknown period '{per}'", f"known: {', '.join(ledger.PERIODS)}")


def _scope_id(session: Session, scope: str, name: str | None) -> int:
    if scope not in SCOPES:
        raise UsageError(f"unknown scope '{scope}'", f"known: {', '.join(SCOPES)}")
    if scope == "overall":
        return 0
    if name is None:
        raise UsageError(f"which {scope}?", f"assay budget set {scope} NAME ...")
    if scope == "benchmark":
        return int(catalog.find_benchmark(session, name).id or 0)
    if scope == "endpoint":
        return ledger.endpoint_id(session, _endpoint(session, name))
    if not name.isdecimal():
        raise UsageError(f"a study is named by its number, not '{name}'", "list them with: assay study list")
    return int(studies.find(session, int(name)).id or 0)


def _endpoint(session: Session, name: str) -> str:
    """The endpoint of that name, or of the model of that name.

    Raises:
        UsageError: No model is there; a cap that counts nothing would only look like one.
    """
    specs = [spec_of(model) for model in session.exec(select(Model)).all() if model.backend != "imported"]
    known = sorted({endpoint_of(spec) for spec in specs})
    by_model = {spec.name: endpoint_of(spec) for spec in specs}
    found = name.rstrip("/")
    if found in known:
        return found
    if name in by_model:
        return by_model[name]
    raise UsageError(
        f"no model calls the endpoint '{name}'",
        f"known: {', '.join(known)}" if known else "add a model first",
    )


@group.command("show")
def show(
    scope: Annotated[str | None, typer.Argument(help="Only this scope.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Also the caps of studies.")] = False,
    json_: JsonOption = False,
) -> None:
    """Show every cap, what is spent and reserved under it, and what is left.

    Example: assay budget show
    """
    if scope is not None and scope not in SCOPES:
        raise UsageError(f"unknown scope '{scope}'", f"known: {', '.join(SCOPES)}")
    with database().begin() as session:
        budgets = list(session.exec(select(Budget).order_by(col(Budget.id))).all())
        ledger.turn_periods(session, budgets)
        names = {b.id: b.name for b in session.exec(select(Benchmark)).all()}
        shown = [_described(one, names) for one in budgets if _is_wanted(one, scope, all_)]
    if json_:
        print_json(shown)
        return
    rows = [
        (
            one["name"],
            one["period"],
            *(amount(one[key], one["unit"]) for key in ("cap", "spent", "reserved", "left")),
            f"{one['used']:.0%}",
        )
        for one in shown
    ]
    header = ("budget", "per", "cap", "spent", "reserved", "left", "used")
    print_rows("budgets", header, rows, empty="assay budget set overall --usd 20 --per day")


def _is_wanted(budget: Budget, scope: str | None, all_: bool) -> bool:
    return budget.scope == scope if scope is not None else all_ or budget.scope != "study"


def _described(budget: Budget, names: dict[int | None, str]) -> dict[str, Any]:
    name = budget_name(budget)
    if budget.scope == "benchmark":
        name = f"benchmark {names.get(budget.scope_id, budget.scope_id)}"
    used = budget.spent + budget.reserved
    return {
        "name": name,
        **budget.model_dump(include={"scope", "scope_id", "unit", "period", "cap", "spent", "reserved"}),
        "starts_at": budget.starts_at.isoformat(),
        "left": max(0, budget.cap - used),
        "used": used / budget.cap if budget.cap else 1.0,
    }
