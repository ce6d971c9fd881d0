"""Fences as a kind: raised for what is found broken, or by people; lifted when it is mended, or by people.

An event leaves a note of what is to be decided (`NEWS`, `LEAVING`, `STALE`), and `settles` decides it within the same
turn: a turn in which nothing was found costs nothing. A fence of a node drains it, in Slurm's words, where Bireme
places the jobs; a scheduler that is told to (`HealingPolicy.ordered`) is told by the daemon and drains it itself.
Whoever resumes a node that was drained for a fence lifts it. What was running goes on: whether it is ended is decided
in `core/faults/restarts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from bireme.core.faults.fences.breaker import Tally
from bireme.core.faults.fences.judging import (
    FENCING,
    clusters_of,
    concerns_the_pool,
    proposal_for,
    stands_on,
    switch_at_fault,
    why_text,
)
from bireme.core.faults.fences.places import numbers_at, with_both_names
from bireme.core.faults.fences.shelves import FENCES, LEAVING, LEAVING_BY, NEWS, STALE, fences_on, of_healing
from bireme.core.faults.findings.shelves import FINDINGS
from bireme.core.faults.healings.deciding import proposed
from bireme.core.faults.healings.shelves import HEALINGS, is_new, policy_of, to_do
from bireme.core.kinds.kind import Kind
from bireme.core.kinds.life import Absent, Key, Life, Phase, Rows
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model.finding.findings import Finding, FindingLife, Place
from bireme.core.model.healing.fences import Fence, FenceLife
from bireme.core.model.healing.healings import Healing, HealingAct, HealingLife
from bireme.core.model.idling.events import IDLE_EVENTS
from bireme.core.model.nodes import Node, ShutGpu
from bireme.core.model.serving.events import SERVICE_EVENTS
from bireme.core.state.state import State

_RAISED = FenceLife.RAISED
_FENCE: Rows = {
    (Absent, e.FenceRaised): (_RAISED,),
    (_RAISED, e.FenceLifted): (Absent,),
}


def _phase(state: State, key: Key) -> Phase:
    fence = FENCES.of(state).get(key)
    return Absent if fence is None else fence.phase


FENCE = Life("fence", _FENCE, {event: (attrgetter("key"),) for _, event in _FENCE}, _phase)

# -- its own events --------------------------------------------------------------------------------------------------


def _raised(state: State, event: e.FenceRaised, at: float) -> Sequence[c.Command]:
    FENCES.put(state, event.key, replace(event.fence, raised_at=at))
    _shut(state, event.fence.place.node)
    return ()


def _lifted(state: State, event: e.FenceLifted, at: float) -> Sequence[c.Command]:
    node = FENCES.of(state)[event.key].place.node
    FENCES.drop(state, event.key)
    for shelf in (LEAVING, LEAVING_BY):
        if event.key in shelf.of(state):
            shelf.drop(state, event.key)
    _shut(state, node)
    return ()


def _shut(state: State, name: str) -> None:
    """The node's GPUs that are out of service are those that fences name, as it is configured now."""
    node = state.nodes.get(name)
    if node is None:
        return
    shut: dict[int, ShutGpu] = {}
    for fence in fences_on(state, name):
        if fence.of_gpu:
            numbers = numbers_at(node.config, fence.place)
            shut |= {number: ShutGpu(number, fence.why, fence.raised_at) for number in numbers}
    gpus = tuple(shut[number] for number in sorted(shut))
    if gpus != node.shut:
        state.shut(name, gpus)


# -- what leaves something to decide ---------------------------------------------------------------------------------


def _found(state: State, event: e.FindingOpened | e.FindingChanged, at: float) -> None:
    finding, node = FINDINGS.of(state)[event.key], state.nodes.get(event.trouble.place.node)
    if concerns_the_pool(event.trouble) and node is not None:
        if is_new(state, proposal_for(state, node, finding)):
            NEWS.put(state, event.key, event.key)
    else:
        _gone(state, event.trouble.place, "what was found there is not as grave any more")


def _not_found(state: State, event: e.FindingClosed | e.FindingDismissed, at: float) -> None:
    """Asked after the finding has changed or is gone: of one that is gone, only its key says where it was."""
    if event.key in NEWS.of(state):
        NEWS.drop(state, event.key)
    place = event.key.split(" ", 1)[-1]
    if place.startswith(("job ", "switch ")):
        return
    node, _, gpu = place.partition(":")
    number = int(gpu[3:]) if gpu.startswith("gpu") and gpu[3:].isdigit() else None
    _gone(state, Place(node=node, gpu=number, uuid="" if number is not None else gpu), event.why, event.by)


