"""What is evaluated: models, templates, methods, benchmarks, datasets, prompts. Adding is idempotent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from sqlalchemy import func, insert, update
from sqlmodel import Session, col, select

from assay.errors import BadInputError, ConflictError, NotFoundError
from assay.specs import DatasetSpec, ModelSpec, PromptSpec, content_hash
from storage.events import emit
from storage.tables import Benchmark, Dataset, Method, Model, Prompt, Scorer, Template, utc_now

__all__ = [
    "DEFAULT_TEMPLATE",
    "PromptChange",
    "add_benchmark",
    "add_dataset",
    "add_imported_models",
    "add_method",
    "add_model",
    "add_prompts",
    "add_template",
    "bump_prompts_revision",
    "count_dataset_prompts",
    "count_models",
    "count_prompts",
    "default_method",
    "find_benchmark",
    "find_method",
    "find_model",
    "find_template",
    "retire_model",
    "scorer_of",
]

DEFAULT_TEMPLATE = "plain"


@dataclass(frozen=True)
class PromptChange:
    """What adding prompts did."""

    added: int
    known: int


def add_model(session: Session, spec: ModelSpec, *, announce: bool = True) -> tuple[Model, bool]:
    """Register a model with its default method; announces model.registered when it is new.

    Returns:
        The model, and whether it is new. The same name with the same description changes nothing.

    Raises:
        BadInputError: The name is taken by a model with another description.
    """
    described = spec.model_dump(mode="json", exclude={"name", "attributes", "backend"})
    known = session.exec(select(Model).where(Model.name == spec.name)).first()
    if known is not None:
        if known.spec != described or known.backend != spec.backend:
            raise BadInputError(
                f"model '{spec.name}' is registered already with another description",
                "a model is never changed: choose a new name, or retire the old one first",
            )
        return known, False
    model = Model(name=spec.name, backend=spec.backend, spec=described, attributes=spec.attributes)
    session.add(model)
    session.flush()
    _add_default_method(session, model)
    if announce:
        emit(
            session, "model.registered", {"model_id": model.id, "model": model.name}, key=f"model:{model.id}"
        )
    return model, True


def _add_default_method(session: Session, model: Model) -> Method:
    return add_method(session, model, session.get_one(Template, _default_template(session)), model.name)


def add_method(session: Session, model: Model, template: Template, name: str) -> Method:
    """The method of a model and a template without parameters of its own, made where there is none.

    Raises:
        BadInputError: The name is taken by another method.
    """
    assert model.id is not None
    assert template.id is not None
    identity = (model.id, template.id, _hash_of({}))
    query = select(Method).where(
        Method.model_id == model.id, Method.template_id == template.id, Method.parameters_hash == identity[2]
    )
    known = session.exec(query).first()
    if known is not None:
        return known
    if session.exec(select(Method.id).where(Method.name == name)).first() is not None:
        raise BadInputError(f"the name '{name}' is taken by another method", "rename the template or model")
    method = Method(name=name, model_id=identity[0], template_id=identity[1], parameters_hash=identity[2])
    session.add(method)
    session.flush()
    return method


def _default_template(session: Session) -> int:
    template = session.exec(select(Template).where(Template.name == DEFAULT_TEMPLATE)).first()
    if template is None:
        template = Template(name=DEFAULT_TEMPLATE, text="{text}")
        session.add(template)
        session.flush()
    assert template.id is not None
    return template.id


def add_imported_models(session: Session, attributes: Mapping[str, dict[str, Any]]) -> dict[str, int]:
    """Make sure that a method of each name is there; new ones get a model that only holds imported scores.

    No event is emitted: there is nothing to evaluate about a model that cannot be called.

    Args:
        session: A writing session.
        attributes: Name -> attributes of the model, used where it is new; known models stay as they are.

    Returns:
        Name -> method id.

    Raises:
        BadInputError: A name is longer than a model's name may be.
    """
    methods = _method_ids(session, attributes)
    new = [name for name in attributes if name not in methods]
    if not new:
        return methods
    models = [_imported_model(name, attributes[name]) for name in new]
    inserted = session.connection().execute(insert(Model).returning(col(Model.id), col(Model.name)), models)
    template_id, no_parameters = _default_template(session), _hash_of({})
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "model_id": model_id,
            "template_id": template_id,
            "parameters": {},
            "parameters_hash": no_parameters,
            "created_at": utc_now(),
        }
        for model_id, name in sorted(tuple(row) for row in inserted)
    ]
    session.connection().execute(insert(Method), rows)
    return methods | _method_ids(session, new)


def _method_ids(session: Session, names: Iterable[str]) -> dict[str, int]:
    wanted = set(names)
    known = session.exec(select(Method.name, Method.id)).all()
    return {name: method_id for name, method_id in known if name in wanted and method_id is not None}


def _imported_model(name: str, attributes: dict[str, Any]) -> dict[str, Any]:
    try:
        spec = ModelSpec(name=name, backend="imported", attributes=attributes)
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        raise BadInputError(f"'{name[:50]}' cannot be a model's name: {problem}") from None
    return {
        "name": spec.name,
        "backend": spec.backend,
        "spec": spec.model_dump(mode="json", exclude={"name", "attributes", "backend"}),
        "attributes": spec.attributes,
        "created_at": utc_now(),
    }


def add_benchmark(session: Session, name: str) -> tuple[Benchmark, bool]:
    """The benchmark of that name, made where there is none; and whether it is new."""
    known = session.exec(select(Benchmark).where(Benchmark.name == name)).first()
    if known is not None:
        return known, False
    benchmark = Benchmark(name=name)
    session.add(benchmark)
    session.flush()
    return benchmark, True


def add_dataset(session: Session, benchmark: Benchmark, spec: DatasetSpec) -> Dataset:
    """The benchmark's dataset of that name, made where there is none.

    Raises:
        BadInputError: It is there with another scorer or score type.
    """
    scorer = scorer_of(session, spec.scorer, spec.scorer_params)
    assert benchmark.id is not None
    assert scorer.id is not None
    known = session.exec(
        select(Dataset).where(Dataset.benchmark_id == benchmark.id, Dataset.name == spec.name)
    ).first()
    if known is None:
        known = Dataset(
            benchmark_id=benchmark.id,
            name=spec.name,
            weight=spec.weight,
            score_type=spec.score_type,
            scorer_id=scorer.id,
        )
        session.add(known)
        session.flush()
    elif (known.scorer_id, known.score_type) != (scorer.id, spec.score_type):
        raise BadInputError(
            f"dataset '{spec.name}' of benchmark '{benchmark.name}' has another scorer or score type",
            "give the dataset another name",
        )
    return known


def scorer_of(session: Session, name: str, params: dict[str, Any] | None = None) -> Scorer:
    """The pinned scorer of this name and these parameters, made where there is none."""
    params = params or {}
    identity = f"{name}:{_hash_of(params)[:16]}"
    known = session.exec(select(Scorer).where(Scorer.identity == identity)).first()
    if known is None:
        known = Scorer(name=name, params=params, identity=identity)
        session.add(known)
        session.flush()
    return known


def add_prompts(session: Session, dataset: Dataset, specs: Iterable[PromptSpec]) -> PromptChange:
    """Add prompts to a dataset, all or none; known ones are left as they are.

    Raises:
        BadInputError: An id stands for another text already, in the dataset or in `specs`.
    """
    assert dataset.id is not None
    known = dict(
        session.exec(select(Prompt.key, Prompt.content_hash).where(Prompt.dataset_id == dataset.id)).all()
    )
    before = len(known)
    rows: list[dict[str, Any]] = []
    seen = 0
    for spec in specs:
        seen += 1
        fields = spec.all_fields()
        digest = content_hash(spec.text, fields)
        key = spec.id or digest[:32]
        if known.setdefault(key, digest) != digest:
            raise BadInputError(
                f"prompt id '{key}' of dataset '{dataset.name}' stands for two different texts",
                "give the changed prompt a new id (scores of the old text would be wrong for it)",
            )
        if len(known) > before + len(rows):
            rows.append(
                {
                    "dataset_id": dataset.id,
                    "key": key,
                    "content_hash": digest,
                    "text": spec.text,
                    "fields": fields,
                    "created_at": utc_now(),
                }
            )
    if rows:
        session.connection().execute(insert(Prompt), rows)
    return PromptChange(added=len(rows), known=seen - len(rows))


def bump_prompts_revision(session: Session, benchmark: Benchmark) -> int:
    """Say that the benchmark's prompts changed; returns the new revision."""
    session.connection().execute(
        update(Benchmark)
        .where(col(Benchmark.id) == benchmark.id)
        .values(prompts_revision=Benchmark.prompts_revision + 1, revision=Benchmark.revision + 1)
    )
    session.refresh(benchmark)
    return benchmark.prompts_revision


