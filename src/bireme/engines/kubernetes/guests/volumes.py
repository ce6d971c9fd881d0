"""Volumes that tie a pod to nodes: its claims, read to rules about nodes or to the reason why it must wait. Pure.

A claim that is bound brings the node affinity and the zone of its volume. One that is not bound yet keeps the pod
waiting: Bireme binds pods, and leaves volumes to whoever provides them. Drivers say how many volumes a node can have at
once: `attachable` and `attachments_of` are what `neighbours` counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bireme.core.model.node_rules import LabelRule
from bireme.engines.kubernetes.guests.pods import Alternatives, term_rules

Object = Mapping[str, Any]
Attachment = tuple[str, str]
"""Driver, and its own name for the volume: a volume is attached to a node once, however many pods use it there."""

_ONCE_BUILT_IN = {
    "awsElasticBlockStore": ("ebs.csi.aws.com", "volumeID"),
    "azureDisk": ("disk.csi.azure.com", "diskURI"),
    "cinder": ("cinder.csi.openstack.org", "volumeID"),
    "gcePersistentDisk": ("pd.csi.storage.gke.io", "pdName"),
    "portworxVolume": ("pxd.portworx.com", "volumeID"),
    "vsphereVolume": ("csi.vsphere.vmware.com", "volumePath"),
}
"""Kinds of volume that Kubernetes hands to these drivers."""
_ZONES = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
_SEVERAL = "__"
"""Between the zones of a volume that is in several."""


@dataclass(frozen=True, slots=True)
class Stock:
    """What the cluster knows of volumes: claims by namespace/name, volumes and storage classes by name."""

    claims: Mapping[str, Object] = field(default_factory=dict)
    volumes: Mapping[str, Object] = field(default_factory=dict)
    classes: Mapping[str, Object] = field(default_factory=dict)
    csi_nodes: Mapping[str, Object] = field(default_factory=dict)
    """What the drivers on each node say of themselves, by the node's name."""


def claims_of(pod: Object) -> list[str]:
    """namespace/name of every claim; a volume that lives with the pod has a claim named after both."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    found = []
    for volume in pod["spec"].get("volumes") or ():
        if "persistentVolumeClaim" in volume:
            found.append(f"{namespace}/{volume['persistentVolumeClaim']['claimName']}")
        elif "ephemeral" in volume:
            found.append(f"{namespace}/{name}-{volume['name']}")
    return found


def volume_rules(pod: Object, stock: Stock) -> list[Alternatives]:
    """What all its bound volumes ask of the node, each a list of alternatives."""
    bound = (_volume(claim, stock) for claim in claims_of(pod))
    return [rules for volume in bound if volume is not None for rules in _asked_by(volume)]


def why_not_yet(pod: Object, stock: Stock) -> tuple[str, ...]:
    """What its volumes lack, in one phrase for each."""
    return tuple(why for claim in claims_of(pod) if (why := _lacks(claim, stock)))


def _lacks(key: str, stock: Stock) -> str:
    claim, name = stock.claims.get(key), key.partition("/")[2]
    if claim is None:
        return f"persistentvolumeclaim {name} not found"
    if claim["metadata"].get("deletionTimestamp"):
        return f"persistentvolumeclaim {name} is being deleted"
    if "ReadWriteOncePod" in (claim["spec"].get("accessModes") or ()):
        return f"persistentvolumeclaim {name} (ReadWriteOncePod)"
    if claim["spec"].get("volumeName"):
        return "" if _volume(key, stock) else f"the volume of persistentvolumeclaim {name} is not known yet"
    storage = stock.classes.get(claim["spec"].get("storageClassName") or "") or {}
    if storage.get("volumeBindingMode") == "WaitForFirstConsumer":
        return f"persistentvolumeclaim {name} is to be bound by the scheduler (WaitForFirstConsumer)"
    return f"persistentvolumeclaim {name} is not bound"


def _volume(key: str, stock: Stock) -> Object | None:
    claim = stock.claims.get(key)
    return None if claim is None else stock.volumes.get(claim["spec"].get("volumeName") or "")


def _asked_by(volume: Object) -> Iterable[Alternatives]:
    required = (volume["spec"].get("nodeAffinity") or {}).get("required") or {}
    terms = tuple(rules for rules in map(term_rules, required.get("nodeSelectorTerms") or ()) if rules)
    if terms:
        yield terms
    labels = volume["metadata"].get("labels") or {}
    for key in _ZONES:
        if labels.get(key):
            yield ((LabelRule(key, "In", tuple(labels[key].split(_SEVERAL))),),)


# --- how many volumes a node can have ------------------------------------------------------------------------


def attachable(stock: Stock) -> dict[str, dict[str, int]]:
    """Node -> driver -> how many of its volumes the node can have at once, where the driver says so."""
    return {node: limits for node, one in stock.csi_nodes.items() if (limits := _limits(one))}


def _limits(csi_node: Object) -> dict[str, int]:
    drivers = csi_node["spec"].get("drivers") or ()
    counts = ((driver["name"], (driver.get("allocatable") or {}).get("count")) for driver in drivers)
    return {name: int(count) for name, count in counts if count is not None}


def attachments_of(pod: Object, stock: Stock) -> frozenset[Attachment]:
    """What must be attached to the node of this pod."""
    bound = (_volume(claim, stock) for claim in claims_of(pod))
    sources = [volume["spec"] for volume in bound if volume is not None]
    found = (_attachment(source) for source in (*sources, *(pod["spec"].get("volumes") or ())))
    return frozenset(one for one in found if one is not None)


def may_attach(pod: Object) -> bool:
    """Whether anything could have to be attached to its node, whatever its claims are bound to."""
    return bool(claims_of(pod)) or any(map(_attachment, pod["spec"].get("volumes") or ()))


def _attachment(source: Object) -> Attachment | None:
    """Of a PersistentVolume, or of a volume that a pod names itself; its own CSI volumes are made on the node."""
    csi = source.get("csi") or {}
    if "volumeHandle" in csi:
        return csi["driver"], csi["volumeHandle"]
    for kind, (driver, name) in _ONCE_BUILT_IN.items():
        if kind in source:
            return driver, str(source[kind].get(name, ""))
    return None