def _gone(state: State, place: Place, why: str, by: str = "") -> None:
    """What stood for findings there, and has none left, goes: fences, and decisions that nobody has approved."""
    findings = [each for each in FINDINGS.of(state).values() if each.trouble.place.node == place.node]
    for fence in fences_on(state, place.node):
        healing = HEALINGS.of(state).get(fence.healing)
        asked_for = healing is None or not healing.proposal.findings
        if not asked_for and not _stand(findings, fence.place):
            _let_go(state, fence.key, why, by)
    for healing in HEALINGS.of(state).values():
        proposal = healing.proposal
        if healing.phase not in (HealingLife.OBSERVED, HealingLife.SUGGESTED) or proposal.act not in FENCING:
            continue
        if proposal.place.node == place.node and proposal.findings and not _stand(findings, proposal.place):
            STALE.put(state, healing.id, why)


def _stand(findings: list[Finding], place: Place) -> bool:
    return any(stands_on(each, place) for each in findings)


def _let_go(state: State, key: str, why: str, by: str) -> None:
    LEAVING.put(state, key, why)
    if by:
        LEAVING_BY.put(state, key, by)


def _undone(state: State, event: e.HealingUndone, at: float) -> None:
    fence = of_healing(state, event.id)
    if fence is not None:
        _let_go(state, fence.key, event.why, event.by)


def _decided(state: State, event: e.HealingProposed, at: float) -> None:
    for finding in list(FINDINGS.of(state).values()) if NEWS.of(state) else ():
        if finding.id in event.proposal.findings and finding.trouble.key in NEWS.of(state):
            NEWS.drop(state, finding.trouble.key)


def _answered(state: State, event: e.HealingLapsed | e.HealingApproved | e.HealingRefused, at: float) -> None:
    if event.id in STALE.of(state):
        STALE.drop(state, event.id)


def _policy_set(state: State, event: e.HealingPolicySet, at: float) -> None:
    """What was only observed is decided anew; what was suggested goes on standing."""
    for healing in HEALINGS.of(state).values():
        if healing.phase is HealingLife.OBSERVED and healing.proposal.act in FENCING:
            STALE.put(state, healing.id, "the policy has changed")
            for key, finding in FINDINGS.of(state).items():
                if finding.id in healing.proposal.findings:
                    NEWS.put(state, key, key)


def _node_updated(state: State, event: e.NodeUpdated, at: float) -> None:
    """Drained for its fence, or resumed: by an operator here, or by one of its own cluster."""
    fence = FENCES.of(state).get(event.node)
    if fence is None or event.drained is None:
        return
    if event.drained:
        mine = event.note is None or fence.why in event.note
        FENCES.put(state, fence.key, replace(fence, drained=fence.drained or mine))
    elif fence.drained and fence.key not in LEAVING.of(state):
        _let_go(state, fence.key, "the node was resumed", f"uid {event.by_uid}" if event.by_uid else "root")


def _configured(state: State, event: e.ClusterConfigured, at: float) -> None:
    """The same cards may have other numbers now."""
    for name in {fence.place.node for fence in FENCES.of(state).values()}:
        _shut(state, name)


# -- what is decided in a turn ---------------------------------------------------------------------------------------


def _settles(state: State, now: float) -> Iterator[e.Event]:
    for number, why in list(STALE.of(state).items()):
        yield e.HealingLapsed(number, why)
    if NEWS.of(state):
        yield from _news(state)
    for healing in to_do(state, FENCING):
        yield from _carried_out(state, healing)
    for key, why in list(LEAVING.of(state).items()):
        yield from _taken_down(state, FENCES.of(state)[key], why, LEAVING_BY.of(state).get(key, ""))


def _news(state: State) -> Iterator[e.Event]:
    tally = Tally.of(state)
    for key in list(NEWS.of(state)):
        finding = FINDINGS.of(state).get(key)
        node = state.nodes.get(finding.trouble.place.node) if finding is not None else None
        if finding is not None and node is not None and finding.phase is FindingLife.OPEN:
            yield from _decide(state, node, finding, tally)


