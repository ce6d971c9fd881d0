"""`scontrol create|update|delete|show reservation`: pairs to an order, and Slurm's words for the answers."""

from __future__ import annotations

import time
from typing import Any

from bireme.commands import reports
from bireme.commands.paths import path_of
from bireme.commands.refused import ApiError
from bireme.commands.scontrol.session import Session
from bireme.slurm.formats.show.job import block_text
from bireme.slurm.formats.show.reservation import reservation_block
from bireme.slurm.json_shapes.envelope import dump, envelope
from bireme.slurm.reservations import ReservationSyntaxError, check_complete, read_order

Pairs = list[tuple[str, str]]
_BUSY_NOTE = (
    "Note, unless nodes are directly requested a reservation must exist in a single partition.\n"
    "If no partition is requested the default partition is assumed."
)
_PLACE_ERRORS = frozenset({"ESLURM_NODES_BUSY", "ESLURM_NODE_CONFIG_UNAVAILABLE"})


def create(session: Session, words: list[str]) -> int:
    """`create reservation [Key=Value ...]`, or with the name at once: `create reservation=NAME ...`."""
    if not words:
        raise reports.CommandError("too few arguments for create keyword")
    entity, equals, name = words[0].partition("=")
    if not means_reservation(entity):
        if "partition".startswith(entity.lower()) or "nodename".startswith(entity.lower()):
            raise reports.CommandError("scontrol: error: partitions and nodes are made in slurm.conf")
        raise reports.CommandError(f"scontrol: error: Invalid creation entity: {words[0]}")
    named = [("ReservationName", name)] if equals else []
    return _create(session, [*named, *_pairs(words[1:])])


def _create(session: Session, pairs: Pairs) -> int:
    name, order = _read(pairs, "No reservation created.", check_complete)
    try:
        made = session.post("/v1/reservations", {"name": name, "order": order})
    except ApiError as error:
        note = f"\n{_BUSY_NOTE}" if error.code in _PLACE_ERRORS else ""
        raise reports.CommandError(f"Error creating the reservation: {error.message}{note}{_hint(error)}") from None
    reports.say(f"Reservation created: {made['name']}")
    return 0


def update(session: Session, pairs: Pairs) -> int:
    try:
        name, order = _read(pairs, "No reservation update.")
    except reports.CommandError as error:
        raise reports.CommandError(f"{error}\nslurm_update error: No error") from None
    try:
        session.post(path_of("reservations", name, "update"), {"order": order})
    except ApiError as error:
        what = f"Error updating the reservation: {error.message}\nslurm_update error: {error.message}"
        raise reports.CommandError(what + _hint(error)) from None
    reports.say("Reservation updated.")
    return 0


def delete(session: Session, words: list[str]) -> int:
    """`delete reservation=NAME` or `delete reservation NAME`."""
    if not words:
        raise reports.CommandError("too few arguments for delete keyword")
    entity, equals, name = words[0].partition("=")
    if not equals and len(words) > 1:
        name = words[1]
    if not means_reservation(entity):
        if "partitionname".startswith(entity.lower()) or "nodename".startswith(entity.lower()):
            raise reports.CommandError("scontrol: error: partitions and nodes are removed in slurm.conf")
        raise reports.CommandError(f"Invalid deletion entity: {words[0]}")
    if not name:
        raise reports.CommandError("scontrol: error: Proper format is 'delete <ENTITY>=<ID>' or 'delete <ENTITY> <ID>'")
    try:
        session.post(path_of("reservations", name, "delete"))
    except ApiError as error:
        raise reports.CommandError(f"delete_reservation {entity}={name}: {error.message}{_hint(error)}") from None
    return 0


def show(session: Session, ids: list[str]) -> int:
    answer = session.get("/v1/reservations", "slurm_load_reservations error")
    found = [each for each in answer["reservations"] if not ids or each["name"] == ids[0]]
    if session.wants_data:
        reports.write(dump(envelope("scontrol", {"reservations": found}), yaml=session.has("yaml")))
        return 0
    if not found:
        reports.say(f"Reservation {ids[0]} not found" if ids else "No reservations in the system")
        return 1 if ids else 0
    context = session.context(answer)
    for each in found:
        reports.write(block_text(reservation_block(each, context), oneliner=session.oneliner))
    return 0


def means_reservation(word: str) -> bool:
    return len(word) >= 3 and "reservationname".startswith(word.lower())


def _pairs(words: list[str]) -> Pairs:
    pairs = []
    for word in words:
        key, _, value = word.partition("=")
        pairs.append((key, value.strip("'\"")))
    return pairs


def _read(pairs: Pairs, outcome: str, check: Any = None) -> tuple[str, dict[str, Any]]:
    try:
        name, order = read_order(pairs, time.time(), lambda at: time.localtime(at).tm_gmtoff)
        if check is not None:
            check(order)
    except ReservationSyntaxError as error:
        first = f"{error.first}\n" if error.first else ""
        raise reports.CommandError(f"{first}scontrol: error: {error}  {outcome}") from None
    return name, order


def _hint(error: Any) -> str:
    return f"\nscontrol: {error.hint}" if error.hint else ""
