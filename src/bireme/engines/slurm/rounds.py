"""Rounds: each kind of question that is put to Slurm again and again, at a pace and with failures of its own.

The queue, the nodes, the steps and the history are a round each (`mirror`), so that a slow slurmdbd delays the history
and nothing else. When a round is due follows from how often it is wanted and from how long Slurm took to answer; what
we do with an answer is not Slurm's time. Not here: what is asked, and what becomes of it.
Invariant: a round is never put off by more than `most_s`, however slow or silent Slurm is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from bireme.engines.slurm.commands import Silent
from bireme.slurm.conf.diagnostics import ConfigurationError

log = logging.getLogger("bireme.engines.slurm")

_SHARE_OF_TIME = 0.1
"""What took Slurm t seconds is not asked again within t / this, but for `most_s`: Bireme is not to be its main load."""
_RETRY_S = 1.0
_LATE = 3.0
"""An answer is out of date when it is older than so many times what lies between two."""
_NEVER_LATE_S = 15.0
"""Younger than this nothing is called out of date."""


@dataclass(slots=True)
class Round:
    """One kind of question."""

    name: str
    usual_s: float
    """How often it is asked while Slurm is quick."""
    most_s: float
    """How long it is put off at the most."""
    problem: str = ""
    """Why it was not answered the last time, in one sentence; empty when it was."""
    due: float = 0.0
    """When it is asked next (monotonic seconds)."""
    answered_at: float | None = None
    """When what is known was asked for (monotonic seconds)."""
    failures: int = 0
    _pause_s: float = 0.0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    # -- asking ------------------------------------------------------------------------------------------------------

    async def repeat(self, look: Callable[[], Awaitable[None]]) -> None:
        """Looks whenever it is due. Never returns and never fails: what goes wrong is told once and tried again."""
        while True:
            await self._until_due()
            try:
                await look()
                self._understood()
            except Silent as error:
                self.unanswered(str(error))
            except ConfigurationError as error:
                self.unanswered(f"Slurm's description of the cluster cannot be read: {error}")
            except Exception as error:
                log.exception("Slurm's answer was not understood")
                self.unanswered(f"Slurm's answer was not understood: {type(error).__name__}: {error}")

    @asynccontextmanager
    async def asking(self, usual_s: float | None = None) -> AsyncIterator[None]:
        """Around the calls to Slurm alone: what they took says when to ask again."""
        began = time.monotonic()
        yield
        now = time.monotonic()
        self.answered_at = began
        usual = self.usual_s if usual_s is None else usual_s
        self._pause_s = max(usual, min(self.most_s, (now - began) / _SHARE_OF_TIME))
        self.due = now + self._pause_s

    async def _until_due(self) -> None:
        while (left := self.due - time.monotonic()) > 0:
            self._wake.clear()
            try:
                async with asyncio.timeout(left):
                    await self._wake.wait()
            except TimeoutError:
                return

    def sooner(self, in_s: float = 0.0) -> None:
        """Asks it so soon at the latest; one that Slurm does not answer is tried as often as before."""
        if not self.failures:
            self.due = min(self.due, time.monotonic() + in_s)
            self._wake.set()

    def at_once(self) -> None:
        self.due = 0.0
        self._wake.set()

    def _understood(self) -> None:
        if self.problem:
            log.info("%s: Slurm answers again", self.name)
        self.problem, self.failures = "", 0

    def unanswered(self, problem: str) -> None:
        """Slurm did not answer, or not so that it could be understood: asked again soon, then ever less often."""
        if problem != self.problem:
            log.warning("%s: %s; trying again", self.name, problem)
        self.problem = problem
        self.failures += 1
        self.due = time.monotonic() + min(self.most_s, _RETRY_S * 2 ** (self.failures - 1))

    # -- how old the answer is ---------------------------------------------------------------------------------------

    @property
    def age_s(self) -> float | None:
        """How old what is known is; None: it was never answered."""
        return None if self.answered_at is None else time.monotonic() - self.answered_at

    @property
    def out_of_date(self) -> str:
        """How old the answer is, and why, in words; empty while it is as young as it is meant to be."""
        age = self.age_s
        if age is None:
            return f"the {self.name} of Slurm was not seen yet" + (f": {self.problem}" if self.problem else "")
        if age < max(_NEVER_LATE_S, _LATE * self.usual_s):
            return ""
        why = self.problem or f"Slurm takes {self._pause_s * _SHARE_OF_TIME:.0f} s to answer"
        return f"the {self.name} of Slurm as it was {age:.0f} s ago: {why}"