def find_benchmark(session: Session, name: str) -> Benchmark:
    """The benchmark of that name.

    Raises:
        NotFoundError: There is none; the message lists those there are.
    """
    benchmark = session.exec(select(Benchmark).where(Benchmark.name == name)).first()
    if benchmark is None:
        raise NotFoundError(f"unknown benchmark '{name}'", _known(session.exec(select(Benchmark.name)).all()))
    return benchmark


def find_model(session: Session, name: str) -> Model:
    """The model of that name; NotFoundError where there is none."""
    model = session.exec(select(Model).where(Model.name == name)).first()
    if model is None:
        raise NotFoundError(f"unknown model '{name}'", "list them with: assay model list")
    return model


def find_method(session: Session, name: str) -> Method:
    """The method of that name; NotFoundError where there is none."""
    method = session.exec(select(Method).where(Method.name == name)).first()
    if method is None:
        raise NotFoundError(f"unknown method '{name}'", "list them with: assay model list")
    return method


def retire_model(session: Session, name: str) -> Model:
    """Take a model off the leaderboards; its scores stay. Doing so again changes nothing.

    Raises:
        NotFoundError: There is no such model.
    """
    model = find_model(session, name)
    if model.retired_at is None:
        model.retired_at = utc_now()
        session.add(model)
        emit(session, "model.retired", {"model_id": model.id, "model": model.name})
    return model


