"""The whole State as bytes, so that a restart need not fold the journal from its beginning.

One line of JSON for the state's small parts and what lies on the kinds' shelves (each under its name), one per
distinct job specification, one per job: read line by line, so that reading needs little more memory than the state
itself. Indexes are not written; `State.reindex` makes them again.
Invariant: a field of State that is not in STORED can be made again from those that are (a test asks).
"""

from __future__ import annotations

import dataclasses
import typing
import zlib
from collections.abc import Iterator
from typing import Any

from bireme.core.lifecycle.registry import SHELVES
from bireme.core.model.jobs import ArrayTask, Finished, Job, JobSpec, Pending
from bireme.core.state.shelf import Shelf
from bireme.core.state.state import State
from bireme.store import codec
from bireme.store.events import SpecPool
from bireme.store.plain import to_plain

FORMAT = 1
STORED = frozenset(
    "config nodes partitions jobs arrays next_job_id submissions accounts usage reservations "  # noqa: SIM905
    "services next_port seq loss shelves".split()
)
DERIVED = frozenset(field.name for field in dataclasses.fields(State)) - STORED


def encode_state(state: State) -> bytes:
    """Fast enough for the event loop's thread; `pack` (in any thread) makes it small."""
    specs: dict[int, int] = {}
    spec_lines: list[bytes] = []
    job_lines: list[bytes] = []
    for job in state.jobs.values():
        index = specs.get(id(job.spec))
        if index is None:
            index = specs[id(job.spec)] = len(spec_lines)
            spec_lines.append(codec.encode(job.spec))
        plain = to_plain(job, without=("spec",))
        plain["spec"] = index
        job_lines.append(codec.dumps(plain))
    head = to_plain(state, without=("jobs", "shelves", *DERIVED))
    head |= {shelf.name: to_plain(things) for shelf in SHELVES if (things := shelf.of(state))}
    head |= {"format": FORMAT, "specs": len(spec_lines), "jobs": len(job_lines)}
    return b"\n".join([codec.dumps(head), *spec_lines, *job_lines])


def pack(data: bytes) -> bytes:
    return zlib.compress(data, 1)


def decode_state(packed: bytes) -> State:
    """The inverse of `pack(encode_state(state))`, reindexed. Raises ValueError and the like on anything else."""
    return decode_lines(zlib.decompress(packed))


def decode_lines(data: bytes) -> State:
    """The inverse of `encode_state`."""
    lines = _lines(data)
    head: dict[str, Any] = codec.loads(next(lines))
    if head.pop("format") != FORMAT:
        raise ValueError("another version's snapshot")
    pool = SpecPool()
    spec_count, job_count = head.pop("specs"), head.pop("jobs")
    specs = [pool.decode(next(lines)) for _ in range(spec_count)]
    jobs = [_job(codec.loads(next(lines)), specs) for _ in range(job_count)]
    shelves = {shelf.name: _things(shelf, head.pop(shelf.name)) for shelf in SHELVES if shelf.name in head}
    state = codec.from_plain(State, head, jobs={job.id: job for job in jobs}, shelves=shelves)
    _complete_tallies(state)
    state.reindex()
    return state


def _complete_tallies(state: State) -> None:
    """An earlier Bireme counted the starts of an array and did not say of which tasks: those that ever started are."""
    for job in state.jobs.values():
        tally = state.arrays.get(job.array.array_job_id) if isinstance(job.array, ArrayTask) else None
        if tally is not None and isinstance(job.array, ArrayTask) and _ever_started(job):
            tally.begun.setdefault(job.array.task_id, job.submitted_at)


def _ever_started(job: Job) -> bool:
    """Its number of starts does not tell: after a loss numbers are skipped."""
    if isinstance(job.phase, Finished):
        return job.phase.started_at is not None
    return not isinstance(job.phase, Pending) or job.restarts > 0


def _job(plain: dict[str, Any], specs: list[JobSpec]) -> Job:
    return codec.from_plain(Job, plain, spec=specs[plain.pop("spec")])


def _things(shelf: Shelf[Any, Any], plain: dict[str, Any]) -> dict[Any, Any]:
    return typing.cast("dict[Any, Any]", codec.read(dict[shelf.key, shelf.thing], plain))  # type: ignore[name-defined]


def _lines(data: bytes) -> Iterator[bytes]:
    begin = 0
    while (end := data.find(b"\n", begin)) >= 0:
        yield data[begin:end]
        begin = end + 1
    yield data[begin:]
