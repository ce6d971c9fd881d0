"""How many connections there may be, in all and of one user, and which of them gives way to a new one.

A connection is idle (kept, nothing asked), unfinished (half a request), or busy (being answered, or with something of
an answer unsent). Who comes when there
is no room takes the place of a connection that is not busy: of its own user when that one has as many as one may have,
else of the user who has the most. Only when all of these are busy is the new one refused. Pure bookkeeping: the
protocol (`protocol.py`) asks here, and closes what gives way.

Invariants: never more than `connections` and `SPARE` in all, nor more than `connections_each` of one user; a user who
has fewer connections than another is not refused for that one's sake while any of that one's is not busy.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

RESERVED_FILES = 256
"""Descriptors that the daemon needs for itself: the journal, agents, pipes, logs."""
FEW, SPARE = 4, 64
"""Who has fewer than so many may come though all places are taken, so long as these are left."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the API gives to everybody and to one user."""

    connections: int = 4_096
    connections_each: int = 1_024
    at_door: int = 1_024
    """Connections that wait to be let in, beside these."""
    head_s: float = 10.0
    """A request's head has arrived so long after its first byte, or the connection's beginning."""
    body_s: float = 60.0
    """A body of which next to nothing comes for so long is given up."""
    answer_s: float = 120.0
    """An answer of which nothing is read for so long is given up."""

    grace_s: float = 1.0
    """So long a new connection does not give way: its request may be on the way."""

    def within(self, files: int) -> Limits:
        """As many as this process may have descriptors for; what is set counts where it is less."""
        at_door = max(16, min(self.at_door, files // 8))
        most = max(16, min(self.connections, files - RESERVED_FILES - at_door))
        each = max(8, min(self.connections_each, most * 3 // 4))
        return replace(self, connections=most, connections_each=each, at_door=at_door)


class Connection(Protocol):
    """What the crowd needs to know of a connection."""

    @property
    def uid(self) -> int: ...

    @property
    def busy(self) -> bool: ...

    def give_way(self) -> None:
        """Closes it, with an answer if a request was begun."""


@dataclass(slots=True)
class Crowd:
    """All connections, oldest first, by user."""

    limits: Limits
    by_uid: dict[int, dict[Connection, None]] = field(default_factory=dict)
    total: int = 0

    def enter(self, new: Connection) -> str:
        """Counts `new`, and makes room for it; or says why it is refused: "user" or "all"."""
        own = self.by_uid.get(new.uid, {})
        if len(own) >= self.limits.connections_each and not self._make_room(new.uid):
            return "user"
        most = self.limits.connections + (SPARE if len(own) < FEW else 0)
        if self.total >= most and not any(map(self._make_room, self._larger_than(len(own)))):
            return "all"
        self.by_uid.setdefault(new.uid, {})[new] = None
        self.total += 1
        return ""

    def leave(self, gone: Connection) -> None:
        """Forgets a connection that has ended, also one that was refused, or gave way before."""
        own = self.by_uid.get(gone.uid, {})
        if gone in own:
            del own[gone]
            self.total -= 1
            if not own:
                del self.by_uid[gone.uid]

    def _larger_than(self, count: int) -> list[int]:
        """Users who have at least so many, those with the most first."""
        users = [uid for uid, own in self.by_uid.items() if len(own) >= max(1, count)]
        return sorted(users, key=lambda uid: len(self.by_uid[uid]), reverse=True)

    def _make_room(self, uid: int) -> bool:
        """Ends the oldest connection of that user that is not busy; whether there was one."""
        for connection in self.by_uid.get(uid, {}):
            if not connection.busy:
                self.leave(connection)
                connection.give_way()
                return True
        return False
