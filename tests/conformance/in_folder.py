"""What the benches share whose programs are real bash scripts in a folder: how a job looks, and what it left behind."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import time
from pathlib import Path

from bireme.core.model.jobs import JobKind, JobSpec, Owner
from bireme.core.model.steps import StepSpec
from bireme.testing.conformance.port import Bench
from bireme.testing.conformance.programs import Program


class FolderBench(Bench):
    """Left to each: how to make the engine, and how a node is restarted. It is also the store of blobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._blobs: dict[str, bytes] = {}

    def put(self, data: bytes, uid: int | None = None) -> str:
        key = hashlib.sha256(data).hexdigest()
        self._blobs[key] = data
        return key

    def get(self, blob_id: str) -> bytes:
        return self._blobs[blob_id]

    def job_spec(self, program: Program, kind: JobKind) -> JobSpec:
        return self._spec(self.put(program.script.encode()), kind)

    def impossible_spec(self) -> JobSpec:
        return self._spec("the blob of a script that was never stored", JobKind.BATCH)

    def _spec(self, script: str, kind: JobKind) -> JobSpec:
        me = pwd.getpwuid(os.getuid())
        owner = Owner(uid=me.pw_uid, gid=me.pw_gid, user=me.pw_name)
        return JobSpec(
            owner=owner, kind=kind, script=script, environment=self._environment(), work_dir=str(self.folder)
        )

    def step_spec(self, program: Program) -> StepSpec:
        return StepSpec(argv=("bash", "-c", program.script), environment=self._environment(), std_out="none")

    def _environment(self) -> str:
        return self.put(json.dumps({"PATH": os.environ["PATH"]}).encode())

    def open_gate(self, name: str) -> None:
        (self.folder / name).touch()

    def runs(self, job_id: int) -> int:
        return len(self._lines(f"ran.{job_id}"))

    def beats(self, job_id: int) -> int:
        return len(self._lines(f"beats.{job_id}"))

    def output(self, job_id: int) -> str:
        return (self.folder / f"slurm-{job_id}.out").read_text()

    def _lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def now(self) -> float:
        return time.time()
