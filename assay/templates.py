"""Putting a prompt into a template: `{field}` replacement, or Jinja2 in a sandbox.

Templates come from users and files; prompts from datasets. Neither may run code, read attributes that Python
reserves, or fill the memory: Jinja2 templates run in its immutable sandbox, with limits on powers,
repetitions and the length of what comes out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, UndefinedError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from assay.errors import BadInputError, UsageError

__all__ = ["ENGINES", "check_template", "render_template", "template_fields"]

ENGINES = ("format", "jinja")
FIELD = re.compile(r"\{(\w+)\}")
LONGEST = 400_000  # characters of a rendered prompt
LONGEST_TEMPLATE = 100_000
MOST_REPEATED = 100_000  # characters or items that a `*` may make


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja2's sandbox with bounded arithmetic."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse powers, and repetitions and paddings that only serve to fill the memory."""
        if operator == "**":
            raise SecurityError("powers are not allowed in templates")
        if operator == "%" and isinstance(left, str):
            raise SecurityError("use {{ ... }} instead of the % operator on text")
        if operator == "*" and _size(left) * _size(right) > MOST_REPEATED:
            raise SecurityError("a repetition makes too much text")
        return super().call_binop(context, operator, left, right)


def _size(value: Any) -> int:
    if isinstance(value, int | float):
        return abs(int(value))
    return len(value) if hasattr(value, "__len__") else 1


_environment = _Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
#: Filters that pad text to any width.
for _name in ("center", "indent", "format", "wordwrap"):
    _environment.filters.pop(_name, None)
_environment.globals.clear()
_environment.globals["range"] = lambda *bounds: range(*bounds)[:10_000]


def template_fields(text: str, engine: str = "format") -> frozenset[str]:
    """Names of the prompt's fields that a template reads (`text` is the prompt's own text).

    Raises:
        UsageError: Unknown engine.
        BadInputError: The template cannot be parsed.
    """
    if engine == "format":
        return frozenset(FIELD.findall(text))
    tree = _parse(text, engine)
    try:
        return frozenset(meta.find_undeclared_variables(tree) - set(_environment.globals))
    except TemplateError as error:
        raise BadInputError(f"not a template that may be used: {error}", "mend it and try again") from None


def check_template(text: str, engine: str, name: str) -> frozenset[str]:
    """Refuse a template that could not be rendered, or that would give the same text for every prompt.

    Returns:
        The fields that it reads.
    """
    if len(text) > LONGEST_TEMPLATE:
        raise BadInputError(f"template '{name}' is longer than {LONGEST_TEMPLATE:,} characters")
    try:
        found = template_fields(text, engine)
    except BadInputError as error:
        raise BadInputError(f"template '{name}': {error.message}", error.hint) from None
    if not found:
        example = "{text}" if engine == "format" else "{{ text }}"
        raise BadInputError(
            f"template '{name}' names no field of the prompt", f"name at least one, such as {example}"
        )
    return found


def render_template(text: str, engine: str, values: Mapping[str, Any], *, name: str, prompt: str) -> str:
    """Put a prompt's fields into a template.

    Args:
        text: The template.
        engine: "format" (`{field}` is replaced, other braces are left alone) or "jinja".
        values: The prompt's fields.
        name: The template's name, for errors.
        prompt: The prompt's id, for errors.

    Raises:
        BadInputError: The template names a field that the prompt does not have, or does what it may not.
    """
    missing = sorted(template_fields(text, engine) - values.keys())
    if engine == "format" and missing:
        _refuse_missing(missing[0], name, prompt)
    if engine == "format":
        return FIELD.sub(lambda match: str(values[match.group(1)]), text)
    try:
        return _joined(_compiled(text).generate(**values))
    except UndefinedError as error:
        if missing:
            _refuse_missing(missing[0], name, prompt)
        raise BadInputError(f"template '{name}', prompt '{prompt}': {error}", "mend the template") from None
    except (TemplateError, ArithmeticError, TypeError, ValueError, RecursionError) as error:
        raise BadInputError(f"template '{name}', prompt '{prompt}': {error}", "mend the template") from None


def _refuse_missing(field: str, name: str, prompt: str) -> None:
    raise BadInputError(
        f"template '{name}' names the field '{field}', prompt '{prompt}' has none such",
        "add the field to the prompt, or use another template",
    )


def _joined(parts: Any) -> str:
    total, kept = 0, []
    for part in parts:
        total += len(part)
        if total > LONGEST:
            raise SecurityError(f"the rendered prompt is longer than {LONGEST:,} characters")
        kept.append(part)
    return "".join(kept)


@lru_cache(maxsize=512)
def _compiled(text: str) -> Template:
    return _environment.from_string(text)


def _parse(text: str, engine: str) -> nodes.Template:
    if engine != "jinja":
        raise UsageError(f"unknown template engine '{engine}'", f"known: {', '.join(ENGINES)}")
    try:
        return _environment.parse(text)
    except TemplateError as error:
        raise BadInputError(f"not a Jinja2 template: {error}", "mend it and try again") from None
