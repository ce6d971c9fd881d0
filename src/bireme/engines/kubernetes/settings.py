"""What the settings say about a Kubernetes cluster; what they say of its pods is `pods.PodRules`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    kubeconfig: str = ""
    context: str = ""
    gateway_host: str = ""
    """What pods call; the gateway listens on all addresses."""
    gateway_port: int = 0
    http_gateway: str = ""
    """The Gateway, as `namespace/name`, whose routes lead to services; empty: the only one that the cluster has."""
    start_timeout_s: float = 300.0
    """How long pods may take from their creation until their agents call: images are pulled meanwhile."""
    topology_keys: tuple[str, ...] = ()
    partition_selectors: Mapping[str, Mapping[str, str]] | None = None
    """Partition -> labels its nodes have. None: one partition with all nodes."""
