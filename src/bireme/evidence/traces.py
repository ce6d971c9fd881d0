"""Flight recorders' dumps of PyTorch (NCCL, RCCL and what speaks like them): which rank did not arrive, and where.

A rank writes one when a collective times out (`TORCH_NCCL_TRACE_BUFFER_SIZE`, `TORCH_NCCL_DUMP_ON_TIMEOUT`), as a
pickle at `TORCH_NCCL_DEBUG_INFO_TEMP_FILE` + its rank, or as JSON. Versions 1.x and 2.x of that format are read: a
list or a dict of `entries`, each with `profiling_name` ("nccl:all_reduce"), `state` (scheduled, started, completed), a
number (`collective_seq_id`, before it `seq_id`) and `input_sizes`; `pg_config` says who is in a group, `pg_status` how
far it is.

What they come to are lines of the source "trace", in these words (rules know them, `rules/traces.toml`):

    rank 3 did not join collective 1234 (all_reduce), which ranks 0-2,4-7 started; its last was 1233 (broadcast)
    rank 2 calls all_gather where ranks 0-1,3 call all_reduce at collective 1234
    rank 2 gives collective 1234 (all_reduce) sizes [[512]] where ranks 0-1,3 give [[1024]]
    rank 5 left no dump, and ranks 0-4,6-7 wait for it in collective 1234 (all_reduce)
    collective 1234 (all_reduce) was started by all of ranks 0-7 and did not finish

with ` of group NAME` behind the collective where it is not the default group. A pickle is read by a reader that makes
no object: whatever names a class or a function is refused, so a dump can run nothing.
Invariant: what is not as described is no dump (`NoDumpError`), never another exception.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import resource
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, BinaryIO, NoReturn

from bireme.core.diagnosis.model import Line
from bireme.evidence.whereabouts import ranks_text

MOST_BYTES = 64 << 20
_MOST_ENTRIES = 100_000
_MOST_RANKS = 1_000_000
_MEMORY = 2 << 30
"""More than the program has, while a pickle is read."""
_MOST_SIZES = 16
_NAME = re.compile(r"(?:nccl|rccl|comm_lib|xccl|hccl|torch|fr)_?trace.*?(\d{1,6})$|_rank_?(\d{1,6})$")
_USUAL_FOLDERS = ("/tmp",)
_USUAL_NAME = re.compile(r"(?:nccl|comm_lib)_trace_rank_\d{1,6}")
_MOST_LOOKED_AT = 100_000
_P2P = ("send", "recv")
_SAME_SIZES = ("all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base", "all_reduce_barrier")
"""Collectives to which every rank gives the same."""
_MOST_LINES = 20
_DEFAULT = ("", "default_pg", "undefined")


def dumps_beside(folders: Iterable[str], owner: int, since: float) -> list[str]:
    """Dumps of a job that nobody named: in its folders and where PyTorch writes them, its owner's, of its time."""
    found: dict[str, None] = {}
    for folder in dict.fromkeys((*folders, *_USUAL_FOLDERS)):
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in islice(entries, _MOST_LOOKED_AT):
                if _USUAL_NAME.fullmatch(entry.name):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and status.st_uid == owner and status.st_mtime >= since:
                        found[entry.path] = None
    return sorted(found)


class NoDumpError(Exception):
    """A file is not a dump of a flight recorder, or one that cannot be read; the text says why."""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective, as one rank saw it."""

    name: str
    state: str
    sizes: str


@dataclass(slots=True)
class Dump:
    """One rank's: by group, its collectives by their number."""

    rank: int
    file: str
    node: str = ""
    groups: dict[str, dict[int, Call]] = field(default_factory=dict)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Of groups, where it is said."""


def is_dump(head: bytes, path: str) -> bool:
    """Whether a file may be one, by its first bytes; JSON only under a name that dumps have."""
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return True
    return head.lstrip()[:1] in (b"{", b"[") and "trace" in path.rsplit("/", 1)[-1]


def read(file: BinaryIO, path: str, rank: int | None = None, node: str = "") -> Dump:
    data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise NoDumpError(f"it is longer than {MOST_BYTES >> 20} MiB")
    loaded = _unpickled(data) if data[:1] == b"\x80" else _json(data)
    if rank is None:
        found = _NAME.search(path.rsplit("/", 1)[-1].removesuffix(".json"))
        rank = int(found[1] or found[2]) if found else None
    if rank is None and isinstance(loaded, Mapping) and isinstance(loaded.get("rank"), int):
        rank = loaded["rank"]
    if rank is None or not 0 <= rank < _MOST_RANKS:
        raise NoDumpError("its name does not end with a rank")
    return _dump_of(loaded, Dump(rank, path, node))


class _Refusing(pickle.Unpickler):
    """Numbers, texts, lists, tuples and dicts, nothing else: nothing is imported, nothing is called."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise NoDumpError(f"it asks for {module}.{name}, which no dump does"[:200])

    def persistent_load(self, pid: Any) -> NoReturn:
        raise NoDumpError("it asks for objects that are not in it")


