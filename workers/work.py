"""What a worker needs to know of each job: read once per batch, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlmodel import Session, col, select

from assay.errors import BadInputError
from assay.specs import ModelSpec
from assay.templates import render_template
from storage.preferences import known_preferences
from storage.tables import Dataset, Job, Method, Model, Output, Prompt, Score, Scorer, Template
from workers.backends import Answer
from workers.judges import judge_name
from workers.scorers import SCORERS

__all__ = ["Work", "judge_spec", "known_answers", "load_work", "render", "spec_of"]


@dataclass(frozen=True)
class Work:
    """One claimed job with everything that it takes to do it.

    Attributes:
        job_id: The job.
        kind: Its queue.
        attempt: Which try this is, from 1.
        study_id: The study that asked.
        benchmark_id: The benchmark that it counts for.
        dataset_id, scorer_id, method_id, prompt_id: The cell.
        prompt_key: The prompt's id in its dataset.
        text: The rendered prompt.
        fields: The prompt's fields.
        parameters: The method's decoding parameters.
        spec: The model.
        scorer: Name of the scorer.
        scorer_params: Its parameters.
        known_answer: An answer that was bought before, else None.
        known_score: A score (for a comparison a preference) that is there already, else None.
        other_method_id: In a comparison the method B, else 0.
        other_answer: Its answer.
        details: What earlier tries left behind (of a judge: the replies so far).

    In a judge's job `spec` and `parameters` are those of the judge's model, and `text` is the bare prompt.
    """

    job_id: int
    kind: str
    attempt: int
    study_id: int
    benchmark_id: int
    dataset_id: int
    scorer_id: int
    method_id: int
    prompt_id: int
    prompt_key: str
    text: str
    fields: dict[str, Any]
    parameters: dict[str, Any]
    spec: ModelSpec
    scorer: str
    scorer_params: dict[str, Any]
    known_answer: Answer | None
    known_score: float | None
    other_method_id: int = 0
    other_answer: Answer | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def choices(self) -> tuple[str, ...]:
        """The prompt's choices, where the scorer wants their log-likelihoods instead of an answer."""
        if not needs_choices(self.scorer):
            return ()
        return tuple(str(choice) for choice in self.fields.get("choices") or ())


def needs_choices(scorer: str) -> bool:
    """Whether a scorer of this name wants the log-likelihoods of the prompt's choices."""
    return scorer in SCORERS and bool(getattr(SCORERS.get(scorer), "needs_choices", False))


def spec_of(model: Model) -> ModelSpec:
    """The description that the model was registered with."""
    return ModelSpec(name=model.name, backend=model.backend, attributes=model.attributes, **model.spec)


def render(template: Template, prompt: Prompt) -> str:
    """Put a prompt into a template.

    Raises:
        BadInputError: The template names a field that the prompt does not have, or does what it may not.
    """
    values = {**prompt.fields, "text": prompt.text}
    return render_template(template.text, template.engine, values, name=template.name, prompt=prompt.key)


def load_work(session: Session, claimed: Sequence[Job]) -> list[Work]:
    """Read what the claimed jobs need, in a handful of queries."""
    prompts = _by_id(session, Prompt, {job.prompt_id for job in claimed})
    methods = _by_id(session, Method, {job.method_id for job in claimed})
    models = _by_id(session, Model, {method.model_id for method in methods.values()})
    templates = _by_id(session, Template, {method.template_id for method in methods.values()})
    scorers = _by_id(session, Scorer, {job.scorer_id for job in claimed})
    datasets = _by_id(session, Dataset, {prompt.dataset_id for prompt in prompts.values()})
    judges = {
        pk: judge_spec(session, scorers[pk]) for pk in {j.scorer_id for j in claimed if j.kind == "judge"}
    }
    written = known_answers(session, _methods_of(claimed), prompts.values())
    weighed = known_answers(session, _methods_of(claimed), prompts.values(), choices=True)
    scores = _scores(session, claimed, prompts) | _preferences(session, claimed)
    work = []
    for job in claimed:
        method, prompt, scorer = methods[job.method_id], prompts[job.prompt_id], scorers[job.scorer_id]
        judge = judges.get(job.scorer_id)
        answers = weighed if needs_choices(scorer.name) else written
        assert job.id is not None
        work.append(
            Work(
                job_id=job.id,
                kind=job.kind,
                attempt=job.attempts,
                study_id=job.study_id,
                benchmark_id=datasets[prompt.dataset_id].benchmark_id,
                dataset_id=prompt.dataset_id,
                scorer_id=job.scorer_id,
                method_id=job.method_id,
                prompt_id=job.prompt_id,
                prompt_key=prompt.key,
                text=prompt.text if judge else render(templates[method.template_id], prompt),
                fields=prompt.fields,
                parameters={} if judge else method.parameters,
                spec=judge or spec_of(models[method.model_id]),
                scorer=scorer.name,
                scorer_params=scorer.params,
                known_answer=answers.get((job.method_id, prompt.content_hash)),
                known_score=scores.get((job.method_id, job.other_method_id, job.prompt_id, job.scorer_id)),
                other_method_id=job.other_method_id,
                other_answer=answers.get((job.other_method_id, prompt.content_hash)),
                details=job.details,
            )
        )
    return work


