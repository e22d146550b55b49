"""What the agent does about each kind of event. A rule writes in the event's own transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlmodel import Session, col, func, select

from agent.templates import on_template_added
from assay.settings import Settings
from assay.specs import ModelSpec
from estimators import ESTIMATORS
from policies import POLICIES
from storage import catalog, studies, versions
from storage.studies import StudyRequest
from storage.tables import (
    Benchmark,
    Dataset,
    EstimatorVersion,
    Event,
    Method,
    Model,
    Score,
    Study,
    StudyState,
)
from workers.backends import BACKENDS
from workers.work import spec_of

__all__ = ["RULES", "automatic_study", "default_choice", "distribution_choice", "evaluated_before"]

#: Effects of an event: rows are written here, the studies named in the answer are advanced afterwards.
Rule = Callable[[Session, Settings, dict[str, Any]], set[int]]

#: With fewer methods scored than this, an estimator that learns from history has nothing to learn from.
LEAST_HISTORY = 3

#: With fewer, prompts are drawn at random, not chosen: what a design gains must be learned from the history.
#: Measured on real scores: a design gains a little with 27 methods, whose intervals then promise too much,
#: more with 41, and a third with 1,300.
LEAST_FOR_DESIGN = 100


def on_model_registered(session: Session, settings: Settings, payload: dict[str, Any]) -> set[int]:
    """An estimate study per benchmark that the model names; all benchmarks where it names none."""
    model = session.get(Model, payload["model_id"])
    if model is None or model.retired_at is not None or not _can_run(model):
        return set()
    spec = spec_of(model)
    created = set()
    for benchmark in session.exec(select(Benchmark).order_by(col(Benchmark.id))).all():
        if _matches(session, spec, benchmark):
            method = catalog.default_method(session, payload["model_id"])
            trigger = f"model:{model.id}:benchmark:{benchmark.id}"
            created |= automatic_study(session, settings, benchmark, method, trigger)
    return created


def on_prompts_added(session: Session, settings: Settings, payload: dict[str, Any]) -> set[int]:
    """Refresh every model that a study finished with fewer prompts, once per state of the prompts.

    Unfinished studies go on with the new prompts by themselves, under their own cap.
    """
    benchmark = session.get(Benchmark, payload["benchmark_id"])
    if benchmark is None:
        return set()
    created = set()
    for method in evaluated_before(session, benchmark, payload["prompts_revision"]):
        trigger = f"prompts:{benchmark.id}:{payload['prompts_revision']}:method:{method.id}"
        created |= automatic_study(session, settings, benchmark, method, trigger)
    return created


def on_study_finished(session: Session, settings: Settings, payload: dict[str, Any]) -> set[int]:
    """Pool the answers of a wave of refresh studies, once its last one is done.

    The studies of a wave work side by side with the version that was there at its start, which knows no
    answer to the new prompts. The challenger that is asked for here has learned from all of them.
    """
    study = session.get(Study, payload["study_id"])
    if study is None or study.version_id is None or not (study.trigger or "").startswith("prompts:"):
        return set()
    version = session.get_one(EstimatorVersion, study.version_id)
    wave = (study.trigger or "").partition(":method:")[0]
    if cold_prompts_of(version) and not _open_in(session, f"{wave}:method:"):
        benchmark = session.get_one(Benchmark, study.benchmark_id)
        versions.want(session, benchmark, version.estimator, version.params, reason="answers were pooled")
    return set()


def _open_in(session: Session, wave: str) -> bool:
    """Whether a study of a wave still has something to do."""
    query = select(Study.id).where(
        col(Study.trigger).startswith(wave, autoescape=True),
        col(Study.state).in_([StudyState.WAITING, StudyState.RUNNING]),
    )
    return session.exec(query).first() is not None


def cold_prompts_of(version: EstimatorVersion) -> int:
    """How many prompts were without history when the version was fitted."""
    return int(version.history.get("findings", {}).get("cold prompts", 0))


def on_jobs_finished(session: Session, settings: Settings, payload: dict[str, Any]) -> set[int]:
    """Advance the study whose jobs finished."""
    return {payload["study_id"]}


def on_study_created(session: Session, settings: Settings, payload: dict[str, Any]) -> set[int]:
    """Take the new study's first step."""
    return {payload["study_id"]}


def on_estimator_changed(session: Session, settings: Settings, payload: dict[str, Any]) -> set[int]:
    """Advance the studies that wait for an estimator of the benchmark."""
    query = select(Study.id).where(
        Study.benchmark_id == payload["benchmark_id"], Study.state == StudyState.WAITING
    )
    return {int(i) for i in session.exec(query).all() if i is not None}


def on_estimator_promoted(session: Session, settings: Settings, payload: dict[str, Any]) -> set[int]:
    """Go on with what waited for it; where it pooled answers on new prompts, estimate anew without buying."""
    version = session.get(EstimatorVersion, payload.get("version_id"))
    if version is not None and version.parent_id is not None and cold_prompts_of(version):
        parent = session.get_one(EstimatorVersion, version.parent_id)
        if parent.prompts_revision == version.prompts_revision:
            _estimate_anew(session, settings, version)
    return on_estimator_changed(session, settings, payload)


