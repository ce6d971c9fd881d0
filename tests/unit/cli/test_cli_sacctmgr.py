"""sacctmgr show: what it says of things that Slurm's lists and Bireme has not, or elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme.cli import sacctmgr


@pytest.mark.parametrize(("entity", "instead"), [("stats", "bireme status"), ("reservation", "scontrol show reserv")])
def test_what_is_elsewhere_is_named(home: Path, capfd: pytest.CaptureFixture[str], entity: str, instead: str) -> None:
    assert sacctmgr.main(["show", entity]) == 1
    said = capfd.readouterr().err
    assert instead in said
    assert "Input line must include" not in said
