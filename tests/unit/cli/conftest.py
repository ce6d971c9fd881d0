from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.cli.fake_daemon import FakeDaemon, serving


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, and none of the variables a job around the tests might have set."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SBATCH_", "SALLOC_", "SCANCEL_", "BIREME_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BIREME_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def daemon(home: Path) -> Iterator[FakeDaemon]:
    with serving(home) as running:
        yield running
