"""Digests of starts that are over, on disk: a row for each start, a new one in its place when it is made anew.

Not who makes them, nor when (`daemon/telemetry/digesting`); from which curves is `digesting` beside it.
Invariant: what cannot be read is named and passed over: it is not measured then, and can be made again.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from bireme.core.telemetry.digest import Digest, GpuDigest, Level
from bireme.store.checks import is_row
from bireme.store.series.database import Damage, insert_or_drop

_AT_ONCE = 500
"""Ids in one statement."""
_DEFLATE = 1
_DEFLATED = b"\x78"
"""How whatever zlib wrote begins."""
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Digest)


@dataclass(frozen=True, slots=True)
class _WithoutSteps:
    """A digest as far as a report of many needs it: steps are most of it, and take most of the time to read."""

    job_id: int
    generation: int
    start: float
    end: float
    gpus: tuple[GpuDigest, ...] = ()
    cpus: Level | None = None
    memory_mib: Level | None = None


_short_decoder = msgspec.msgpack.Decoder(_WithoutSteps)


class DigestError(ValueError):
    """The refusal of bytes that are no digest."""


def encode(digest: Digest) -> bytes:
    """Deflated: names and nodes are in it again and again, and eight GPUs take a tenth of what they would."""
    return zlib.compress(_encoder.encode(digest), _DEFLATE)


def decode(data: bytes, *, steps: bool = True) -> Digest:
    """Reads a digest, also one that an earlier version wrote as it was: MessagePack's maps begin otherwise."""
    try:
        plain = zlib.decompress(data) if data[:1] == _DEFLATED else data
        if steps:
            return _decoder.decode(plain)
        one = _short_decoder.decode(plain)
        return Digest(one.job_id, one.generation, one.start, one.end, one.gpus, (), one.cpus, one.memory_mib)
    except (msgspec.DecodeError, msgspec.ValidationError, zlib.error) as error:
        raise DigestError(str(error)) from error


def write(connection: sqlite3.Connection, digests: Iterable[Digest], damage: Damage) -> None:
    """Within a transaction."""
    for one in digests:
        values = one.job_id, one.generation, float(one.start), float(one.end), encode(one)
        insert_or_drop(connection, damage, "digests", *values)


def of_jobs(
    connection: sqlite3.Connection, job_ids: Sequence[int], damage: Damage, *, steps: bool = True
) -> list[Digest]:
    """`steps` False: without them."""
    found: list[Digest] = []
    left = iter(job_ids)
    while some := tuple(islice(left, _AT_ONCE)):
        query = f"SELECT * FROM digests WHERE job_id IN ({', '.join('?' * len(some))})"
        found += _read(connection.execute(query, some), damage, steps)
    return found


def newest_end(connection: sqlite3.Connection) -> float | None:
    (newest,) = connection.execute("SELECT max(until) FROM digests").fetchone()
    return None if newest is None else float(newest)


def _read(rows: Iterable[tuple[Any, ...]], damage: Damage, steps: bool) -> Iterable[Digest]:
    for row in rows:
        try:
            if not is_row(row):
                raise DigestError("its sum is another")
            yield decode(row[4], steps=steps)
        except DigestError as error:
            damage.note(f"the digest of job {row[0]!r} in the series cannot be read ({error}): passed over")
