"""Whether who waits for a service may stop waiting: a revision of it is ready, or does not get there by itself.

`bireme serve --wait`, the SDK's `wait_ready` and `/v1/services/NAME/wait` ask here. Not: what is done about it
(`reconciling`): a first revision that crashes is tried again for ever, as there is none to go back to; only who waits
is told. Invariant: who waits for room is not told that it failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bireme.core.model.serving.probes import PORT_TAKEN
from bireme.core.model.serving.services import ROLLED_BACK, BackOff, Revision, RevisionLife, Service
from bireme.core.services.amounts import canary_share
from bireme.core.services.reconciling import is_late
from bireme.core.services.standing import Seen

_PORTS_TRIED = 3


@dataclass(frozen=True, slots=True)
class Awaited:
    """`reached`: it has what it wants. `failure`: why it will not have it soon, in a sentence's middle; else empty."""

    reached: bool
    failure: str = ""


def awaited(service: Service, number: int, seen: Sequence[Seen], now: float, watched_since: float = 0.0) -> Awaited:
    """How it stands with a revision that somebody waits for. Where another takes its place, or somebody rolled it back,
    it is that other that is waited for."""
    revision = service.revisions.get(number) or service.target
    if revision.phase is RevisionLife.FAILED and not revision.why.endswith(ROLLED_BACK):
        return Awaited(False, f"revision {revision.number} was given up: {revision.why}")
    if not _is_new(revision):
        revision = service.target
    if _has_all(service, revision, seen):
        return Awaited(True)
    return Awaited(False, _failure(service, revision, seen, now, watched_since))


def _has_all(service: Service, revision: Revision, seen: Sequence[Seen]) -> bool:
    if revision.phase is RevisionLife.ROLLING and service.wanted:
        return False
    ready = [each for each in seen if each.ready]
    if revision.phase is RevisionLife.CANARY:
        part = canary_share(revision.spec.updating.canary_percent or 0, service.wanted)
        if sum(each.replica.revision == revision.number for each in ready) < part:
            return False
    return len(ready) >= service.wanted


def _failure(service: Service, revision: Revision, seen: Sequence[Seen], now: float, watched_since: float) -> str:
    back_off = revision.backed_off
    if back_off is not None and now < back_off.until and not _may_be_luck(back_off):
        return f"revision {revision.number} does not get ready: {back_off.why}"
    if back_off is not None and back_off.since >= revision.progressed_at + _startup_s(revision) and _is_new(revision):
        return f"revision {revision.number} does not get ready: {back_off.why}"
    if _is_new(revision) and is_late(service, revision, seen, now, watched_since):
        limit_s = revision.spec.updating.ready_within_s
        return f"revision {revision.number} did not get ready in {limit_s:g} s"
    return ""


def _may_be_luck(back_off: BackOff) -> bool:
    """A port that another program has says nothing of the revision, and the next replica gets another port; so many of
    them one after the other are no luck any more."""
    return PORT_TAKEN in back_off.why and back_off.level < _PORTS_TRIED


def _is_new(revision: Revision) -> bool:
    return revision.phase in (RevisionLife.ROLLING, RevisionLife.CANARY)


def _startup_s(revision: Revision) -> float:
    """Who crashed after so long had all its time: it was given up by its start-up probe."""
    startup = revision.spec.probes.startup
    return startup.period_s * startup.failure_threshold
