"""Somebody else's pods in Bireme's words: what they ask for and which nodes they may use. Pure: JSON in, values out.

A guest is a pod with `schedulerName: bireme` that Bireme did not make. `scheduler.py` asks here what to submit for it.
What cannot be promised is named (`unsupported`), and such a pod waits rather than being placed wrongly.
Invariant: a pod never gets a node that its own words exclude.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, product
from math import ceil
from typing import Any

from bireme.core.model.jobs import ResourceRequest
from bireme.core.model.node_rules import NODE_NAME, LabelRule, NodeRules, Preference, Toleration
from bireme.core.model.resources import GresRequest
from bireme.engines.kubernetes.nodes import MIB, MIG_PREFIX, RESOURCE_LABEL, is_gpu, quantity
from bireme.engines.kubernetes.pods import JOB_LABEL, SCHEDULER

Object = Mapping[str, Any]

PLACEMENT = "bireme.dev/placement"
"""Annotation: `spread` or `packed` (the default)."""
PARTITION = "bireme.dev/partition"
TIME_LIMIT = "bireme.dev/time-limit-seconds"
_HOSTNAME = "kubernetes.io/hostname"
_NOWHERE = (LabelRule(NODE_NAME, "In"),)
_SERVICES = ("ReplicaSet", "StatefulSet", "ReplicationController", "DaemonSet")

Alternatives = tuple[tuple[LabelRule, ...], ...]
"""Lists of rules about nodes, of which one holds."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What one pod holds, and where it may be. Pods with equal needs are tasks of one component."""

    cpus: int
    memory_mib: int
    gpus: tuple[tuple[str, int], ...]
    """(resource name, how many)."""
    rules: NodeRules
    most_a_node: int = 0
    """So many pods of its gang on one node at most; 0: as many as fit."""
    spread: bool = False
    exclude: tuple[str, ...] = ()

    def request(self, count: int, gpus_a_node: int = 0) -> ResourceRequest:
        """The request of a job for so many of these pods, as its tasks. `gpus_a_node`: the most that a node has, for
        how many nodes it takes."""
        asked = sum(many for _, many in self.gpus)
        on_a_node = max(1, gpus_a_node // asked) if asked and gpus_a_node else count
        on_a_node = min(on_a_node, self.most_a_node or on_a_node)
        return ResourceRequest(
            nodes_min=ceil(count / on_a_node),
            ntasks=count,
            ntasks_per_node=self.most_a_node if 0 < self.most_a_node < count else None,
            cpus_per_task=self.cpus,
            memory_per_cpu_mib=max(1, ceil(self.memory_mib / self.cpus)),
            gres_per_task=tuple(GresRequest("gpu", mig_profile(name), many) for name, many in self.gpus),
            node_rules=self.rules,
            spread=self.spread,
            exclude=self.exclude,
        )


def is_guest(pod: Object) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return pod.get("spec", {}).get("schedulerName") == SCHEDULER and JOB_LABEL not in labels


def is_service(pod: Object) -> bool:
    """One that is to stay up: made by what replaces it when it is gone, and not by a job."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and owner["kind"] in _SERVICES for owner in owners)


def needs_of(
    pod: Object,
    exclude: Iterable[str] = (),
    tied: Iterable[Alternatives] = (),
    most_a_node: int = 0,
    preferred: tuple[Preference, ...] = (),
    within: tuple[LabelRule, ...] = (),
) -> Needs:
    """CPUs are whole here: half a CPU is one.

    `exclude`: nodes that other pods' places rule out. `tied`: what its volumes ask of the node. `most_a_node`: how many
    like it a node surely holds, by what the planner does not count; 0: any number. `preferred`: where it likes to be.
    `within`: the nodes that are left to it while others are placed.
    """
    spec = pod["spec"]
    asked = requests_of(spec)
    gpus = tuple(sorted((name, int(count)) for name, count in asked.items() if is_gpu(name) and count))
    rules = _rules(spec, gpus, tied)
    return Needs(
        cpus=max(1, ceil(asked.get("cpu", 0))),
        memory_mib=ceil(asked.get("memory", 0) / MIB),
        gpus=gpus,
        rules=replace(rules, all_of=(*rules.all_of, *within), preferred=preferred),
        most_a_node=1 if keeps_apart(pod) else most_a_node,
        spread=asks_for_spread(pod),
        exclude=tuple(sorted(exclude)),
    )


def asks_for_spread(pod: Object) -> bool:
    """For the emptiest node instead of the fullest that holds it."""
    return bool((pod["metadata"].get("annotations") or {}).get(PLACEMENT) == "spread")


def requests_of(spec: Object) -> dict[str, Any]:
    """As the kubelet adds them up: containers and sidecars together, or the largest init container, plus overhead."""
    totals: dict[str, Any] = {}
    for container in spec.get("containers") or ():
        _add(totals, _requests(container))
    sidecars: dict[str, Any] = {}
    peak: dict[str, Any] = {}
    for container in spec.get("initContainers") or ():
        wanted = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, wanted)
            wanted = sidecars
        else:
            wanted = {name: wanted.get(name, 0) + sidecars.get(name, 0) for name in {*wanted, *sidecars}}
        peak = {name: max(peak.get(name, 0), wanted.get(name, 0)) for name in {*peak, *wanted}}
    _add(totals, sidecars)
    totals = {name: max(totals.get(name, 0), peak.get(name, 0)) for name in {*totals, *peak}}
    whole = {name: quantity(count) for name, count in ((spec.get("resources") or {}).get("requests") or {}).items()}
    totals.update(whole)
    _add(totals, {name: quantity(count) for name, count in (spec.get("overhead") or {}).items()})
    return totals


def held_by(pod: Object) -> dict[str, Any]:
    """What a pod that runs holds: what it asks for, or what it still has while a resize in place gives it less."""
    spec, statuses = pod["spec"], (pod.get("status") or {}).get("containerStatuses") or ()
    given = {one["name"]: one.get("allocatedResources") or {} for one in statuses}
    if not any(given.values()):
        return requests_of(spec)
    containers = [_at_least(one, given.get(one.get("name", ""), {})) for one in spec.get("containers") or ()]
    return requests_of({**spec, "containers": containers})


def _at_least(container: Object, given: Mapping[str, Any]) -> Object:
    asked = (container.get("resources") or {}).get("requests") or {}
    most = {name: max((asked.get(name, 0), given.get(name, 0)), key=quantity) for name in {*asked, *given}}
    return {**container, "resources": {"requests": most}}


def mig_profile(resource: str) -> str | None:
    """A MIG resource is a type of GPU in Slurm's words; whole GPUs of any type are asked for by their resource."""
    return resource.removeprefix(MIG_PREFIX) if resource.startswith(MIG_PREFIX) else None


def unsupported(pod: Object) -> tuple[str, ...]:
    """What the pod asks for and nobody here can promise, in Kubernetes' own words."""
    spec = pod["spec"]
    found = []
    if spec.get("resourceClaims"):
        found.append("resourceClaims (dynamic resource allocation)")
    if len({name for name in requests_of(spec) if is_gpu(name)}) > 1:
        found.append("several kinds of GPU in one pod")
    return tuple(sorted(found))


def gates_of(pod: Object) -> tuple[str, ...]:
    return tuple(gate["name"] for gate in pod["spec"].get("schedulingGates") or ())


def _requests(container: Object) -> dict[str, Any]:
    resources = container.get("resources") or {}
    return {name: quantity(count) for name, count in (resources.get("requests") or {}).items()}


def _add(totals: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, count in more.items():
        totals[name] = totals.get(name, 0) + count


def is_counted(resource: str) -> bool:
    """Whether the planner has a column for it."""
    return resource in ("cpu", "memory") or is_gpu(resource)


# --- which nodes --------------------------------------------------------------------------------------------


def own_rules(pod: Object, tied: Iterable[Alternatives] = ()) -> NodeRules:
    """What its own words (and its volumes, `tied`) say of nodes, and nothing that Bireme adds."""
    return _rules(pod["spec"], (), tied)


def _rules(spec: Object, gpus: tuple[tuple[str, int], ...], tied: Iterable[Alternatives]) -> NodeRules:
    chosen = [LabelRule(key, "In", (value,)) for key, value in sorted((spec.get("nodeSelector") or {}).items())]
    chosen += [LabelRule(RESOURCE_LABEL, "In", (name,)) for name, _ in gpus if mig_profile(name) is None]
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = tuple(term_rules(term) or _NOWHERE for term in required.get("nodeSelectorTerms") or ())
    every = [*([terms] if terms else []), *tied]
    together = tuple(tuple(chain.from_iterable(each)) for each in product(*every)) if every else ()
    return NodeRules(tuple(chosen), together, tuple(_toleration(one) for one in spec.get("tolerations") or ()))


def term_rules(term: Object) -> tuple[LabelRule, ...]:
    """Of one node selector term; none: it asks nothing, and in Kubernetes such a term selects no node."""
    labels = [
        LabelRule(one["key"], one["operator"], tuple(one.get("values") or ()))
        for one in term.get("matchExpressions") or ()
    ]
    fields = [
        LabelRule(NODE_NAME, one["operator"], tuple(one.get("values") or ())) for one in term.get("matchFields") or ()
    ]
    return (*labels, *fields)


def _toleration(one: Object) -> Toleration:
    return Toleration(
        one.get("key") or "", one.get("operator") or "Equal", one.get("value") or "", one.get("effect") or ""
    )


def keeps_apart(pod: Object) -> bool:
    """The usual way to say "one per node": anti-affinity to pods like itself, by host name."""
    labels = pod["metadata"].get("labels") or {}
    return any(
        term.get("topologyKey") == _HOSTNAME and selects(term.get("labelSelector"), labels)
        for term in anti_affinity(pod)
    )


def anti_affinity(pod: Object) -> tuple[Object, ...]:
    return _pod_terms(pod, "podAntiAffinity")


def affinity(pod: Object) -> tuple[Object, ...]:
    return _pod_terms(pod, "podAffinity")


def _pod_terms(pod: Object, kind: str) -> tuple[Object, ...]:
    found = ((pod["spec"].get("affinity") or {}).get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    return tuple(found or ())


def selects(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Kubernetes' label selector: None selects nothing, an empty one everything."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(
        LabelRule(one["key"], one["operator"], tuple(one.get("values") or ())).holds(labels)
        for one in selector.get("matchExpressions") or ()
    )
