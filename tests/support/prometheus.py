"""A real Prometheus for tests: Debian's package, unpacked into the user's cache; nothing of it is installed or started
as a service. `python -m tests.prepare` fetches it; tests only look.

`running` starts one on loopback, with its data in a folder of the test's, and ends it by its process id.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import unpacked

_STARTS_S = 60.0


def program(name: str) -> str | None:
    """`prometheus` or `promtool`."""
    return unpacked.program("prometheus", name)


def fetch() -> str:
    """Why it could not be had, in a few words."""
    return unpacked.fetch("prometheus", "prometheus", "promtool")


@dataclass(frozen=True, slots=True)
class Prometheus:
    url: str

    def ask(self, path: str, **query: str) -> Any:
        """What its API answers under `data`."""
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The samples that it finds now. Raises HTTPError for what is no query."""
        found = self.ask("/api/v1/query", query=expr)
        rows: list[dict[str, Any]] = found["result"]
        return rows if found["resultType"] == "vector" else [{"metric": {}, "value": rows}]


@contextmanager
def running(folder: Path, targets: Mapping[str, list[str]], rules: Path) -> Iterator[Prometheus]:
    """`targets`: addresses by the job that they are scraped as, every second."""
    binary = program("prometheus")
    assert binary is not None
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = f"127.0.0.1:{found.getsockname()[1]}"
    scraped = [{"job_name": job, "static_configs": [{"targets": each}]} for job, each in targets.items()]
    timing = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config = folder / "prometheus.yml"
    config.write_text(json.dumps({"global": timing, "rule_files": [str(rules)], "scrape_configs": scraped}))
    words = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]
    with open(folder / "prometheus.log", "wb") as log:
        server = subprocess.Popen([binary, *words], stdout=log, stderr=log, cwd=folder)
    try:
        _await_ready(f"http://{address}", server, folder / "prometheus.log")
        yield Prometheus(f"http://{address}")
    finally:
        server.terminate()
        server.wait(30)


def _await_ready(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _STARTS_S
    while True:
        assert server.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.05)
