"""The broker beside Celery: one list that wakes the agent, and a check whether the broker answers.

The broker only carries wake-ups; whatever is lost with it is found again in the database.
"""

from __future__ import annotations

import logging
import time
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from assay.errors import BrokerError

__all__ = ["async_client", "client", "ping", "wait_for_wake_up", "wake_agent"]

KEY = "assay:wake"
LONGEST = 100

log = logging.getLogger(__name__)


def client(url: str, **options: Any) -> redis.Redis:
    """A Redis client for a broker URL in Celery's form (redis://, rediss://, redis+socket://)."""
    # One try on a new connection, since the old one is stale after a broker's restart; the client's own ten
    # tries take 4 s (measured) in which neither agent nor worker looks at the database.
    options = {"retry": Retry(NoBackoff(), 1), **options}
    if url.startswith("redis+socket://"):
        return redis.Redis(unix_socket_path=urlsplit(url).path, **options)
    return redis.Redis.from_url(url, **options)


def async_client(url: str) -> redis.asyncio.Redis:
    """The same for an event loop; calls wait at most 5 s for an answer."""
    options: dict[str, Any] = {"socket_timeout": 5, "socket_connect_timeout": 5}
    options["retry"] = redis.asyncio.retry.Retry(NoBackoff(), 1)
    if url.startswith("redis+socket://"):
        return redis.asyncio.Redis(unix_socket_path=urlsplit(url).path, **options)
    found: redis.asyncio.Redis = redis.asyncio.Redis.from_url(url, **options)
    return found


def ping(url: str, patience_s: float = 0.0) -> None:
    """Raise BrokerError unless the broker answers, at once or within `patience_s`."""
    until = time.monotonic() + patience_s
    while True:
        try:
            _ping(url)
            return
        except BrokerError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.2)


def _ping(url: str) -> None:
    try:
        with client(url, socket_connect_timeout=2, socket_timeout=2) as connection:
            connection.ping()
    except (redis.RedisError, OSError, ValueError) as error:
        where = url.rpartition("@")[2]
        raise BrokerError(
            f"the broker at {where} does not answer ({type(error).__name__})",
            "start it, or unset ASSAY_BROKER_URL to use the bundled one with: assay up",
        ) from None


def wake_agent(connection: redis.Redis) -> None:
    """Wake an agent that waits; a broker that is away costs only the wake-up, not the news."""
    try:
        pipeline = connection.pipeline()
        pipeline.rpush(KEY, b"1")
        pipeline.ltrim(KEY, -LONGEST, -1)
        pipeline.execute()
    except (redis.RedisError, OSError) as error:
        log.warning("no wake-up sent: %s", type(error).__name__)


def wait_for_wake_up(connection: redis.Redis, timeout_s: float) -> bool:
    """Wait until somebody wakes the agent, at most `timeout_s`; wake-ups that piled up count as one.

    Raises:
        RedisError: The broker cannot be reached.
    """
    if connection.blpop([KEY], timeout=timeout_s) is None:
        return False
    connection.delete(KEY)
    return True
