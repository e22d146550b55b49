"""Watchers: what brings new models and prompts to the agent's notice."""

from agent.watchers._base import Watcher
from agent.watchers._folder import FolderWatcher, model_folder, prompt_folder
from agent.watchers._polled import ETAG, SOURCE, PolledWatcher, SourceError, remember_item
from agent.watchers._registry import WATCHERS, configured, watchers_of
from agent.watchers._sources import version_item

__all__ = [
    "ETAG",
    "SOURCE",
    "WATCHERS",
    "FolderWatcher",
    "PolledWatcher",
    "SourceError",
    "Watcher",
    "configured",
    "model_folder",
    "prompt_folder",
    "remember_item",
    "version_item",
    "watchers_of",
]
