"""`assay template`: add, import, generate, list and render templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from sqlmodel import Session, col, func, select

from agent.commands._shared import AssayGroup, JsonOption, console, database, print_json, print_rows, say
from agent.score_table import score_table, subject_agreement
from agent.sensitivity import sensitivity
from agent.template_variants import generate_variants
from assay.errors import BadInputError, UsageError
from assay.specs import read_mapping
from assay.templates import template_fields
from storage import catalog
from storage.tables import Dataset, Method, Prompt, Template
from storage.templates import add_template, check_fields, find_template
from workers.work import render as render_prompt

group = typer.Typer(cls=AssayGroup, no_args_is_help=True, help="Templates: how a prompt is put to a model.")

Engine = Annotated[str, typer.Option(help="format ({field}) or jinja ({{ field }}, sandboxed).")]
LONGEST_SHOWN = 60


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(group, name="template")


@group.command("add")
def add(
    name: Annotated[str, typer.Argument(help="The template's name.")],
    text: Annotated[str | None, typer.Option(help="Its text; \\n stands for a line break.")] = None,
    file: Annotated[Path | None, typer.Option(help="File that holds its text.")] = None,
    engine: Engine = "format",
    benchmark: Annotated[
        str | None, typer.Option(help="Check its fields against this benchmark's prompts.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Add a template; studies that take templates of such a name pick it up.

    Example: assay template add short --text "Question: {text}"
    """
    if (text is None) == (file is None):
        raise UsageError("give the template's text once", "either --text TEXT or --file FILE")
    written = _read(file) if file is not None else str(text).replace("\\n", "\n")
    with database().begin() as session:
        template, new = add_template(session, name, written, engine)
        _check(session, template, benchmark)
    _added([(template, new)], json_)


