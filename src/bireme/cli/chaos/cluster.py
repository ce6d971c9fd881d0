"""The cluster that a fault is meant for: whether it may be made there, and what it finds of jobs, nodes and processes.

Faults are made on this machine, by whoever owns the cluster: signals, files of its home. So only an embedded cluster
can have any, and nobody breaks what is another user's.
Invariant: no fault is prepared for a job of another user.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bireme.agent.census import living_agents
from bireme.client.transport import ApiError, Transport
from bireme.commands.paths import path_of
from bireme.commands.voice import CommandFailure, refused_by_daemon
from bireme.core.model.steps import EXTERN_STEP
from bireme.daemon.paths import Paths
from bireme.gather.owners import AgentOwners, OwnedTask
from bireme.gather.rehearsal.scene import Scene

Record = dict[str, Any]
_TASK = re.compile(r"(?P<job>[0-9_+]+)(?:\.(?P<step>\d+)\.(?P<task>\d+))?")
_GPU = re.compile(r"(?P<node>[^:]+):gpu(?P<gpu>\d+)")
_OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "DEADLINE")


class Gpu(NamedTuple):
    node: str
    number: int
    bus: str


class ChaosCluster:
    """`told`: what `/v1/config` says of it."""

    def __init__(self, transport: Transport, told: Mapping[str, Any]) -> None:
        self.transport = transport
        self.paths = Paths()
        self._engine = told.get("cluster.engine", "")
        self.is_rehearsal = told.get("cluster.rehearsal") == "on"
        self.mode = told.get("healing.mode", "")
        self.scene = Scene(self.paths.rehearsal)

    def check_allowed(self, *, really: bool) -> None:
        """Raises CommandFailure."""
        if self._engine != "embedded":
            raise CommandFailure(
                f"faults are made in embedded clusters alone, and this one's engine is {self._engine}",
                hint="bireme up with a home of its own (BIREME_HOME) and a slurm.conf of virtual nodes is a rehearsal",
            )
        owner = os.stat(self.paths.home).st_uid
        if owner != os.geteuid() and not really:
            raise CommandFailure(
                f"this cluster is {_name_of(owner)}'s; --really makes a fault in it all the same (jobs of others never)"
            )

    def check_played(self) -> None:
        """Raises CommandFailure where GPUs and kernel lines are real."""
        if not self.is_rehearsal or not self.scene.is_there:
            raise CommandFailure(
                "GPUs and the kernel's lines of this cluster are real; those of a rehearsal are played",
                hint='set cluster.rehearsal = "on" (BIREME_CLUSTER_REHEARSAL=on) before `bireme up` (docs/chaos.md)',
            )

    # -- what there is ----------------------------------------------------------------------------------------------

    def job(self, name: str) -> Record:
        """One job of the caller's that holds something. Raises CommandFailure."""
        fields = "job_id,state,user_id,user_name,restarts,node_list,checkpoint"
        try:
            found = self.transport.get(path_of("jobs", name), {"fields": fields})["jobs"]
        except ApiError as error:
            raise refused_by_daemon(f"job {name}", error) from error
        if len(found) != 1:
            raise CommandFailure(f"{name} is {len(found)} jobs; name one task of the array, as squeue -r shows it")
        job: Record = found[0]
        self._check_mine(job)
        return job

    def _check_mine(self, job: Record) -> None:
        if job["user_id"] != os.geteuid():
            raise CommandFailure(
                f"job {job['job_id']} is {job['user_name']}'s: faults are made in one's own jobs alone"
            )

    def now_of(self, job_id: int) -> Record:
        told: Record = self.transport.get(f"/v1/jobs/{job_id}", {"fields": "state,restarts,checkpoint"})["jobs"][0]
        return told

    def node(self, name: str) -> Record:
        """One node, on which only jobs of the caller's run. Raises CommandFailure."""
        nodes = self.transport.get("/v1/nodes", {"fields": "name,state,flags,jobs"})["nodes"]
        found: Record | None = next((each for each in nodes if each["name"] == name), None)
        if found is None:
            raise CommandFailure(f"there is no node {name}: sinfo -N lists them")
        for number in found["jobs"]:
            self.job(str(number))
        return found

    def gpu(self, target: str) -> Gpu:
        """Written `n1:gpu2`. Raises CommandFailure."""
        parts = _GPU.fullmatch(target)
        if parts is None:
            raise CommandFailure(f"{target!r} is no GPU: write NODE:gpuN, as n1:gpu2")
        self.check_played()
        self.node(parts["node"])
        for card in self.scene.cards():
            if (card.node, card.number) == (parts["node"], int(parts["gpu"])):
                return Gpu(card.node, card.number, card.bus)
        raise CommandFailure(f"node {parts['node']} has no GPU {parts['gpu']}: scontrol show node says how many")

    def task(self, target: str) -> OwnedTask:
        """A rank of a job: `42` (the last one of its newest step, else its script) or `42.0.3`. Raises
        CommandFailure."""
        parts = _TASK.fullmatch(target)
        if parts is None:
            raise CommandFailure(f"{target!r} is no rank: write JOB or JOB.STEP.RANK, as 42 or 42.0.3")
        job = self.job(parts["job"])
        owners = AgentOwners(Path(self.paths.agents))
        all_tasks = asyncio.run(_tasks_of(owners))
        running = [
            each for each in all_tasks if _job_of(each) == job["job_id"] and _step_and_rank(each)[0] != EXTERN_STEP
        ]
        if parts["step"] is not None:
            wanted = (int(parts["step"]), int(parts["task"]))
            running = [task for task in running if _step_and_rank(task) == wanted]
        if not running:
            raise CommandFailure(f"no rank {target} runs now: the job is {job['state']}")
        return max(running, key=_step_and_rank)

    def agent(self, node: str) -> int:
        """The process that owns what runs on a node. Raises CommandFailure."""
        for pid, name in living_agents(self.paths.home).items():
            if name == node:
                return pid
        raise CommandFailure(f"node {node} has no agent now; try again in a few seconds (bireme doctor says why)")

    # -- what becomes of it -----------------------------------------------------------------------------------------

    def findings(self) -> list[Record]:
        told: list[Record] = self.transport.get("/v1/findings")["findings"]
        return told

    def fences(self) -> set[str]:
        return {each["place"] for each in self.transport.get("/v1/healings")["fences"]}

    def flags(self, node: str) -> tuple[str, list[str]]:
        nodes = self.transport.get("/v1/nodes", {"fields": "name,state,flags"})["nodes"]
        return next(((each["state"], each["flags"]) for each in nodes if each["name"] == node), ("", []))


def reach(transport: Transport) -> ChaosCluster:
    return ChaosCluster(transport, transport.get("/v1/config")["bireme"])


def is_over(state: str) -> bool:
    return state.split()[0] in _OVER


def _job_of(task: OwnedTask) -> int:
    return int(task.id.split(".")[0])


def _step_and_rank(task: OwnedTask) -> tuple[int, int]:
    _, _, step, rank = task.id.split(".")
    return int(step), int(rank)


async def _tasks_of(owners: AgentOwners) -> list[OwnedTask]:
    return list(await owners.tasks())


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