def _unpickled(data: bytes) -> Any:
    try:
        with _bounded_memory():
            return _Refusing(io.BytesIO(data)).load()
    except NoDumpError:
        raise
    except MemoryError:
        raise NoDumpError("it asks for more memory than a dump needs") from None
    except Exception as error:  # a pickle may be wrong in every way there is
        raise NoDumpError(f"its pickle is broken: {error}"[:200]) from error


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """A few bytes of a pickle can ask for any amount of memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    bound = mapped + _MEMORY
    if before[0] == resource.RLIM_INFINITY or bound < before[0]:
        resource.setrlimit(resource.RLIMIT_AS, (bound, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NoDumpError("it is no JSON") from error


# -- what a dump holds -----------------------------------------------------------------------------------------------


def _dump_of(loaded: Any, dump: Dump) -> Dump:
    entries = loaded.get("entries", ()) if isinstance(loaded, Mapping) else loaded
    if isinstance(entries, Mapping) or not isinstance(entries, Sequence) or isinstance(entries, str | bytes):
        raise NoDumpError("it has no list of entries")
    if not isinstance(loaded, Mapping) and not any(isinstance(each, Mapping) for each in entries[:10]):
        raise NoDumpError("it has no entries")
    if isinstance(loaded, Mapping) and not loaded.keys() & {"entries", "pg_config", "pg_status"}:
        raise NoDumpError("it has no entries")
    numbers_of_groups: dict[int, str] = {}
    for entry in entries[-_MOST_ENTRIES:]:
        if isinstance(entry, Mapping):
            _add_entry(dump, entry, numbers_of_groups)
    if isinstance(loaded, Mapping):
        _add_members(dump, loaded.get("pg_config"))
        _add_status(dump, loaded.get("pg_status"), numbers_of_groups)
    return dump


def _add_entry(dump: Dump, entry: Mapping[Any, Any], numbers_of_groups: dict[int, str]) -> None:
    name = _text(entry.get("profiling_name"), 200).partition(":")[2].partition(" ")[0]
    number = _number(entry.get("collective_seq_id", entry.get("seq_id")))
    if not name or number is None or entry.get("is_p2p") is True or name in _P2P:
        return
    group = _group_of(entry)
    pg_id = _number(entry.get("pg_id"))
    if pg_id is not None:
        numbers_of_groups[pg_id] = group
    call = Call(name, _text(entry.get("state"), 20), _sizes(entry.get("input_sizes")))
    dump.groups.setdefault(group, {}).setdefault(number, call)  # the first of what was coalesced into one


def _group_of(entry: Mapping[Any, Any]) -> str:
    """The description that people gave it, with its name; the name alone is made by PyTorch."""
    told = entry.get("process_group")
    parts = [_text(each, 80) for each in told[:2]] if isinstance(told, list | tuple) else []
    if not parts:
        return _text(entry.get("pg_id"), 80)
    name, desc = parts[0], parts[1] if len(parts) > 1 else ""
    return _named(name, desc)


def _named(name: str, desc: str) -> str:
    if desc == "default_pg" or (name == "0" and desc in _DEFAULT):
        return ""
    return name if desc in _DEFAULT else f"{desc} ({name})"


def _add_members(dump: Dump, config: Any) -> None:
    for key, each in config.items() if isinstance(config, Mapping) else ():
        if not isinstance(each, Mapping):
            continue
        ranks = each.get("ranks")
        if isinstance(ranks, str):
            ranks = re.findall(r"\d{1,6}", ranks[: 8 * _MOST_RANKS])
        listed = ranks[:_MOST_RANKS] if isinstance(ranks, list | tuple) else ()
        found = {number for rank in listed if (number := _number(rank)) is not None and 0 <= number < 10**6}
        name = _named(_text(each.get("name", key), 80), _text(each.get("desc"), 80))
        dump.members[name] = tuple(sorted(found))


def _add_status(dump: Dump, status: Any, numbers_of_groups: Mapping[int, str]) -> None:
    """What was completed long ago is in no entry: the ring has lost it, or only what is active was dumped."""
    for key, each in status.items() if isinstance(status, Mapping) else ():
        group = numbers_of_groups.get(number) if (number := _number(key)) is not None else None
        if group is None and len(status) == 1 and not dump.groups:
            group = ""
        done = _number(each.get("last_completed_collective")) if isinstance(each, Mapping) else None
        if group is not None and done is not None and done > 0:
            dump.groups.setdefault(group, {}).setdefault(done, Call("", "completed", ""))


def _number(value: Any) -> int | None:
    try:
        return int(value) if isinstance(value, int) or (isinstance(value, str) and len(value) < 20) else None
    except ValueError:
        return None


def _text(value: Any, most: int) -> str:
    """Of a text or a number. Of anything else nothing: a few bytes of a pickle can hold a list of 10^30 elements."""
    if isinstance(value, str):
        return value[:most]
    return str(value)[:most] if isinstance(value, int) and value.bit_length() < 64 else ""


def _sizes(value: Any) -> str:
    """Of a list of lists of numbers, as they are written in one."""
    if not isinstance(value, list | tuple):
        return _text(value, 200)
    shapes = [
        f"[{', '.join(_text(size, 20) for size in shape[:_MOST_SIZES])}]" if isinstance(shape, list | tuple) else ""
        for shape in value[:_MOST_SIZES]
    ]
    return f"[{', '.join(shapes)}]"[:200]


# -- what they come to -----------------------------------------------------------------------------------------------


def lines_of(dumps: Sequence[Dump]) -> list[Line]:
    """What the dumps of all ranks say together, one line for each thing."""
    by_rank = {dump.rank: dump for dump in dumps}
    if len(by_rank) < 2:
        return []
    found: list[Line] = []
    for group in sorted({group for dump in dumps for group in dump.groups}):
        calls = {rank: dump.groups.get(group, {}) for rank, dump in by_rank.items()}
        said = {rank for dump in dumps for rank in dump.members.get(group, ())}
        members = said or {rank for rank, own in calls.items() if own}
        for text, rank in _judged(group, {rank: calls.get(rank) for rank in sorted(members)}):
            dump = by_rank.get(rank) or dumps[0]
            node = dump.node if rank in by_rank else ""
            found.append(Line(text=text, source="trace", order=len(found), file=dump.file, rank=rank, node=node))
    return found[:_MOST_LINES]


def _judged(group: str, calls: Mapping[int, Mapping[int, Call] | None]) -> Iterator[tuple[str, int]]:
    """(words, rank) for one group. `calls`: of each member its collectives by number; None: it left no dump."""
    there = {rank: own for rank, own in calls.items() if own is not None}
    differing = _first_difference(there)
    if differing is not None:
        yield from _difference(
            group, differing, {rank: own[differing] for rank, own in there.items() if differing in own}
        )
        return
    waiting = [number for own in there.values() for number, call in own.items() if call.state != "completed"]
    if not waiting:
        return
    number = min(waiting)
    inside = {rank: own[number] for rank, own in there.items() if number in own and own[number].state != "completed"}
    names = Counter(call.name for call in inside.values() if call.name)
    what = f"collective {number} ({names.most_common(1)[0][0] if names else 'unknown'}){_of(group)}"
    late = [rank for rank, own in there.items() if max(own, default=-1) < number]
    silent = [rank for rank, own in calls.items() if own is None]
    for rank in late[:_MOST_LINES]:
        own = there[rank]
        last = max(own, default=None)
        told = f"; its last was {last} ({own[last].name or 'unknown'})" if last is not None else ""
        yield f"rank {rank} did not join {what}, which {ranks_text(inside)} started{told}", rank
    for rank in silent[:_MOST_LINES]:
        waits = "waits" if len(inside) == 1 else "wait"
        yield f"rank {rank} left no dump, and {ranks_text(inside)} {waits} for it in {what}", rank
    if not late and not silent:
        yield f"{what} was started by all of {ranks_text(calls)} and did not finish", min(inside)


def _first_difference(calls: Mapping[int, Mapping[int, Call]]) -> int | None:
    """The first collective that is not the same for all who have it."""
    seen: dict[int, list[Call]] = defaultdict(list)
    for own in calls.values():
        for number, call in own.items():
            if call.name:
                seen[number].append(call)
    for number in sorted(seen):
        names = {call.name for call in seen[number]}
        sizes = {call.sizes for call in seen[number]}
        if len(names) > 1 or (names <= set(_SAME_SIZES) and len(sizes) > 1):
            return number
    return None


def _difference(group: str, number: int, calls: Mapping[int, Call]) -> Iterator[tuple[str, int]]:
    named = {rank: call for rank, call in calls.items() if call.name}
    names = Counter(call.name for call in named.values())
    if len(names) > 1:
        usual = names.most_common(1)[0][0]
        them = [rank for rank, call in named.items() if call.name == usual]
        for rank, call in named.items():
            if call.name != usual:
                verb = "calls" if len(them) == 1 else "call"
                theirs = f"{ranks_text(them)} {verb} {usual}"
                yield f"rank {rank} calls {call.name} where {theirs} at collective {number}{_of(group)}", rank
        return
    name = next(iter(names))
    usual = Counter(call.sizes for call in named.values()).most_common(1)[0][0]
    them = [rank for rank, call in named.items() if call.sizes == usual]
    for rank, call in named.items():
        if call.sizes != usual:
            what = f"collective {number} ({name}){_of(group)}"
            theirs = f"{ranks_text(them)} {'gives' if len(them) == 1 else 'give'} {usual}"
            yield f"rank {rank} gives {what} sizes {call.sizes} where {theirs}", rank


def _of(group: str) -> str:
    return f" of group {group}" if group else ""
