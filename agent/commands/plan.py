"""`assay plan`: what a study would cost and how sure it would be, before spending."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer
from sqlmodel import Session

from agent.commands._shared import JsonOption, console, database, print_json, print_rows, say
from agent.context import AgentContext
from agent.planning import PlanStep, advice_for, plan_study
from assay.errors import UsageError
from assay.settings import Settings, load_settings
from policies import Recommendation
from policies.hardness import Advice, advise
from storage import catalog, estimates
from storage.database import Database
from storage.tables import Benchmark


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("plan")(plan)


def plan(
    benchmark: Annotated[str, typer.Option(help="Benchmark to evaluate on.")],
    model: Annotated[list[str], typer.Option(help="Model (or method) to evaluate; may be repeated.")],
    objective: Annotated[str, typer.Option(help="estimate or best.")] = "estimate",
    policy: Annotated[str | None, typer.Option(help="Acquisition policy.")] = None,
    estimator: Annotated[str | None, typer.Option(help="Estimator of what is not bought.")] = None,
    budgets: Annotated[str, typer.Option(help="Numbers of prompts, separated by commas.")] = "25,50,100,200",
    json_: JsonOption = False,
) -> None:
    """Show cost and expected interval width for numbers of prompts, without spending anything.

    For the objective "best": how hard the choice is (H1), and which policy fits.

    Example: assay plan --benchmark openllm --model llama-3-8b --budgets 50,100
    """
    settings = load_settings()
    opened = database()
    context = AgentContext(opened, settings, lambda ids, kind: None, lambda version: None)
    if objective == "best":
        _plan_best(opened, context, benchmark, model, estimator or settings.estimator, json_)
        return
    if objective != "estimate":
        raise UsageError(f"unknown objective '{objective}'", "known: best, estimate")
    with opened.read() as session:
        found = catalog.find_benchmark(session, benchmark)
        size = context.columns(session, found).n_prompts
        steps = {
            name: plan_study(
                session,
                context,
                found,
                catalog.find_method(session, name),
                policy=policy or settings.policy,
                estimator=estimator or settings.estimator,
                budgets=_budgets(budgets, size),
                level=settings.level,
            )
            for name in model
        }
    _print(steps, settings, json_)


def _budgets(given: str, size: int) -> list[int]:
    try:
        wanted = sorted({int(part) for part in given.split(",")})
    except ValueError:
        raise UsageError(f"--budgets takes whole numbers separated by commas, not '{given}'") from None
    if wanted[0] < 1:
        raise UsageError("budgets start at 1 prompt")
    return [budget for budget in wanted if budget < size] + [size]


def _print(steps: dict[str, list[PlanStep]], settings: Settings, json_: bool) -> None:
    if json_:
        print_json({name: [vars(step) for step in found] for name, found in steps.items()})
        return
    rows = [
        (
            name,
            step.prompts,
            f"${step.expected_usd:.4f}",
            f"${step.ceiling_usd:.4f}",
            "not known yet" if step.width is None else f"{step.width:.3f}",
        )
        for name, found in steps.items()
        for step in found
    ]
    header = ("model", "prompts", "expected cost", "at most", f"{settings.level:.0%} interval width")
    print_rows("plans", header, rows, empty="")
    if any(step.width is None for found in steps.values() for step in found):
        say("widths need a fitted estimator and complete history rows: assay retrain BENCHMARK --wait")


def _plan_best(
    opened: Database, context: AgentContext, name: str, methods: list[str], estimator: str, json_: bool
) -> None:
    with opened.read() as session:
        benchmark = catalog.find_benchmark(session, name)
        advice = _with_belief(session, benchmark, methods, advice_for(session, context, benchmark, estimator))
    if json_:
        print_json(
            {
                "policy": advice.policy,
                "reason": advice.reason,
                "h1": None if np.isnan(advice.h1) else advice.h1,
            }
        )
        return
    console.print(f"[bold]{advice.policy}[/bold]", highlight=False)
    say(advice.reason)
    if not np.isnan(advice.h1):
        say(f"hardness H1 = {advice.h1:,.0f} from the methods' present estimates (easy below 10,000)")


def _with_belief(session: Session, benchmark: Benchmark, methods: list[str], advice: Advice) -> Advice:
    """The advice, with what present estimates of the methods say of the hardness."""
    ids = {catalog.find_method(session, name).id for name in methods}
    found = [e for e in estimates.latest(session, benchmark.id or 0) if e.method_id in ids]
    if len(found) < 2:
        return advice
    mean = np.array([estimate.score for estimate in found])
    std = np.array([estimate.std for estimate in found])
    belief = Recommendation(mean, std, np.full(len(found), 1.0 / len(found)))
    judged = advise(history_rows=0, linearizes=False, belief=belief)
    return Advice(advice.policy if advice.policy == "top-two" else judged.policy, judged.reason, judged.h1)
