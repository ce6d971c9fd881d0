"""`bireme node` processes on this machine, each for one node of a test's cluster, and the settings that let them in."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.cluster import Cluster

VARIABLES = {
    "BIREME_TELEMETRY_GATHER": "on",
    "BIREME_TELEMETRY_INTERVAL_S": "1",
    "BIREME_TELEMETRY_LISTEN": "127.0.0.1:0",
}
"""Of the daemon."""


class Nodes:
    """`env`: the variables on a node; `words`: more that every one is started with."""

    def __init__(self, both: Cluster, env: Mapping[str, str], *words: str) -> None:
        self.both, self._env, self._words = both, env, words
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *more: str, speaks_for: str = "", env: Mapping[str, str] | None = None) -> None:
        """`more` words and variables of this one alone."""
        file = self.both.folder / f"{name}.json"
        if not file.exists():
            self.both.bireme("node", "token", speaks_for or name, "--out", str(file))
        words = ("--pass", str(file), "--name", name, "--folder", str(self.folder(name)), *self._words, *more)
        with open(self.log(name), "ab") as log:
            self.running[name] = subprocess.Popen(
                [self.both.python, "-m", "bireme", "node", *words],
                stdin=subprocess.DEVNULL,
                stderr=log,
                env={**self._env, **(env or {})},
            )

    def folder(self, name: str) -> Path:
        return self.both.folder / f"gathered-{name}"

    def log(self, name: str) -> Path:
        return self.both.folder / f"{name}.log"

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        process = self.running.pop(name)
        process.send_signal(number)
        process.wait(timeout=60)

    @contextmanager
    def ended_at_last(self) -> Iterator[None]:
        try:
            yield
        finally:
            for name in list(self.running):
                self.end(name, signal.SIGKILL)
