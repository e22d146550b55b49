"""`assay benchmark`: create, import, add prompts, list and show benchmarks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlmodel import col, select

from agent.commands._shared import AssayGroup, JsonOption, database, print_json, print_rows, say
from agent.context import AgentContext
from agent.refreshing import RefreshPlan, plan_prompt_file
from agent.registration import (
    PROMPT_SUFFIXES,
    AddedPrompts,
    Scoring,
    add_prompt_file,
    add_prompts_like,
)
from agent.views import benchmark_facts
from assay.errors import UsageError
from assay.settings import load_settings
from storage import catalog
from storage.exporting import export_matrix_folder
from storage.importing import IMPORTERS, ImportOptions, import_path
from storage.tables import Benchmark

group = typer.Typer(cls=AssayGroup, no_args_is_help=True, help="Benchmarks: datasets and their prompts.")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(group, name="benchmark")


@group.command("create")
def create(
    name: Annotated[str, typer.Argument(help="The benchmark's name.")],
    file: Annotated[
        Path | None, typer.Option(help="TOML, YAML or JSONL file of datasets and prompts.")
    ] = None,
    like: Annotated[str | None, typer.Option(help="Benchmark whose prompts are to be scored anew.")] = None,
    scorer: Annotated[
        str | None, typer.Option(help="Scorer of datasets that the file does not describe.")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="Registered model that judges (judge-* scorers).")] = None,
    rubric: Annotated[str | None, typer.Option(help="What the judge goes by.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Parameter of the scorer, NAME=VALUE; repeatable.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Create a benchmark, with prompts where a file is given.

    Example: assay benchmark create support-qa --file tickets.jsonl --scorer judge-score --judge gpt-judge
    """
    scoring = _scoring(scorer, judge, rubric, set_ or [])
    if like is not None and (file is not None or scoring is None):
        raise UsageError(
            "--like takes another benchmark's prompts", "give --scorer or --judge, and no --file"
        )
    with database().begin() as session:
        _, new = catalog.add_benchmark(session, name)
        added = 0
        if file is not None:
            added = add_prompt_file(session, _readable(file), name, scoring).added
        elif like is not None and scoring is not None:
            added = add_prompts_like(session, name, like, scoring).added
    if json_:
        print_json({"name": name, "new": new, "prompts_added": added})
    else:
        say(f"benchmark {name} {'created' if new else 'was there already'}, {added} prompts added")


def _scoring(scorer: str | None, judge: str | None, rubric: str | None, given: list[str]) -> Scoring | None:
    """How the options want new datasets scored; None where they say nothing."""
    named = {"judge": judge, "rubric": rubric}
    params: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
    for one in given:
        key, separator, value = one.partition("=")
        if not separator:
            raise UsageError(f"--set {one} is not NAME=VALUE", "write for example --set high=5")
        params[key] = _value(value)
    if scorer is None and not params:
        return None
    return Scoring(scorer or ("judge-score" if judge else "exact-match"), params)


