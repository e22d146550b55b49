"""Backends: what runs inference. An endpoint, local weights, a program, or a replay of known results."""

from assay.plugins import Registry
from workers.backends._base import Answer, Backend, BackendFactory, CallError, Request

__all__ = ["BACKENDS", "Answer", "Backend", "BackendFactory", "CallError", "Request"]

BACKENDS: Registry[BackendFactory] = Registry(
    "backend",
    "assay.backends",
    {
        "command": "workers.backends._command:CommandBackend",
        "openai": "workers.backends._openai:OpenAIBackend",
        "replay": "workers.backends._replay:ReplayBackend",
        "transformers": "workers.backends._transformers:TransformersBackend",
    },
)
