"""The settings of experiments as values: which trackers jobs are told of, and how the daemon talks to MLflow.

Read at the start and at every reconfiguration. Invariant: what cannot be is refused here, before anything begins.
"""

from __future__ import annotations

import base64
import os
import re
import stat
from dataclasses import dataclass
from urllib.parse import urlsplit

from bireme.daemon.settings import Settings, SettingsError
from bireme.slurm.variables.experiments import PLACES, Trackers

MOST_WAIT_MS = 60_000
_MOST_TOKEN_BYTES = 16 * 1024
_NOT_A_PATTERN = re.compile(r"[{}]")


@dataclass(frozen=True, slots=True)
class Policy:
    trackers: Trackers
    wait_s: float
    """How long a first start may wait for its run."""
    figures_every_s: float
    """How often runs are told what GPUs do; 0: never."""
    credential: str = ""
    """The daemon's, as HTTP's Authorization says it."""

    def __repr__(self) -> str:  # it may be logged, and has a secret
        return f"Policy({self.trackers!r})"


def policy_of(settings: Settings) -> Policy:
    """Raises SettingsError."""
    mlflow = settings.experiments_mlflow.rstrip("/")
    _check_address("experiments.mlflow", mlflow)
    _check_address("experiments.wandb_url", settings.experiments_wandb_url)
    _check_pattern(settings.experiments_mlflow_experiment)
    if settings.experiments_mlflow_wait_ms > MOST_WAIT_MS:
        raise SettingsError(f"experiments.mlflow_wait_ms: a start waits for {MOST_WAIT_MS} ms at most")
    told = {
        "WANDB_BASE_URL": settings.experiments_wandb_url,
        "WANDB_ENTITY": settings.experiments_wandb_entity,
        "WANDB_PROJECT": settings.experiments_wandb_project,
        "WANDB_MODE": settings.experiments_wandb_mode,
    }
    trackers = Trackers(
        mlflow=mlflow,
        experiment=settings.experiments_mlflow_experiment,
        mlflow_runs=settings.experiments_mlflow_runs == "on",
        wandb=settings.experiments_wandb == "on",
        wandb_settings={name: value for name, value in told.items() if value},
        every_job=settings.experiments_jobs == "all",
        partitions=settings.experiments_partitions,
    )
    path = settings.experiments_mlflow_token_file
    return Policy(
        trackers,
        wait_s=settings.experiments_mlflow_wait_ms / 1000,
        figures_every_s=float(settings.experiments_system_metrics_s),
        credential=credential(path) if path and mlflow else "",
    )


def credential(path: str) -> str:
    """What a private file holds, as Authorization: `Basic` for `user:password`, else `Bearer`."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_MOST_TOKEN_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"experiments.mlflow_token_file: {path} cannot be read: {error}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise SettingsError(f"experiments.mlflow_token_file: others may read {path}: chmod 600 {path}")
    if not text or not text.isprintable():
        raise SettingsError(f"experiments.mlflow_token_file: {path} must hold one line, a token or user:password")
    return f"Basic {base64.b64encode(text.encode()).decode()}" if ":" in text else f"Bearer {text}"


def _check_address(key: str, address: str) -> None:
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if address and not good:
        raise SettingsError(f"{key}: {address!r} is not possible here: it must be like http://HOST:PORT")
    if "@" in address:
        raise SettingsError(f"{key}: a password does not belong into an address that all jobs see")


def _check_pattern(pattern: str) -> None:
    bare = pattern
    for place in PLACES:
        bare = bare.replace(f"{{{place}}}", "")
    if not pattern.strip() or _NOT_A_PATTERN.search(bare):
        known = ", ".join(f"{{{place}}}" for place in PLACES)
        raise SettingsError(f"experiments.mlflow_experiment: {pattern!r} is no name; in braces it may hold {known}")
