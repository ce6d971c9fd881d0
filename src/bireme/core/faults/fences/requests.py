"""What people ask about fences: to take a GPU or a node out of service by hand. Events or a Refusal.

A fence by hand is a healing too: it is in the same list, with the same undo. The circuit breaker does not count it.
"""

from __future__ import annotations

import re

from bireme.core.faults.fences.breaker import last_gpus_of, last_of
from bireme.core.faults.fences.judging import fence_gpu, fence_node
from bireme.core.faults.fences.places import numbers_at, with_both_names
from bireme.core.faults.fences.shelves import FENCES
from bireme.core.faults.healings.shelves import proposed_so_far
from bireme.core.model import events as e
from bireme.core.model.finding.findings import Place
from bireme.core.model.healing.healings import HealingLife
from bireme.core.model.nodes import Node
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.state.state import State

_NUMBER = re.compile(r"(?:gpu:?)?([0-9]{1,4})")


def fence(state: State, caller: Caller, where: str, why: str, *, last_too: bool = False) -> list[e.Event]:
    """`where`: `n1` for a node, `n1:gpu2` or `n1:GPU-8f3a...` for a GPU of one."""
    if not caller.admin:
        raise Refusal(Why.ACCESS_DENIED)
    if not why.strip():
        raise _refusal("say why, for whoever finds it fenced: --reason='fan 3 rattles'")
    place = _place(where)
    node = state.nodes.get(place.node)
    if node is None:
        raise Refusal(Why.INVALID_NODE_NAME, f"no node {place.node!r} here")
    of_gpu = place.gpu is not None or bool(place.uuid)
    if of_gpu:
        place = _gpu_of(node, place)
    known = FENCES.of(state).get(place.key)
    if known is not None:
        undo = f"`bireme healings undo {known.healing}` lifts that"
        raise _refusal(f"{place.key} is fenced already: {known.why}; {undo}")
    if not last_too:
        _check_last(state, node, place, of_gpu=of_gpu)
    made = fence_gpu(node, place, why, by=caller.user) if of_gpu else fence_node(node, why, by=caller.user)
    return [e.HealingProposed(proposed_so_far(state) + 1, made, HealingLife.APPROVED, "asked for")]


def _check_last(state: State, node: Node, place: Place, *, of_gpu: bool) -> None:
    if of_gpu:
        fresh = {*numbers_at(node.config, place)} - {*node.shut_gpus}
        partition, what = last_gpus_of(state, node, len(fresh)), "this is the last GPU of partition {} in service"
    else:
        partition, what = last_of(state, node), f"{node.name} is the last node of partition {{}} that takes jobs"
    if partition:
        raise _refusal(f"{what.format(partition)}: say --last-too to mean it")


def _place(where: str) -> Place:
    node, colon, gpu = where.partition(":")
    number = _NUMBER.fullmatch(gpu)
    if not node or (colon and not gpu) or len(where) > 256:
        raise _refusal(f"{where[:80]!r} is no place: say a node as n1, or a GPU of one as n1:gpu2 or n1:GPU-UUID")
    return Place(node=node, gpu=int(number[1]) if number else None, uuid="" if number else gpu)


def _gpu_of(node: Node, place: Place) -> Place:
    if not numbers_at(node.config, place):
        gpus = node.config.gres_count("gpu")
        has = f"it has GPUs 0 to {gpus - 1}" if gpus else "it has none"
        raise _refusal(f"{node.name} has no GPU {place.uuid or place.gpu}: {has}")
    return with_both_names(node.config, place)


def _refusal(text: str) -> Refusal:
    return Refusal(Why.NOT_SUPPORTED, text)
