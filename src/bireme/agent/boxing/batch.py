"""A batch script's way into its image: its files are opened first, so that the wait can be read in the job's output.

Called by `jobs` for a script with a box. Three children, one after the other: one opens (and empties) the script's
files, with all the patience that a script has for them; `boxing` has the box made; the script itself then only appends.
What goes wrong is the last line of the job's output. Not here: how the script is started.
Invariant: `done` is called once, later than `begin` returned, and not after `cancel`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from bireme.agent.boxing.asking import Asker, Boxes, InBox, Wait
from bireme.agent.keeping.keepers import Keeper
from bireme.agent.keeping.launching import Launching
from bireme.agent.last_words import LastWords
from bireme.agent.messages.orders import Box
from bireme.agent.node import Node
from bireme.agent.starting.spawn import OPENING, Birth, SpawnError, TaskFile
from bireme.images.messages import Progress


@dataclass(frozen=True, slots=True)
class NoBox:
    """Why the script cannot start. `at_opening`: its files cannot be opened."""

    why: str
    at_opening: bool = False


@dataclass(slots=True, eq=False)
class BoxedBatch:
    """`birth`: of the script, as far as it is known: rights, variables, folder, cgroups, streams."""

    node: Node
    boxes: Boxes
    order: Box
    keeper: Keeper
    birth: Birth
    interpreter: str
    done: Callable[[InBox | NoBox], None]
    _opening: int = 0
    _wait: Wait | None = None
    _cancelled: bool = False
    _lines: list[str] = field(default_factory=list)
    _words: LastWords | None = None
    _last: InBox | NoBox | None = None

    def begin(self) -> None:
        opener = msgspec.structs.replace(self.birth, argv=(), greeting=b"", pid_variable="", sure=False)
        Launching(
            self.node.loop, opener, process=self._has_process, started=self._opened, exited=lambda _: self._ask(),
            keeper=self.keeper,
        ).begin()  # fmt: skip

    def cancel(self) -> None:
        self._cancelled = True
        if self._opening:
            with suppress(ProcessLookupError):
                os.kill(self._opening, signal.SIGKILL)
        if self._wait is not None:
            self._wait.cancel()

    def _has_process(self, pid: int) -> None:
        self._opening = pid

    def _opened(self, problem: SpawnError | None) -> None:
        if problem is not None:
            self._opening = 0
            self._end(NoBox(str(problem), at_opening=problem.stage == OPENING))

    def _ask(self) -> None:
        self._opening = 0
        if self._cancelled:
            return
        asker = Asker(
            keeper=self.keeper,
            birth=self.birth,
            say=self._say,
            heard=self._heard,
            interpreter=self.interpreter,
            done=self._came,
        )
        self._wait = self.boxes.ask(self.order, asker)

    def _came(self, outcome: InBox | str) -> None:
        self._wait = None
        if isinstance(outcome, InBox):
            self._end(outcome)
            return
        self._lines.append(f"slurmstepd: error: pyxis: {outcome}\n")
        self._end(NoBox(outcome))

    def _say(self, text: str) -> None:
        self._lines.append(f"slurmstepd: pyxis: {text}\n")
        self._speak()

    def _heard(self, _image: str, _progress: Progress, line: str) -> None:
        if line:
            self._say(line)

    def _speak(self) -> None:
        """One child after the other: two at once would write in either order. Then what waits for that is told."""
        if self._words is not None and not self._words.over:
            return
        stderr = self.birth.stderr
        if self._lines and isinstance(stderr, TaskFile):
            lines, self._lines = "".join(self._lines), []
            self._words = LastWords(self.node.loop, self._speak)
            self._words.say(lines, stderr.path, self.birth.identity)
            if self._words.over:  # it could not even be tried
                self._speak()
        elif self._last is not None and not self._cancelled:
            last, self._last = self._last, None
            self.done(last)

    def _end(self, outcome: InBox | NoBox) -> None:
        self._last = outcome
        self._speak()
