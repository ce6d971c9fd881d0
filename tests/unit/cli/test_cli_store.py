"""bireme store verify: what is said of a home at rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bireme.cli import store as command
from bireme.daemon.paths import Paths
from bireme.store.journal import SqliteStore


def test_files_of_measurements_that_were_set_aside_are_named_for_as_long_as_they_lie_there(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = Paths(str(home))
    paths.create()
    SqliteStore(paths.journal).close()
    aside = Path(f"{paths.series}.damaged-1")
    aside.touch()
    command.main(["verify"])
    assert f"set aside, damaged: {aside}: nothing reads it" in capsys.readouterr().out
    command.main(["verify", "--json"])
    assert json.loads(capsys.readouterr().out)["set_aside"] == [str(aside)]
    aside.unlink()
    command.main(["verify"])
    assert "set aside" not in capsys.readouterr().out
