"""What a job has on this node because it is a service's replica: a port of its own, and probes.

`jobs` has one for such a job where its script runs; of all else that happens to the job nothing is different.
Invariant: probes are asked while the script runs, and only then.
"""

from __future__ import annotations

import logging
import os
import time

from bireme.agent.keeping.keepers import Keeper
from bireme.agent.messages.told import Probed
from bireme.agent.node import Node
from bireme.agent.probing.ports import port_is_free, who_listens
from bireme.agent.probing.watch import ReplicaWatch
from bireme.agent.records import JobKey
from bireme.agent.starting.spawn import Birth
from bireme.core.model.serving.probes import PORT_TAKEN, Health, ReplicaOf

log = logging.getLogger("bireme.agent")


class ReplicaRun:
    """A replica's presence on this node."""

    def __init__(self, node: Node, key: JobKey, uid: int, replica: ReplicaOf) -> None:
        """`uid`: as whom it runs."""
        self._node = node
        self._uid = uid
        self._key = key
        self._replica = replica
        self._watch: ReplicaWatch | None = None

    def port_problem(self) -> str:
        """Why it cannot listen on its port; empty when it can, or nobody knows: then its server will find out."""
        port = self._replica.port
        try:
            if port_is_free(port):
                return ""
        except OSError as error:
            log.warning("job %d.%d: could not look whether port %d is free: %s", *self._key, port, error)
            return ""
        return f"{PORT_TAKEN}: {who_listens(port)} listens on {port} at node {self._node.name}"

    def script_runs(self, script: Birth, keeper: Keeper) -> None:
        """From now on it is asked whether it is well. `script`: how it was started, and what a command gets too."""
        owners = {0, os.geteuid(), self._uid}  # root is trusted: a container's port may be its
        around = (self._node.settings.address, owners, keeper, script)
        self._watch = ReplicaWatch(self._node.loop, self._replica, *around, self._tell)

    def suspend(self) -> None:
        if self._watch is not None:
            self._watch.suspend()

    def resume(self) -> None:
        if self._watch is not None:
            self._watch.resume()

    def end(self) -> None:
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    def tell_again(self) -> None:
        """Tells a daemon that came how the replica is."""
        if self._watch is not None and (told := self._watch.told) is not None:
            self._tell(*told)

    def _tell(self, health: Health, why: str, address: str) -> None:
        self._node.mention(Probed(*self._key, health, why, address, at=time.time()))
