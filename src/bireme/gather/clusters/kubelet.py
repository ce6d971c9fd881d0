"""The kubelet of this node, asked which pods have which of its GPUs: `List` of its pod-resources API, in every round.

Used by `owners`. A node without the socket is none of Kubernetes', and nobody is asked there. A kubelet that does not
answer (it is started anew) has not taken a GPU from anybody: its last answer counts until it says another.
Invariant: whatever the kubelet does, a round waits for it for seconds at most.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from bireme.gather.clusters.pod_resources import METHOD, held_devices
from bireme.gather.messages import Device, HeldDevice

log = logging.getLogger("bireme.gather")

_ANSWER_S = 2.0
_ANSWER_BYTES = 16 * 1024 * 1024


class Kubelet:
    """`socket`: where it listens, if there is one."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._held: list[HeldDevice] = []
        self._problem = ""
        """Why it did not answer the last time: told once."""

    async def held(self, devices: Sequence[Device]) -> list[HeldDevice]:
        """Which of these GPUs pods have."""
        try:
            if devices and (self._held or Path(self._socket).is_socket()):
                self._held = await self._ask(devices)
                self._complain("")
        except (OSError, ValueError, ImportError) as error:
            self._complain(str(error) or type(error).__name__)
        return self._held

    async def _ask(self, devices: Sequence[Device]) -> list[HeldDevice]:
        try:
            from bireme.gather.clusters.unary import call  # late: h2 is an extra, and 5 MiB that other nodes save
        except ImportError as error:
            raise ImportError(f"{error}: install bireme[kubernetes] on this node") from error
        return held_devices(
            await call(self._socket, METHOD, b"", timeout_s=_ANSWER_S, most_bytes=_ANSWER_BYTES), devices
        )

    def _complain(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.warning("%s does not say which pods have which GPUs: %s", self._socket, problem)
        self._problem = problem
