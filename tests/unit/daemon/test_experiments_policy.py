"""Settings of experiments: what cannot be is refused with what to do; a secret stays private."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bireme.daemon.experiments.policy import policy_of
from bireme.daemon.settings import Settings, SettingsError

TOLD = Settings(experiments_mlflow="http://mlflow:5000/", experiments_wandb="on", experiments_wandb_entity="lab")


def test_settings_become_a_policy() -> None:
    policy = policy_of(TOLD)
    assert policy.trackers.mlflow == "http://mlflow:5000"
    assert policy.trackers.wandb_settings == {"WANDB_ENTITY": "lab"}
    assert policy.wait_s == 0.5
    assert not policy_of(Settings()).trackers.any


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("experiments_mlflow", "mlflow:5000", "http://HOST:PORT"),
        ("experiments_mlflow", "file:///runs", "http://HOST:PORT"),
        ("experiments_mlflow", "http://me:secret@mlflow", "password"),
        ("experiments_mlflow", "http://mlflow:port", "http://HOST:PORT"),
        ("experiments_mlflow_experiment", "{project}", "{account}"),
        ("experiments_mlflow_experiment", " ", "no name"),
        ("experiments_mlflow_wait_ms", 60_001, "60000"),
        ("experiments_mlflow_token_file", "/nowhere/token", "cannot be read"),
    ],
)
def test_what_cannot_be_is_refused(key: str, value: Any, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        policy_of(replace(TOLD, **{key: value}))


@pytest.mark.parametrize(
    ("text", "shown"),
    [("abc\n", "Bearer abc"), ("me:secret\n", f"Basic {base64.b64encode(b'me:secret').decode()}")],
)
def test_a_token_is_read_and_never_shown(tmp_path: Path, text: str, shown: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(0o600)
    policy = policy_of(replace(TOLD, experiments_mlflow_token_file=str(file)))
    assert policy.credential == shown
    assert text.strip() not in repr(policy)


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("abc")
    file.chmod(0o640)
    with pytest.raises(SettingsError, match="chmod 600"):
        policy_of(replace(TOLD, experiments_mlflow_token_file=str(file)))


def test_a_token_of_two_lines_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("abc\r\nX-Other: 1")
    file.chmod(0o600)
    with pytest.raises(SettingsError, match="one line"):
        policy_of(replace(TOLD, experiments_mlflow_token_file=str(file)))
