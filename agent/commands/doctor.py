"""`assay doctor`: check database, broker, endpoints and keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

import httpx
import typer
from sqlmodel import col, select

from agent.commands._shared import JsonOption, print_json, print_rows
from agent.notify import make_notifier
from agent.opening import open_database
from agent.supervisor import broker_command
from agent.watchers import WATCHERS, configured
from assay.errors import AssayError
from assay.settings import Settings, load_settings
from assay.specs import ModelSpec, NotifySpec, WatcherSpec
from storage.tables import Model
from workers import broker
from workers.work import spec_of


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("doctor")(doctor)


def doctor(json_: JsonOption = False) -> None:
    """Check what Assay needs, and say what to do about what is missing.

    Example: assay doctor
    """
    settings = load_settings()
    results = [_checked(name, check) for name, check in _checks(settings)]
    if json_:
        print_json([{"check": name, "ok": ok, "detail": detail} for name, ok, detail in results])
    else:
        rows = [("ok" if ok else "FAILED", name, detail) for name, ok, detail in results]
        print_rows("checks", ("", "check", "detail"), rows, empty="")
    if not all(ok for _, ok, _ in results):
        raise typer.Exit(1)


def _checked(name: str, check: Callable[[], str]) -> tuple[str, bool, str]:
    try:
        return name, True, check()
    except AssayError as error:
        return name, False, str(error)


def _checks(settings: Settings) -> Iterator[tuple[str, Callable[[], str]]]:
    yield "database", lambda: _database(settings)
    yield "broker", lambda: _broker(settings)
    yield "web page", lambda: _page(settings)
    for target in settings.notify:
        yield f"notify {target.name}", partial(_target, target)
    for watcher in configured(settings):
        yield f"watcher {watcher.label}", partial(_watcher, watcher)
    for spec in _endpoints(settings):
        yield f"model {spec.name}", partial(_endpoint, spec)


def _watcher(spec: WatcherSpec) -> str:
    if spec.webhook_secret_env and not os.environ.get(spec.webhook_secret_env):
        raise AssayError(
            f"environment variable {spec.webhook_secret_env} is not set", "set it for assay serve"
        )
    return WATCHERS.get(spec.kind)(spec).check()


def _database(settings: Settings) -> str:
    database = open_database(settings)
    with database.begin():
        pass  # takes the write lock, so a locked or read-only database shows here
    return f"{database.url.render_as_string(hide_password=True)} has the right schema and can be written"


def _broker(settings: Settings) -> str:
    if settings.embedded_broker:
        try:
            broker.ping(settings.broker)
        except AssayError:
            return f"not running; assay up starts {broker_command(settings)[0]}"
    broker.ping(settings.broker)
    return f"{settings.broker.rpartition('@')[2]} answers"


def _page(settings: Settings) -> str:
    """Whether page and metrics answer; a page that nobody started is no fault."""
    address = f"http://127.0.0.1:{settings.web_port}"
    try:
        ready = httpx.get(f"{address}/readyz", timeout=5)
        metrics = httpx.get(f"{address}/metrics", timeout=10)
    except httpx.HTTPError:
        return f"not running at {address}; assay up or assay serve starts it"
    if ready.status_code != 200:
        raise AssayError(f"{address}/readyz answers {ready.status_code}", "see the log of the web page")
    if metrics.status_code == 401:
        return f"{address} answers; its metrics need a token with scope read"
    if "assay_info" not in metrics.text:
        raise AssayError(f"{address}/metrics has no metrics of Assay", "is another program on that port?")
    return f"{address} answers, with metrics"


def _target(spec: NotifySpec) -> str:
    return f"{spec.kind} to {make_notifier(spec).check()}; try it with: assay notify test {spec.name}"


def _endpoints(settings: Settings) -> list[ModelSpec]:
    try:
        with open_database(settings).read() as session:
            query = select(Model).where(col(Model.retired_at).is_(None), Model.backend == "openai")
            return [spec_of(model) for model in session.exec(query).all()]
    except AssayError:
        return []  # the database's own check says why


def _endpoint(spec: ModelSpec) -> str:
    if spec.api_key_env and not os.environ.get(spec.api_key_env):
        raise AssayError(f"environment variable {spec.api_key_env} is not set", "set it for the workers")
    headers = {"Authorization": f"Bearer {os.environ[spec.api_key_env]}"} if spec.api_key_env else {}
    try:
        status = httpx.get(f"{spec.base_url}/models", headers=headers, timeout=5).status_code
    except httpx.HTTPError as error:
        raise AssayError(
            f"endpoint {spec.base_url} does not answer ({type(error).__name__})", "start it, or mend base_url"
        ) from None
    if status in (401, 403):
        raise AssayError(f"endpoint {spec.base_url} refuses the key (status {status})", "check the key")
    return f"{spec.base_url} answers"
