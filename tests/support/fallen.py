"""A pytest plugin that writes down which tests fell and how long each took: `-p tests.support.fallen`.

`tests/suite.py` loads it and reads the file, to run the fallen ones once more and to name the slowest of the whole.
With workers (pytest-xdist) the reports reach the process that collects them, which alone writes the file.
Invariant: whatever makes pytest fail is in the file as something that can be run again: a test, or a module that could
not be collected.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

FILE = "BIREME_TESTS_FALLEN"
"""The variable that names the file to write."""


class Fallen:
    """The reports of one run of pytest."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            print(f"\nfell: {report.nodeid}", flush=True)  # half an hour before pytest names it
            self.failures.setdefault(report.nodeid, f"in its {report.when}:\n{report.longreprtext}")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failures.setdefault(report.nodeid, f"while it was collected:\n{report.longreprtext}")

    def pytest_sessionfinish(self) -> None:
        path = Path(os.environ[FILE])
        path.write_text(json.dumps({"failures": self.failures, "seconds": self.seconds}))


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if FILE in os.environ and not is_worker:
        config.pluginmanager.register(Fallen())
