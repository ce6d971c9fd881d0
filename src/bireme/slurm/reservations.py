"""`scontrol create|update reservation`: `Key=Value` pairs to an order (`core/reservations/orders.py`).

Pure: `now` and the local offset are arguments. Called by `commands/scontrol/reservations.py`, which sends the order as
JSON. Invariant: one wrong pair and there is no order; the message is Slurm's where Slurm has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bireme.core.model.reservations import ReservationFlag
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.hostlist import expand
from bireme.slurm.times import MINUTE_S, Infinite, UtcOffset, parse_time_limit, parse_timestamp

Order = dict[str, Any]
YEAR_S = 365 * 86_400
"""What UNLIMITED means for a reservation, as in Slurm."""
PURGE_AFTER_S = 300

_FLAG_WORDS = {flag.value: flag for flag in ReservationFlag} | {
    "MAINTENANCE": ReservationFlag.MAINT,
    "STATIC_ALLOC": ReservationFlag.STATIC,
    "NO_HOLD_JOBS_AFTER": ReservationFlag.NO_HOLD_JOBS_AFTER,
    "LICENSE_ONLY": ReservationFlag.ANY_NODES,
    "IGN_JOBS": ReservationFlag.IGNORE_JOBS,
}
_OUTPUT_ONLY = frozenset({"SPEC_NODES", "ALL_NODES"})
SHORTEST_FLAG = 3


class ReservationSyntaxError(SlurmSyntaxError):
    """The words are Slurm's, without what follows them (`No reservation created.`). `first`: a line before them."""

    def __init__(self, message: str, first: str = "") -> None:
        super().__init__(message)
        self.first = first


class _Moment:
    def __init__(self, now: float, utc_offset: UtcOffset) -> None:
        self.now = now
        self.utc_offset = utc_offset


def read_order(pairs: Sequence[tuple[str, str]], now: float, utc_offset: UtcOffset) -> tuple[str, Order]:
    """(name, order): fields of ReservationOrder. Keys may end in + or - (`Users+=bob`)."""
    name, order = "", Order(utc_offset_s=int(utc_offset(now)))
    moment = _Moment(now, utc_offset)
    for key, value in pairs:
        bare, sign = (key[:-1], key[-1]) if key[-1:] in ("+", "-") else (key, "")
        known = _full_name(bare)
        if known is None:
            raise ReservationSyntaxError(f"Unknown parameter {key}={value}.")
        if known == "ReservationName":
            name = value
        elif known in _LISTS:
            order[_LISTS[known]] = [f"{sign}{word}" for word in value.split(",") if word]
        elif known == "Flags":
            order |= _flags(value, sign)
        elif sign:
            raise ReservationSyntaxError(f"The +=/-= notation is not supported when updating {known}.")
        else:
            order |= _READERS[known](value, moment)
    return name, order


def check_complete(order: Mapping[str, Any]) -> None:
    """What a new reservation must say, in the order in which Slurm asks."""
    if "begin" not in order:
        raise ReservationSyntaxError("A start time must be given.")
    if "end" not in order and "duration_s" not in order:
        raise ReservationSyntaxError("An end time or duration must be given.")
    if not order.keys() & {"nodes", "all_nodes", "node_count", "partition"} and "ANY_NODES" not in order.get(
        "flags", ()
    ):
        raise ReservationSyntaxError("CoreCnt, Nodes, NodeCnt, BurstBuffer, Licenses or Watts must be specified.")
    if not any(order.get(key) for key in ("users", "groups", "accounts")):
        raise ReservationSyntaxError("Either Users/Groups and/or Accounts must be specified.")


def _full_name(word: str) -> str | None:
    """Any case; shortened as far as Slurm lets it be."""
    lower = word.lower()
    for name, shortest in _SHORTEST.items():
        if len(lower) >= shortest and name.lower().startswith(lower):
            return name
    return {"nodecount": "NodeCnt", "corecount": "CoreCnt"}.get(lower)


# -- values ----------------------------------------------------------------------------------------------------------


def _when(field: str, word: str, key: str) -> Callable[[str, _Moment], Order]:
    def read(text: str, moment: _Moment) -> Order:
        try:
            return {field: parse_timestamp(text, moment.now, moment.utc_offset)}
        except SlurmSyntaxError:
            first = f"Invalid time specification (pos=0): {text}"
            raise ReservationSyntaxError(f"Invalid {word} time {key}={text}.", first) from None

    return read


