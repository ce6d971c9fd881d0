"""One sentence for each reason of a service; those of jobs are worded by `core/explain`."""

from __future__ import annotations

from bireme.core.explain.wording import sentence
from bireme.core.model.serving.reasons import ServiceReason, ServiceReasonKind

K = ServiceReasonKind
TEMPLATES: dict[ServiceReasonKind, str] = {
    K.STOPPING: "It is being stopped; {replicas} replica(s) are not gone yet.",
    K.ZERO: "No replica is wanted now: {why}.",
    K.ORDERED: "Replica {replica} is asked of the cluster's own queue, which has not answered yet.",
    K.WAITING: "Replica {replica} (job {job}) waits: {reasons}",
    K.STARTING: "Replica {replica} (job {job}) is being started.",
    K.LOADING: "Replica {replica} (job {job}) runs and is not ready yet; it has {limit_s:g} s to start{said}.",
    K.UNREADY: "Replica {replica} (job {job}) does not take requests{said}.",
    K.STOPPED: "Replica {replica} (job {job}) is suspended.",
    K.ENDING: "Replica {replica} (job {job}) is being ended{said}.",
    K.DRAINING: "Replica {replica} (job {job}) finishes its requests and goes{said}.",
    K.BACKED_OFF: "{held} replica(s) of revision {revision} are held back for a while: {why}.",
    K.ROLLING: "Revision {revision} is taking the place of revision {of}.",
    K.CANARY: "Revision {revision} has {percent}% of the requests, until it is promoted or rolled back.",
    K.NO_ROOM: "There is no room for a replica more, so revision {revision} is rolled out one by one.",
    K.LATE: "Revision {revision} did not get ready in {limit_s:g} s, and there is no earlier one to go back to.",
    K.GIVEN_UP: "Revision {revision} was given up: {why}.",
}


def service_sentence(reason: ServiceReason) -> str:
    facts = dict(reason.facts)
    said = f": {facts['why']}" if "why" in facts else ""
    reasons = " ".join(sentence(each) for each in reason.waits_for) or "nobody has looked at it yet."
    return TEMPLATES[reason.kind].format(**facts, said=said, reasons=reasons)