def _value(text: str) -> Any:
    """Numbers and true or false as what they are, everything else as text."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, bool | int | float) else text


@group.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="File or folder.")],
    benchmark: Annotated[str | None, typer.Option(help="Benchmark; default the file's name.")] = None,
    format_: Annotated[
        str, typer.Option("--format", help=f"auto, {', '.join(IMPORTERS.builtins)}.")
    ] = "auto",
    rows: Annotated[str, typer.Option(help="all, or a value of the split column (matrix folder).")] = "all",
    weighting: Annotated[
        str, typer.Option(help="dataset: mean of dataset means; prompt: plain mean over prompts.")
    ] = "dataset",
    model: Annotated[str | None, typer.Option(help="The model, where the file does not name it.")] = None,
    dataset: Annotated[str | None, typer.Option(help="The dataset, instead of the file's own.")] = None,
    metric: Annotated[str | None, typer.Option(help="Which of several scores (Inspect: scorer).")] = None,
    filter_: Annotated[str | None, typer.Option("--filter", help="Which of the filters (lm-eval).")] = None,
    json_: JsonOption = False,
) -> None:
    """Import scores that exist already; they become history.

    Example: assay benchmark import ./openllm --rows train

    Example: assay benchmark import samples_gsm8k_2026-11-01T10-00-00.jsonl --format lm-eval --benchmark open
    """
    if weighting not in ("dataset", "prompt"):
        raise UsageError(f"unknown weighting '{weighting}'", "use dataset or prompt")
    options = ImportOptions(
        rows=rows,
        weighting="prompt" if weighting == "prompt" else "dataset",
        model=model,
        dataset=dataset,
        metric=metric,
        filter=filter_,
    )
    report = import_path(database(), path, benchmark or path.stem, options, kind=format_)
    if json_:
        print_json(vars(report))
        return
    say(
        f"{report.rows} rows read, {report.skipped} skipped; {report.scores_new} scores imported"
        f" ({report.scores_known} were known), {report.models} models ({report.models_new} new),"
        f" {report.prompts} prompts ({report.prompts_new} new)"
    )
    for reason, count in report.reasons.items():
        say(f"skipped {count}: {reason}")
    for note in report.notes:
        say(note)


@group.command("export")
def export(
    benchmark: Annotated[str, typer.Argument(help="Name of the benchmark.")],
    folder: Annotated[Path, typer.Argument(help="Folder to make.")],
    json_: JsonOption = False,
) -> None:
    """Write scores, prompts, models, outputs and weights as a matrix folder, which import and backtest read.

    Example: assay benchmark export openllm ./openllm-export
    """
    report = export_matrix_folder(database(), benchmark, folder)
    if json_:
        print_json(vars(report))
    else:
        say(
            f"{report.models} models x {report.prompts} prompts with {report.scores} scores and"
            f" {report.outputs} outputs written to {folder}"
        )


@group.command("add-prompts")
def add_prompts(
    benchmark: Annotated[str, typer.Argument(help="Name of the benchmark.")],
    file: Annotated[Path, typer.Argument(help="JSONL (one prompt a line), TOML or YAML file.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before money is spent.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it would cost, add nothing.")] = False,
    json_: JsonOption = False,
) -> None:
    """Add prompts; the agent then refreshes the models that it has evaluated.

    What the refresh studies will cost is shown first; where that is more than nothing, it is asked for.

    Example: assay benchmark add-prompts support-qa new-tickets.jsonl
    """
    _readable(file)
    context = AgentContext(database(), load_settings(), lambda ids, kind: None, lambda version: None)
    change, plan = plan_prompt_file(context, benchmark, file)
    if not json_:
        _say_plan(change, plan)
    if not dry_run:
        _agree(plan, yes=yes, may_ask=not json_ and sys.stdin.isatty())
        with context.database.begin() as session:
            change = add_prompt_file(session, file, benchmark)
    if json_:
        print_json({**vars(change), "refresh": plan.to_json(), "dry_run": dry_run})
    elif not dry_run:
        say(f"{change.added} prompts added to {benchmark}, {change.known} were known already")


def _say_plan(change: AddedPrompts, plan: RefreshPlan) -> None:
    say(f"{change.added} prompts are new, {change.known} are known already")
    if plan.studies:
        say(
            f"the agent will make {plan.studies} refresh studies of up to {plan.prompts} prompts in all:"
            f" about ${plan.expected_usd:,.4f}, at most ${plan.ceiling_usd:,.4f}"
        )


def _agree(plan: RefreshPlan, *, yes: bool, may_ask: bool) -> None:
    if yes or plan.ceiling_usd == 0:
        return
    if not may_ask:
        raise UsageError(
            f"{plan.studies} refresh studies would spend up to ${plan.ceiling_usd:,.4f}",
            "add --yes to agree, or --dry-run to look only",
        )
    typer.confirm("add them?", abort=True)


def _readable(file: Path) -> Path:
    if file.suffix not in PROMPT_SUFFIXES:
        raise UsageError(f"{file.name} is not a prompt file", f"known endings: {', '.join(PROMPT_SUFFIXES)}")
    return file


@group.command("list")
def list_(json_: JsonOption = False) -> None:
    """List benchmarks.

    Example: assay benchmark list
    """
    with database().read() as session:
        benchmarks = session.exec(select(Benchmark).order_by(col(Benchmark.name))).all()
        shown = [benchmark_facts(session, benchmark) for benchmark in benchmarks]
    if json_:
        print_json(shown)
        return
    rows = [(b["name"], len(b["datasets"]), b["prompts"], b["methods"]) for b in shown]
    columns = ("benchmark", "datasets", "prompts", "methods with scores")
    print_rows("benchmarks", columns, rows, empty="assay benchmark create NAME --file FILE")


@group.command("show")
def show(name: str, json_: JsonOption = False) -> None:
    """Show a benchmark's datasets.

    Example: assay benchmark show openllm
    """
    with database().read() as session:
        shown = benchmark_facts(session, catalog.find_benchmark(session, name))
    if json_:
        print_json(shown)
        return
    rows = [(d["name"], d["prompts"], d["weight"], d["score_type"], d["scorer"]) for d in shown["datasets"]]
    columns = ("dataset", "prompts", "weight", "score type", "scorer")
    print_rows("datasets", columns, rows, empty=f"assay benchmark add-prompts {name} FILE")