def add_template(session: Session, name: str, text: str) -> tuple[Template, bool]:
    """The template of that name, made where there is none; and whether it is new.

    Raises:
        ConflictError: It is there with another text.
    """
    known = session.exec(select(Template).where(Template.name == name)).first()
    if known is not None:
        if known.text != text:
            raise ConflictError(
                f"template '{name}' is there already with another text",
                "a template is never changed: choose a new name",
            )
        return known, False
    template = Template(name=name, text=text)
    session.add(template)
    session.flush()
    return template, True


def find_template(session: Session, name: str) -> Template:
    """The template of that name; NotFoundError where there is none."""
    template = session.exec(select(Template).where(Template.name == name)).first()
    if template is None:
        raise NotFoundError(f"unknown template '{name}'", _known_templates(session))
    return template


def _known_templates(session: Session) -> str:
    return "known: " + ", ".join(sorted(session.exec(select(Template.name)).all()))


def default_method(session: Session, model_id: int) -> Method:
    """The method that registering the model made."""
    return session.exec(
        select(Method).where(Method.model_id == model_id).order_by(col(Method.id)).limit(1)
    ).one()


def count_prompts(session: Session, benchmark_id: int) -> int:
    """Number of prompts over all datasets of a benchmark."""
    query = (
        select(func.count())
        .select_from(Prompt)
        .join(Dataset, col(Dataset.id) == col(Prompt.dataset_id))
        .where(Dataset.benchmark_id == benchmark_id)
    )
    return int(session.exec(query).one())


def count_dataset_prompts(session: Session, dataset: Dataset) -> int:
    """Number of prompts of a dataset."""
    query = select(func.count()).select_from(Prompt).where(Prompt.dataset_id == dataset.id)
    return int(session.exec(query).one())


def count_models(session: Session) -> int:
    """Number of models, retired ones included."""
    return int(session.exec(select(func.count()).select_from(Model)).one())


def _known(names: Sequence[str]) -> str:
    if not names:
        return "there are none yet: assay benchmark create NAME"
    return f"known: {', '.join(sorted(names))}"


def _hash_of(params: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(params, sort_keys=True).encode()).hexdigest()
