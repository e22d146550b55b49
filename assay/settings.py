"""Configuration: `assay.toml` in the working folder, overridden by `ASSAY_*` environment variables.

Secrets (API keys, tokens, passwords) are never settings: specs name the environment variable that holds them.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from assay.errors import UsageError
from assay.specs import NotifySpec, WatcherSpec

__all__ = ["Settings", "load_settings"]

# A unix socket's path may have at most 108 bytes on Linux, 104 on macOS.
LONGEST_SOCKET_PATH = 100


class Settings(BaseSettings):
    """All settings, with their defaults; each can be given as `ASSAY_<NAME>` or in `assay.toml`."""

    model_config = SettingsConfigDict(
        env_prefix="ASSAY_", toml_file="assay.toml", extra="forbid", allow_inf_nan=False
    )

    data_dir: Path = Field(default=Path(".assay"), description="Folder of database, broker and caches.")
    database_url: str = Field(default="", description="SQLAlchemy URL; empty = SQLite file in data_dir.")
    broker_url: str = Field(default="", description="Redis URL; empty = bundled server in data_dir.")
    watch_models: Path | None = Field(default=None, description="Folder of model files to watch.")
    watch_prompts: Path | None = Field(default=None, description="Folder of prompt files to watch.")
    watch_interval_s: float = Field(default=1.0, gt=0, description="Seconds between looks at the folders.")
    watch: list[WatcherSpec] = Field(default=[], description="Other sources to watch: docs/watchers.md.")

    policy: str = Field(
        default="expected-variance-reduction",
        description="Policy of studies that name none (stratified where the history is too short for it).",
    )
    estimator: str = Field(default="auto", description="Estimator of studies that name none.")
    batch_size: int = Field(default=10, ge=1, description="Cells that a study buys per step.")
    max_prompts: int = Field(default=100, ge=1, description="Cells that an automatic study buys at most.")
    max_usd: float = Field(default=1.0, ge=0, le=1e9, description="Cap of an automatic study, US dollars.")
    until_width: float | None = Field(
        default=None, gt=0, description="Stop once the interval is this narrow."
    )
    level: float = Field(default=0.95, gt=0, lt=1, description="Level of intervals.")
    seed: int = Field(default=0, ge=0, description="Seed of studies that name none.")

    encoder: str = Field(default="tfidf-svd", description="Encoder of prompts, for what looks at their text.")
    cold_share: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Share of a study drawn among prompts without history; empty = by weight.",
    )
    pseudo_label_variance: float = Field(
        default=0.09,
        ge=0,
        le=0.25,
        description="Largest predictive variance of a pseudo-label (0.09: 9 in 10 sure); 0 = make none.",
    )
    retrain_scores: int = Field(default=500, ge=0, description="New scores that start a retraining; 0 = off.")
    retrain_hours: float = Field(default=0.0, ge=0, description="Hours between retrainings; 0 = off.")
    validation_share: float = Field(
        default=0.1, ge=0, le=0.5, description="Share of methods held out of every fit, to judge it on."
    )

    jobs_per_task: int = Field(default=32, ge=1, description="Jobs that one Celery message carries.")
    lease_s: float = Field(default=30.0, gt=0, description="Seconds until a silent worker's jobs go back.")
    sweep_s: float = Field(default=5.0, gt=0, description="Seconds between sweeps for what died.")
    redispatch_s: float = Field(
        default=30.0, gt=0, description="Seconds until an unclaimed job is sent again."
    )
    max_attempts: int = Field(default=5, ge=1, description="Tries of a job before it is parked.")
    worker_threads: int = Field(default=4, ge=1, description="Tasks that one worker process runs at once.")
    require_token: bool = Field(
        default=False, description="Ask for a token for reading too (writing always needs one)."
    )
    api_per_minute: int = Field(default=600, ge=1, description="Requests that a token may make in a minute.")
    api_import_mb: int = Field(
        default=256, ge=1, description="Largest body of a bulk import, megabytes (of anything else: 4)."
    )
    web_port: int = Field(default=8765, ge=1, le=65535, description="Port of the web page.")
    log_format: Literal["text", "json"] = Field(default="text", description="Form of the logs: text or json.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level logged."
    )
    notify: list[NotifySpec] = Field(
        default_factory=list, description="Who is told what happened; [[notify]] entries, see docs/notify.md."
    )
    notify_attempts: int = Field(
        default=12, ge=1, description="Tries of a notification before it is given up."
    )
    ranked_first: int = Field(
        default=10, ge=1, le=1000, description="First places of a leaderboard whose changes are announced."
    )
    web_steering: bool = Field(
        default=True, description="Whether the page pauses and resumes studies for who sits at its machine."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments win over the environment, the environment over `assay.toml`."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    def environment(self) -> dict[str, str]:
        """These settings as the environment variables of a child process that works with the same ones."""
        given = self.model_dump(mode="json", exclude_none=True)
        variables = {f"ASSAY_{name.upper()}": _as_variable(value) for name, value in given.items()}
        return {**variables, "ASSAY_DATA_DIR": str(self.data_dir.absolute())}

    @property
    def database(self) -> str:
        """The database's URL."""
        return self.database_url or f"sqlite:///{self.data_dir.absolute() / 'assay.db'}"

    @property
    def broker_socket(self) -> Path:
        """Socket of the bundled broker; in the temporary folder where data_dir's path is too long for one."""
        path = self.data_dir.absolute() / "broker.sock"
        if len(str(path)) <= LONGEST_SOCKET_PATH:
            return path
        digest = hashlib.sha256(str(path).encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"assay-{digest}.sock"

    @property
    def broker(self) -> str:
        """The broker's URL in Celery's form."""
        return self.broker_url or f"redis+socket://{self.broker_socket}"

    @property
    def embedded_broker(self) -> bool:
        """Whether `assay up` starts the broker itself."""
        return not self.broker_url

    @property
    def cache_dir(self) -> Path:
        """Folder for matrices and artifacts that can be rebuilt from the database."""
        return self.data_dir.absolute() / "cache"


def _as_variable(value: object) -> str:
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


def load_settings() -> Settings:
    """Read the configuration.

    Raises:
        UsageError: A setting is unknown or out of range (the message names it), or assay.toml is broken.
    """
    try:
        return Settings()
    except ValidationError as error:
        raise _explained(error) from None
    except (OSError, ValueError, SettingsError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"assay.toml cannot be read: {reason}", "mend it, or move it away to use the defaults"
        ) from None


def _explained(error: ValidationError) -> UsageError:
    problem = error.errors()[0]
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] != "extra_forbidden":
        hint = "set it in assay.toml or as ASSAY_" + name.upper()
        return UsageError(f"setting '{name}': {problem['msg']}", hint)
    near = difflib.get_close_matches(name, Settings.model_fields, n=1)
    nearest = f", did you mean '{near[0]}'?" if near else ""
    return UsageError(
        f"unknown setting '{name}' in assay.toml{nearest}", f"known: {', '.join(Settings.model_fields)}"
    )
