"""Reports on disk."""

from __future__ import annotations

import subprocess
import sys


def test_the_simulator_needs_no_matplotlib_until_something_is_drawn() -> None:
    """It is an extra: without it everything but plots is there."""
    program = (
        "import sys\n"
        "sys.modules['matplotlib'] = None\n"  # as where it is not installed
        "import bireme.cli.simulator.run\n"
        "from bireme.sim.report.files import missing_plots\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
