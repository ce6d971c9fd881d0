"""What many rows of the history have in common, stored once: a row is its shape's record, and what differs from it.

A record has a hundred fields, of which the runs of one script differ in ten. The first record of its kind (user,
account, partition, state) becomes a shape; so does a later one whose differences were seen before, since they will come
again. What differs is written as {position of the field: value}; of a field that is itself an object, only what
differs within it. Paths are compared with their job's own ids left out. `history.py` is the only caller.
Invariant: `unpack(pack(record)) == record`, whatever the shape.
"""

from __future__ import annotations

import re
import sqlite3
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bireme.store import codec
from bireme.store.checks import is_row, with_sum

KIND = ("user_name", "user_id", "account", "partition", "state")
"""Fields by which rows are looked for: equal for all rows of a shape, and columns of it."""
NAMES = frozenset({"std_in", "std_out", "std_err"})
"""Fields that name files, often by the ids of their job."""
OWN = frozenset({
    "job_id", "name", "array_task_id", "restarts", "generation", "priority", "submit_time", "eligible_time",
    "accrue_time", "last_sched_time", "start_time", "end_time", "elapsed_s", "node_list", "batch_host", "shares",
    "nodes", "usage", "checkpoint", "saved_time", "unsaved_s",
})  # fmt: skip
"""Fields that differ from run to run: they say nothing about whether a shape would serve others too."""
_ENOUGH_BYTES = 96
"""Differences of this size are not worth a look at other shapes."""
_CANDIDATES = 8
_KINDS_KEPT = 2_000
_SEEN_KEPT = 5_000
_ALIKE_KEPT = 64
_SHAPES_READ = 2_000