def _duration(text: str, _: _Moment) -> Order:
    """Whole minutes, rounded up."""
    try:
        limit = parse_time_limit(text)
    except SlurmSyntaxError:
        raise ReservationSyntaxError(f"Invalid duration Duration={text}.") from None
    return {"duration_s": YEAR_S if isinstance(limit, Infinite) else -(-limit // MINUTE_S) * MINUTE_S}


def _nodes(text: str, _: _Moment) -> Order:
    if text.upper() == "ALL":
        return {"all_nodes": True}
    try:
        return {"nodes": list(expand(text))}
    except SlurmSyntaxError as error:
        raise ReservationSyntaxError(f"Invalid node list Nodes={text}: {error}.") from None


def _node_count(text: str, _: _Moment) -> Order:
    """`4`, `2k`."""
    digits, times = (text[:-1], 1024) if text[-1:] in ("k", "K") else (text, 1)
    if not digits.isdecimal() or not digits.isascii():
        raise ReservationSyntaxError(f"Invalid node count {text}.")
    return {"node_count": int(digits) * times}


def _tres(text: str, moment: _Moment) -> Order:
    order: Order = {}
    for part in text.split(","):
        name, _, amount = part.partition("=")
        if name.lower() != "node":
            raise ReservationSyntaxError(f"TRES={part} is not supported here: reservations are of whole nodes.")
        order |= _node_count(amount, moment)
    return order


def _start_delay(text: str, _: _Moment) -> Order:
    try:
        limit = parse_time_limit(text)
    except SlurmSyntaxError:
        raise ReservationSyntaxError(f"Invalid MaxStartDelay {text}.") from None
    return {"max_start_delay_s": None if isinstance(limit, Infinite) else limit}


def _flags(text: str, sign: str) -> Order:
    """`DAILY,MAINT`; each may have a sign of its own; `PURGE_COMP=10` has a time."""
    order: Order = {}
    words: list[str] = []
    for part in (part for part in text.split(",") if part):
        own = part[0] if part[0] in "+-" else sign
        word, equals, value = part.lstrip("+-").upper().partition("=")
        flag = _flag(word)
        if flag is None or (equals and flag is not ReservationFlag.PURGE_COMP):
            raise ReservationSyntaxError(f"Error parsing flags {text}.")
        words.append(f"{own}{flag.value}")
        if flag is ReservationFlag.PURGE_COMP:
            order["purge_after_s"] = _purge_after(value, text) if equals else PURGE_AFTER_S
    return order | {"flags": words}


def _flag(word: str) -> ReservationFlag | None:
    if word in _OUTPUT_ONLY:
        return None
    if word in _FLAG_WORDS:
        return _FLAG_WORDS[word]
    begun = {flag for name, flag in _FLAG_WORDS.items() if name.startswith(word) and name not in _OUTPUT_ONLY}
    return begun.pop() if len(word) >= SHORTEST_FLAG and len(begun) == 1 else None


def _purge_after(text: str, flags: str) -> int:
    try:
        limit = parse_time_limit(text)
    except SlurmSyntaxError:
        raise ReservationSyntaxError(f"Error parsing flags {flags}.") from None
    return YEAR_S if isinstance(limit, Infinite) else -(-limit // MINUTE_S) * MINUTE_S


def _unsupported(key: str, why: str) -> Callable[[str, _Moment], Order]:
    def refuse(text: str, _: _Moment) -> Order:
        raise ReservationSyntaxError(f"{key}={text} is not supported here: {why}.")

    return refuse


_LISTS = {"Users": "users", "Groups": "groups", "Accounts": "accounts"}
_READERS: dict[str, Callable[[str, _Moment], Order]] = {
    "StartTime": _when("begin", "start", "StartTime"),
    "EndTime": _when("end", "end", "EndTime"),
    "Duration": _duration,
    "Nodes": _nodes,
    "NodeCnt": _node_count,
    "PartitionName": lambda text, _: {"partition": text},
    "Features": lambda text, _: {"features": text},
    "MaxStartDelay": _start_delay,
    "Skip": lambda _text, _moment: {"skip": True},
    "TRES": _tres,
    "CoreCnt": _unsupported("CoreCnt", "reservations are of whole nodes"),
    "Licenses": _unsupported("Licenses", "reservations are of nodes; licences are counted by Licenses= in slurm.conf"),
    "BurstBuffer": _unsupported("BurstBuffer", "there are no burst buffers"),
    "Watts": _unsupported("Watts", "power is not managed"),
}
_SHORTEST = {
    "ReservationName": 3, "Accounts": 1, "BurstBuffer": 2, "CoreCnt": 5, "Duration": 1, "EndTime": 1, "Features": 2,
    "Flags": 2, "Groups": 1, "Licenses": 1, "MaxStartDelay": 1, "NodeCnt": 5, "Nodes": 5, "PartitionName": 1,
    "Skip": 2, "StartTime": 1, "TRES": 1, "Users": 1, "Watts": 1,
}  # fmt: skip
"""How short each word may be."""
