"""`assay model`: register, list, show and retire models."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlmodel import col, select

from agent.commands._shared import AssayGroup, JsonOption, database, print_json, print_rows, say
from agent.registration import check_model
from assay.errors import UsageError
from assay.specs import ModelSpec, parse_model, read_mapping
from storage import catalog
from storage.tables import Model

group = typer.Typer(cls=AssayGroup, no_args_is_help=True, help="Models: what answers prompts.")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(group, name="model")


@group.command("add")
def add(
    name: Annotated[str | None, typer.Argument(help="The model's name (not with --file).")] = None,
    file: Annotated[Path | None, typer.Option(help="TOML, YAML or JSON description.")] = None,
    backend: Annotated[
        str | None,
        typer.Option(help="openai, transformers, command or replay; default by the other options."),
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="Endpoint, such as http://host:8000/v1.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The model's name at its endpoint, or the folder of its weights.")
    ] = None,
    command: Annotated[
        str | None, typer.Option(help="Program that answers prompts, with arguments, in quotes.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Of local weights: cpu, cuda, auto.")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable that holds the key.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer in tokens.")] = None,
    input_price: Annotated[float | None, typer.Option(help="US dollars per million prompt tokens.")] = None,
    output_price: Annotated[float | None, typer.Option(help="US dollars per million answer tokens.")] = None,
    matrix: Annotated[Path | None, typer.Option(help="Matrix folder of the replay backend.")] = None,
    free: Annotated[bool, typer.Option("--free", help="Calls cost nothing.")] = False,
    judge: Annotated[bool, typer.Option("--judge", help="It only judges: evaluate it nowhere.")] = False,
    json_: JsonOption = False,
) -> None:
    """Register a model; the agent then evaluates it on every matching benchmark.

    Example: assay model add llama-3-8b --base-url http://127.0.0.1:8000/v1 --free
    """
    options = {
        "backend": backend or _backend_for(model, command, device, base_url, matrix),
        "base_url": base_url,
        "model": model,
        "command": shlex.split(command) if command else None,
        "device": device,
        "api_key_env": api_key_env,
        "max_tokens": max_tokens,
        "matrix": str(matrix.absolute()) if matrix else None,
        "price": _price(free, input_price, output_price),
    }
    spec = _described(name, file, options)
    if judge:
        spec = spec.model_copy(update={"benchmarks": []})
    check_model(spec)
    with database().begin() as session:
        added, new = catalog.add_model(session, spec)
    if json_:
        print_json({"id": added.id, "name": added.name, "new": new})
    else:
        say(f"registered {added.name}" if new else f"{added.name} was registered already, nothing changed")


def _backend_for(
    model: str | None, command: str | None, device: str | None, base_url: str | None, matrix: Path | None
) -> str:
    """The backend that the other options speak of."""
    if base_url is None and (device is not None or (model is not None and Path(model).is_dir())):
        return "transformers"
    if command is not None:
        return "command"
    return "replay" if matrix is not None else "openai"


def _price(free: bool, input_price: float | None, output_price: float | None) -> dict[str, Any] | None:
    given = {"input_per_million": input_price, "output_per_million": output_price}
    stated = {key: value for key, value in given.items() if value is not None}
    return {**stated, **({"free": True} if free else {})} or None


def _described(name: str | None, file: Path | None, options: dict[str, Any]) -> ModelSpec:
    if file is not None:
        return parse_model(read_mapping(file), file.name)
    if name is None:
        raise UsageError("no model named", "give a NAME or --file FILE: assay model add --help")
    data = {"name": name, **{key: value for key, value in options.items() if value is not None}}
    return parse_model(data, "options")


@group.command("list")
def list_(
    all_: Annotated[bool, typer.Option("--all", help="Retired and imported models too.")] = False,
    json_: JsonOption = False,
) -> None:
    """List models.

    Example: assay model list --all --json
    """
    with database().read() as session:
        models = session.exec(select(Model).order_by(col(Model.name))).all()
    if not all_:
        models = [model for model in models if model.retired_at is None and model.backend != "imported"]
    if json_:
        print_json([_shown(model) for model in models])
        return
    rows = [
        (
            model.name,
            model.backend,
            _where(model),
            _state(model),
        )
        for model in models
    ]
    print_rows("models", ("model", "backend", "where", "state"), rows, empty="assay model add NAME ...")


@group.command("show")
def show(name: str, json_: JsonOption = False) -> None:
    """Show a model's description.

    Example: assay model show llama-3-8b
    """
    with database().read() as session:
        model = catalog.find_model(session, name)
    if json_:
        print_json(_shown(model))
        return
    described = {"name": model.name, "backend": model.backend, **model.spec, **model.attributes}
    rows = [(key, value) for key, value in described.items() if value not in (None, {}, [])]
    print_rows("facts", ("key", "value"), [*rows, ("state", _state(model))], empty="")


@group.command("retire")
def retire(name: str) -> None:
    """Take a model off the leaderboards; its scores stay.

    Example: assay model retire llama-2-7b
    """
    with database().begin() as session:
        catalog.retire_model(session, name)
    say(f"{name} is retired")


def _where(model: Model) -> str:
    """What answers: an endpoint, a program, weights, or a matrix folder."""
    known = {"command": shlex.join(model.spec.get("command") or []), "transformers": model.spec.get("model")}
    return known.get(model.backend) or model.spec.get("base_url") or model.spec.get("matrix") or ""


def _state(model: Model) -> str:
    return "retired" if model.retired_at else "active"


def _shown(model: Model) -> dict[str, Any]:
    return {
        "id": model.id,
        "name": model.name,
        "backend": model.backend,
        "spec": {key: value for key, value in model.spec.items() if value is not None},
        "attributes": model.attributes,
        "state": _state(model),
    }
