"""`assay up`, `assay agent`, `assay worker`, `assay serve`: the running system, whole or in parts."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from agent.commands._shared import console, say
from agent.loop import Agent
from agent.opening import open_context, open_database
from agent.supervisor import Supervisor, embedded_children
from agent.watchers import watchers_of
from assay.settings import load_settings
from workers import broker

#: How long an agent or worker that starts waits for a broker that is just restarting.
START_PATIENCE_S = 5.0


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("up")(up)
    app.command("agent")(agent)
    app.command("worker")(worker)
    app.command("serve")(serve)


def up(
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    web: Annotated[bool, typer.Option(help="Serve the web page.")] = True,
    port: Annotated[int | None, typer.Option(help="Port of the web page.")] = None,
    watch_models: Annotated[Path | None, typer.Option(help="Folder of model files to watch.")] = None,
    watch_prompts: Annotated[Path | None, typer.Option(help="Folder of prompt files to watch.")] = None,
) -> None:
    """Run broker, agent, workers and web page on this machine until Ctrl-C.

    Example: assay up --workers 2 --watch-models ./models
    """
    settings = load_settings()
    open_database(settings).close()  # makes the tables before the children look for them
    port = port or settings.web_port
    environment = {
        "ASSAY_DATA_DIR": str(settings.data_dir.absolute()),
        "ASSAY_DATABASE_URL": settings.database,
        **_folder("ASSAY_WATCH_MODELS", watch_models),
        **_folder("ASSAY_WATCH_PROMPTS", watch_prompts),
    }
    children = embedded_children(settings, workers=workers, web=web, port=port)
    supervisor = Supervisor(children, settings, environment)
    console.print(f"Assay is starting; logs in {supervisor.logs}", highlight=False)
    if web:
        console.print(f"leaderboards: http://127.0.0.1:{port}/  (Ctrl-C stops everything)", highlight=False)
    supervisor.run(_stop_on_signal())


def _folder(name: str, path: Path | None) -> dict[str, str]:
    return {} if path is None else {name: str(path.absolute())}


def agent() -> None:
    """Run the agent: watch, decide, sweep.

    Example: ASSAY_DATABASE_URL=postgresql://assay@db/assay ASSAY_BROKER_URL=redis://broker/0 assay agent
    """
    settings = load_settings()
    context = open_context(settings)
    # A clear error now, unless the broker is just restarting; once it runs, an agent outlives its broker.
    broker.ping(settings.broker, START_PATIENCE_S)
    Agent(context, watchers_of(settings)).run(_stop_on_signal())


def worker(
    queues: Annotated[str, typer.Option(help="Queues to work on.")] = "inference,judge,train",
    threads: Annotated[int | None, typer.Option(min=1, help="Tasks at once.")] = None,
) -> None:
    """Run a worker; the same as celery -A workers.app worker.

    Example: assay worker --queues judge --threads 2
    """
    settings = load_settings()
    open_database(settings).close()  # a clear error now, not one per task
    broker.ping(settings.broker, START_PATIENCE_S)
    # In this process's place: a worker needs little of the memory of a program with every command.
    os.execv(  # noqa: S606
        sys.executable,
        [
            sys.executable,
            "-m",
            "celery",
            "--app=workers.app",
            "worker",
            f"--queues={queues}",
            "--pool=threads",
            f"--concurrency={threads or settings.worker_threads}",
            f"--hostname=assay-{os.getpid()}@%h",
            "--without-gossip",
            "--without-mingle",
            "--loglevel=INFO",
        ],
    )


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
) -> None:
    """Serve the web page.

    Example: assay serve --port 8080
    """
    from agent import web

    settings = load_settings()
    say(f"leaderboards: http://{host}:{port or settings.web_port}/")
    web.serve(settings, host, port or settings.web_port)


def _stop_on_signal() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop
