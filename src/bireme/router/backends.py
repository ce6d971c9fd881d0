"""Services and replicas as one worker has them: requests in flight, requests that wait, unused connections.

Made and changed by `worker` when a table comes, used by `client_side` for every request. Which replica is chosen is
decided in `rules/balance`. Invariants: what is in flight here is in this worker's cells of the board; requests that
wait begin in the order they came, among all workers as far as these can see each other.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import msgspec

from bireme.router.board import Board, OwnCells
from bireme.router.inner import key_name, replica_name, service_name
from bireme.router.messages import Key, Replica, Service
from bireme.router.rules.balance import Choice
from bireme.router.rules.keys import KeyRing, Rate
from bireme.router.rules.tally import Area, Tally

if TYPE_CHECKING:
    from bireme.router.replica_side import ReplicaSide

_NS = 1_000_000_000


class Waiting(Protocol):
    """A request that waits for a replica."""

    affinity: bytes
    started: float

    def start(self, backend: Backend, now: float) -> None: ...


class Backend:
    """A replica."""

    __slots__ = (
        "_offset", "avoid_until", "board", "cell", "host", "id", "idle", "in_flight", "load", "port", "quiet_told",
        "revision", "served", "state", "tally", "told_trouble", "uid", "weight",
    )  # fmt: skip

    def __init__(self, served: Served, replica: Replica, cell: int, board: Board) -> None:
        self.served = served
        self.board = board
        self.cell = cell
        self.id = replica.id
        self.in_flight = 0
        """Of this worker."""
        self.load = 0
        """Of all workers, when it was last looked at."""
        self.idle: list[ReplicaSide] = []
        """Connections that no request uses; the one used last is last."""
        self.avoid_until = 0.0
        self.told_trouble = 0.0
        self.quiet_told = False
        self.tally = Tally()
        self._offset = 0.0
        """As in `Area`, which is not called here: this is done twice for every request."""
        self.change(replica)

    def change(self, replica: Replica) -> None:
        self.host, self.port = replica.host, replica.port
        self.uid = replica.uid
        self.revision = replica.revision
        self.weight = max(replica.weight, 1e-6)
        self.state: str = replica.state
        self.quiet_told = False

    def begin(self, now: float) -> None:
        self.in_flight += 1
        self.load += 1
        self._offset -= now
        self.board.mine[self.cell] = self.in_flight

    def end(self, now: float) -> None:
        self.in_flight -= 1
        self.load -= 1
        self._offset += now
        self.board.mine[self.cell] = self.in_flight

    def take_area(self, now: float) -> float:
        """Requests in flight times seconds, since it was taken before."""
        area = self._offset + self.in_flight * now
        self._offset = -self.in_flight * now
        return area

    def look(self) -> None:
        """What the other workers have of it."""
        self.load = self.in_flight + self.board.elsewhere(self.cell)


class KeyUse:
    """A key of a service, and what this worker has of it in flight."""

    __slots__ = ("_board", "_cell", "_rate", "cell", "in_flight", "key", "sha256")

    def __init__(self, key: Key, cell: int | None, board: Board) -> None:
        """Without a cell it is counted by this worker for itself."""
        self.cell = cell
        self._cell = 0 if cell is None else cell
        self._board: Board | OwnCells = OwnCells() if cell is None else board
        self._rate = Rate(self._cell + 1, self._board.all, self._board.write)
        self.in_flight = 0
        self.change(key)

    def change(self, key: Key) -> None:
        self.key = key
        self.sha256 = key.sha256

    def is_full(self) -> bool:
        most = self.key.concurrency
        return bool(most) and self.in_flight + self._board.elsewhere(self._cell) >= most

    def wait_s(self, now: float) -> float:
        """0: counted, and within its rate; else when to come again."""
        if not self.key.requests_per_minute:
            return 0.0
        mine = self._board.mine[self._cell + 1], self._board.mine[self._cell + 2]
        return self._rate.take(mine, self.key.requests_per_minute, now)

    def begin(self) -> None:
        self.in_flight += 1
        self._board.mine[self._cell] = self.in_flight

    def end(self) -> None:
        self.in_flight -= 1
        self._board.mine[self._cell] = self.in_flight


class Served:
    """A service."""

    def __init__(self, service: Service, cells: dict[str, int], board: Board) -> None:
        self.board = board
        self.backends: dict[str, Backend] = {}
        """By id: those of the table, and those that still have requests in flight."""
        self.waiting: dict[Waiting, None] = {}
        """The longest waiting first."""
        self.waited = Area()
        self.tally = Tally()
        """Of requests that no replica answered."""
        self.arrived = self.refused = 0
        self.has_told_wait = False
        self.is_removed = False
        """No table has it any more."""
        self._uses: dict[str, KeyUse] = {}
        self._turn = random.randrange(1 << 16)
        self._cell = cells[service_name(service.name)]
        self.change(service, cells)

    def change(self, service: Service, cells: dict[str, int]) -> None:
        """What a new table says of it."""
        self.spec = service
        self.name = service.name
        self.models = service.models
        self.hosts = service.hosts
        self.limit = service.max_concurrency
        self.affinity_header = service.affinity_header.lower().encode()
        self.affinity_cookie = service.affinity_cookie.encode()
        self._change_keys(service.keys, cells)
        self._change_replicas(service.replicas, cells)

    def _change_keys(self, keys: Iterable[Key], cells: dict[str, int]) -> None:
        before, self._uses = self._uses, {}
        for key in keys:
            cell = cells.get(key_name(self.name, key.id))
            use = before.get(key.id)
            if use is None or use.cell != cell:
                use = KeyUse(key, cell, self.board)
            use.change(key)
            self._uses[key.id] = use
        self.keys = KeyRing(self._uses.values())

    def _change_replicas(self, replicas: Iterable[Replica], cells: dict[str, int]) -> None:
        named = {replica.id for replica in replicas}
        for replica in replicas:
            if replica.id in self.backends:
                self.backends[replica.id].change(replica)
            else:
                self.backends[replica.id] = Backend(self, replica, cells[replica_name(replica.id)], self.board)
        for backend in list(self.backends.values()):
            if backend.id not in named:
                backend.state = "gone"
                self.forget_if_gone(backend)
            if backend.state != "ready":
                for connection in backend.idle[:]:
                    connection.close()
        ready = [backend for backend in self.backends.values() if backend.state == "ready"]
        self.choice = Choice(ready, self.spec.revision_weights)
        if ready:
            self.has_told_wait = False

    def remove(self) -> None:
        """It is not in the table: what is in flight goes on, nothing new begins."""
        self.is_removed = True
        self.change(msgspec.structs.replace(self.spec, replicas=(), keys=()), {})

    @property
    def is_over(self) -> bool:
        return self.is_removed and not self.backends and not self.waiting

    def forget_if_gone(self, backend: Backend) -> None:
        """Called when it has ended a request, too. What it counted must have been told before."""
        if backend.state == "gone" and not backend.in_flight and not backend.tally:
            self.backends.pop(backend.id, None)

    @property
    def is_ready(self) -> bool:
        return bool(self.choice.candidates)

    @property
    def held(self) -> int:
        """Requests in flight and waiting, of this worker."""
        return len(self.waiting) + sum(backend.in_flight for backend in self.backends.values())

    @property
    def queued(self) -> int:
        """In all workers."""
        return len(self.waiting) + (self.board.elsewhere(self._cell) if self.board.is_shared else 0)

    def pick(self, affinity: bytes, now: float) -> Backend | None:
        """Where a request can begin now; None: nowhere."""
        candidates = self.choice.candidates
        if self.board.is_shared:
            for backend in candidates:
                backend.look()
        self._turn += 1
        if len(candidates) == 1:
            only = candidates[0]
            return None if self.limit and only.load >= self.limit else only
        return self.choice.choose(self.limit, self._turn, now, random.random(), affinity)

    def is_behind(self) -> bool:
        """Whether others came before and still wait: who comes now waits behind them."""
        return bool(self.limit) and self.queued > 0

    def wait(self, request: Waiting, now: float) -> None:
        self.waiting[request] = None
        self.waited.up(now)
        self._show()

    def leave(self, request: Waiting, now: float) -> None:
        """It waits no more: it begins, or its client has gone."""
        del self.waiting[request]
        self.waited.down(now)
        self._show()

    def _show(self) -> None:
        """How many wait here, and since when the first of them does: for the other workers."""
        self.board.mine[self._cell] = len(self.waiting)
        first = next(iter(self.waiting), None)
        self.board.mine[self._cell + 1] = int(first.started * _NS) if first else 0

    def pump(self, *, alone: bool) -> int | None:
        """Begins what waits, as far as there is room. Returns the worker that has one that came before, if there is.

        `alone`: without a look at the others, one of which may hang.
        """
        while self.waiting:
            if self.board.is_shared and not alone and (other := self._who_is_first()) is not None:
                return other
            first = next(iter(self.waiting))
            now = time.monotonic()
            backend = self.pick(first.affinity, now)
            if backend is None:
                return None
            self.leave(first, now)
            first.start(backend, now)
        if self.board.is_shared and not alone and self.board.elsewhere(self._cell):
            return self._who_is_first()
        return None

    def _who_is_first(self) -> int | None:
        """The row of another worker whose first request has waited longest of all."""
        times = self.board.all(self._cell + 1)
        mine = self.board.mine[self._cell + 1]
        others = [(at, row) for row, at in enumerate(times) if at and at != mine]
        if not others:
            return None
        at, row = min(others)
        return row if not mine or at < mine else None
