"""The priority classes of jobs' own pods: without one any pod of kube-scheduler that has a class may evict them.

Looked at once, when the engine starts. The usual class is made if it is missing and that is allowed (deploy/kubernetes
has it too); others are the operator's, and must be there. What a class is worth to Bireme's own queue is another matter
(`guests/catalogue`).
Invariant: pods name only classes that were there, since Kubernetes refuses those that name others.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from bireme.engines.kubernetes.apiserver.api import ApiProblem, KubernetesApi, Object
from bireme.engines.kubernetes.pods import PodRules
from bireme.ports import EngineUnavailable

log = logging.getLogger("bireme.engines.kubernetes")

USUAL = "bireme-jobs"
PATH = "/apis/scheduling.k8s.io/v1/priorityclasses"
_VALUE = 1_000_000
"""Above what people give their services, far below what Kubernetes gives its own parts."""


def usual_class() -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": USUAL},
        "value": _VALUE,
        "preemptionPolicy": "Never",
        "description": "Pods of Bireme's jobs. Bireme decides which of them makes way, kube-scheduler does not.",
    }


async def settle_priority_classes(api: KubernetesApi, rules: PodRules) -> tuple[PodRules, str]:
    """The rules with classes that exist, and what is wrong with that, if something is. Raises EngineUnavailable."""
    wanted = {rules.priority_class, *rules.qos_priority_classes.values()} - {""}
    if not wanted:
        return rules, ""
    try:
        found, _ = await api.list(PATH)
    except ApiProblem as problem:
        return _without(rules, str(problem))
    absent = sorted(wanted - {one["metadata"]["name"] for one in found})
    for name in absent:
        if name != USUAL:
            raise EngineUnavailable(
                f"kubernetes.priority_classes: the cluster has no PriorityClass {name}; make it with "
                f"kubectl create priorityclass {name} --value={_VALUE} --preemption-policy=Never"
            )
    if USUAL in absent:
        try:
            await api.ask("POST", PATH, usual_class())
        except ApiProblem as problem:
            if problem.status != 409:
                return _without(rules, str(problem))
    return rules, ""


def _without(rules: PodRules, why: str) -> tuple[PodRules, str]:
    said = (
        f"pods of jobs have no priority class, and kube-scheduler may evict them for others: {why}; "
        "kubectl apply -f deploy/kubernetes/priority.yaml makes it, and the next start of the daemon uses it"
    )
    log.warning("%s", said)
    return replace(rules, priority_class="", qos_priority_classes={}), said
