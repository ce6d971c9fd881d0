"""Every planning input in tests/plans is planned again and must be decided as it was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme.testing.plans import SUFFIX, replay

FILES = sorted((Path(__file__).parents[1] / "plans").glob(f"*{SUFFIX}"))


def test_there_are_some() -> None:
    assert len(FILES) >= 2


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recorded_plan_is_made_again(path: Path) -> None:
    seen = replay(path)
    assert seen.recorded is not None, f"no decisions in {path.name}: bireme plan --update {path}"
    assert seen.decided == seen.recorded, f"see `bireme plan --check {path}`"
