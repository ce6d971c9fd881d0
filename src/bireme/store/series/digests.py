"""Digests of starts that are over, on disk: a row for each start, a new one in its place when it is made anew.

Not who makes them, nor when (`daemon/telemetry/digesting`); from which curves is `digesting` beside it.
Invariant: what cannot be read is named and passed over: it is not measured then, and can be made again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import msgspec

from bireme.core.telemetry.digest import Digest
from bireme.store.checks import is_row
from bireme.store.series.database import Damage, insert

_AT_ONCE = 500
"""Ids in one statement."""
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Digest)


class DigestError(ValueError):
    """These bytes are no digest."""


def decode(data: bytes) -> Digest:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise DigestError(str(error)) from error


def write(connection: sqlite3.Connection, digests: Iterable[Digest]) -> None:
    """Within a transaction."""
    for one in digests:
        values = one.job_id, one.generation, float(one.start), float(one.end), _encoder.encode(one)
        insert(connection, "digests", *values)


def of_jobs(connection: sqlite3.Connection, job_ids: Sequence[int], damage: Damage) -> list[Digest]:
    found: list[Digest] = []
    left = iter(job_ids)
    while some := tuple(islice(left, _AT_ONCE)):
        query = f"SELECT * FROM digests WHERE job_id IN ({', '.join('?' * len(some))})"
        found += _read(connection.execute(query, some), damage)
    return found


def newest_end(connection: sqlite3.Connection) -> float | None:
    (newest,) = connection.execute("SELECT max(until) FROM digests").fetchone()
    return None if newest is None else float(newest)


def _read(rows: Iterable[tuple[Any, ...]], damage: Damage) -> Iterable[Digest]:
    for row in rows:
        try:
            if not is_row(row):
                raise DigestError("its sum is another")
            yield decode(row[4])
        except DigestError as error:
            damage.note(f"the digest of job {row[0]!r} in the series cannot be read ({error}): passed over")