@group.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="JSONL (name, text, engine), or TOML, YAML or JSON.")],
    benchmark: Annotated[
        str | None, typer.Option(help="Check their fields against this benchmark's prompts.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Add the templates of a file, all of them or none.

    A JSON-lines file holds one a line; other files hold a list `templates`, or names with texts.

    Example: assay template import templates.jsonl --benchmark qa
    """
    described = _described(file)
    with database().begin() as session:
        added = [add_template(session, *one) for one in described]
        for template, _ in added:
            _check(session, template, benchmark)
    _added(added, json_)


@group.command("generate")
def generate(
    base: Annotated[str, typer.Argument(help="Template to vary; it needs labels, as in 'Question: {text}'.")],
    count: Annotated[int, typer.Option(min=1, help="How many, the base itself among them.")] = 50,
    prefix: Annotated[
        str | None, typer.Option(help="Names are PREFIX-001, ...; default the base's name.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Which features are swapped first.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show them, add none.")] = False,
    json_: JsonOption = False,
) -> None:
    """Add formatting variants of a template: separators, spacing, operators and casing swapped one by one.

    Example: assay template generate short --count 50
    """
    opened = database()
    with opened.read() as session:
        known = find_template(session, base)
    variants = generate_variants(known.text, count, np.random.default_rng(seed))[1:]
    names = [f"{prefix or base}-{i:03d}" for i in range(1, len(variants) + 1)]
    if not dry_run:
        with opened.begin() as session:
            for name, variant in zip(names, variants, strict=True):
                add_template(session, name, variant.text, known.engine)
    if json_:
        rows = [
            {"name": n, "distance": v.distance, "text": v.text} for n, v in zip(names, variants, strict=True)
        ]
        print_json(rows)
        return
    shown = [(n, v.distance, _short(v.text)) for n, v in zip(names, variants, strict=True)]
    print_rows("variants", ("template", "distance", "text"), shown, empty="ask for more than 1")
    say(f"{'would add' if dry_run else 'added'} {len(variants)} variants of {base}")


@group.command("list")
def list_(json_: JsonOption = False) -> None:
    """List templates.

    Example: assay template list
    """
    with database().read() as session:
        templates = session.exec(select(Template).order_by(col(Template.id))).all()
        used: dict[int, int] = dict(
            session.exec(select(Method.template_id, func.count()).group_by(col(Method.template_id))).all()
        )
    if json_:
        print_json([_shown(template) | {"methods": used.get(template.id or 0, 0)} for template in templates])
        return
    rows = [
        (t.name, t.engine, ", ".join(_fields(t)), used.get(t.id or 0, 0), _short(t.text)) for t in templates
    ]
    print_rows(
        "templates", ("template", "engine", "fields", "methods", "text"), rows, empty="assay template add"
    )


@group.command("render")
def render(
    name: Annotated[str, typer.Argument(help="The template.")],
    benchmark: Annotated[str, typer.Option(help="Benchmark with the prompt.")],
    prompt: Annotated[str | None, typer.Option(help="The prompt's id; default the first.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Its dataset, where ids are not unique.")] = None,
    json_: JsonOption = False,
) -> None:
    """Show a prompt as a model would get it by this template.

    Example: assay template render short --benchmark qa
    """
    with database().read() as session:
        template = find_template(session, name)
        text = render_prompt(template, _prompt(session, benchmark, dataset, prompt))
    if json_:
        print_json({"template": name, "text": text})
    else:
        console.print(text, markup=False, highlight=False, soft_wrap=True)


@group.command("sensitivity")
def sensitivity_(
    benchmark: Annotated[
        list[str],
        typer.Option(
            help="Benchmark; several are the same prompts scored by judges with different templates."
        ),
    ],
    model: Annotated[
        list[str] | None, typer.Option(help="Models to compare; default all with scores by every template.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """How much scores and rankings hang on the template: of the prompts, or of the judge.

    With one benchmark the rows are the templates that the models were studied by; with several, the
    benchmarks, each judged by another template. Shows each model's spread, the share of templates in which
    the ranking of the models changes, and Kendall's W (1 = the same templates are best for all).

    Example: assay template sensitivity --benchmark qa
    """
    with database().read() as session:
        table, models, rows = score_table(session, benchmark, model or [])
        subjects = subject_agreement(session, benchmark[0], models) if len(benchmark) == 1 else {}
    found = sensitivity(table, models, rows)
    if json_:
        print_json(
            {
                "templates": found.templates,
                "changed_rankings": found.changed,
                "kendalls_w": found.agreement,
                "kendalls_w_of_subjects": subjects,
                "models": [
                    {"model": name, "low": low, "median": median, "high": high, "spread": high - low}
                    for name, low, median, high in zip(
                        found.models,
                        found.low.tolist(),
                        found.median.tolist(),
                        found.high.tolist(),
                        strict=True,
                    )
                ],
            }
        )
        return
    cells = zip(found.models, found.low, found.median, found.high, found.spread, strict=True)
    shown = [(name, *(f"{value:.4f}" for value in values)) for name, *values in cells]
    print_rows("models", ("model", "lowest", "median", "highest", "spread"), shown, empty="")
    say(f"the ranking of the models changes in {found.changed:.0%} of {len(found.templates)} templates")
    if found.agreement is not None:
        say(f"Kendall's W of the models ranking the templates: {found.agreement:.3f}")
    for name, agreement in subjects.items():
        say(f"Kendall's W of the datasets ranking the templates, {name}: {agreement:.3f}")


def _prompt(session: Session, benchmark: str, dataset: str | None, key: str | None) -> Prompt:
    found = catalog.find_benchmark(session, benchmark)
    query = (
        select(Prompt)
        .join(Dataset, col(Dataset.id) == col(Prompt.dataset_id))
        .where(Dataset.benchmark_id == found.id)
        .order_by(col(Prompt.id))
    )
    if dataset is not None:
        query = query.where(Dataset.name == dataset)
    if key is not None:
        query = query.where(Prompt.key == key)
    prompt = session.exec(query.limit(1)).first()
    if prompt is None:
        raise UsageError(f"benchmark '{benchmark}' has no such prompt", "see: assay benchmark show NAME")
    return prompt


def _check(session: Session, template: Template, benchmark: str | None) -> None:
    if benchmark is not None:
        check_fields(session, template, catalog.find_benchmark(session, benchmark).id or 0)


def _described(file: Path) -> list[tuple[str, str, str]]:
    """Name, text and engine of each template of a file."""
    if file.suffix == ".jsonl":
        lines = enumerate(_read(file).splitlines(), start=1)
        return [
            _entry(_object(line, place), place)
            for n, line in lines
            if line.strip()
            for place in [f"{file.name}, line {n}"]
        ]
    data = read_mapping(file)
    listed = data.get("templates", data)
    if isinstance(listed, dict):
        return [
            _entry({"name": key, "text": value}, f"{file.name}, '{key}'") for key, value in listed.items()
        ]
    if not isinstance(listed, list):
        raise BadInputError(f"{file.name}: templates must be a list", "write name, text and engine of each")
    return [_entry(entry, f"{file.name}, template {i}") for i, entry in enumerate(listed, start=1)]


def _entry(data: Any, place: str) -> tuple[str, str, str]:
    if not isinstance(data, dict) or set(data) - {"name", "text", "engine"}:
        raise BadInputError(f"{place}: expected name, text and engine", "write one object per template")
    values = (data.get("name"), data.get("text"), data.get("engine", "format"))
    if not all(isinstance(value, str) and value for value in values):
        raise BadInputError(f"{place}: name, text and engine must be text", "put them in quotes")
    return str(values[0]), str(values[1]), str(values[2])


def _object(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise BadInputError(f"{place}: not JSON: {error}", "write one JSON object per line") from None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{file.name} cannot be read: {error}", "give a UTF-8 text file") from None


def _added(added: list[tuple[Template, bool]], json_: bool) -> None:
    if json_:
        print_json([_shown(template) | {"new": new} for template, new in added])
        return
    new = sum(fresh for _, fresh in added)
    say(f"added {new} templates, {len(added) - new} were there already")


def _fields(template: Template) -> list[str]:
    return sorted(template_fields(template.text, template.engine))


def _shown(template: Template) -> dict[str, Any]:
    return {
        "name": template.name,
        "engine": template.engine,
        "text": template.text,
        "fields": _fields(template),
    }


def _short(text: str) -> str:
    one_line = text.replace("\n", "\\n").replace("\t", "\\t")
    return one_line if len(one_line) <= LONGEST_SHOWN else one_line[: LONGEST_SHOWN - 1] + "…"
