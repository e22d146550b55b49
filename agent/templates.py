"""Templates in studies: the methods that they make of a model, and those that join while a study runs."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from sqlmodel import Session, col, select

from assay.errors import BadInputError
from assay.settings import Settings
from storage import studies
from storage.tables import Method, Model, Study, StudyState, Template
from storage.templates import check_fields, match_templates, method_for

__all__ = ["on_template_added", "template_methods"]

JOINABLE = (StudyState.WAITING, StudyState.RUNNING, StudyState.PAUSED)


def template_methods(
    session: Session, benchmark_id: int, model: Model, patterns: Sequence[str]
) -> list[Method]:
    """The model's methods by the templates that match any pattern, made where there are none.

    Raises:
        UsageError: A pattern matches no template.
        BadInputError: A template names a field that a prompt of the benchmark does not have.
    """
    templates = match_templates(session, patterns)
    for template in templates:
        check_fields(session, template, benchmark_id)
    return [method_for(session, model, template) for template in templates]


def on_template_added(session: Session, settings: Settings, payload: dict[str, Any]) -> set[int]:
    """A new template joins the unfinished studies that asked for templates of such a name.

    A template that does not fit a study's benchmark stays out of it.
    """
    template = session.get(Template, payload["template_id"])
    if template is None:
        return set()
    open_ = select(Study).where(col(Study.state).in_(JOINABLE)).order_by(col(Study.id))
    joined = set()
    for study in session.exec(open_).all():
        if any(fnmatchcase(template.name, pattern) for pattern in study.templates) and _join(
            session, study, template
        ):
            joined.add(int(study.id or 0))
    return joined


def _join(session: Session, study: Study, template: Template) -> bool:
    try:
        check_fields(session, template, study.benchmark_id)
    except BadInputError:
        return False
    method = studies.methods_of(session, int(study.id or 0))[0]
    model = session.get_one(Model, method.model_id)
    return studies.join(session, int(study.id or 0), method_for(session, model, template).id or 0)
