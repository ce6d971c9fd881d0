"""What `bireme sim world` and `bireme sim soak` say, and how they end."""

from __future__ import annotations

import pytest

from bireme.cli.simulator.run import main
from bireme.core.accounts import charging
from bireme.core.model import events as e


def test_a_world_that_is_safe_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["world", "--seed", "4", "--until", "30"]) == 0
    assert "world 4: safe so far: 30 turns" in capsys.readouterr().out


def test_the_story_of_a_world_is_shown_without_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["world", "--seed", "4", "--story", "--without", "0,2-3"]) == 0
    numbers = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert numbers[:2] == ["1", "4"]


def test_a_broken_rule_is_one_line_that_plays_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charging, "STOPS", (e.JobSuspended, e.JobLaunchFailed))
    assert main(["soak", "--worlds", "2", "--first", "4"]) == 1
    said = capsys.readouterr()
    assert "again: bireme sim world --seed 4 --until " in said.err
    assert "2 worlds" in said.out


def test_acts_are_named_by_numbers(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["world", "--seed", "4", "--without", "the first"]) == 1
    assert "like 3,7-9" in capfd.readouterr().err
