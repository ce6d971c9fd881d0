"""When lines were written: between two looks at the output's length, or by their own timestamps."""

from __future__ import annotations

import pytest

from bireme.core.telemetry.log_lines import Raw, dated, own_time

LIFE = (1000.0, 2000.0)
AT = 1_790_000_000.0  # 2026-09-21 14:13:20 UTC


def spans(lines: list[int], looks: list[tuple[float, float, float]]) -> list[tuple[float | None, float | None]]:
    raw = [Raw(number, end, "x") for number, end in enumerate(lines, 1)]
    return [(line.start, line.end) for line in dated(raw, looks, LIFE, 0.0)]


def test_a_line_was_written_between_two_looks() -> None:
    looks = [(1010.0, 1020.0, 50.0), (1020.0, 1030.0, 50.0), (1030.0, 1040.0, 200.0)]
    assert spans([10, 50, 51, 200, 300], looks) == [
        (1000.0, 1020.0), (1000.0, 1020.0), (1020.0, 1040.0), (1020.0, 1040.0), (1040.0, 2000.0),
    ]  # fmt: skip


def test_a_file_that_was_begun_anew_has_only_what_came_then() -> None:
    looks = [(1010.0, 1020.0, 500.0), (1030.0, 1040.0, 20.0), (1040.0, 1050.0, 90.0)]
    assert spans([15, 90], looks) == [(1010.0, 1040.0), (1030.0, 1050.0)]


def test_without_looks_nothing_is_made_up() -> None:
    assert [line.source for line in dated([Raw(1, 5, "hello")], [], LIFE, 0.0)] == ["none"]


@pytest.mark.parametrize(
    ("text", "offset_s", "at"),
    [
        ("2026-09-21T14:13:20Z go", 7200.0, AT),
        ("2026-09-21 16:13:20,250 INFO go", 7200.0, AT + 0.25),
        ("[2026-09-21 14:13:20] go", 0.0, AT),
        ("INFO 2026/09/21 14:13:20.5 go", 0.0, AT + 0.5),
        ("2026-09-21T16:13:20+02:00 go", 0.0, AT),
        ("2026-99-21T16:13:20 go", 0.0, None),
        ("step 7 at 2026-09-21T16:13:20", 0.0, None),
        ("loss 0.3", 0.0, None),
    ],
)
def test_a_line_may_say_its_own_time(text: str, offset_s: float, at: float | None) -> None:
    assert own_time(text, offset_s) == at


def test_a_time_of_another_life_is_not_believed() -> None:
    (line,) = dated([Raw(1, 5, "2026-09-21T14:13:20Z data made")], [(1010.0, 1020.0, 50.0)], LIFE, 0.0)
    assert line.source == "offset"
    (line,) = dated([Raw(1, 5, "2026-09-21T14:13:20Z go")], [], (AT - 10, AT + 10), 0.0)
    assert (line.source, line.start) == ("own", AT)