_IDS = ("job_id", "array_job_id", "array_task_id")
_NOTHING: Mapping[str, Any] = {}
_MARK = "\0"
"""Begins what stands for an id in a path; twice, itself."""
_MARKED = re.compile("\0(.)", re.DOTALL)

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Columns:
    """Fields that the row has columns for, and those among them whose column does not give back the very value."""

    names: frozenset[str]
    unlike: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    id: int
    names: tuple[str, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Near:
    """A shape, and what of a record differs from it."""

    shape: Shape
    written: bytes
    lasting: Sequence[tuple[int, Any]]
    """Of much that differs, what another shape may have: nothing where it is little, or of this run alone (`OWN`)."""

    @classmethod
    def by(cls, shape: Shape, differs: dict[int, Any]) -> _Near:
        written = _written(differs)
        if len(written) <= _ENOUGH_BYTES:
            return cls(shape, written, ())
        names = shape.names
        return cls(shape, written, [(at, value) for at, value in differs.items() if names[max(at, ~at)] not in OWN])


@dataclass(frozen=True, slots=True)
class _Alike:
    """Records that are like one but for some fields of their own: of each only these are held against the shape."""

    like: Record
    shape: Shape
    always: dict[int, Any]
    """What differs from the shape in all of them."""
    own: tuple[tuple[int, str, Any], ...]
    """(position, name, value in the shape) of the fields that are looked at."""

    @classmethod
    def of(cls, shape: Shape, like: Record, own: Record, columns: Columns) -> _Alike:
        differs = _differences(shape, like, Columns(columns.names))
        always = {at: value for at, value in differs.items() if shape.names[max(at, ~at)] not in own}
        looked_at = [(at, name) for at, name in enumerate(shape.names) if name in own and name not in columns.names]
        return cls(like, shape, always, tuple((at, name, shape.values[at]) for at, name in looked_at))

    def packed(self, own: Record, columns: Columns) -> tuple[int, bytes] | None:
        """As `ShapeWriter.pack`; None: it differs so much that another shape may be nearer."""
        differs, ids = self.always.copy(), own_ids(self.like, own)
        path = plain = None
        for at, name, usual in self.own:
            value = own[name]
            if name in NAMES:
                if value is not path:  # errors mostly go where the output goes
                    path, plain = value, _without_ids(value, ids)
                value = plain
            if value is not usual and (value != usual or type(value) is not type(usual)):
                _note_difference(differs, at, usual, value)
        for name in columns.unlike:
            if name in own or name in self.like:
                differs[self.shape.names.index(name)] = own[name] if name in own else self.like[name]
        near = _Near.by(self.shape, differs)
        return None if near.lasting else (self.shape.id, near.written)


def _nearest(candidates: Sequence[Shape], plain: Record, columns: Columns) -> _Near | None:
    """The one that leaves the least to be said; the first that leaves nothing which another could say."""
    names, best = tuple(plain), None
    for shape in candidates:
        if shape.names != names:
            continue
        near = _Near.by(shape, _differences(shape, plain, columns))
        if not near.lasting:
            return near
        if best is None or len(near.written) < len(best.written):
            best = near
    return best


class DamagedRecordError(ValueError):
    """A row is not what was written."""


class ShapeWriter:
    """Finds or makes the shape of a record. What it remembers must be forgotten when a transaction is undone."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[Any, ...], list[Shape]] = OrderedDict()
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._alike: OrderedDict[int, _Alike] = OrderedDict()
        """By the identity of the record that others are like, which is kept with it."""

    def forget(self) -> None:
        self._known.clear()
        self._seen.clear()
        self._alike.clear()

    def pack(
        self, connection: sqlite3.Connection, record: Record, columns: Columns, like: Record | None = None
    ) -> tuple[int, bytes]:
        """(id of its shape, what differs from it). `like`: says the fields that `record` does not."""
        if like is None:
            shape, written = self._pack(connection, record, columns)
            return shape.id, written
        alike = self._alike.get(id(like))
        packed = alike.packed(record, columns) if alike is not None else None
        if packed is not None:
            return packed
        shape, written = self._pack(connection, {**like, **record}, columns)
        self._alike[id(like)] = _Alike.of(shape, like, record, columns)
        if len(self._alike) > _ALIKE_KEPT:
            self._alike.popitem(last=False)
        return shape.id, written

    def _pack(self, connection: sqlite3.Connection, record: Record, columns: Columns) -> tuple[Shape, bytes]:
        ids = own_ids(record)
        plain = dict(record)
        for name in NAMES & record.keys():
            plain[name] = _without_ids(record[name], ids)
        kind = tuple(record.get(name) for name in KIND)
        candidates = self._candidates(connection, kind)
        best = _nearest(candidates, plain, columns)
        if best is None or (best.lasting and self._comes_again(best)):
            shape = self._make(connection, kind, plain, columns)
            return shape, _written(_differences(shape, plain, columns))
        if candidates[0] is not best.shape:
            candidates.remove(best.shape)
            candidates.insert(0, best.shape)
        return best.shape, best.written

    def _candidates(self, connection: sqlite3.Connection, kind: tuple[Any, ...]) -> list[Shape]:
        found = self._known.get(kind)
        if found is None:
            where = " AND ".join(f"{name} IS ?" for name in KIND)
            # Rows that rotted are passed over: whoever reads records is told of them, what ends now gets another shape.
            where += " AND typeof(record) = 'blob'"  # as text it could not even be fetched
            query = f"SELECT * FROM shapes WHERE {where} ORDER BY id DESC LIMIT {_CANDIDATES}"
            found = [read_shape(row) for row in connection.execute(query, kind) if is_row(row)]
            self._known[kind] = found
            if len(self._known) > _KINDS_KEPT:
                self._known.popitem(last=False)
        return found

    def _comes_again(self, near: _Near) -> bool:
        """Whether somebody differed like this before, beyond what differs from run to run anyway."""
        mark = hash((near.shape.id, codec.dumps(near.lasting)))
        if mark in self._seen:
            return True
        self._seen[mark] = None
        if len(self._seen) > _SEEN_KEPT:
            self._seen.popitem(last=False)
        return False

    def _make(self, connection: sqlite3.Connection, kind: tuple[Any, ...], plain: Record, columns: Columns) -> Shape:
        kept = {name: None if name in columns.names else value for name, value in plain.items()}
        data = zlib.compress(codec.dumps(kept), 6)
        (last,) = connection.execute("SELECT max(id) FROM shapes").fetchone()
        shape_id = (last or 0) + 1
        row = with_sum((shape_id, *kind, data))
        connection.execute(f"INSERT INTO shapes VALUES ({', '.join('?' * len(row))})", row)
        # The values themselves, not what was written: the next record has the same objects, and they are compared.
        shape = Shape(shape_id, tuple(kept), tuple(kept.values()))
        known = self._known.setdefault(kind, [])
        known.insert(0, shape)
        del known[_CANDIDATES:]
        return shape


class ShapeReader:
    """Records from rows; shapes that were read are kept for the next."""

    def __init__(self) -> None:
        self._shapes: dict[int, Shape] = {}

    def forget(self) -> None:
        self._shapes.clear()

    def unpack(
        self, connection: sqlite3.Connection, shape_id: int, differs: bytes, columns: Mapping[str, Any]
    ) -> dict[str, Any]:
        """`columns`: what the row's own columns say, where nothing else is written."""
        shape = self._shape(connection, shape_id)
        record = dict(zip(shape.names, shape.values))
        for name, value in columns.items():
            if name in record:
                record[name] = value
        for at, value in _read(differs).items():
            name = shape.names[max(at, ~at)]
            record[name] = value if at >= 0 else {**record[name], **value}
        ids = own_ids(record)
        for name in NAMES & record.keys():
            record[name] = _with_ids(record[name], ids)
        return record

    def _shape(self, connection: sqlite3.Connection, shape_id: int) -> Shape:
        shape = self._shapes.get(shape_id)
        if shape is None:
            row = connection.execute("SELECT * FROM shapes WHERE id = ?", (shape_id,)).fetchone()
            if row is None:
                raise DamagedRecordError(f"what many records share (shape {shape_id}) is missing")
            if len(self._shapes) >= _SHAPES_READ:
                self._shapes.clear()
            shape = self._shapes[shape_id] = read_shape(row)
        return shape


def read_shape(row: Sequence[Any]) -> Shape:
    if not is_row(row):
        raise DamagedRecordError(f"what many records share (shape {row[0]}) is not what was written")
    record = codec.loads(zlib.decompress(row[-2]))
    return Shape(row[0], tuple(record), tuple(record.values()))


def _differences(shape: Shape, plain: Record, columns: Columns) -> dict[int, Any]:
    """Position -> value; of an object within the record ~position -> what differs in it."""
    differs: dict[int, Any] = {}
    both = enumerate(zip(shape.values, plain.values()))
    others = [
        (at, usual, value)
        for at, (usual, value) in both
        if usual is not value and (usual != value or type(usual) is not type(value))
    ]
    for at, usual, value in others:
        if shape.names[at] in columns.names:
            continue
        _note_difference(differs, at, usual, value)
    for name in columns.unlike:
        if name in plain:
            differs[shape.names.index(name)] = plain[name]
    return differs


def _note_difference(differs: dict[int, Any], at: int, usual: Any, value: Any) -> None:
    if type(value) is dict and type(usual) is dict and value.keys() == usual.keys():
        differs[~at] = {key: each for key, each in value.items() if _unequal(usual[key], each)}
    else:
        differs[at] = value


def _unequal(usual: Any, value: Any) -> bool:
    """True is not 1."""
    return usual != value or type(usual) is not type(value)


def _written(differs: dict[int, Any]) -> bytes:
    if not differs:
        return b""
    try:
        return msgspec.msgpack.encode(differs)
    except (UnicodeEncodeError, OverflowError):  # see `codec.dumps`
        return codec.dumps(differs)


def _read(differs: bytes) -> dict[int, Any]:
    if not differs:
        return {}
    if differs.startswith(b"{"):
        return {int(at): value for at, value in codec.loads(differs).items()}
    read: dict[int, Any] = msgspec.msgpack.decode(differs)
    return read


def own_ids(record: Record, own: Record = _NOTHING) -> dict[str, str]:
    """What stands for it -> the ids that a path of this job may hold, the longest first. `own` says what it can."""
    job, array, task = (own[name] if name in own else record.get(name) for name in _IDS)
    if array is None or task is None:
        return {"j": str(job)}
    ids = {"t": f"{array}_{task}", "j": str(job), "A": str(array), "a": str(task)}
    return {mark: ids[mark] for mark in sorted(ids, key=lambda mark: -len(ids[mark]))}


def _without_ids(path: Any, ids: Mapping[str, str]) -> Any:
    """Of the file's own name: folders are shared."""
    if not isinstance(path, str):
        return path
    folder, slash, name = path.replace(_MARK, _MARK * 2).rpartition("/")
    for mark, text in ids.items():
        name = name.replace(text, _MARK + mark)
    return folder + slash + name


def _with_ids(path: Any, ids: Mapping[str, str]) -> Any:
    if not isinstance(path, str) or _MARK not in path:
        return path
    return _MARKED.sub(lambda found: ids.get(found[1], _MARK), path)
