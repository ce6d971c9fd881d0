"""The door of other machines' gatherers, as the settings want it: open where they say, or not at all.

Held by `station`. What cannot be (a port that is taken, a package that is missing) is told, and costs the daemon
nothing else. The setting is read when the daemon starts.
Invariant: without `telemetry.listen` no port is open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bireme.daemon.telemetry.keeper import TelemetryKeeper
from bireme.daemon.telemetry.naming import Naming
from bireme.daemon.telemetry.outer_door import OuterDoor
from bireme.daemon.telemetry.premises import Premises
from bireme.gather.dialling import host_and_port

log = logging.getLogger("bireme.daemon")


class Outside:
    """`wanted`: a private folder, and `telemetry.listen`."""

    def __init__(self, keeper: TelemetryKeeper, naming: Naming, wanted: Callable[[], tuple[str, str]]) -> None:
        self._keeper, self._naming, self._wanted = keeper, naming, wanted
        self._door: OuterDoor | None = None
        self.problem = ""
        """Why nodes of other machines cannot call, in a sentence for people."""

    async def begin(self) -> None:
        folder, listen = self._wanted()
        if not listen:
            return
        try:
            await self._open(folder, listen)
        except ModuleNotFoundError as error:
            self._tell(f"it needs the Python package {error.name}: pip install 'bireme[nodes]'")
        except (OSError, ValueError) as error:
            self._tell(str(error))

    def _tell(self, why: str) -> None:
        self.problem = f"nodes of other machines cannot call (telemetry.listen): {why}"
        log.error("%s", self.problem)

    async def _open(self, folder: str, listen: str) -> None:
        host, port = host_and_port(listen)
        premises = Premises.at(folder)
        door = OuterDoor(premises.certificate_file, premises.tokens, self._keeper, self._naming)
        port = await door.begin(host, premises.wanted_port(port))
        premises.remember_port(port)
        self._door = door
        log.info("nodes of other machines call at %s, port %d", host, port)

    def set_pace(self, interval_s: float, metrics: str) -> None:
        if self._door is not None:
            self._door.set_pace(interval_s, metrics)

    async def close(self) -> None:
        if self._door is not None:
            await self._door.close()
