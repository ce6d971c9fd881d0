"""docs/diagnosis.md lists the causes that the rules' files publish."""

from __future__ import annotations

from tests.diagnosis.causes_table import PAGE, with_table


def test_the_table_of_causes_is_current() -> None:
    page = PAGE.read_text()
    assert page == with_table(page), "python -m tests.diagnosis.causes_table --write"
