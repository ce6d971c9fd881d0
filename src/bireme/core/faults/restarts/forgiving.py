"""Nodes that a restart keeps its job away from, until they are well again: then it may have them, too.

A verdict excludes the node that its evidence names. When that one is back (its fence is lifted, what was found there is
mended, an operator resumes it, it answers after it was lost) nothing speaks against it any more, and a gang that needs
nearly all nodes would else wait for ever for what stands idle. Called by `kind`.
Invariant: what the owner excluded stays excluded: a start never ran there, so no verdict names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bireme.core.faults.fences.shelves import FENCES
from bireme.core.faults.findings.shelves import FINDINGS
from bireme.core.faults.restarts.shelves import FORGIVEN, KEPT_FROM
from bireme.core.model import events as e
from bireme.core.model.finding.findings import Gravity
from bireme.core.model.healing.restarts import JobsAway, NodesBack
from bireme.core.model.jobs import Pending, Running, Starting, Suspended
from bireme.core.state.state import State

_LOST = "node_lost"
_ABOUT_JOB = "job "


def ending(state: State, event: e.JobEnding) -> None:
    """It comes back without some nodes, or it is over."""
    if event.verdict is None or not event.verdict.without:
        return
    for node in event.verdict.without:
        known = KEPT_FROM.of(state).get(node, JobsAway())
        KEPT_FROM.put(state, node, JobsAway(tuple(sorted({*known.jobs, event.job_id}))))


def registered(state: State, event: e.NodeRegistered, at: float) -> None:
    """A daemon that comes back hears this of all nodes: only who was lost is well for it."""
    if event.node in KEPT_FROM.of(state):
        _forgive(state, event.node, only_lost=True)


def updated(state: State, event: e.NodeUpdated, at: float) -> None:
    if event.drained is False or event.health == "back":
        _well_again(state, event.node)


def lifted(state: State, event: e.FenceLifted, at: float) -> None:
    _well_again(state, event.key.partition(":")[0])


def closed(state: State, key: str) -> None:
    """`key`: of a finding, which is its detector and its place."""
    place = key.partition(" ")[2]
    if not place.startswith(_ABOUT_JOB):
        _well_again(state, place.partition(":")[0])


def changed(state: State, job_id: int) -> None:
    """The job is another now, or is no more: it may have what it does not exclude. One that is over may be queued
    again, by people, with all that it excludes."""
    job = state.jobs.get(job_id)
    excluded = job.spec.resources.exclude if job is not None else ()
    if job_id in FORGIVEN.of(state):
        still = tuple(each for each in FORGIVEN.of(state)[job_id].nodes if each in excluded)
        if still:
            FORGIVEN.put(state, job_id, NodesBack(still))
        else:
            FORGIVEN.drop(state, job_id)
    for node, away in tuple(KEPT_FROM.of(state).items()):
        if job_id in away.jobs and node not in excluded:
            left = tuple(each for each in away.jobs if each != job_id)
            if left:
                KEPT_FROM.put(state, node, JobsAway(left))
            else:
                KEPT_FROM.drop(state, node)


def decided(state: State) -> Iterator[e.Event]:
    for job_id, back in tuple(FORGIVEN.of(state).items()):
        job = state.jobs.get(job_id)
        if job is None or not isinstance(job.phase, Pending | Starting | Running | Suspended):
            continue  # it is ending: when it waits again
        asked = job.spec.resources
        exclude = tuple(each for each in asked.exclude if each not in back.nodes)
        yield e.JobUpdated(job_id, job.spec.revised(resources=replace(asked, exclude=exclude)), job.priority)


def _well_again(state: State, node: str) -> None:
    if node not in KEPT_FROM.of(state) or any(each.place.node == node for each in FENCES.of(state).values()):
        return
    standing = (each.trouble for each in FINDINGS.of(state).values() if each.trouble.place.node == node)
    if not any(trouble.gravity is Gravity.BROKEN for trouble in standing):
        _forgive(state, node)


def _forgive(state: State, node: str, *, only_lost: bool = False) -> None:
    for job_id in KEPT_FROM.of(state)[node].jobs:
        job = state.jobs.get(job_id)
        was_lost = job is not None and any(each.cause == _LOST and node in each.nodes for each in job.tries)
        if job is not None and (was_lost or not only_lost):
            known = FORGIVEN.of(state).get(job_id, NodesBack())
            FORGIVEN.put(state, job_id, NodesBack(tuple(sorted({*known.nodes, node}))))
