"""Durations and points in time. Literal expectations come from Slurm 22.05."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.times import (
    INFINITE,
    TimeLimit,
    format_elapsed,
    format_time_limit,
    parse_job_time_limit,
    parse_time_limit,
    parse_timestamp,
)

VECTORS = Path(__file__).parents[4] / "shared" / "data" / "vectors" / "slurm_strings.json"
NOW = datetime(2026, 11, 15, 5, 12, 31, tzinfo=UTC).timestamp()


def utc(_: float) -> float:
    return 0.0


LIMITS: list[tuple[str, TimeLimit]] = [
    ("0", 0),
    ("60", 3600),
    ("5:0", 300),
    ("5:99", 399),
    ("1:60:15", 7215),
    ("1-", 86400),
    ("1-1", 90000),
    ("1-2:3", 93780),
    ("1-2:3:4", 93784),
    ("365-0:0:0", 31536000),
    ("-1", INFINITE),
    ("INFINITE", INFINITE),
    ("Unlimited", INFINITE),
]


@pytest.mark.parametrize(("text", "seconds"), LIMITS)
def test_reads_time_limits(text: str, seconds: TimeLimit) -> None:
    assert parse_time_limit(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "60:",
        ":5",
        "60:-10",
        "-60:10",
        " 5",
        "5 ",
        "+5",
        "0x5",
        "1.5",
        "1:2:3:4",
        "1-2:3:4:5",
        "unlim",
        "-2",
        "9" * 12,
    ],
)
def test_refuses_what_is_no_time_limit(text: str) -> None:
    with pytest.raises(SlurmSyntaxError, match="Invalid time specification"):
        parse_time_limit(text)


def test_agrees_with_the_published_time_strings() -> None:
    if not VECTORS.exists():
        pytest.skip(f"needs {VECTORS.name} of the shared test data beside the checkout")
    for text, expected in json.loads(VECTORS.read_text())["time_str2secs"]:
        if expected is None:
            with pytest.raises(SlurmSyntaxError):
                parse_time_limit(text)
        else:
            assert parse_time_limit(text) == (INFINITE if expected == "INFINITE" else expected), text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", None), ("UNLIMITED", None), ("0:30", 60), ("0:90", 120), ("1-2:3:4", 93840), ("5", 300)],
)
def test_a_job_gets_whole_minutes(text: str, seconds: int | None) -> None:
    assert parse_job_time_limit(text) == seconds


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (0, "0:00"),
        (60, "1:00"),
        (3600, "1:00:00"),
        (5400, "1:30:00"),
        (86400, "1-00:00:00"),
        (93840, "1-02:04:00"),
        (365 * 86400, "365-00:00:00"),
        (365 * 86400 + 60, "INVALID"),
        (-1, "INVALID"),
        (INFINITE, "UNLIMITED"),
        (None, "NOT_SET"),
    ],
)
def test_prints_limits_as_squeue(limit: TimeLimit | None, text: str) -> None:
    assert format_time_limit(limit) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "00:00:00"),
        (5, "00:00:05"),
        (65, "00:01:05"),
        (3600, "01:00:00"),
        (86400, "1-00:00:00"),
        (93784, "1-02:03:04"),
        (400 * 86400, "400-00:00:00"),
        (-5, "INVALID"),
        (INFINITE, "UNLIMITED"),
    ],
)
def test_prints_elapsed_as_sacct(seconds: TimeLimit, text: str) -> None:
    assert format_elapsed(seconds) == text


COMING = [
    ("now", "2026-11-15T05:12:31"),
    ("NOW", "2026-11-15T05:12:31"),
    ("now+60", "2026-11-15T05:13:31"),
    ("now + 60", "2026-11-15T05:13:31"),
    ("now+10minutes", "2026-11-15T05:22:31"),
    ("now+1hour", "2026-11-15T06:12:31"),
    ("now+2days", "2026-11-17T05:12:31"),
    ("now+1week", "2026-11-22T05:12:31"),
    ("now-1hour", "2026-11-15T04:12:31"),
    ("midnight", "2026-11-16T00:00:00"),
    ("noon", "2026-11-15T12:00:00"),
    ("fika", "2026-11-15T15:00:00"),
    ("teatime", "2026-11-15T16:00:00"),
    ("today", "2026-11-15T00:00:00"),
    ("tomorrow", "2026-11-16T00:00:00"),
    ("16:00", "2026-11-15T16:00:00"),
    ("00:00", "2026-11-16T00:00:00"),
    ("16:00:30", "2026-11-15T16:00:30"),
    ("4:00PM", "2026-11-15T16:00:00"),
    ("4:00 pm", "2026-11-15T16:00:00"),
    ("12:00AM", "2026-11-16T00:00:00"),
    ("12:30PM", "2026-11-15T12:30:00"),
    ("0:30AM", "2026-11-16T00:30:00"),
    ("010134", "2034-01-01T00:00:00"),
    ("0101", "2027-01-01T00:00:00"),
    ("1231", "2026-12-31T00:00:00"),
    ("123", "2026-12-03T00:00:00"),
    ("12/31", "2026-12-31T00:00:00"),
    ("1/1", "2027-01-01T00:00:00"),
    ("2/29", "2027-03-01T00:00:00"),
    ("12/31/30", "2030-12-31T00:00:00"),
    ("12.31.30", "2030-12-31T00:00:00"),
    ("1.2.30", "2030-01-02T00:00:00"),
    ("12.31", "2026-12-31T00:00:00"),
    ("2030-12-31", "2030-12-31T00:00:00"),
    ("2030-12-31T", "2030-12-31T00:00:00"),
    ("2030-12-31T10:00", "2030-12-31T10:00:00"),
    ("2030-12-31T10:00:01", "2030-12-31T10:00:01"),
    ("2030-12-31 10:00", "2030-12-31T10:00:00"),
    ("2030-12-31T10:00PM", "2030-12-31T22:00:00"),
    ("2030-02-30", "2030-03-02T00:00:00"),
    ("10:00 12/31/30", "2030-12-31T10:00:00"),
    ("12/31-10:00", "2026-12-31T10:00:00"),
    ("midnight tomorrow", "2026-11-16T00:00:00"),
    ("tomorrow noon", "2026-11-16T12:00:00"),
    ("12:00tomorrow", "2026-11-16T12:00:00"),
    ("today10:00", "2026-11-15T10:00:00"),
    ("uts1700000000", "2023-11-14T22:13:20"),
]


@pytest.mark.parametrize(("text", "expected"), COMING)
def test_reads_points_in_time_to_come(text: str, expected: str) -> None:
    assert parse_timestamp(text, NOW, utc) == datetime.fromisoformat(expected + "+00:00").timestamp()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("midnight", "2026-11-15T00:00:00"),
        ("noon", "2026-11-15T12:00:00"),
        ("00:00", "2026-11-15T00:00:00"),
        ("1231", "2025-12-31T00:00:00"),
        ("0101", "2026-01-01T00:00:00"),
        ("12/31-10:00", "2025-12-31T10:00:00"),
        ("now-1hour", "2026-11-15T04:12:31"),
        ("2030-12-31", "2030-12-31T00:00:00"),
    ],
)
def test_reads_points_in_time_gone_by(text: str, expected: str) -> None:
    assert parse_timestamp(text, NOW, utc, past=True) == datetime.fromisoformat(expected + "+00:00").timestamp()


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "abc", "elevenses", "now+", "now+x", "now+1d", "now+5min", "now now", "now 10:00"),
        *("4PM", "16:00PM", "13:00AM", "25:00", "24:00", "10:60", "10:00:60", "0:0", "1:2", "10:0:0"),
        *("1", "12", "12345", "13/1", "1/32", "00/01", "12/31/2030", "20301231", "2030-13-01", "2030-1-1", "2030-12"),
        *("2030-12-31T10", "2030-12-31T10:00Z", "2030-12-31T10:00:00.5", "uts=1700000000"),
    ],
)
def test_refuses_what_is_no_point_in_time(text: str) -> None:
    with pytest.raises(SlurmSyntaxError, match="Invalid time specification"):
        parse_timestamp(text, NOW, utc)


def test_wall_time_is_the_callers_local_time() -> None:
    def offset(at: float) -> float:
        """New York's rule, roughly: four hours behind UTC from April to October, five in winter."""
        return -4 * 3600 if 4 <= datetime.fromtimestamp(at, UTC).month <= 10 else -5 * 3600

    asked_in_winter = parse_timestamp("2030-07-01T12:00", NOW, offset)
    assert asked_in_winter == datetime(2030, 7, 1, 16, tzinfo=UTC).timestamp()
    assert parse_timestamp("noon", NOW, offset) == datetime(2026, 11, 15, 17, tzinfo=UTC).timestamp()
    assert parse_timestamp("midnight", NOW, offset) == datetime(2026, 11, 15, 5, tzinfo=UTC).timestamp() + 86400


@given(st.integers(0, 365 * 86400 // 60).map(lambda minutes: minutes * 60))
def test_a_printed_limit_reads_back(seconds: int) -> None:
    assert parse_time_limit(format_time_limit(seconds)) == seconds


@given(st.text() | st.text(alphabet="0123456789:-"))
def test_any_text_is_a_limit_or_a_syntax_error(text: str) -> None:
    try:
        limit = parse_time_limit(text)
    except SlurmSyntaxError:
        return
    assert limit is INFINITE or limit >= 0


@given(
    st.text()
    | st.text(alphabet="0123456789:-/. TAPMnow+")
    | st.from_regex(r"[0-9]{1,8}[:/.-][0-9]{1,4}", fullmatch=True)
)
def test_any_text_is_a_point_in_time_or_a_syntax_error(text: str) -> None:
    for past in (False, True):
        try:
            assert isinstance(parse_timestamp(text, NOW, utc, past=past), float)
        except SlurmSyntaxError:
            continue
