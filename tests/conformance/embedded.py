"""The embedded engine on the bench: real agents, real processes, two virtual nodes in a folder."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pwd
import signal
import time
from pathlib import Path

from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig, Settings
from bireme.core.model.jobs import JobKind, JobSpec, Owner
from bireme.core.model.steps import StepSpec
from bireme.engines.embedded import EmbeddedEngine
from bireme.testing.conformance.port import Bench
from bireme.testing.conformance.programs import Program


class EmbeddedBench(Bench):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        nodes = tuple(NodeConfig(name=name, cpus=4, memory_mib=1000) for name in self.nodes)
        partition = PartitionConfig(name="main", nodes=self.nodes, default=True)
        self.config = ClusterConfig(nodes=nodes, partitions=(partition,), settings=Settings())
        self._blobs: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        key = hashlib.sha256(data).hexdigest()
        self._blobs[key] = data
        return key

    def get(self, blob_id: str) -> bytes:
        return self._blobs[blob_id]

    def new_engine(self) -> EmbeddedEngine:
        return EmbeddedEngine(self.folder, self.config, self)

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

    async def restart_node(self, node: str) -> None:
        """Its agent is killed; the engine starts another, which ends what the first one left."""
        pid_file = self.folder / "agents" / node / "agent.pid"
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        await asyncio.sleep(0)

    def now(self) -> float:
        return time.time()
