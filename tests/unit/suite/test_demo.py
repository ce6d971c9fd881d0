"""`make demo`: its last line is a command that works where it is read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from examples import demo


@pytest.mark.parametrize("on_path", [False, True])
def test_the_last_line_is_a_command_that_works(monkeypatch: pytest.MonkeyPatch, on_path: bool) -> None:
    folder = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", folder + os.pathsep + "/bin" if on_path else "/usr/bin:/bin")
    command = demo.your_turn().partition(" up")[0]
    assert (command == "bireme") is on_path
    assert subprocess.run([command, "--version"], check=False, capture_output=True).returncode == 0
