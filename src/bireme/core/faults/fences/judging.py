"""What is to be fenced for a finding: the smallest thing that its place names, as a proposal.

Pure, asked by `kind` about one open finding of gravity BROKEN. Where the engine cannot keep jobs off a single GPU of a
node, or nobody knows which GPU it is, the node is the smallest thing, and the reason says so.
"""

from __future__ import annotations

from dataclasses import replace

from bireme.core.faults.detection import switches
from bireme.core.faults.fences.places import gpus_of, numbers_at, with_both_names
from bireme.core.faults.findings.shelves import FINDINGS
from bireme.core.faults.healings.shelves import policy_of
from bireme.core.model.finding.findings import Finding, FindingLife, Gravity, Place, Trouble
from bireme.core.model.healing.healings import HealingAct, Proposal
from bireme.core.model.nodes import Node
from bireme.core.state.state import State

FENCING = (HealingAct.FENCE_GPU, HealingAct.FENCE_NODE)


def concerns_the_pool(trouble: Trouble) -> bool:
    """Whether nobody should be placed there any more: a part of the pool, not a job."""
    return trouble.gravity is Gravity.BROKEN and bool(trouble.place.node) and not trouble.place.job_id


def stands_on(finding: Finding, place: Place) -> bool:
    """Whether this finding keeps a place fenced."""
    trouble = finding.trouble
    if finding.phase is not FindingLife.OPEN or not concerns_the_pool(trouble) or trouble.place.node != place.node:
        return False
    same_gpu = trouble.place.gpu == place.gpu if trouble.place.gpu is not None else trouble.place.uuid == place.uuid
    return same_gpu or place.gpu is None


def proposal_for(state: State, node: Node, finding: Finding) -> Proposal:
    """What to fence for it. The rest of the node stays in service where a GPU is enough."""
    trouble = finding.trouble
    known = policy_of(state).fences_gpus_in(clusters_of(state, node.name))
    place = with_both_names(node.config, trouble.place)
    if place.gpu is None and not place.uuid:
        return fence_node(node, trouble.title, (finding,))
    if not known:
        return fence_node(node, f"{trouble.title}; here a GPU cannot be fenced without its node", (finding,))
    if not numbers_at(node.config, place):
        which = place.uuid or f"GPU {place.gpu}"
        return fence_node(node, f"{trouble.title}; {which} is none of the node's GPUs as configured", (finding,))
    return fence_gpu(node, place, trouble.title, (finding,))


def fence_gpu(node: Node, place: Place, reason: str, findings: tuple[Finding, ...] = (), by: str = "") -> Proposal:
    numbers = numbers_at(node.config, place)
    others = len(gpus_of(node.config)) - len({*numbers, *node.shut_gpus})
    rest = f"{others} stay{'' if others > 1 else 's'}" if others else "none stays"
    return Proposal(
        act=HealingAct.FENCE_GPU,
        place=replace(place, rank=None),
        title=f"take {gpu_words(place)} of {node.name} out of service, {rest}",
        reason=reason,
        findings=tuple(each.id for each in findings),
        quotes=tuple(quote for each in findings for quote in each.trouble.quotes),
        undo="the GPU is given to jobs again",
        by=by,
    )


def fence_node(node: Node, reason: str, findings: tuple[Finding, ...] = (), by: str = "") -> Proposal:
    return Proposal(
        act=HealingAct.FENCE_NODE,
        place=Place(node=node.name),
        title=f"drain {node.name}",
        reason=reason,
        findings=tuple(each.id for each in findings),
        quotes=tuple(quote for each in findings for quote in each.trouble.quotes),
        undo=f"the node takes jobs again, as by scontrol update nodename={node.name} state=resume",
        by=by,
    )


def switch_at_fault(state: State, node: str) -> str:
    """Why a node is not fenced by itself where the switch above it is what is wrong; empty: none is."""
    for name, nodes in state.config.topology.leaves.items():
        found = FINDINGS.of(state).get(f"{switches.DETECTOR} {Place(switch=name).key}")
        if node in nodes and found is not None and found.phase is FindingLife.OPEN:
            return f"{found.trouble.title} (finding {found.id})"
    return ""


def why_text(proposal: Proposal) -> str:
    """What is said of it everywhere in a line: `GPU 2 fell off the bus (Xid 79) (finding 7)`."""
    numbers = ", ".join(str(number) for number in proposal.findings)
    found = f" (finding{'s' if len(proposal.findings) > 1 else ''} {numbers})" if numbers else ""
    return f"{proposal.reason}{found}"


def gpu_words(place: Place) -> str:
    return f"GPU {place.gpu}" if place.gpu is not None else place.uuid


def clusters_of(state: State, node: str) -> tuple[str, ...]:
    """The clusters whose partitions have the node; the empty name: this one."""
    return tuple({partition.cluster for partition in state.partitions.values() if node in partition.nodes}) or ("",)
