"""Watchers: what brings new models and prompts to the agent's notice."""

from agent.watchers._base import Watcher
from agent.watchers._folder import FolderWatcher, model_folder, prompt_folder

__all__ = ["FolderWatcher", "Watcher", "model_folder", "prompt_folder"]
