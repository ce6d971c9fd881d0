"""One sentence for each reason of a service; those of jobs are worded by `core/explain`."""

from __future__ import annotations

from collections.abc import Mapping

from bireme.core.explain.wording import sentence
from bireme.core.model.serving.reasons import ServiceReason, ServiceReasonKind

K = ServiceReasonKind
TEMPLATES: dict[ServiceReasonKind, str] = {
    K.STOPPING: "It is being stopped; {counted} not gone yet.",
    K.ZERO: "It sleeps, and the next request wakes it: {why}.",
    K.PAUSED: "It takes no requests: {why}; `bireme service scale {name} 1` starts it again (auto: as its load needs).",
    K.ORDERED: "Replica {replica} is asked of the cluster's own queue, which has not answered yet.",
    K.WAITING: "Replica {replica} (job {job}) waits: {reasons}",
    K.STARTING: "Replica {replica} (job {job}) is being started.",
    K.LOADING: "Replica {replica} (job {job}) runs and is not ready yet; it has {limit_s:g} s to start{said}.",
    K.UNREADY: "Replica {replica} (job {job}) does not take requests{said}.",
    K.STOPPED: "Replica {replica} (job {job}) is suspended; `scontrol resume {job}` lets it go on.",
    K.ENDING: "Replica {replica} (job {job}) is being ended{said}.",
    K.DRAINING: "Replica {replica} (job {job}) finishes its requests and goes{said}.",
    K.WITHDRAWING: "Replica {replica} (job {job}) is to go, and stays until the router knows of it{said}.",
    K.UNWRITTEN: "Replica {replica} (job {job}) {why}, and the journal cannot be written: none takes its place yet.",
    K.BACKED_OFF: "Of revision {revision}, {counted} held back for a while: {why}.",
    K.ROLLING: "Revision {revision} is taking the place of revision {of}.",
    K.CANARY: "Revision {revision} has {percent}% of the requests, until it is promoted or rolled back.",
    K.NO_ROOM: "There is no room for a replica more, so revision {revision} is rolled out one by one.",
    K.LATE: "Revision {revision} did not get ready in {limit_s:g} s, and there is no earlier one to go back to.",
    K.GIVEN_UP: "Revision {revision} was given up: {why}.",
}


def service_sentence(reason: ServiceReason) -> str:
    facts: dict[str, str | int | float] = {name: _within(fact) for name, fact in reason.facts}
    said = f": {facts['why']}" if "why" in facts else ""
    reasons = " ".join(sentence(each) for each in reason.waits_for) or "nobody has looked at it yet."
    return TEMPLATES[reason.kind].format(**facts, said=said, reasons=reasons, counted=_counted(facts))


def _counted(facts: Mapping[str, str | int | float]) -> str:
    """`2 replicas are`, of a reason that is about some number of them."""
    count = facts.get("replicas", facts.get("held", 0))
    return "1 replica is" if count == 1 else f"{count or 'no'} replicas are"


def _within(fact: str | int | float) -> str | int | float:
    """What is a sentence of its own has no dot within another."""
    return fact.rstrip(".") if isinstance(fact, str) else fact
