"""`healing.toml`: what it says becomes rules, and every mistake is named with what would do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bireme.core.model.healing.restarts import RestartRule, Which
from bireme.daemon.faults.healing.policy import healing_policy
from bireme.daemon.faults.restarts.rules_file import load_rules
from bireme.daemon.settings import Settings, SettingsError

GOOD = """
[train]
partitions = ["gpu"]
qos = ["normal"]
restart = "all"
most = 3
within = "12:00:00"
lost_gpu_hours = 500
backoff = "00:01:00"
backoff_most = "01:00:00"
unexplained = 0
[rest]
restart = "none"
"""


def rules_of(folder: Path, text: str) -> tuple[RestartRule, ...]:
    (folder / "healing.toml").write_text(text)
    return load_rules(Settings(), str(folder), ["gpu", "cpu"])


def test_rules_are_read_in_their_order_and_without_a_file_there_are_none(tmp_path: Path) -> None:
    assert load_rules(Settings(), str(tmp_path), None) == ()
    train, rest = rules_of(tmp_path, GOOD)
    assert train == RestartRule(
        name="train",
        partitions=("gpu",),
        qos=("normal",),
        which=Which.ALL,
        most=3,
        within_s=43_200,
        lost_gpu_hours=500.0,
        backoff_s=60,
        backoff_most_s=3600,
        unexplained=0,
    )
    assert rest == RestartRule(name="rest", which=Which.NONE)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a]\nrestrat = 'all'", "there is no key 'restrat'; did you mean restart?"),
        ("[a]\nrestart = 'always'", "it must be one of asked, all, none"),
        ("[a]\nmost = -1", "a whole number from 0 to 1000"),
        ("[a]\nmost = true", "a whole number from 0 to 1000"),
        ("[a]\nwithin = 5", "a time as --time takes it"),
        ("[a]\nlost_gpu_hours = 0", "a number of GPU-hours above 0"),
        ("[a]\npartitions = ['gpus']", "there is no partition 'gpus'; did you mean gpu?"),
        ("[a]\npartitions = 'gpu'", "a list of names"),
        ("most = 3", "stands outside of a rule"),
        ("['b a']\nmost = 3", "a rule's name has letters"),
        ("[a", "cannot read"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=r"healing\.toml") as caught:
        rules_of(tmp_path, text)
    assert said in str(caught.value)


def test_a_file_that_is_named_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read .*/other\.toml"):
        load_rules(Settings(healing_rules=str(tmp_path / "other.toml")), str(tmp_path), None)


def test_what_is_no_file_is_said_and_does_not_wait_for_whoever_writes_into_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "healing.toml")
    with pytest.raises(SettingsError, match="it is no file"):
        load_rules(Settings(), str(tmp_path), None)


@pytest.mark.parametrize("program", ["hook.sh", "/nowhere/hook.sh", "/tmp"])
def test_a_hook_that_cannot_be_run_is_refused(program: str) -> None:
    with pytest.raises(SettingsError, match=r"healing.hook: .* (full path|no program that can be run)"):
        healing_policy(Settings(healing_hook=program), None)
