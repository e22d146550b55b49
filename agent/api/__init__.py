"""The REST API: what other systems see and steer of the running agent, under /api/v1."""

from agent.api._access import Gate
from agent.api._app import create_api

__all__ = ["Gate", "create_api"]
