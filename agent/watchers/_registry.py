"""Watchers by name, and those that are configured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agent.watchers._base import Watcher
from agent.watchers._folder import model_folder, prompt_folder
from assay.errors import UsageError
from assay.plugins import Registry
from assay.settings import Settings
from assay.specs import WatcherSpec

__all__ = ["WATCHERS", "configured", "watchers_of"]

HERE = "agent.watchers"
WATCHERS: Registry[Callable[[WatcherSpec], Watcher]] = Registry(
    "watcher",
    "assay.watchers",
    {
        "http-jsonl": f"{HERE}._sources:http_jsonl",
        "huggingface": f"{HERE}._sources:huggingface",
        "mlflow": f"{HERE}._sources:mlflow",
        "model-folder": f"{HERE}._registry:_model_folder",
        "openai-models": f"{HERE}._sources:openai_models",
        "prompt-folder": f"{HERE}._registry:_prompt_folder",
    },
)


def _model_folder(spec: WatcherSpec) -> Watcher:
    return model_folder(_folder(spec), spec.label)


def _prompt_folder(spec: WatcherSpec) -> Watcher:
    return prompt_folder(_folder(spec), spec.label)


def _folder(spec: WatcherSpec) -> Path:
    if spec.folder is None:
        raise UsageError(f"watcher '{spec.label}' names no folder", 'give folder = "PATH" in its [[watch]]')
    return spec.folder


def configured(settings: Settings) -> list[WatcherSpec]:
    """All watchers that the configuration names: `watch_models`, `watch_prompts` and each [[watch]].

    Raises:
        UsageError: Two have the same name: each remembers under its name what it saw.
    """
    folders = (("model-folder", settings.watch_models), ("prompt-folder", settings.watch_prompts))
    found = [WatcherSpec(kind=kind, folder=folder) for kind, folder in folders if folder is not None]
    found += settings.watch
    names = [spec.label for spec in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two watchers are called '{name}'", 'give one of them another: name = "..."')
    return found


def watchers_of(settings: Settings) -> list[Watcher]:
    """The configured watchers.

    Raises:
        UsageError: A kind is unknown, or lacks what it needs.
    """
    return [WATCHERS.get(spec.kind)(spec) for spec in configured(settings)]
