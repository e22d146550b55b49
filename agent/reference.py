"""Write docs/reference.md from the code: every command, option, setting, file key and plug-in name.

Run with `python -m agent.reference`; a test fails where the file is not what this would write.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

from agent.cli import app
from agent.notify import NOTIFIERS
from assay.plugins import Registry
from assay.settings import Settings
from assay.specs import DatasetSpec, ModelSpec, NotifySpec, Price, PromptSpec
from estimators import ENCODERS, ESTIMATORS
from policies import POLICIES
from workers.backends import BACKENDS
from workers.judges import JUDGES
from workers.scorers import SCORERS

__all__ = ["PATH", "commands", "main", "reference"]

PATH = Path(__file__).resolve().parents[1] / "docs" / "reference.md"

HEAD = """\
# Reference

Written by `python -m agent.reference` from the code; edit the code, not this page.

Exit codes: 0 done, 1 failed, 2 wrong use. Errors are one line with the next step under it; `assay --debug
COMMAND` shows where they come from.
"""

FILES: tuple[tuple[str, str, type[BaseModel]], ...] = (
    (
        "Model file",
        "TOML, YAML or JSON, one model per file: `assay model add --file`, or in the watched folder.",
        ModelSpec,
    ),
    (
        "Price",
        "The key `price` of a model file. Without it the price is looked up; an unknown one is refused.",
        Price,
    ),
    (
        "Prompt",
        "One JSON object per line of a JSONL file, or an entry of `prompts` in a TOML or YAML file.",
        PromptSpec,
    ),
    ("Notify target", "An entry of `[[notify]]` in assay.toml.", NotifySpec),
    ("Dataset", "An entry of `datasets` in a TOML or YAML prompt file.", DatasetSpec),
)

REGISTRIES: tuple[tuple[str, Registry[Any]], ...] = (
    ("Policies", POLICIES),
    ("Estimators", ESTIMATORS),
    ("Encoders", ENCODERS),
    ("Backends", BACKENDS),
    ("Scorers", SCORERS),
    ("Judges", JUDGES),
    ("Notifiers", NOTIFIERS),
)


def commands() -> Iterator[tuple[str, Any]]:
    """Full name ("assay study create") and command object of every command, in the order of the help."""
    yield from _walk("assay", typer.main.get_command(app))


def reference() -> str:
    """The whole page."""
    parts = [HEAD, "## Commands\n", *map(_command, commands())]
    parts += ["## Settings\n", _settings(), "## Files\n", *(_file(*about) for about in FILES)]
    parts += ["## Plug-ins\n", *(_names(*about) for about in REGISTRIES)]
    return "\n".join(parts).rstrip() + "\n"


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    members = getattr(command, "commands", None)
    if members is None:
        yield name, command
        return
    for key, member in members.items():
        yield from _walk(f"{name} {key}", member)


def _command(named: tuple[str, Any]) -> str:
    name, command = named
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join([name, *(p.name.upper() + ("..." if p.nargs == -1 else "") for p in arguments)])
    text, _, example = inspect.cleandoc(command.help or "").partition("Example:")
    lines = [f"### `{usage}`\n", f"{' '.join(text.split())}\n", f"    {example.strip()}\n"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    if options:
        lines += ["| option | default | |", "| --- | --- | --- |", *map(_option, options), ""]
    return "\n".join(lines)


def _option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    default = "required" if option.required else _default(option.default)
    return f"| {names} | {default} | {_cell(option.help or '')} |"


def _settings() -> str:
    lines = [
        "In `assay.toml` in the working folder, or as environment variables, which win.\n",
        "| `assay.toml` | environment | default | |",
        "| --- | --- | --- | --- |",
    ]
    for name, field in Settings.model_fields.items():
        default, told = _default(field.default), _cell(field.description or "")
        lines.append(f"| `{name}` | `ASSAY_{name.upper()}` | {default} | {told} |")
    return "\n".join([*lines, ""])


def _file(title: str, about: str, spec: type[BaseModel]) -> str:
    lines = [f"### {title}\n", f"{about}\n", "| key | type | default |", "| --- | --- | --- |"]
    for name, field in spec.model_fields.items():
        default = (
            "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
        )
        lines.append(f"| `{name}` | {_cell(_type(field.annotation))} | {default} |")
    return "\n".join([*lines, ""])


def _type(annotation: Any) -> str:
    """A type as people write it."""
    plain = inspect.isclass(annotation) and "[" not in str(annotation)
    shown: str = annotation.__name__ if plain else str(annotation)
    return shown.replace("typing.", "").replace("assay.specs.", "")


def _names(title: str, registry: Registry[Any]) -> str:
    """Built-in names only: what third parties have installed differs from machine to machine."""
    known = ", ".join(f"`{name}`" for name in sorted(registry.builtins))
    return f"### {title}\n\n{known}; more by the entry point `{registry.group}`.\n"


def _default(value: Any) -> str:
    if value is None or value == "" or value == {} or callable(value):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    """Write the page."""
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