def _decide(state: State, node: Node, finding: Finding, tally: Tally) -> Iterator[e.Event]:
    proposal = proposal_for(state, node, finding)
    whole = proposal.act is HealingAct.FENCE_NODE
    shut = set(node.shut_gpus)
    gpus = _open_gpus(node) if whole else len(set(numbers_at(node.config, proposal.place)) - shut)
    unknown = whole and finding.trouble.place.node != finding.trouble.place.key and "as configured" in proposal.reason
    withheld = "nobody knows which GPU it is" if unknown else switch_at_fault(state, node.name)
    withheld = withheld or tally.objects(state, node, gpus, whole=whole)
    for event in proposed(state, proposal, withheld):
        yield event
        if event.phase is HealingLife.APPROVED:
            tally.raised(state, node, gpus, whole=whole)


def _open_gpus(node: Node) -> int:
    return sum(len(pool.devices) for pool in node.config.gres if pool.name == "gpu") - len(node.shut)


def _carried_out(state: State, healing: Healing) -> Iterator[e.Event]:
    proposal, place = healing.proposal, healing.proposal.place
    node = state.nodes.get(place.node)
    if node is None:
        yield e.HealingFailed(healing.id, f"there is no node {place.node} any more")
        return
    of_gpu = proposal.act is HealingAct.FENCE_GPU
    if of_gpu and not numbers_at(node.config, place):
        yield e.HealingFailed(healing.id, f"{place.node} has no such GPU as it is configured now")
        return
    if place.key in FENCES.of(state):
        yield e.HealingFailed(healing.id, f"{place.key} is fenced already: {FENCES.of(state)[place.key].why}")
        return
    place = with_both_names(node.config, place) if of_gpu else place
    why = why_text(proposal)
    yield e.FenceRaised(Fence(place=place, why=why, healing=healing.id, by=proposal.by))
    if of_gpu:
        yield e.HealingDone(healing.id)
        return
    if policy_of(state).orders_in(clusters_of(state, node.name)):
        yield e.HealingDone(healing.id, "its own scheduler is told to drain it")
        return
    if not node.drained:
        yield e.NodeUpdated(node.name, by_uid=0, drained=True, note=why)
        yield e.HealingDone(healing.id)
    else:
        yield e.HealingDone(healing.id, "it was drained already")


def _taken_down(state: State, fence: Fence, why: str, by: str) -> Iterator[e.Event]:
    """What Bireme set, it takes back, and only that: a node that somebody else drained stays so."""
    yield e.FenceLifted(fence.key, why, by)
    healing = HEALINGS.of(state).get(fence.healing)
    if healing is not None and healing.phase is HealingLife.DONE:
        yield e.HealingUndone(fence.healing, why, by)
    node = state.nodes.get(fence.place.node)
    if fence.of_gpu or node is None or not node.drained or not fence.drained:
        return
    ours = node.note is not None and fence.why in node.note.text
    if ours and not policy_of(state).orders_in(clusters_of(state, node.name)):
        yield e.NodeUpdated(node.name, by_uid=0, drained=False, note="")


FENCES_KIND = Kind(
    life=FENCE,
    applies={e.FenceRaised: _raised, e.FenceLifted: _lifted},
    follows={
        e.FindingOpened: (_found,),
        e.FindingChanged: (_found,),
        e.FindingDismissed: (_not_found,),
        e.FindingClosed: (_not_found,),
        e.HealingProposed: (_decided,),
        e.HealingLapsed: (_answered,),
        e.HealingApproved: (_answered,),
        e.HealingRefused: (_answered,),
        e.HealingUndone: (_undone,),
        e.HealingPolicySet: (_policy_set,),
        e.NodeUpdated: (_node_updated,),
        e.ClusterConfigured: (_configured,),
    },
    keeps=(FENCES, NEWS, LEAVING, LEAVING_BY, STALE),
    settles=_settles,
    passes_over=frozenset(
        (
            e.HealingDone,
            e.HealingFailed,
            *e.JOB_EVENTS,
            *e.STEP_EVENTS,
            e.NodeRegistered,
            e.NodeLost,
            e.LeftoverFound,
            e.LeftoverCleared,
            *e.LOSS_EVENTS,
            e.OthersCounted,
            e.NodeClosed,
            e.PartitionUpdated,
            *e.ACCOUNT_EVENTS,
            *e.RESERVATION_EVENTS,
            *SERVICE_EVENTS,
            *IDLE_EVENTS,
        )
    ),
)
