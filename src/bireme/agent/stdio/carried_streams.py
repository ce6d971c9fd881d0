"""A client of a step's streams whose connection is carried by others, and may break while the client lives.

`server` makes one where a hello names its client ({"client": NAME}), and hands it the next connection of the same
name ({"client": NAME, "heard": POSITION}). Meanwhile its output is kept, as that of a client that reads slowly: more
than some of it makes the tasks wait in their writes.

Nobody can tell a client that was killed from one whose carrier is away. As long as there is no daemon, which is what
carries, every client is waited for; one that does not come within a minute or two of a daemon's being there is gone.

Invariant: a client that comes back gets every frame it has not heard, once, or is told that it came too late.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bireme.agent.messages import protocol
from bireme.agent.stdio.holdings import Holding
from bireme.agent.stdio.resumption import Heard, Kept
from bireme.agent.stdio.streams import Arrival, StreamClient, StreamHub
from bireme.agent.system.loop import READ, Timer

log = logging.getLogger("bireme.agent")

_LOOK_S = 60.0


class CarriedClient(StreamClient):
    def __init__(
        self, hub: StreamHub, arrival: Arrival, holding: Holding, name: str, may_return: Callable[[], bool]
    ) -> None:
        """`may_return`: whether there is a way by which it could have come back by now."""
        self.name = name
        self._may_return = may_return
        self._could_return = False
        """At the last look, since when it is away."""
        self._kept = Kept()
        self._heard = Heard()
        self._left = False
        self._looking: Timer | None = None
        super().__init__(hub, arrival, holding)

    def _greet(self) -> None:
        self._send_now(self._heard.confirmation())

    @property
    def waiting(self) -> int:
        return len(self._kept)

    def send(self, data: bytes) -> None:
        if self._left or not data:
            return
        self._kept.add(data)
        self._send_now(data)

    def resume(self, arrival: Arrival, heard: int) -> None:
        """The client is there again, over another connection. Raises ProtocolError."""
        missed = self._kept.since(heard)
        self._disconnect()
        if self._looking is not None:
            self._looking.cancel()
        self._splitter = protocol.FrameSplitter(protocol.CLIENT_FRAME_BYTES)
        self._deaf = False
        self._socket, self._on_close = arrival.connection, arrival.on_close
        self._loop.watch(self._socket.fileno(), READ, self._ready)
        self._send_now(self._heard.confirmation() + missed)
        if arrival.early:
            self._receive(arrival.early)
        self._flush()

    def _take(self, kind: int, task: int, payload: bytes) -> None:
        if kind == protocol.CONFIRM:
            self._kept.confirm(protocol.decode_position(payload))
            self._hub.balance()
            return
        if kind == protocol.LEAVE:
            self._left = True
            return
        due = self._heard.take(payload)
        super()._take(kind, task, payload)
        if due:
            self._send_now(self._heard.confirmation())

    def _receive(self, data: bytes) -> None:
        super()._receive(data)
        if self._left:
            self._close()

    def _cut_off(self, why: str) -> None:
        """For good: else it would come again with the same."""
        log.warning("a stream client is cut off: %s", why)
        self._send_now(protocol.encode_frame(protocol.REFUSED, protocol.ALL_TASKS, why.encode()))
        self._disconnect()
        self.give_up()

    def _close(self) -> None:
        """The connection is over; the client only if it said so."""
        self._disconnect()
        if self._left:
            self._forget()
        else:
            self._could_return = self._may_return()
            self._looking = self._loop.call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        if self._could_return and self._may_return():
            self.give_up()
            return
        self._could_return = self._may_return()
        self._looking = self._loop.call_later(_LOOK_S, self._look)

    @property
    def is_away(self) -> bool:
        return self._socket.fileno() < 0

    def give_up(self) -> None:
        """Waits no longer for a client to come back."""
        if self._looking is not None:
            self._looking.cancel()
        self._hub.came_too_late(self.name)
        self._forget()

    def _forget(self) -> None:
        self._left = True
        self._kept.clear()
        self._hub.detach(self)
