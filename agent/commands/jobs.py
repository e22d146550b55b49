"""`assay jobs`: what is queued, running, done and set aside, with every try and its reason; trying again."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from sqlalchemy import func
from sqlmodel import Session, col, select

from agent.commands._shared import AssayGroup, JsonOption, database, print_json, print_rows, say
from agent.steering import retry_jobs
from agent.text import dollars
from assay.errors import UsageError
from storage import jobs
from storage.tables import Dataset, Job, JobState, Method, Prompt

group = typer.Typer(cls=AssayGroup, no_args_is_help=True, help="Calls: what became of each, and why.")

STATES = [state.value for state in JobState]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(group, name="jobs")


@group.command("list")
def list_(
    state: Annotated[str, typer.Option(help=f"{', '.join(STATES)}, or all.")] = "parked",
    study: Annotated[int | None, typer.Option(help="Only this study's.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 50,
    json_: JsonOption = False,
) -> None:
    """List jobs; by default those that were set aside, with their reasons.

    Example: assay jobs list --study 7
    """
    if state not in (*STATES, "all"):
        raise UsageError(f"unknown state '{state}'", f"known: {', '.join(STATES)}, all")
    with database().read() as session:
        query = _jobs().order_by(col(Job.id).desc()).limit(limit)
        if state != "all":
            query = query.where(Job.state == state)
        if study is not None:
            query = query.where(Job.study_id == study)
        shown = [_described(*row) for row in session.exec(query).all()]
        counted = dict(session.exec(_counts(study)).all())
    if json_:
        print_json(shown)
        return
    columns = ("id", "study", "method", "prompt", "kind", "state", "status", "attempts", "reason")
    print_rows("such jobs", columns, [[one[c] for c in columns] for one in shown], empty="all is well")
    say(", ".join(f"{counted[name]:,} {name}" for name in STATES if name in counted))


def _counts(study: int | None) -> Any:
    query = select(Job.state, func.count()).group_by(col(Job.state))
    return query if study is None else query.where(Job.study_id == study)


def _jobs() -> Any:
    return (
        select(Job, Method.name, Dataset.name, Prompt.key)
        .join(Method, col(Method.id) == col(Job.method_id))
        .join(Prompt, col(Prompt.id) == col(Job.prompt_id))
        .join(Dataset, col(Dataset.id) == col(Prompt.dataset_id))
    )


def _described(job: Job, method: str, dataset: str, prompt: str) -> dict[str, Any]:
    return {
        "id": job.id,
        "study": job.study_id,
        "method": method,
        "prompt": f"{dataset}/{prompt}",
        "kind": job.kind,
        "state": job.state,
        "status": job.status,
        "attempts": job.attempts,
        "reason": job.reason,
        "bill": job.bill,
    }


@group.command("show")
def show(job_id: int, json_: JsonOption = False) -> None:
    """Show a job: its state, its bill, and every try that failed.

    Example: assay jobs show 1234
    """
    with database().read() as session:
        found = _find(session, job_id)
        tries = [
            one.model_dump(include={"number", "status", "reason", "worker", "at"})
            for one in jobs.attempts_of(session, job_id)
        ]
    if json_:
        print_json({**found, "tries": tries})
        return
    bill = found.pop("bill")
    facts = [(name, value) for name, value in found.items() if value not in ("", None)]
    if bill:
        facts.append(
            (
                "bill",
                f"{dollars(bill.get('usd', 0))}, {bill['input_tokens']} + {bill['output_tokens']} tokens",
            )
        )
        facts.append(("price", f"{bill['price']} from {bill['price_from']}"))
    print_rows("facts", ("", ""), facts, empty="")
    rows = [(one["number"], f"{one['at']:%Y-%m-%d %H:%M:%S}", one["status"], one["reason"]) for one in tries]
    if rows:
        print_rows("failed tries", ("try", "at", "status", "reason"), rows, empty="")


def _find(session: Session, job_id: int) -> dict[str, Any]:
    row = session.exec(_jobs().where(Job.id == job_id)).first()
    if row is None:
        raise UsageError(f"there is no job {job_id}", "list them with: assay jobs list --state all")
    return _described(*row)


@group.command("retry")
def retry(
    job_ids: Annotated[list[int] | None, typer.Argument(help="Jobs that were set aside.")] = None,
    study: Annotated[int | None, typer.Option(help="All that this study set aside.")] = None,
) -> None:
    """Ask again for what was set aside, under all caps.

    A call that was paid for and is made again is paid for again.

    Example: assay jobs retry --study 7
    """
    if not job_ids and study is None:
        raise UsageError("which jobs?", "name some, or all of a study with --study")
    with database().begin() as session:
        new = retry_jobs(session, job_ids or [], study)
    say(f"{len(new)} jobs are asked for again" + (f", from job {new[0]} on" if new else ""))
