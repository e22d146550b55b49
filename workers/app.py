"""The Celery app: queues, settings and the tasks, each a thin wrapper around a plain function.

Run with `celery -A workers.app worker -Q inference,judge,train --pool threads`, or `assay worker`.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Sequence
from functools import lru_cache

import kombu.exceptions
import redis
from celery import Celery, signals
from celery.signals import worker_shutting_down
from kombu.entity import Queue

from assay.logs import setup_logging
from assay.settings import Settings, load_settings
from storage.database import Database
from workers import broker
from workers.calls import Calls
from workers.endpoints import Announcer
from workers.execution import WorkerContext, run_jobs
from workers.limits import Gate, RedisStore
from workers.training import train_version

__all__ = ["app", "context", "make_app", "run", "send_jobs", "send_training", "train"]

QUEUES = ("inference", "judge", "train")

#: Longer than any task: a message that is still being worked on must not be delivered again.
VISIBILITY_TIMEOUT_S = 6 * 3600

log = logging.getLogger(__name__)


def make_app(settings: Settings) -> Celery:
    """A Celery app for the configured broker."""
    celery = Celery("assay", broker=settings.broker)
    celery.conf.update(
        task_queues=[Queue(name) for name in QUEUES],
        task_default_queue="inference",
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        worker_prefetch_multiplier=1,
        worker_redirect_stdouts=False,
        worker_hijack_root_logger=False,
        worker_concurrency=settings.worker_threads,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "socket_keepalive": True,
        },
        timezone="UTC",
    )
    return celery


settings = load_settings()
app = make_app(settings)


@lru_cache(maxsize=1)
def context() -> WorkerContext:
    """This process's database, wake-up channel and name, made at the first task (after any fork)."""
    database = Database(settings.database)
    database.check()
    channel = broker.client(settings.broker, socket_timeout=5)
    return WorkerContext(
        database=database,
        settings=settings,
        owner=f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}",
        wake=lambda: broker.wake_agent(channel),
        send=send_jobs,
        calls=calls(),
    )


@lru_cache(maxsize=1)
def calls() -> Calls:
    """The way to the backends, with the limits that all workers of the broker share."""
    announcer = Announcer(Database(settings.database))
    return Calls(Gate(RedisStore(broker.async_client(settings.broker)), announcer.changed))


@worker_shutting_down.connect
def _stop_waiting(**_: object) -> None:
    """Calls in flight are finished and stored; those that still wait for their turn are given back."""
    if calls.cache_info().currsize:
        calls().gate.shut()


@signals.setup_logging.connect
def _set_up_logging(**_: object) -> None:
    """Log as configured, with the ids of jobs, also under Celery's own command."""
    setup_logging(settings.log_format, settings.log_level)


@app.task(name="assay.run_jobs")
def run(job_ids: list[int]) -> None:
    """Run a batch of inference or judge jobs."""
    run_jobs(context(), job_ids)


@app.task(name="assay.train")
def train(version_id: int) -> None:
    """Fit an estimator version."""
    train_version(context(), version_id)


def send_jobs(job_ids: Sequence[int], kind: str, delay_s: float = 0.0) -> None:
    """Name jobs to the workers; a broker that is away delays them until the sweeper sends them again."""
    _send("assay.run_jobs", [list(job_ids)], kind, delay_s)


def send_training(version_id: int) -> None:
    """Name a version to fit to the workers of the train queue."""
    _send("assay.train", [version_id], "train", 0.0)


def _send(task: str, arguments: list[object], queue: str, delay_s: float) -> None:
    try:
        app.send_task(
            task, arguments, queue=queue, countdown=delay_s or None, retry_policy={"max_retries": 1}
        )
    except (kombu.exceptions.KombuError, redis.RedisError, OSError) as error:
        log.warning("%s not sent (%s); it will be sent again", task, type(error).__name__)
