"""Limits of endpoints (calls in flight, requests and tokens per minute), pauses and circuit breakers.

All workers share them through Redis; without one they hold within the process.
"""

from workers.limits._base import Grant, Limits, LimitStore, Report, Result, Want, endpoint_of
from workers.limits._gate import Closed, Gate, Permit
from workers.limits._local import LocalStore
from workers.limits._redis import RedisStore

__all__ = [
    "Closed",
    "Gate",
    "Grant",
    "LimitStore",
    "Limits",
    "LocalStore",
    "Permit",
    "RedisStore",
    "Report",
    "Result",
    "Want",
    "endpoint_of",
]
