"""A job held to its share on this node, where the kernel lets us: what `jobs` knows of cgroups.

One `NodeConfinement` per agent decides, from the node's settings and from what the kernel grants, which limits are
set. Without any (no root, or cgroup.conf does not ask for it) every question has the answer of a machine without
cgroups, at no cost for the launch.

Invariant: a job that could not be confined runs anyway, and the agent's welcome says what is not enforced.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from bireme.agent.confining.confinement import KINDS, Confinement, Group, Kind, Limits
from bireme.agent.confining.device_filter import DeviceId
from bireme.agent.messages.orders import Prepare

log = logging.getLogger("bireme.agent")


@dataclass(slots=True)
class JobGroup:
    """The cgroup of one job on this node."""

    confinement: Confinement
    group: Group
    oom_seen: int = 0

    def join_files(self, leaf: str) -> tuple[str, ...]:
        """Where the processes of one step enter; made on first use. v2 wants processes in leaves only."""
        return self.confinement.create(f"{self.group.name}/{leaf}", Limits()).join_files

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed for memory since the last time we asked."""
        kills = self.group.oom_kills()
        grew, self.oom_seen = kills > self.oom_seen, kills
        return grew

    def is_empty(self) -> bool:
        return not self.group.pids()

    def kill(self) -> None:
        self.group.kill()

    def remove(self) -> None:
        if not self.group.remove():
            log.warning("cgroup %s could not be removed yet", self.group.name)


def confinement_name(home: str, node: str) -> str:
    """The folder of one node of one cluster, as `tracking_name`."""
    return f"bireme-{zlib.crc32(os.fsencode(home)):08x}-{node}"


@dataclass(slots=True)
class NodeConfinement:
    wanted: frozenset[Kind]
    confinement: Confinement | None

    @classmethod
    def open(cls, node: str, home: str, wishes: dict[str, bool]) -> NodeConfinement:
        wanted = frozenset(kind for kind in KINDS if wishes.get(kind))
        if not wanted:
            return cls(wanted, None)
        confinement = Confinement.open(confinement_name(home, node))
        return cls(wanted & confinement.enforced, confinement)

    def report(self) -> dict[str, str]:
        """What was wished for and cannot be enforced, and why."""
        refusals = self.confinement.refusals if self.confinement else {}
        return {str(kind): why for kind, why in refusals.items()}

    def hold(self, order: Prepare) -> JobGroup | None:
        """The job's group with its limits; None where nothing is to be, or can be, enforced."""
        if self.confinement is None or not self.wanted:
            return None
        share = order.share
        memory = share.memory_mib
        limits = Limits(
            memory_bytes=memory << 20 if "memory" in self.wanted and memory > 1 else None,
            swap_bytes=0 if "memory" in self.wanted and memory > 1 else None,
            cpu_ids=share.cpu_ids if "cpus" in self.wanted and share.cpu_ids else None,
            denied_devices=_device_ids(order.denied_devices) if "devices" in self.wanted else (),
        )
        try:
            return JobGroup(self.confinement, self.confinement.create(f"job_{order.job}", limits))
        except OSError as error:
            log.error("job %s runs unconfined: %s", order.job, error)
            return None

    def kill_leftovers(self) -> None:
        """What an earlier agent's jobs left in their groups."""
        if self.confinement is not None:
            for name in self.confinement.existing():
                group = self.confinement.group(name)
                group.kill()
                group.remove()

    def close(self) -> None:
        """Takes the node's own folders away; those of jobs that are not gone keep them."""
        if self.confinement is not None:
            self.confinement.close()


def _device_ids(files: Iterable[str]) -> tuple[DeviceId, ...]:
    found = []
    for file in files:
        try:
            found.append(DeviceId.of_file(file))
        except (OSError, ValueError) as error:
            log.warning("device %s cannot be kept from a job: %s", file, error)
    return tuple(found)
