"""A node whose jobs fail more often than those of its peers: a lemon, found by how jobs ended and nothing else.

Users differ far more than nodes do, so each user's jobs are compared with that user's jobs elsewhere: if nodes were
alike, which of a user's ends failed would be a draw without return (hypergeometric), and the draws of several users add
up. The chance that a node has as many failures as it has, or more, is exact also of few samples. It has to be below one
in `lemon_one_in` for all nodes together (Bonferroni). A user who fails again and again in the same job counts once an
hour on a node; failures of at least three users are asked for. Delay: as many ends as that takes. Pure.

Invariant: a user all of whose jobs fail, or who was on one node only, says nothing about any node.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bireme.core.faults.detection.thresholds import Thresholds
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Gravity, Place, Quote, Trouble

DETECTOR = "lemon"
FAILED = frozenset({"FAILED", "NODE_FAIL", "LAUNCH_FAILED", "BOOT_FAIL"})
COUNTED = FAILED | {"COMPLETED"}
"""States that say something; a job that was cancelled, preempted or out of time or memory does not."""
WIDEST = 8
"""Nodes of a job that counts: of a wide one nobody knows which of them it was."""
_ONCE_IN_S = 3_600.0
_FEWEST_USERS = 3


@dataclass(frozen=True, slots=True)
class End:
    """Starts of a user's jobs that ended alike on the same nodes: one, or those that `joined` made one of."""

    at: float
    """Of the first of them."""
    user: str
    name: str
    """Of a job that failed; of what went well the name says nothing."""
    nodes: tuple[str, ...]
    failed: bool
    times: int = 1


@dataclass(frozen=True, slots=True)
class Suspect:
    """A node, and how unlikely it is that it is as good as the others."""

    node: str
    ends: int
    failed: int
    expected: float
    chance: float
    users: int
    """So many had failures there."""


def suspects(ends: Iterable[End], thresholds: Thresholds) -> list[Suspect]:
    """Nodes that are worse than chance allows, the least likely first."""
    draws: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
    for here in _by_user(joined(ends)).values():
        total, failed = sum(all_ for all_, _ in here.values()), sum(bad for _, bad in here.values())
        for node, (all_, bad) in here.items():
            draws[node].append((total, failed, all_, bad))
    found = [_suspect(node, rows) for node, rows in draws.items() if _may_be(rows)]
    limit = 1.0 / (max(1, len(draws)) * thresholds.lemon_one_in)
    return sorted((each for each in found if each.chance < limit), key=lambda each: each.chance)


def joined(ends: Iterable[End]) -> list[End]:
    """The same for `suspects` in few: a hundred thousand short jobs of one user on one node are some hundred values.

    A failure that repeats another of the same job on the same nodes within an hour says nothing new; what went well is
    counted by the hour.
    """
    kept: list[End] = []
    latest: dict[tuple[str, str, tuple[str, ...]], float] = {}
    well: dict[tuple[str, tuple[str, ...]], int] = {}
    for end in sorted(ends, key=lambda each: each.at):
        if end.failed:
            key = end.user, end.name, end.nodes
            if end.at - latest.get(key, -math.inf) >= _ONCE_IN_S:
                latest[key] = end.at
                kept.append(end)
            continue
        place = well.get((end.user, end.nodes))
        if place is not None and end.at - kept[place].at < _ONCE_IN_S:
            kept[place] = replace(kept[place], times=kept[place].times + end.times)
        else:
            well[end.user, end.nodes] = len(kept)
            kept.append(replace(end, name=""))
    return kept


def _by_user(ends: Iterable[End]) -> dict[str, dict[str, tuple[int, int]]]:
    """By user and node: how many ended there, and how many of these failed."""
    counted: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for end in ends:
        here = counted[end.user]
        for node in end.nodes:
            all_, bad = here.get(node, (0, 0))
            here[node] = all_ + end.times, bad + end.times * end.failed
    return counted


def _may_be(rows: Sequence[tuple[int, int, int, int]]) -> bool:
    telling = [here_failed for total, failed, here, here_failed in rows if 0 < failed < total and here < total]
    return sum(1 for each in telling if each) >= _FEWEST_USERS


def _suspect(node: str, rows: Sequence[tuple[int, int, int, int]]) -> Suspect:
    """Adds the users' draws up: the distribution of a sum is the convolution of theirs."""
    spread = [1.0]
    for total, failed, here, _ in rows:
        own = _draw(total, failed, here)
        longer = [0.0] * (len(spread) + len(own) - 1)
        for place, chance in enumerate(spread):
            if chance > 0.0:
                for more, likely in enumerate(own):
                    longer[place + more] += chance * likely
        spread = longer
    seen = sum(row[3] for row in rows)
    return Suspect(
        node,
        sum(row[2] for row in rows),
        seen,
        sum(here * failed / total for total, failed, here, _ in rows),
        min(1.0, math.fsum(spread[seen:])),
        sum(1 for row in rows if row[3]),
    )


def _draw(total: int, failed: int, here: int) -> list[float]:
    """The chance of each number of failures among `here` of `total` ends of which `failed` are such."""

    def ways(of: int, choose: int) -> float:
        if not 0 <= choose <= of:
            return -math.inf
        return math.lgamma(of + 1) - math.lgamma(choose + 1) - math.lgamma(of - choose + 1)

    all_ways = ways(total, here)
    return [
        math.exp(ways(failed, bad) + ways(total - failed, here - bad) - all_ways)
        for bad in range(min(failed, here) + 1)
    ]


def judge(ends: Sequence[End], standing: Iterable[str], thresholds: Thresholds, now: float) -> list[o.Observation]:
    """`standing`: nodes that are taken for lemons now."""
    if not thresholds.on(DETECTOR):
        return []
    found = {each.node: each for each in suspects(ends, thresholds)}
    begun: Mapping[str, float] = {node: min(e.at for e in ends if e.failed and node in e.nodes) for node in found}
    seen: list[o.Observation] = [o.TroubleSeen(_trouble(each, begun[node], now), now) for node, each in found.items()]
    gone = [node for node in standing if node not in found]
    why = "its jobs fail no more often than others' of late"
    return seen + [o.TroubleGone(detector=DETECTOR, place=Place(node=node), at=now, why=why) for node in gone]


def _trouble(suspect: Suspect, since: float, now: float) -> Trouble:
    told = (
        f"{suspect.failed} of {suspect.ends} jobs that ended there failed, of {suspect.users} users; as on other nodes "
        f"it would be {suspect.expected:.1f}; chance {suspect.chance:.1g}"
    )
    return Trouble(
        detector=DETECTOR,
        place=Place(node=suspect.node),
        gravity=Gravity.DEGRADED,
        cause="lemon_node",
        title=f"Jobs fail on it more often than the same users' jobs elsewhere ({suspect.failed} of {suspect.ends})",
        since=since,
        quotes=(Quote(text=told, source="record", at=now, node=suspect.node),),
        remedy="Look at what these jobs died of (bireme diagnose), drain the node, and burn it in before use.",
        lasts=False,
    )
