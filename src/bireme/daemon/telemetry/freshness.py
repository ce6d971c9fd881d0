"""How old the newest round of each machine is, and which of them have fallen silent. Pure; asked by `station`.

That a gatherer's process lives says nothing: it may hang, or have been stopped. What it told last does.
Invariant: a machine is called late only where somebody expects rounds of it: it gathers by the daemon's own doing, or
told of itself before, and the cluster still has it and says that it is up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from bireme.core.model.nodes import Health, Node
from bireme.daemon.telemetry.intake import Gatherer
from bireme.ports import NewestRound

LATE_INTERVALS, LATE_LEAST_S = 5, 30.0
"""Figures that are older are not shown as those of now (`store/series/latest`): it is said at the same time."""


def patience_s(interval_s: float) -> float:
    """How long a machine that tells nothing new is not called late."""
    return max(LATE_INTERVALS * interval_s, LATE_LEAST_S)


@dataclass(frozen=True, slots=True)
class Expected:
    """The machines from which this daemon expects rounds of samples since it began, whether or not one came."""

    since: float
    own: str = ""
    """What the machine of the daemon's own gatherer is called; empty: there is none."""
    others: Collection[str] = ()
    """Nodes that told of themselves before."""


def newest_rounds(
    gatherers: Iterable[Gatherer], expected: Expected, nodes: Mapping[str, Node], interval_s: float, now: float
) -> list[NewestRound]:
    """Of every machine that told, or is expected to; the oldest first."""
    latest = _latest(gatherers)
    own = latest.pop("", None)
    patient_s = patience_s(interval_s)

    def judged(name: str, known: Gatherer | None) -> NewestRound:
        heard_at, told_at = (known.heard_at, known.told_at) if known is not None else (expected.since, None)
        is_down = name in nodes and nodes[name].health is not Health.UP  # and that is said of it already
        is_late = now - heard_at > patient_s and not is_down
        return NewestRound(name, told_at, is_late, known.release if known is not None else "")

    found = [judged(name, latest.get(name)) for name in {*latest, *expected.others} if name in nodes]
    if own is not None or expected.own:
        found.append(judged(own.machine if own is not None else expected.own, own))
    return sorted(found, key=lambda one: (one.at or 0.0, one.node))


def _latest(gatherers: Iterable[Gatherer]) -> dict[str, Gatherer]:
    """By machine, the gatherer that was heard last; of this machine, which may have had several names, under none."""
    found: dict[str, Gatherer] = {}
    for each in gatherers:
        name = each.machine if each.is_remote else ""
        if each.heard_at and (name not in found or found[name].heard_at < each.heard_at):
            found[name] = each
    return found
