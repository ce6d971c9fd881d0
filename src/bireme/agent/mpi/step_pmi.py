"""Carrying a step's PMI conversation: sockets of the tasks on one side, `pmi.PmiNode` on the other.

`pmi` knows the protocol and does no IO; this moves the bytes and takes fences to the other nodes, through the
step's stream client (`steps` sends and receives the frames). A step on one node needs nobody for its fences.
Tasks are numbered in the step, ranks in the world: in a heterogeneous job that is more than one component's step.

Invariant: one socket per local task, closed when the task is over.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence

from bireme.agent.mpi.pmi import Abort, Fence, PmiAction, PmiNode, PmiStep, Send, process_mapping
from bireme.agent.system.loop import READ, Loop

log = logging.getLogger("bireme.agent")


class StepPmi:
    def __init__(
        self,
        loop: Loop,
        *,
        key_space: str,
        node_of_rank: Sequence[int],
        local_tasks: tuple[int, ...],
        first_rank: int,
        send_fence: Callable[[dict[str, str]], None],
        abort: Callable[[int, str], None],
    ) -> None:
        self._loop = loop
        ranks = tuple(first_rank + task for task in local_tasks)
        self._step = PmiStep(key_space, len(node_of_rank), ranks, process_mapping(node_of_rank))
        self._server = PmiNode(self._step)
        self._alone = len(ranks) == len(node_of_rank)
        self._first_rank = first_rank
        self._send_fence = send_fence
        self._abort = abort
        self._sockets: dict[int, socket.socket] = {}

    def open(self, task: int, env: dict[str, str], child_fd: int) -> int:
        """Adds the task's PMI variables to `env`; returns its end of the socket pair, for the caller to close."""
        rank = self._first_rank + task
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._sockets[rank] = ours
        env.update(self._step.environment(rank, child_fd))
        self._loop.watch(ours.fileno(), READ, lambda _events: self._read(rank))
        return theirs.detach()

    def close(self, task: int) -> None:
        self._hang_up(self._first_rank + task)

    def _hang_up(self, rank: int) -> None:
        ours = self._sockets.pop(rank, None)
        if ours is not None:
            self._loop.unwatch(ours.fileno())
            ours.close()

    def complete(self, merged: dict[str, str]) -> None:
        """All nodes came to the fence."""
        try:
            self._carry_out(self._server.complete_fence(merged))
        except ValueError as error:
            log.warning("PMI fence: %s", error)

    def _read(self, rank: int) -> None:
        try:
            data = self._sockets[rank].recv(65536)
        except OSError:
            data = b""
        if data:
            self._carry_out(self._server.handle(rank, data))
        else:
            self._hang_up(rank)

    def _carry_out(self, actions: list[PmiAction]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._send(action)
            elif isinstance(action, Fence):
                if self._alone:
                    self.complete(action.pairs)
                else:
                    self._send_fence(action.pairs)
            elif isinstance(action, Abort):
                self._abort(action.rank, action.message)

    def _send(self, action: Send) -> None:
        """Answers are small and a task that asks reads; one that does not is broken and is hung up on."""
        ours = self._sockets.get(action.rank)
        if ours is not None:
            try:
                ours.sendall(action.data)
            except OSError:
                self._hang_up(action.rank)
