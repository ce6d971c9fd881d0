"""Sessions that no disk has: what `identity/keeping.SessionFile` is to tests of everything else."""

from __future__ import annotations

from collections.abc import Iterable

from bireme.identity.sessions import Session


class Unkept:
    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.fails = False

    def read(self) -> list[Session]:
        return list(self.sessions)

    def write(self, sessions: Iterable[Session]) -> None:
        if self.fails:
            raise OSError(28, "No space left on device")
        self.sessions = list(sessions)
