"""Two engines in one daemon: one that Bireme places for (the host), and a scheduler of its own beside it (the guest).

Partitions say which is meant: a job that names a partition of the guest is submitted to it, any other is planned here.
(`--clusters` says it too: then the API asks the queue at once.)
Commands go to the host, orders about mirrored jobs to the guest; what both report is passed on, their clusters as one.
Own jobs are numbered from `OWN_IDS_FROM` on, above what the guest will use, since the guest numbers its jobs itself.
Not here: how either does its work. Invariant: a partition or node of the guest never hides one of the host.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bireme.core.model import commands as c
from bireme.core.model import observations as o
from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.jobs import JobSpec
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.ports import Capabilities, Engine, Followed, Order, Report, StepEndpoint

log = logging.getLogger("bireme.engines.routing")

OWN_IDS_FROM = 60_000_000
"""Slurm's numbers end at 67,043,328 (MaxJobId), and no cluster has come this far."""

_OF_QUEUES = (c.FindJob, c.SubmitReplica, c.EndReplica)
"""Commands that only an engine with a queue of its own is given."""


class RoutingEngine:
    def __init__(self, host: Engine, config: ClusterConfig | None, guest: Engine) -> None:
        """`config`: the host's cluster; None when the host reports it. The guest has a queue of its own."""
        queue = guest.capabilities.queue
        assert queue is not None, f"{guest.name} has no queue of its own"
        self.name = f"{host.name}+{guest.name}"
        self._host, self._guest, self._queue = host, guest, queue
        self._host_reports = config is None
        self._host_config, self._guest_config = config, ClusterConfig(name="")
        self._guest_jobs: set[int] = set()
        self._report: Report = lambda _: None
        self._hidden = ""

    # -- ports.Engine ------------------------------------------------------------------------------------------------

    @property
    def problem(self) -> str:
        return "; ".join(filter(None, (self._host.problem, self._guest.problem, self._hidden)))

    @property
    def about(self) -> str:
        return "; ".join(filter(None, (self._host.about, self._guest.about)))

    @property
    def capabilities(self) -> Capabilities:
        """The host's, and the guest's queue as far as partitions lead there."""
        return replace(self._host.capabilities, queue=self, beside=self._guest.capabilities.beside)

    async def start(self, report: Report) -> None:
        """The guest first: its nodes are known before the state is told of a cluster without them."""
        waiting: list[o.Observation] = []
        self._report = waiting.extend
        await self._guest.start(self._from_guest)
        self._report = report
        self._tell_cluster()
        report([seen for seen in waiting if not isinstance(seen, o.ClusterSeen)])
        await self._host.start(self._from_host)

    async def stop(self) -> None:
        await self._host.stop()
        await self._guest.stop()

    async def end_jobs(self, grace_s: float) -> None:
        await self._host.end_jobs(grace_s)

    def reconfigure(self, config: ClusterConfig) -> None:
        """`config`: the host's; where the host reports it, that of both, as the state has it."""
        if not self._host_reports:
            self._host_config = config
        self._host.reconfigure(self._host_config or config)
        self._guest.reconfigure(config)
        self._tell_cluster()

    def send(self, commands: Sequence[c.Command]) -> None:
        self._guest.send([command for command in commands if isinstance(command, _OF_QUEUES)])
        self._host.send([command for command in commands if not isinstance(command, _OF_QUEUES)])

    def step_endpoints(self, job_id: int, step_id: int) -> tuple[StepEndpoint, ...]:
        return self._engine_of(job_id).step_endpoints(job_id, step_id)

    async def live_usage(self, job_id: int) -> dict[str, Any]:
        return await self._engine_of(job_id).live_usage(job_id)

    def acknowledge(self, job_id: int, generation: int) -> None:
        self._engine_of(job_id).acknowledge(job_id, generation)

    def _engine_of(self, job_id: int) -> Engine:
        return self._guest if job_id in self._guest_jobs else self._host

    # -- ports.ForeignQueue ------------------------------------------------------------------------------------------

    def takes(self, specs: Sequence[JobSpec]) -> bool:
        theirs = {partition.name for partition in self._guest_config.partitions} - self._host_partitions()
        return any(name in theirs for spec in specs for name in spec.partitions)

    def takes_nodes(self, names: Sequence[str]) -> bool:
        theirs = {node.name for node in self._guest_config.nodes}
        ours = {node.name for node in self._host_config.nodes} if self._host_config else set()
        return theirs.difference(ours).issuperset(names)

    async def submit(self, specs: Sequence[JobSpec], key: str) -> int:
        mixed = sorted(self._host_partitions().intersection(name for spec in specs for name in spec.partitions))
        if mixed:
            hint = f"{mixed[0]} is of another cluster than the job's other partitions"
            raise Refusal(Why.INVALID_PARTITION_NAME, hint)
        return await self._queue.submit(specs, key)

    async def obey(self, caller: Caller, order: Order) -> None:
        await self._queue.obey(caller, order)

    def out_of_date(self, what: Followed) -> str:
        return self._queue.out_of_date(what)

    async def catch_up(self, job_ids: Sequence[int]) -> None:
        named = [job_id for job_id in job_ids if job_id < OWN_IDS_FROM]
        if named or not job_ids:
            await self._queue.catch_up(named)

    # -- what they report --------------------------------------------------------------------------------------------

    def _from_host(self, observations: Sequence[o.Observation]) -> None:
        for seen in observations:
            if isinstance(seen, o.ClusterSeen):
                self._host_config = seen.config
                self._tell_cluster()
            else:
                self._report([seen])

    def _from_guest(self, observations: Sequence[o.Observation]) -> None:
        for seen in observations:
            if isinstance(seen, o.ClusterSeen):
                self._guest_config = seen.config
                self._tell_cluster()
                continue
            if isinstance(seen, o.JobSeen):
                self._guest_jobs.add(seen.seen.job_id)
            self._report([seen])

    def _host_partitions(self) -> set[str]:
        return {partition.name for partition in self._host_config.partitions} if self._host_config else set()

    def _tell_cluster(self) -> None:
        if self._host_config is not None:
            merged, self._hidden = together(self._host_config, self._guest_config)
            self._report([o.ClusterSeen(merged, 0.0)])


def together(host: ClusterConfig, guest: ClusterConfig) -> tuple[ClusterConfig, str]:
    """Two clusters as one, and what of the guest had to be left out since the host has the same names."""
    nodes, partitions = {node.name for node in host.nodes}, {partition.name for partition in host.partitions}
    same = sorted(nodes.intersection(node.name for node in guest.nodes))
    same += sorted(partitions.intersection(partition.name for partition in guest.partitions))
    topology = replace(host.topology, switches=host.topology.switches + guest.topology.switches)
    theirs = tuple(
        replace(each, default=False, cluster=guest.name) for each in guest.partitions if each.name not in partitions
    )
    merged = replace(
        host,
        nodes=host.nodes + tuple(node for node in guest.nodes if node.name not in nodes),
        partitions=host.partitions + theirs,
        topology=topology if host.topology.plugin == guest.topology.plugin else host.topology,
        settings=replace(host.settings, first_job_id=max(OWN_IDS_FROM, host.settings.first_job_id)),
    )
    hidden = f"both clusters have {', '.join(same)}: those of {guest.name} are not shown" if same else ""
    if host.name == guest.name:
        hidden = "; ".join(filter(None, (hidden, f"both clusters are named {host.name}: --clusters means either")))
    return merged, hidden
