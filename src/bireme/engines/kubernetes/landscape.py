"""What the cluster looks like, told as observations: its nodes, whether jobs may go there, and what others run on them.

The engine owns it and feeds it with every change of a node and of a pod that is not of its own jobs. Changes are
gathered for a moment and told together. What the words of nodes mean is in `nodes`, what pods hold in `others`.
Invariant: a node that left and came back is told as new, with everything that is known of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from bireme.core.model import observations as o
from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig, PrioritySettings, Settings
from bireme.core.model.node_rules import NodeRules
from bireme.core.model.policy import Policy, Preemption
from bireme.engines.kubernetes import nodes
from bireme.engines.kubernetes.apiserver.api import KubernetesApi, Object
from bireme.engines.kubernetes.apiserver.mirror import Mirror, key_of
from bireme.engines.kubernetes.guests.neighbours import Ground
from bireme.engines.kubernetes.others import Others
from bireme.slurm.conf.partitions import EVERY_NODE

_PODS_A_KUBELET = 110
"""Kubernetes' own default."""
_SETTLE_S = 0.2
"""Changes are gathered for so long: a cluster that comes up says many things at once."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the landscape asks of the engine."""

    report: Callable[[Sequence[o.Observation]], object]
    configured: Callable[[ClusterConfig], None]
    """Told of a cluster that is another than before, before it is reported."""
    held_on: Callable[[str], tuple[tuple[int, int], ...]]
    """Starts of which something is on this node."""
    ended_on: Callable[[str], tuple[tuple[int, int], ...]]
    """Starts whose script is known to have ended there."""
    now: Callable[[], float]
    later: Callable[[float, Callable[[], object]], object]


