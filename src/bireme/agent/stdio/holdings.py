"""What an agent holds of frames that its stream clients have begun and not finished, counted by user and in all.

Every user with a job on the node may attach clients, each of which may send the beginning of a frame and no more. How
long a frame may be is in `protocol`, by kind; here it is counted what all of them hold together. `server` has one
`Holdings`; a `StreamClient` tells its `Holding` how much it keeps.

Invariant: after every `keep` no user holds more than `most_of_one` and all users no more than `most`: whoever goes over
it, the largest frame of the user who holds most is given up, so nobody is cut off for what others hold.
"""

from __future__ import annotations

from collections.abc import Callable

from bireme.agent.system import memory
from bireme.held_by_user import HeldByUser

_PEAK_BYTES = 1 << 23
"""What was held at least, for its memory to be worth giving back."""


class Holding:
    """What one client holds; `cut_off` is told why, when it is too much."""

    __slots__ = ("_all", "bytes", "cut_off", "uid")

    def __init__(self, everybody: Holdings, uid: int) -> None:
        self._all = everybody
        self.uid = uid
        self.bytes = 0
        self.cut_off: Callable[[str], None] = lambda _why: None

    def keep(self, count: int) -> None:
        """Notes how many bytes are held now."""
        if count != self.bytes:
            self._all.change(self, count)


class Holdings:
    def __init__(self, most_of_one: int, most: int) -> None:
        self._most_of_one = most_of_one
        self._most = most
        self._of_user: dict[int, dict[Holding, None]] = {}
        """By uid: those that hold anything."""
        self._bytes = HeldByUser()
        self._peak = 0
        """The most that was held since nothing was."""

    @property
    def bytes(self) -> int:
        """Bytes that are held, of all users together."""
        return self._bytes.total

    def open(self, uid: int) -> Holding:
        return Holding(self, uid)

    def change(self, holding: Holding, count: int) -> None:
        uid, more = holding.uid, count - holding.bytes
        holding.bytes = count
        self._bytes.add(uid, more)
        if count:
            self._of_user.setdefault(uid, {})[holding] = None
        elif holding in self._of_user.get(uid, {}):
            del self._of_user[uid][holding]
            if not self._of_user[uid]:
                del self._of_user[uid]
        self._peak = max(self._peak, self.bytes)
        if more > 0:
            self._make_room(uid)
        elif self._peak > _PEAK_BYTES and not self.bytes:
            self._peak = 0
            memory.give_back()

    def _make_room(self, uid: int) -> None:
        if self._bytes.of(uid) > self._most_of_one:
            self._give_up(uid, f"user {uid} has sent more than {self._most_of_one} bytes of unfinished frames")
        elif self.bytes > self._most:
            self._give_up(
                self._bytes.greediest(), f"all users have sent more than {self._most} bytes of unfinished frames"
            )

    def _give_up(self, uid: int, why: str) -> None:
        largest = max(self._of_user[uid], key=lambda holding: holding.bytes)
        self.change(largest, 0)
        largest.cut_off(why)
