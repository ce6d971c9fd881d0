"""A real MLflow server on loopback for tests, and the interpreter that has the clients (`tests/prepare.py`)."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from tests.support.ports import free_port

TRACKERS = Path(sys.prefix) / "trackers"
PACKAGES = ("mlflow>=3,<4", "tensorboardX>=2.6,<3", "wandb>=0.31,<0.32")
PYTHON = str(TRACKERS / "bin" / "python")
_PATIENCE_S = 120.0


def needed() -> None:
    """Skips where the trackers are not installed, or not all of them."""
    stamp = TRACKERS / ".installed"
    if not stamp.exists() or stamp.read_text() != "\n".join(PACKAGES):
        pytest.skip("MLflow, W&B and TensorBoard are not all installed for tests: python -m tests.prepare")


class MlflowServer:
    """Started and ended by process id; the same address and store again after `start`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self) -> Iterator[Self]:
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def start(self) -> None:
        words = ["-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        stores = [
            "--backend-store-uri",
            f"sqlite:///{self._folder}/runs.db",
            "--artifacts-destination",
            str(self._folder / "artifacts"),
        ]
        with open(self._folder / "mlflow.log", "ab") as log:
            self._process = subprocess.Popen(
                [PYTHON, *words, *stores],
                cwd=self._folder,
                env={"PATH": f"{TRACKERS / 'bin'}:{os.defpath}", "HOME": str(self._folder)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + _PATIENCE_S
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "mlflow.log").read_text()[-3000:]
            assert time.monotonic() < deadline, "MLflow does not come up"
            time.sleep(0.1)

    def stop(self) -> None:
        """Ends the server and its workers: the processes of the session that it was started in."""
        if self._process is None:
            return
        handle = os.pidfd_open(self._process.pid)
        os.killpg(self._process.pid, 9)
        assert select.select([handle], [], [], 10.0)[0], "MLflow does not end"
        os.close(handle)
        self._process.wait()
        self._process = None

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    # -- what it has ---------------------------------------------------------------------------------------------------

    def get(self, what: str, **asked: str) -> Any:
        with urlopen(f"{self.url}/api/2.0/mlflow/{what}?{urlencode(asked)}", timeout=30) as answer:
            return json.load(answer)

    def post(self, what: str, **asked: Any) -> Any:
        request = Request(f"{self.url}/api/2.0/mlflow/{what}", json.dumps(asked).encode())
        request.add_header("Content-Type", "application/json")
        with urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def run(self, run_id: str) -> Any:
        return self.get("runs/get", run_id=run_id)["run"]

    def runs(self, experiment: str) -> list[Any]:
        found = self.get("experiments/get-by-name", experiment_name=experiment)["experiment"]["experiment_id"]
        listed: list[Any] = self.post("runs/search", experiment_ids=[found], max_results=100).get("runs", [])
        return listed

    def history(self, run_id: str, metric: str) -> list[tuple[int, float]]:
        told = self.get("metrics/get-history", run_id=run_id, metric_key=metric).get("metrics", [])
        return [(int(each.get("step", 0)), each["value"]) for each in told]


def tags_of(run: Any) -> dict[str, str]:
    return {each["key"]: each["value"] for each in run["data"].get("tags", [])}
