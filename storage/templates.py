"""Templates: how a prompt is put to a model. A template never changes; a method joins it to a model."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from sqlmodel import Session, col, select

from assay.errors import BadInputError, UsageError
from assay.templates import check_template, template_fields
from storage.catalog import add_method
from storage.events import emit
from storage.tables import Dataset, Method, Model, Prompt, Template

__all__ = ["LONGEST_NAME", "add_template", "check_fields", "find_template", "match_templates", "method_for"]

LONGEST_NAME = 100


def add_template(session: Session, name: str, text: str, engine: str = "format") -> tuple[Template, bool]:
    """Store a template; announces template.added when it is new.

    Returns:
        The template, and whether it is new. The same name with the same text changes nothing.

    Raises:
        UsageError: Unknown engine.
        BadInputError: It cannot be rendered, names no field, or the name is taken by another text.
    """
    if not name or len(name) > LONGEST_NAME or any(not c.isprintable() for c in name) or "*" in name:
        raise BadInputError(
            f"'{name[:40]}' cannot be a template's name",
            f"use 1 to {LONGEST_NAME} printable characters but *",
        )
    check_template(text, engine, name)
    known = session.exec(select(Template).where(Template.name == name)).first()
    if known is not None:
        if (known.text, known.engine) != (text, engine):
            raise BadInputError(
                f"template '{name}' is there already with another text",
                "a template is never changed (its scores would be wrong): choose a new name",
            )
        return known, False
    template = Template(name=name, text=text, engine=engine)
    session.add(template)
    session.flush()
    emit(session, "template.added", {"template_id": template.id, "template": name})
    return template, True


def find_template(session: Session, name: str) -> Template:
    """The template of that name; UsageError where there is none."""
    template = session.exec(select(Template).where(Template.name == name)).first()
    if template is None:
        raise UsageError(f"unknown template '{name}'", "list them with: assay template list")
    return template


def match_templates(session: Session, patterns: Sequence[str]) -> list[Template]:
    """Templates whose names match any of the patterns (`*` and `?` as in file names), in order of their ids.

    Raises:
        UsageError: A pattern matches none.
    """
    templates = session.exec(select(Template).order_by(col(Template.id))).all()
    for pattern in patterns:
        if not any(fnmatchcase(template.name, pattern) for template in templates):
            raise UsageError(f"no template matches '{pattern}'", "list them with: assay template list")
    return [t for t in templates if any(fnmatchcase(t.name, pattern) for pattern in patterns)]


def method_for(session: Session, model: Model, template: Template) -> Method:
    """The method that puts prompts to the model by the template, made where there is none."""
    return add_method(session, model, template, f"{model.name}@{template.name}")


def check_fields(session: Session, template: Template, benchmark_id: int) -> None:
    """Refuse a template that names a field which a prompt of the benchmark does not have.

    Raises:
        BadInputError: The message names the prompt and the field.
    """
    wanted = template_fields(template.text, template.engine) - {"text"}
    if not wanted:
        return
    query = (
        select(Prompt.key, Prompt.fields, Dataset.name)
        .join(Dataset, col(Dataset.id) == col(Prompt.dataset_id))
        .where(Dataset.benchmark_id == benchmark_id)
    )
    for key, fields, dataset in session.exec(query):
        missing = sorted(wanted - fields.keys())
        if missing:
            raise BadInputError(
                f"template '{template.name}' names the field '{missing[0]}', prompt '{key}' of dataset"
                f" '{dataset}' has none such",
                f"its fields: {', '.join(['text', *sorted(fields)])}",
            )