def judge_spec(session: Session, scorer: Scorer) -> ModelSpec:
    """The model of a scorer that is a judge.

    Raises:
        BadInputError: The scorer names none, or one that is not registered.
    """
    name = judge_name(scorer.params, scorer.name)
    model = session.exec(select(Model).where(Model.name == name)).first()
    if model is None:
        raise BadInputError(f"the judge '{name}' is not registered", f"assay model add {name} --judge ...")
    return spec_of(model)


def _methods_of(claimed: Sequence[Job]) -> set[int]:
    return {job.method_id for job in claimed} | {job.other_method_id for job in claimed} - {0}


def _by_id(session: Session, table: Any, ids: set[int]) -> dict[int, Any]:
    return {row.id: row for row in session.exec(select(table).where(col(table.id).in_(ids))).all()}


def known_answers(
    session: Session, method_ids: Iterable[int], prompts: Iterable[Prompt], *, choices: bool = False
) -> dict[tuple[int, str], Answer]:
    """What was bought before, by (method, content hash): a prompt has the same answer in every dataset.

    With `choices` those that weighed the prompt's choices, else those that the method wrote itself.
    """
    query = (
        select(Output, Prompt.content_hash)
        .join(Prompt, col(Prompt.id) == col(Output.prompt_id))
        .where(
            col(Output.method_id).in_(list(method_ids)),
            col(Prompt.content_hash).in_({prompt.content_hash for prompt in prompts}),
        )
        .order_by(col(Output.id).desc())  # where there are several, the first that was bought counts
    )
    return {
        (output.method_id, content): Answer(
            text=output.text,
            finish_reason=output.finish_reason,
            input_tokens=output.input_tokens,
            output_tokens=output.output_tokens,
            score=output.details.get("score"),
            choice_logprobs=output.details.get("choice_logprobs"),
        )
        for output, content in session.exec(query).all()
        if ("choice_logprobs" in output.details) == choices
    }


def _scores(
    session: Session, claimed: Sequence[Job], prompts: dict[int, Prompt]
) -> dict[tuple[int, int, int, int], float]:
    query = select(Score.method_id, Score.prompt_id, Score.scorer_id, Score.value).where(
        col(Score.dataset_id).in_({prompt.dataset_id for prompt in prompts.values()}),
        col(Score.scorer_id).in_({job.scorer_id for job in claimed}),
        col(Score.method_id).in_({job.method_id for job in claimed}),
        col(Score.prompt_id).in_(list(prompts)),
    )
    return {(m, 0, p, s): value for m, p, s, value in session.exec(query).all()}


def _preferences(session: Session, claimed: Sequence[Job]) -> dict[tuple[int, int, int, int], float]:
    pairs = [job for job in claimed if job.other_method_id]
    if not pairs:
        return {}
    known = known_preferences(session, sorted({job.scorer_id for job in pairs}), sorted(_methods_of(pairs)))
    return {(one.method_a_id, one.method_b_id, one.prompt_id, one.scorer_id): one.value for one in known}
