"""Events on their way to the daemon: numbered, recorded, kept until the daemon has them on disk.

Filled through `Node.report`, emptied by the daemon's acknowledgements. It does not send: the server asks for the
lines, all of them after a reconnect.

Invariant: an event leaves only when it was acknowledged, so that a daemon that crashed before its commit hears it
again.
"""

from __future__ import annotations

import logging

from bireme.agent.messages.lines import encode_line, encode_typed
from bireme.agent.messages.protocol import Message
from bireme.agent.messages.told import Event
from bireme.agent.records import JobKey, TaskRecords

log = logging.getLogger("bireme.agent")


class Outbox:
    def __init__(self, records: TaskRecords) -> None:
        self._records = records
        self._lines: dict[int, bytes] = {}
        self._by_job: dict[JobKey, list[int]] = {}
        self.seq = records.last_seq
        self.is_written = True
        """Whether a successor finds all that was not acknowledged."""

    def add(self, event: Event) -> bytes:
        """Numbers, records and keeps the event; returns its line."""
        self.seq += 1
        event.seq = self.seq
        line = encode_typed(event)
        self._keep(event.key, event.seq, line)
        try:
            self._records.reported(event.key, line)
        except OSError as error:
            self.is_written = False
            log.error("an event could not be written down, and dies with this agent: %s", error)
        return line

    def restore(self, event: Message) -> None:
        """An event an earlier agent recorded and the daemon never acknowledged: as it was written, whatever it says."""
        self._keep((event["job"], event["gen"]), event["seq"], encode_line(event))

    def pending(self) -> list[bytes]:
        return list(self._lines.values())

    def unacknowledged(self) -> list[JobKey]:
        return list(self._by_job)

    def holds(self, key: JobKey) -> bool:
        return key in self._by_job

    def lines_of(self, key: JobKey) -> list[bytes]:
        return [self._lines[seq] for seq in self._by_job.get(key, ())]

    def acknowledge_job(self, key: JobKey) -> None:
        for seq in self._by_job.pop(key, ()):
            self._lines.pop(seq, None)

    def acknowledge_through(self, seq: int) -> list[JobKey]:
        """Drops everything up to `seq`; returns the jobs that have no event left."""
        done = []
        for key, numbers in list(self._by_job.items()):
            left = [number for number in numbers if number > seq]
            if left:
                self._by_job[key] = left
            else:
                del self._by_job[key]
                done.append(key)
        self._lines = {number: line for number, line in self._lines.items() if number > seq}
        return done

    def _keep(self, key: JobKey, seq: int, line: bytes) -> None:
        self._lines[seq] = line
        self._by_job.setdefault(key, []).append(seq)
