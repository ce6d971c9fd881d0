"""The page on telemetry has the list of metrics as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme.core.telemetry.metrics import About
from bireme.gather.metrics_table import table

PAGE = Path(__file__).resolve().parents[3] / "docs" / "telemetry.md"


@pytest.mark.parametrize("what", ["gpu", "use", "task", "node"])
def test_the_page_lists_every_metric_as_it_is(what: About) -> None:
    assert table(what) in PAGE.read_text(), f"put in what `python -m bireme.gather.metrics_table {what}` prints"
