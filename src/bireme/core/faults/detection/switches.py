"""A switch that takes its nodes' links with it: one finding of the switch, when most nodes under it have lost theirs.

A link has no place of its own, for nobody schedules by links: the smallest thing that a lost one takes with it is its
node. Several at once under one leaf switch (or in one block) have one cause, and it is not the nodes. Judged from the
findings that stand; delay: theirs, and one look. Pure.
Invariant: fewer than `FEWEST` nodes, and fewer than half of those under it, say nothing of a switch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bireme.core.faults.detection.thresholds import Thresholds
from bireme.core.model import observations as o
from bireme.core.model.cluster import Topology
from bireme.core.model.finding.findings import Finding, Gravity, Place, Trouble

DETECTOR = "switch"
FEWEST = 3
_OF_LINKS = ("nic", "nic.flaps")
_MOST_QUOTES = 8


def judge(
    topology: Topology, findings: Iterable[Finding], thresholds: Thresholds, now: float
) -> Iterator[o.Observation]:
    if not thresholds.on("nic"):
        return
    lost: dict[str, Finding] = {}
    known = set[str]()
    for each in findings:
        if each.trouble.detector in _OF_LINKS:
            lost.setdefault(each.trouble.place.node, each)
        elif each.trouble.detector == DETECTOR:
            known.add(each.trouble.place.switch)
    if not lost and not known:
        return
    for name, nodes in topology.leaves.items():
        mine = [lost[node] for node in nodes if node in lost]
        if len(mine) >= FEWEST and 2 * len(mine) >= len(nodes):
            yield o.TroubleSeen(_trouble(name, mine, len(nodes)), now)
        elif name in known:
            why = "most nodes under it have their links"
            yield o.TroubleGone(detector=DETECTOR, place=Place(switch=name), at=now, why=why)


def _trouble(name: str, mine: list[Finding], nodes: int) -> Trouble:
    quotes = [quote for each in mine for quote in each.trouble.quotes[:1]]
    return Trouble(
        detector=DETECTOR,
        place=Place(switch=name),
        gravity=Gravity.BROKEN,
        cause="switch_fault",
        title=f"{len(mine)} of {nodes} nodes under {name} have lost their link: it is the switch, not they",
        since=min(each.trouble.since for each in mine),
        quotes=tuple(quotes[:_MOST_QUOTES]),
        remedy="Look at the switch and its uplink. Its nodes are fenced together, or not at all: that is for people.",
        lasts=False,
    )
