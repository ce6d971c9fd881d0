"""bireme store verify: what is said of a home at rest."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bireme.agent.system.trying import in_child
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act for others")
def test_who_may_not_read_it_is_told_whose_it_is(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """And not that it is damaged."""
    paths = Paths(str(home))
    paths.create()
    SqliteStore(paths.journal).close()
    for folder in (home, *home.parents[:-1]):
        folder.chmod(folder.stat().st_mode | 0o055)
    Path(paths.journal).chmod(0o600)

    def as_nobody() -> dict[str, int]:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        return {"code": command.main(["verify"])}

    assert in_child(as_nobody) == {"code": 1}
    told = capfd.readouterr()
    assert "belongs to root, and what is in it is for root alone" in told.err
    assert "damaged" not in told.out + told.err