class Landscape:
    def __init__(
        self,
        api: KubernetesApi,
        base: ClusterConfig,
        around: Surroundings,
        *,
        tolerated: Set[str] = frozenset(),
        topology_keys: tuple[str, ...] = (),
        partition_selectors: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """`base`: settings and partitions of slurm.conf, if there is one."""
        self.mirror = Mirror(api, "/api/v1/nodes", self._node_changed)
        """Of the nodes; the engine runs it."""
        self._base, self._around = base, around
        self._tolerated, self._topology_keys = tolerated, topology_keys
        self._selectors = partition_selectors or ({} if base.partitions else {"main": {}})
        self._config: ClusterConfig | None = None
        self._others = Others()
        self._ground: Ground | None = None
        self._faces: dict[str, Object] = {}
        """Of every node, all that matters here."""
        self._described = False
        """Whether the cluster was told since the last change of a node."""
        self._told: dict[str, nodes.Readiness] = {}
        self._crowded: set[str] = set()
        """Nodes where what pods of others hold may have changed since it was told."""
        self._label_keys: set[str] = set()
        self._settling = False
        self._open = False

    def open(self) -> None:
        """All nodes and pods are known: from now on changes are told."""
        self._open = True
        self._tell()

    def tell_again(self) -> None:
        """Every node that is there answers once more."""
        self._told.clear()
        self._described = False
        self._tell()

    def _node_changed(self, kind: str, node: Object) -> None:
        """Kubelets say every few seconds that they live; only what matters here makes anybody look again."""
        name = node["metadata"]["name"]
        face = nodes.face(node) if kind != "DELETED" else None
        if face == self._faces.get(name):
            return
        if face is None:
            del self._faces[name]
        else:
            self._faces[name] = face
        self._described, self._ground = False, None
        self._settle()

    def other_pod_changed(self, kind: str, pod: Object, *, held: nodes.Amounts | None) -> None:
        """A pod that is not of the engine's jobs. `held`: what a job of guests holds for it."""
        changed = self._others.pod_changed(kind, pod, held)
        if changed is not None:
            self._crowded.add(changed.node)
            self._described = self._described and not changed.comes_with_node
            self._settle()

    def is_lost(self, node: str) -> bool:
        """Whether a node's kubelet does not answer, or there is no such node: nobody there would end a pod."""
        told = self._told.get(node)
        return told is None or not told.up

    def offered(self, node: str) -> nodes.Amounts:
        """What its kubelet has to give; nothing of a node that is not there."""
        return nodes.amounts(self._allocatable(node), round_up=False)

    def _allocatable(self, node: str) -> Object:
        return self.mirror.objects.get(node, {}).get("status", {}).get("allocatable") or {}

    def takes(self, node: str, rules: NodeRules) -> bool:
        """Whether its kubelet answers, nobody has cordoned it, and a pod with these rules may be there."""
        found = self.mirror.objects.get(node)
        if found is None or self.is_lost(node) or found.get("spec", {}).get("unschedulable"):
            return False
        return rules.admit(node, found["metadata"].get("labels") or {}, nodes.taints(found))

    def ground(self) -> Ground:
        """The nodes as pods see them that have other pods in mind."""
        if self._ground is None:
            known = self.mirror.objects
            self._ground = Ground(
                {name: node["metadata"].get("labels") or {} for name, node in known.items()},
                {name: self._allocatable(name) for name in known},
                {name for name, node in known.items() if nodes.is_shunned(node, self._tolerated)},
            )
        return self._ground

    def pods_most(self, node: str) -> int:
        """How many pods its kubelet takes at once."""
        offered = self._allocatable(node)
        return int(nodes.quantity(offered.get("pods", _PODS_A_KUBELET)))

    def learn_labels(self, keys: Set[str]) -> None:
        """The nodes are described anew before a pod is submitted whose rules ask about more of their labels."""
        if not keys <= self._label_keys:
            self._label_keys |= keys
            self._described = False
            if self._open:
                self._tell()

    def _settle(self) -> None:
        if self._open and not self._settling:
            self._settling = True
            self._around.later(_SETTLE_S, self._tell)

    def _tell(self) -> None:
        """The cluster, if it is another than before; then every node whose readiness or use by others changed."""
        self._settling = False
        seen: list[o.Observation] = []
        if not self._described:
            self._described = True
            found = sorted(self.mirror.objects.values(), key=key_of)
            seen.extend(self._cluster_seen(found))
            for node in found:
                seen.extend(self._readiness(node, nodes.readiness(node, self._tolerated)))
        seen.extend(self._others_seen())
        self._around.report(seen)

    def _cluster_seen(self, found: list[Object]) -> list[o.Observation]:
        config = self._cluster_of(found)
        if config == self._config:
            return []
        before = {node.name for node in self._config.nodes} if self._config is not None else set()
        now = {node.name for node in config.nodes}
        self._crowded |= now - before
        for gone in before - now:
            self._told.pop(gone, None)
        self._config = config
        self._around.configured(config)
        return [o.ClusterSeen(config, self._around.now())]

    def _others_seen(self) -> list[o.Observation]:
        crowded, self._crowded = sorted(self._crowded), set()
        there = [self.mirror.objects[name] for name in crowded if name in self.mirror.objects]
        shares = [self._others.share(each["metadata"]["name"], each["metadata"].get("labels") or {}) for each in there]
        return [o.OthersSeen(share, self._around.now()) for share in shares]

    def _readiness(self, node: Object, now: nodes.Readiness) -> list[o.Observation]:
        name = node["metadata"]["name"]
        before = self._told.get(name)
        if now == before:
            return []
        self._told[name] = now
        at = self._around.now()
        if not now.up:
            return [o.NodeSilent(name, now.why_down, at)]
        version = node.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", "")
        said: list[o.Observation] = []
        if before is None or not before.up:
            said.append(o.NodeAnswered(name, version, self._around.held_on(name), at, self._around.ended_on(name)))
        said.append(o.NodeClosed(name, now.closed, at))
        return said

    # --- the cluster as a configuration --------------------------------------------------------------------

    def _cluster_of(self, found: list[Object]) -> ClusterConfig:
        made = tuple(self._node_config(node) for node in found)
        return replace(
            self._base,
            nodes=made,
            settings=self._base.settings if self._base.source else _usual_settings(made, self._base.settings),
            partitions=self._partitions(found),
            topology=nodes.topology(found, self._topology_keys),
        )

    def _node_config(self, node: Object) -> NodeConfig:
        reserved = self._others.reserved(node["metadata"]["name"])
        return nodes.node_config(node, self._label_keys, reserved, self._tolerated)

    def _partitions(self, found: list[Object]) -> tuple[PartitionConfig, ...]:
        """Those of slurm.conf, else one per selector, else one with everything.

        A partition of slurm.conf has the nodes it names that exist, and those that a selector of its name finds.
        """
        names = {node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in found}
        wanted = self._base.partitions or tuple(
            PartitionConfig(name=name, nodes=(), default=position == 0) for position, name in enumerate(self._selectors)
        )
        return tuple(
            replace(partition, nodes=tuple(name for name in names if self._has(partition, name, names[name])))
            for partition in wanted
        )

    def _has(self, partition: PartitionConfig, node: str, labels: Mapping[str, str]) -> bool:
        selector = self._selectors.get(partition.name)
        selected = selector is not None and selector.items() <= labels.items()
        return selected or node in partition.nodes or EVERY_NODE in partition.nodes


def _usual_settings(made: tuple[NodeConfig, ...], said: Settings) -> Settings:
    """Without a slurm.conf: single CPUs are given out, and who asks for no memory gets as much as CPUs are worth.

    Slurm's own default is all memory of the node, which would make every job the only one on its node.
    Who preempts whom, and who goes first, is as the cluster's priority classes say (`core/accounting/ranks.py`).
    """
    share_mib = min((node.memory_mib // node.cpus for node in made), default=1)
    return Settings(
        gres_types=("gpu",),
        select_by_core=False,
        default_memory_per_cpu_mib=max(share_mib, 1),
        return_to_service=2,
        policy=Policy(preemption=Preemption(by="qos", mode="REQUEUE")),
        priority=PrioritySettings(multifactor=True),
        service_qos=said.service_qos,
        service_ports=said.service_ports,
    )
