"""The store of time series (`ports.Series`) in a SQLite file of its own. Made by the composition roots.

Rounds are taken into memory (`append`), written once a minute as one row a gatherer (`flush`), and after ten such rows
made into chunks, some gatherers at each flush so that none takes long. `append` and reading go on beside a flush.

Locks, in the order in which they are taken: `_writing` (one writer), `_reading` (one reading connection), `_memory`
(batches, numbers of rounds, holdings). A commit that moves rounds from memory to chunks is made with `_memory` held,
and a reader begins its transaction and copies the list of batches with it held: he sees each round once.
Invariant: what `flush` has returned outlives a crash; what it could not write is still in memory for the next one.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from bireme.core.telemetry.curves import Asked, Curve, Own
from bireme.core.telemetry.digest import Digest
from bireme.core.telemetry.metrics import About
from bireme.core.telemetry.subjects import Subject
from bireme.core.telemetry.waiting import Waited
from bireme.ports import Happened, Holding, Sampled, SeriesError
from bireme.store.series import digesting, digests, fresh, held_gpus, reading, stories, subjects, thinning
from bireme.store.series.compacting import compact
from bireme.store.series.database import (
    UNWRITABLE,
    Damage,
    DamagedError,
    briefly,
    connect_to_read,
    empty_log,
    file_of,
    insert,
    log,
    set_aside,
    sound_rows,
)
from bireme.store.series.database import reading as sqlite_reading
from bireme.store.series.disk import Disk, Horizons
from bireme.store.series.fresh import Batch, RoundsError, Stack
from bireme.store.series.latest import Latest
from bireme.store.series.levels import LEVELS, Keeping

COMPACTED_FROM = 10
"""Rows of a gatherer: of as many minutes, where each is flushed."""
TURNS = 8
"""A flush compacts at most this part of all gatherers."""
MOST_WAITING = 16_000_000
"""Figures in memory, 8 bytes each: with more all are compacted, and while the disk takes nothing rounds are refused."""


MOST_HELD = 200_000
"""Holdings, and digests, that wait for a disk that takes nothing."""
_NAME_LETTERS = 80

Answer = TypeVar("Answer")


class SqliteSeries:
    """Opens the file, or begins a new one beside a damaged one. Raises SeriesError if it can do neither."""

    def __init__(self, path: str, keeping: Keeping | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._keeping = keeping or Keeping()
        self._damage = Damage()
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._memory = threading.Lock()
        self._latest = Latest(clock)
        self._batches: dict[str, list[Batch]] = {}
        self._known: dict[str, int] = {}
        self._kept: dict[str, int] = {}
        self._holdings: dict[tuple[int, int, str], Holding] = {}
        self._waits: dict[tuple[int, float], Waited] = {}
        self._happenings: list[Happened] = []
        self._digests: dict[tuple[int, int], Digest] = {}
        """That wait to be written."""
        self._figures = 0
        """In all batches."""
        self._trouble = ""
        """Why nothing could be written the last time."""
        self._is_open = False
        self._open_disk(self._taken_up)

    def _open_disk(self, opened: Callable[[], Disk]) -> None:
        try:
            self._disk = opened()
        except DamagedError as error:
            self._disk = self._new_beside(str(error))
        self._reader = connect_to_read(self.path)
        self._file = file_of(self.path)
        self._is_open = True

    def _new_beside(self, problem: str) -> Disk:
        """The damaged file, which nobody has open any more, is set aside."""
        set_aside(self.path, problem, self._damage)
        try:
            return Disk(self.path, self._damage)
        except DamagedError as error:  # of a file that has just been made
            raise SeriesError(f"cannot make {self.path}: {error}") from error

    def _taken_up(self) -> Disk:
        """With what the process before left."""
        disk = Disk(self.path, self._damage)
        try:
            with sqlite_reading(self.path):
                gatherers = sound_rows(disk.connection, "gatherers", self._damage)
                rounds = sound_rows(disk.connection, "rounds", self._damage)
        except BaseException:
            disk.connection.close()
            raise
        self._known = {name: no for name, no, _ in gatherers}
        for row, gatherer, last, data in rounds:
            try:
                stacks = fresh.decode(data)
            except RoundsError as error:
                self._damage.note(f"rounds {row} in the series cannot be read ({error}): passed over")
                continue
            self._batches.setdefault(gatherer, []).append(Batch(last, stacks, row, closed=True))
            self._known[gatherer] = max(self._known.get(gatherer, 0), last)
            self._latest.take(gatherer, stacks)
        self._kept = dict(self._known)
        self._count()
        return disk

    @property
    def problem(self) -> str:
        """What is not well with it, in one sentence for people; empty: nothing."""
        return self._trouble or str(self._damage)

    # ------------------------------------------------------------------------------------------- writing

    def append(self, gatherer: str, no: int, samples: Sequence[Sampled]) -> None:
        """Flushes by itself where so much is told at once that memory would not hold it: days of a gatherer's spool."""
        stacks = fresh.stacks_of(samples)
        with self._memory:
            if no <= self._known.get(gatherer, 0):
                return
            self._latest.take(gatherer, stacks)
            full = self._figures >= MOST_WAITING
        if full:
            self.flush()
        with self._memory:
            mine = self._batches.setdefault(gatherer, [])
            if not mine or mine[-1].closed:
                mine.append(Batch(no))
            mine[-1].stacks += stacks
            mine[-1].last = self._known[gatherer] = no
            self._figures += sum(stack.size for stack in stacks)

    def hold(self, holdings: Sequence[Holding]) -> None:
        with self._memory:
            for said in holdings:
                name = said.job_id, said.generation, said.uuid
                self._holdings[name] = held_gpus.updated(self._holdings.get(name), said)
            _drop_oldest(self._holdings, MOST_HELD)

    def note_waits(self, waits: Sequence[Waited]) -> None:
        with self._memory:
            self._waits |= {(one.job_id, one.start): one for one in waits}
            _drop_oldest(self._waits, stories.MOST_WAITS)

    def note_happenings(self, happenings: Sequence[Happened]) -> None:
        with self._memory:
            self._happenings = [*self._happenings, *happenings][-stories.MOST_TOLD :]

    def keep_digests(self, made: Sequence[Digest]) -> None:
        with self._memory:
            self._digests |= {(one.job_id, one.generation): one for one in made}
            _drop_oldest(self._digests, MOST_HELD)

    def flush(self) -> Mapping[str, int]:
        with self._writing, self._mending():
            self._begin_where_removed()
            self._open_again()
            self._write_waiting()
            for gatherer in self._due():
                self._compact(gatherer)
            empty_log(self._disk.connection)
            self._trouble = ""
            return dict(self._kept)

    def thin_out(self, now: float) -> None:
        with self._writing, self._mending():
            self._begin_where_removed()
            self._open_again()
            old = now - thinning.LATE_S / 2
            for gatherer, mine in self._flushed().items():
                if any(float(stack.at.min()) < old for batch in mine for stack in batch.stacks):
                    self._compact(gatherer)
            self._drop_unreadable()
            thinning.thin_out(self._disk, self._keeping, now)
            empty_log(self._disk.connection)

    def _drop_unreadable(self) -> None:
        """Rows that nobody could read at the start: they were named then."""
        known = {batch.row for mine in self._flushed().values() for batch in mine}
        with self._disk.writing() as connection:
            rows = [row for row in connection.execute("SELECT id FROM rounds") if row[0] not in known]
            connection.executemany("DELETE FROM rounds WHERE id = ?", rows)

    def close(self) -> None:
        try:
            self.flush()
        except SeriesError as error:
            log.error("what was measured last is not kept: %s", error)
        with self._writing, self._reading:
            self._reader.close()
            self._disk.connection.close()

    @contextmanager
    def _mending(self) -> Iterator[None]:
        """Remembers what went wrong, until a flush goes well; a damaged file is set aside."""
        try:
            yield
        except SeriesError as error:
            self._trouble = str(error)
            raise
        except (DamagedError, sqlite3.DatabaseError) as error:
            problem = str(error)
            self._begin_anew(lambda: self._new_beside(problem))
            raise SeriesError(str(self._damage)) from error

    def _begin_where_removed(self) -> None:
        """A file that is no longer at its path takes with it whatever is written to it."""
        if self._is_open and file_of(self.path) != self._file:
            self._damage.note(f"{self.path} was removed or replaced while it was written to: a new one was begun")
            self._begin_anew(lambda: Disk(self.path, self._damage))

    def _begin_anew(self, opened: Callable[[], Disk]) -> None:
        """With all that is in memory; the next flush writes it."""
        with self._reading, self._memory:
            self._is_open = False
            self._reader.close()
            self._disk.connection.close()
            for mine in self._batches.values():
                for batch in mine:
                    batch.row = None
            self._kept.clear()
            self._open_disk(opened)

    def _open_again(self) -> None:
        """Where a damaged file is aside and there was no room for a new one."""
        if not self._is_open:
            with self._reading, self._memory:
                self._open_disk(lambda: Disk(self.path, self._damage))

    def _write_waiting(self) -> None:
        """One row for each gatherer that told something, and the holdings."""
        with self._memory:
            waiting = [(name, batch) for name, mine in self._batches.items() for batch in mine if batch.row is None]
            for _, batch in waiting:
                batch.closed = True
            holdings, waits, happenings = dict(self._holdings), dict(self._waits), tuple(self._happenings)
            made = dict(self._digests)
        if not (waiting or holdings or waits or happenings or made):
            return
        rows: list[int | None] = []
        with self._disk.writing() as connection:
            (last,) = connection.execute("SELECT max(id) FROM rounds").fetchone()
            for row, (gatherer, batch) in enumerate(waiting, (last or 0) + 1):
                rows.append(row if self._wrote(connection, row, gatherer, batch) else None)
            held_gpus.write(connection, list(holdings.values()), self._damage)
            stories.write_waits(connection, waits.values(), self._damage)
            stories.write_happenings(connection, happenings, self._damage)
            digests.write(connection, made.values(), self._damage)
        with self._memory:
            for at, (gatherer, batch) in zip(rows, waiting):
                batch.row = at
                self._kept[gatherer] = batch.last
                if at is None:
                    self._batches[gatherer].remove(batch)
            self._holdings = {name: held for name, held in self._holdings.items() if held is not holdings.get(name)}
            self._waits = {name: one for name, one in self._waits.items() if one is not waits.get(name)}
            written = set(map(id, happenings))
            self._happenings = [one for one in self._happenings if id(one) not in written]
            self._digests = {name: one for name, one in self._digests.items() if one is not made.get(name)}

    def _wrote(self, connection: sqlite3.Connection, row: int, gatherer: str, batch: Batch) -> bool:
        """False: it can never be written, which is said; its gatherer is not to tell it again."""
        try:
            batch.stacks = fresh.joined(batch.stacks)
            insert(connection, "rounds", row, gatherer, batch.last, fresh.encode(batch.stacks))
            newest = max((float(stack.at.max()) for stack in batch.stacks), default=0.0)
            insert(connection, "gatherers", gatherer, batch.last, newest)
        except UNWRITABLE as error:
            connection.execute("DELETE FROM rounds WHERE id = ?", (row,))
            self._damage.note(
                f"rounds of {gatherer[:_NAME_LETTERS]!a} can never be written: dropped ({briefly(error)})"
            )
            return False
        return True

    def _flushed(self) -> dict[str, list[Batch]]:
        with self._memory:
            found = {name: [batch for batch in mine if batch.row is not None] for name, mine in self._batches.items()}
        return {name: mine for name, mine in found.items() if mine}

    def _due(self) -> list[str]:
        """Those with the most rows, so that all have their turn."""
        flushed = self._flushed()
        if self._figures >= MOST_WAITING // 2:
            return list(flushed)
        due = sorted((name for name, mine in flushed.items() if len(mine) >= COMPACTED_FROM),
                     key=lambda name: -len(flushed[name]))  # fmt: skip
        return due[: -(-len(flushed) // TURNS)]

    def _count(self) -> None:
        self._figures = sum(batch.size for mine in self._batches.values() for batch in mine)

    def _compact(self, gatherer: str) -> None:
        done = self._flushed()[gatherer]
        stacks = [stack for batch in done for stack in batch.stacks]
        try:
            self._replace(gatherer, done, lambda: compact(self._disk, stacks))
        except UNWRITABLE as error:
            self._replace(gatherer, done, lambda: None)
            self._damage.note(f"rounds of {gatherer[:_NAME_LETTERS]!a} can never be kept: dropped ({briefly(error)})")

    def _replace(self, gatherer: str, done: Sequence[Batch], keep: Callable[[], None]) -> None:
        """Has what was flushed written where it is to stay, and drops its rows."""
        with self._disk.writing() as connection:
            keep()
            connection.executemany("DELETE FROM rounds WHERE id = ?", [(batch.row,) for batch in done])
            with self._memory:
                connection.execute("COMMIT")
                left = [batch for batch in self._batches[gatherer] if batch not in done]
                self._batches[gatherer] = left
                self._count()

    # ------------------------------------------------------------------------------------------- reading

    def _look(self, question: Callable[[sqlite3.Connection], Answer], otherwise: Answer) -> tuple[Answer, list[Stack]]:
        """Asks the database, and has what is in memory, of one moment. Damage is named, and `otherwise` the answer."""
        with self._reading:
            with self._memory:
                stacks = [stack for mine in self._batches.values() for batch in mine for stack in batch.stacks]
                if not self._is_open:
                    return otherwise, stacks
                try:
                    with sqlite_reading(self.path):
                        self._reader.execute("BEGIN")
                        self._reader.execute("SELECT 1 FROM about LIMIT 1").fetchone()
                except DamagedError as error:
                    return self._passed_over(error, otherwise), stacks
            try:
                with sqlite_reading(self.path):
                    return question(self._reader), stacks
            except DamagedError as error:
                return self._passed_over(error, otherwise), stacks
            finally:
                with contextlib.suppress(sqlite3.Error):
                    self._reader.execute("ROLLBACK")

    def _passed_over(self, error: DamagedError, otherwise: Answer) -> Answer:
        self._damage.note(f"{self.path} is damaged ({error}): what it holds there is not shown")
        return otherwise

    def read(self, asked: Asked) -> list[Curve]:
        nothing = reading.Found(reading.grid(asked, Horizons({})), {})
        found, stacks = self._look(lambda connection: reading.look(connection, asked, self._damage), nothing)
        return reading.curves(asked, found, stacks, self._damage)

    def latest(self, about: About) -> list[tuple[Subject, float, Mapping[str, float]]]:
        return self._latest.of(about)

    def subjects(self, about: About, prefix: str, start: float, end: float) -> list[Subject]:
        nothing: list[Subject] = []
        found, stacks = self._look(
            lambda connection: subjects.measured(connection, about, prefix, start, end, self._damage), nothing
        )
        mine = (stack for stack in stacks if stack.about == about)
        return list(dict.fromkeys([*found, *(one for stack in mine for one in stack.measured(prefix, start, end))]))

    def holdings(
        self, *, job_id: int | None = None, uuid: str | None = None, start: float = 0.0, end: float | None = None
    ) -> list[Holding]:
        nothing: list[Holding] = []
        kept, _ = self._look(
            lambda connection: held_gpus.read(connection, job_id, uuid, self._damage, (start, end)), nothing
        )
        found = self._with_waiting(kept)
        asked = (one for one in found if job_id in (None, one.job_id) and uuid in (None, one.uuid))
        return held_gpus.overlapping(sorted(asked, key=lambda one: one.start), start, end)

    def open_holdings(self) -> list[Holding]:
        nothing: list[Holding] = []
        kept, _ = self._look(lambda connection: held_gpus.read_open(connection, self._damage), nothing)
        return [one for one in self._with_waiting(kept) if one.end is None]

    def digest(self, job_id: int, generation: int, start: float, end: float) -> Digest:
        held = [one for one in self.holdings(job_id=job_id, start=start, end=end) if one.generation == generation]
        prefix = f"{job_id}.{generation}."

        def measured(about: About) -> list[Subject]:
            return self.subjects(about, prefix, start, end)

        return digesting.made(self.read, self._owned(held), measured, held, (job_id, generation, start, end))

    def read_held(self, held: Sequence[Holding], asked: Asked) -> list[Curve]:
        own = self._owned(held)
        return self.read(replace(asked, subjects=tuple(own), own=own))

    def _owned(self, held: Sequence[Holding]) -> dict[Subject, Own]:
        """Whole GPUs of one job, with the times in which they were its own, and those of others before and after."""
        by_gpu: dict[Subject, list[Holding]] = {}
        for one in held:
            if not one.shared:
                by_gpu.setdefault(Subject("gpu", one.node, one.uuid), []).append(one)
        return {subject: self._times(subject, mine) for subject, mine in by_gpu.items()}

    def _times(self, subject: Subject, mine: Sequence[Holding]) -> Own:
        longest = LEVELS[-1].step_s
        first = min(one.start for one in mine) - longest
        last = None if any(one.end is None for one in mine) else max(one.end or 0.0 for one in mine) + longest
        others = [
            one
            for one in self.holdings(uuid=subject.id, start=first, end=last)
            if one.node == subject.node and one.job_id != mine[0].job_id
        ]
        return Own(*(tuple((one.start, math.inf if one.end is None else one.end) for one in some)
                     for some in (mine, others)))  # fmt: skip

    def digests(self, job_ids: Collection[int], *, steps: bool = True) -> list[Digest]:
        nothing: list[Digest] = []
        asked = list(dict.fromkeys(job_ids))
        kept, _ = self._look(lambda connection: digests.of_jobs(connection, asked, self._damage, steps=steps), nothing)
        found = {(one.job_id, one.generation): one for one in kept}
        with self._memory:
            found |= {name: one for name, one in self._digests.items() if name[0] in job_ids}
        return list(found.values())

    def digested_until(self) -> float | None:
        newest, _ = self._look(digests.newest_end, None)
        return newest

    def _with_waiting(self, kept: Sequence[Holding]) -> list[Holding]:
        found = {(one.job_id, one.generation, one.uuid): one for one in kept}
        with self._memory:
            for name, said in self._holdings.items():
                found[name] = held_gpus.updated(found.get(name), said)
        return list(found.values())

    def waits(self, job_id: int) -> list[Waited]:
        nothing: list[Waited] = []
        kept, _ = self._look(lambda connection: stories.read_waits(connection, job_id, self._damage), nothing)
        return sorted(self._with_unwritten(kept, job_id), key=lambda one: one.start)

    def open_waits(self) -> list[Waited]:
        nothing: list[Waited] = []
        kept, _ = self._look(lambda connection: stories.read_open_waits(connection, self._damage), nothing)
        return [one for one in self._with_unwritten(kept, None) if one.end is None]

    def _with_unwritten(self, kept: Sequence[Waited], job_id: int | None) -> list[Waited]:
        found = {(one.job_id, one.start): one for one in kept}
        with self._memory:
            found |= {name: one for name, one in self._waits.items() if job_id in (None, one.job_id)}
        return list(found.values())

    def happenings(self, *, task_prefix: str, uuids: Collection[str], start: float, end: float) -> list[Happened]:
        nothing: list[Happened] = []
        kept, _ = self._look(
            lambda connection: stories.read_happenings(connection, task_prefix, uuids, start, end, self._damage),
            nothing,
        )
        with self._memory:
            unwritten = [one for one in self._happenings if start <= one.at <= end]
        mine = (one for one in unwritten if one.uuid in uuids or one.task.startswith(task_prefix))
        return sorted([*kept, *mine], key=lambda one: one.at)[-stories.MOST_TOLD :]


def _drop_oldest(waiting: dict[Any, Any], most: int) -> None:
    """While the disk takes nothing."""
    for name in list(islice(waiting, max(0, len(waiting) - most))):
        del waiting[name]
