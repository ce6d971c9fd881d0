"""idle.toml: what it says, and every mistake with what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme.core.model.idling.policy import IdleAction, IdleMode, IdlePolicy
from bireme.daemon.idle.policy_file import load_policy
from bireme.daemon.settings import Settings, SettingsError

PARTITIONS = {"gpu", "scrap"}


def policy_of(folder: Path, text: str) -> IdlePolicy:
    (folder / "idle.toml").write_text(text)
    return load_policy(Settings(idle_mode="dry-run"), str(folder), PARTITIONS)


def test_a_whole_rule(tmp_path: Path) -> None:
    policy = policy_of(
        tmp_path,
        """
        [train]
        partitions = ["gpu"]
        qos = ["normal"]
        accounts = ["vision"]
        below_percent = 2.5
        idle_time = "1-00:00:00"
        gpus = "any"
        grace_time = "45"
        action = "move"
        move_to = "scrap"
        otherwise = "cancel"
        exempt_comments = ["keep-gpu"]
        [shells]
        jobs = "interactive"
        action = "cancel"
        """,
    )
    train, shells = policy.rules
    assert policy.mode is IdleMode.DRY_RUN
    assert (train.idle_s, train.grace_s, train.action, train.move_to) == (86_400, 45 * 60, IdleAction.MOVE, "scrap")
    assert (train.below_percent, train.gpus, train.otherwise) == (2.5, "any", IdleAction.CANCEL)
    assert (shells.jobs, shells.name, shells.below_percent) == ("interactive", "shells", 5.0)


def test_off_reads_no_file(tmp_path: Path) -> None:
    assert load_policy(Settings(), str(tmp_path), None).mode is IdleMode.OFF


def test_one_beside_slurm_conf_is_found(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "idle.toml").write_text("[train]\n")
    settings = Settings(idle_mode="notify", conf=str(tmp_path / "conf" / "slurm.conf"))
    assert [rule.name for rule in load_policy(settings, str(tmp_path), None).rules] == ["train"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[train]\nbelow_percnt = 5", "there is no key 'below_percnt'; did you mean below_percent?"),
        ("[train]\ncolour = 5", "there is no key 'colour'; there are: partitions, qos"),
        (
            "[train]\nbelow_percent = 0",
            "below_percent = 0 is not possible: it must be a number above 0",
        ),
        ("[train]\nbelow_percent = 101", "up to 100"),
        ("[train]\nbelow_percent = true", "a number above 0"),
        ('[train]\nidle_time = "00:00:10"', "from 30 s to 30 days"),
        ('[train]\nidle_time = "UNLIMITED"', "a time as --time takes it"),
        ('[train]\nidle_time = "soon"', "a time as --time takes it"),
        ("[train]\nidle_time = 7200", "a time as --time takes it"),
        ('[train]\naction = "kill"', "one of notify, requeue, move, cancel"),
        ('[train]\notherwise = "move"', "one of notify, cancel"),
        ('[train]\ngpus = "most"', "one of all, any"),
        ('[train]\npartitions = "gpu"', 'a list of names, as ["a", "b"]'),
        ('[train]\npartitions = ["gpus"]', "there is no partition 'gpus'; did you mean gpu?"),
        ('[train]\naction = "move"', "go together"),
        ('[train]\nmove_to = "scrap"', "go together"),
        ('[train]\naction = "move"\nmove_to = "elsewhere"', "there is no partition 'elsewhere'; there are: gpu, scrap"),
        ('[train]\npartitions = ["gpu"]\naction = "move"\nmove_to = "gpu"', "move_to is one of the partitions"),
        ('[train]\njobs = "interactive"\naction = "requeue"', "interactive jobs cannot be requeued"),
        ("below_percent = 5", "stands outside of a rule"),
        ('["two words"]\n', "a rule's name has letters"),
        ("", "a policy has 1 to 1000 rules"),
        ("[train", "cannot read"),
    ],
)
def test_a_mistake_is_named_with_what_is_allowed(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        policy_of(tmp_path, text)
    assert says in str(caught.value)
    assert str(tmp_path / "idle.toml") in str(caught.value)


def test_a_mode_without_a_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"there is no .*idle.toml: write one \(docs/idle.md\)"):
        load_policy(Settings(idle_mode="act"), str(tmp_path), None)


def test_a_file_that_is_no_policy_is_not_read_whole(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="larger than 1 MiB"):
        policy_of(tmp_path, "#" * (1024 * 1024 + 1))