def _estimate_anew(session: Session, settings: Settings, version: EstimatorVersion) -> None:
    """A study that buys nothing for every method that was refreshed for these prompts with this estimator."""
    wave = f"prompts:{version.benchmark_id}:{version.prompts_revision}:"
    query = select(Study).where(
        col(Study.trigger).startswith(wave, autoescape=True),
        Study.state == StudyState.DONE,
        Study.estimator == version.estimator,
    )
    for study in session.exec(query.order_by(col(Study.id))).all():
        if study.estimator_params != version.params:
            continue
        method_ids = [int(method.id or 0) for method in studies.methods_of(session, int(study.id or 0))]
        request = StudyRequest(
            benchmark_id=version.benchmark_id,
            method_ids=method_ids,
            policy=study.policy,
            policy_params=study.policy_params,
            estimator=study.estimator,
            estimator_params=study.estimator_params,
            seed=study.seed,
            batch_size=study.batch_size,
            level=study.level,
            max_prompts=0,
            caps={"usd": 0},
            trigger=f"pooled:{version.id}:study:{study.id}",
        )
        studies.create(session, request)


def on_budget_changed(session: Session, settings: Settings, payload: dict[str, Any]) -> set[int]:
    """Let the studies go on that wait for room under a cap that was raised or whose period turned."""
    query = select(Study.id).where(
        Study.state == StudyState.PAUSED, Study.waits_budget_id == payload["budget_id"]
    )
    waiting = {int(i) for i in session.exec(query).all() if i is not None}
    for study_id in sorted(waiting):
        studies.move(session, study_id, StudyState.RUNNING)
    return waiting


RULES: dict[str, Rule] = {
    "budget.raised": on_budget_changed,
    "budget.renewed": on_budget_changed,
    "model.registered": on_model_registered,
    "prompts.added": on_prompts_added,
    "template.added": on_template_added,
    "jobs.finished": on_jobs_finished,
    "study.created": on_study_created,
    "study.running": on_study_created,
    "study.finished": on_study_finished,
    "estimator.promoted": on_estimator_promoted,
    "estimator.failed": on_estimator_changed,
}


def handle(session: Session, settings: Settings, event: Event) -> set[int]:
    """Apply the event's rule; events without one are news for people only."""
    rule = RULES.get(event.kind)
    return rule(session, settings, event.payload) if rule else set()


def automatic_study(
    session: Session, settings: Settings, benchmark: Benchmark, method: Method, trigger: str
) -> set[int]:
    """Create the configured estimate study for a method, unless the trigger did so before."""
    assert benchmark.id is not None
    assert method.id is not None
    policy, estimator = default_choice(session, settings, benchmark)
    study = studies.create(
        session,
        StudyRequest(
            benchmark_id=benchmark.id,
            method_ids=[method.id],
            policy=policy,
            estimator=estimator,
            seed=settings.seed,
            batch_size=settings.batch_size,
            level=settings.level,
            max_prompts=settings.max_prompts,
            until_width=settings.until_width,
            caps={"usd": round(settings.max_usd * 1e6)},
            trigger=trigger,
        ),
    )
    return set() if study is None or study.id is None else {study.id}


def default_choice(session: Session, settings: Settings, benchmark: Benchmark) -> tuple[str, str]:
    """Policy and estimator of a study that names none: the configured ones, if the history bears them."""
    size = _history_size(session, benchmark)
    if size < LEAST_HISTORY:
        return "stratified", "aggregate"
    drawn = POLICIES.get(settings.policy).design == "random"
    return settings.policy if drawn or size >= LEAST_FOR_DESIGN else "stratified", settings.estimator


def distribution_choice(session: Session, benchmark: Benchmark, estimator: str | None) -> tuple[str, str]:
    """Policy and estimator of a distribution study: what learns from other methods, if there are enough."""
    rich = _history_size(session, benchmark) >= LEAST_FOR_DESIGN
    chosen = estimator or ("mirt-group" if rich else "x-pirt")
    designed = rich and callable(getattr(ESTIMATORS.get(chosen), "linearize", None))
    return ("quantile-variance" if designed else "balanced"), chosen


def _can_run(model: Model) -> bool:
    """Imported models have scores but nothing that could answer."""
    return model.backend in BACKENDS


def _matches(session: Session, spec: ModelSpec, benchmark: Benchmark) -> bool:
    assert benchmark.id is not None
    named = spec.benchmarks is None or benchmark.name in spec.benchmarks
    return named and catalog.count_prompts(session, benchmark.id) > 0


def evaluated_before(session: Session, benchmark: Benchmark, revision: int) -> list[Method]:
    """Methods of active, runnable models that a study evaluated before the prompts came to `revision`."""
    found: dict[int, Method] = {}
    query = select(Study).where(Study.benchmark_id == benchmark.id, Study.state == StudyState.DONE)
    for study in session.exec(query).all():
        version = session.get(EstimatorVersion, study.version_id) if study.version_id else None
        if version is not None and version.prompts_revision >= revision:
            continue
        for method in studies.methods_of(session, int(study.id or 0)):
            model = session.get_one(Model, method.model_id)
            if model.retired_at is None and _can_run(model):
                found[int(method.id or 0)] = method
    return [found[key] for key in sorted(found)]


def _history_size(session: Session, benchmark: Benchmark) -> int:
    """Number of methods that have any score on the benchmark."""
    query = (
        select(func.count(func.distinct(Score.method_id)))
        .join(Dataset, col(Dataset.id) == col(Score.dataset_id))
        .where(Dataset.benchmark_id == benchmark.id)
    )
    return int(session.exec(query).one())
