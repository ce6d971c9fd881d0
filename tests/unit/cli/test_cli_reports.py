"""Local time as SLURM_TIME_FORMAT asks for it, and ends that are not errors."""

from __future__ import annotations

import time

import pytest

from bireme.commands import reports

NOON = time.mktime((2026, 3, 11, 12, 0, 0, 0, 0, -1))  # a Wednesday
DAY = 86400


@pytest.mark.parametrize(
    ("form", "at", "text"),
    [
        ("", NOON, "2026-03-11T12:00:00"),
        ("standard", NOON + 1, "2026-03-11T12:00:01"),
        ("%a %T", NOON, "Wed 12:00:00"),
        ("relative", NOON + 60, "12:01:00"),
        ("relative", NOON + DAY, "Tomorr 12:00"),
        ("relative", NOON - DAY, "Ystday 12:00"),
        ("relative", NOON + 3 * DAY, "Sat 12:00"),
        ("relative", NOON - 40 * DAY, "30 Jan 12:00"),
        ("relative", NOON - 400 * DAY, "4 Feb 2025"),
    ],
)
def test_time_formats(form: str, at: float, text: str) -> None:
    assert reports.make_stamp(form, NOON)(at) == text


def test_an_interrupted_command_ends_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    assert reports.guarded("squeue", interrupted) == 130
    assert capsys.readouterr().err == ""


def test_repeating_ends_after_one_round_without_an_interval() -> None:
    rounds: list[int] = []
    assert reports.repeat(0, lambda: len(rounds.append(1) or rounds)) == 1
