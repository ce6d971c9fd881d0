"""The thread of one GPU: looks at it when a round asks, and quickly in between for the most that was reached.

Made by `watching`, one for each GPU with its MIG instances. All calls into the driver about that GPU are made here, so
that one that hangs costs this GPU's figures and nothing else: the round goes on without them, and no second thread is
made. When the call returns, the next round has the GPU again.

Invariant: a look that was asked for in one round is never taken for the answer of a later one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

from bireme.gather.gpus.source import PEAKS, GpuLost, GpuProcess, GpuSource, Values

log = logging.getLogger(__name__)

State = Literal["answers", "lost", "hangs", "waits"]
"""`waits`: the library is being opened anew; nothing is known of the card meanwhile."""


class Gate:
    """Lets calls into a library pass, and is closed while that library is given back and opened anew."""

    def __init__(self, soon_s: float = 30.0) -> None:
        """`soon_s`: so long an opening may take before it counts as one that hangs."""
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False
        self._closed_at = 0.0
        self._soon_s = soon_s

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def opens_soon(self) -> bool:
        """Whether it was closed so lately that it is expected to open again."""
        return self._closed and time.monotonic() - self._closed_at < self._soon_s

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Waits while it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def close(self, patience_s: float) -> bool:
        """False: a call that is inside did not return in that time, and the gate is open again."""
        with self._changed:
            self._closed, self._closed_at = True, time.monotonic()
            if self._changed.wait_for(lambda: self._inside == 0, patience_s):
                return True
            self._closed = False
            self._changed.notify_all()
            return False

    def open(self) -> None:
        with self._changed:
            self._closed = False
            self._changed.notify_all()


@dataclass(slots=True)
class Look:
    """What was seen of a GPU and its instances at once."""

    values: dict[str, Values] = field(default_factory=dict)
    processes: dict[str, list[GpuProcess]] = field(default_factory=dict)
    """Of those whose processes are known."""
    lost: str = ""
    """Why the GPU is not there; empty: it is."""


class CardWatch:
    """A GPU, with the thread that asks it."""

    def __init__(self, source: GpuSource, uuids: tuple[str, ...], gate: Gate, glance_s: float) -> None:
        """`uuids`: the GPU's, then those of its instances."""
        self._source = source
        self._gate = gate
        self._glance_s = glance_s
        self._changed = threading.Condition()
        self._uuids = uuids
        self._asked = 0
        self._done = 0
        self._look = Look()
        self._peaks: Values = {}
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"gpu {uuids[0]}", daemon=True)
        self._thread.start()

    @property
    def uuid(self) -> str:
        return self._uuids[0]

    @property
    def uuids(self) -> tuple[str, ...]:
        return self._uuids

    def has(self, uuids: tuple[str, ...]) -> None:
        """Instances came or went."""
        assert uuids[0] == self.uuid
        with self._changed:
            self._uuids = uuids

    def ask(self) -> None:
        """For a look; `wait` for it."""
        with self._changed:
            self._asked += 1
            self._changed.notify_all()

    def wait(self, deadline: float) -> None:
        """Until the look that was asked for is there, or until that time (monotonic)."""
        with self._changed:
            self._changed.wait_for(lambda: self._done == self._asked, max(0.0, deadline - time.monotonic()))

    def seen(self) -> tuple[State, Look]:
        """The answer to what was asked last."""
        with self._changed:
            if self._done != self._asked:
                return ("waits" if self._gate.opens_soon else "hangs"), Look()
            return ("lost" if self._look.lost else "answers"), self._look

    def stop(self) -> None:
        """Does not wait: the thread may hang."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    # -- in its thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._asked > self._done, self._glance_s)
                if self._ended:
                    return
                no, is_asked, uuids = self._asked, self._asked > self._done, self._uuids
            if is_asked:
                with self._gate.passing():
                    look = self._looked(uuids)
                self._publish(no, look)
            elif not self._look.lost and not self._gate.is_closed:
                with self._gate.passing():
                    self._glance(uuids[0])

    def _publish(self, no: int, look: Look) -> None:
        with self._changed:
            self._done = no  # lower than what is asked by now, after a call that hung: it looks again at once
            self._look = look
            self._changed.notify_all()

    def _looked(self, uuids: tuple[str, ...]) -> Look:
        look = Look()
        for uuid in uuids:
            try:
                look.values[uuid] = self._source.sample(uuid)
                listed = self._source.processes(uuid)
            except GpuLost as error:
                if uuid == uuids[0]:
                    return Look(lost=str(error) or "lost")
                continue  # an instance that somebody removed: the next list is without it
            except Exception as error:  # a library of another release: said, and the others go on
                log.exception("the GPU %s cannot be looked at", uuid)
                return Look(lost=f"{type(error).__name__}: {error}")
            if listed is not None:
                look.processes[uuid] = listed
        self._add_peaks(look.values[uuids[0]])
        return look

    def _glance(self, uuid: str) -> None:
        with suppress(GpuLost):  # the next look says so
            self._reached(self._source.glance(uuid))

    def _reached(self, values: Values) -> None:
        for metric in PEAKS.keys() & values.keys():
            self._peaks[metric] = max(values[metric], self._peaks.get(metric, values[metric]))

    def _add_peaks(self, values: Values) -> None:
        """The most since the last look; that of the look itself counts for this one and begins the next."""
        self._reached(values)
        values |= {PEAKS[metric]: most for metric, most in self._peaks.items() if metric in values}
        self._peaks = {metric: values[metric] for metric in PEAKS if metric in values}
