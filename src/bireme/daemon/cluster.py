"""What the daemon's keepers ask of the runtime: the state and the time, to follow commits, to tell what was seen.

`runtime.service.Runtime` is a Cluster; tests have small ones of their own. A keeper that decides asks for `Deciding`.
Invariant: nobody changes the state by it; what is told becomes events in the kernel's next turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.state.state import State
from bireme.ports import Clock


class Cluster(Protocol):
    clock: Clock

    @property
    def state(self) -> State: ...

    def report(self, observations: Sequence[o.Observation]) -> None: ...

    def subscribe(self, subscriber: Callable[[Sequence[e.Recorded]], None]) -> Callable[[], None]: ...


class Deciding(Cluster, Protocol):
    async def do(
        self, cause: str, decide: Callable[[State, float], list[e.Event]], *, own: bool = False
    ) -> Sequence[e.Recorded]: ...
