"""Pods of other schedulers, counted per node."""

from __future__ import annotations

from typing import Any

from bireme.core.model.resources import GresShare, NodeShare
from bireme.engines.kubernetes.nodes import Amounts, node_config
from bireme.engines.kubernetes.others import Others

LABELS = {"nvidia.com/gpu.product": "NVIDIA-H100"}


def pod(uid: str, node: str = "n1", *, phase: str = "Running", owner: str = "", **requests: str) -> dict[str, Any]:
    asked = {name.replace("gpu", "nvidia.com/gpu"): count for name, count in requests.items()}
    return {
        "metadata": {"uid": uid, "ownerReferences": [{"kind": owner}] if owner else []},
        "spec": {"nodeName": node, "containers": [{"resources": {"requests": asked}}]},
        "status": {"phase": phase},
    }


def test_pods_of_a_node_are_added_up_and_half_cpus_only_in_the_end() -> None:
    others = Others()
    others.pod_changed("ADDED", pod("a", cpu="500m", memory="1Gi", gpu="2"))
    others.pod_changed("ADDED", pod("b", cpu="250m", gpu="1"))
    others.pod_changed("ADDED", pod("c", "n2", cpu="4"))
    assert others.share("n1", LABELS) == NodeShare("n1", 1, 1024, gres=(GresShare("gpu", "nvidia_h100", 3),), tasks=0)
    assert others.share("n3", LABELS) == NodeShare("n3", 0, 0, tasks=0)


def test_a_pod_counts_until_it_has_ended_is_gone_or_is_a_job_of_ours() -> None:
    others = Others()
    for uid in "abc":
        others.pod_changed("ADDED", pod(uid, cpu="1"))
    assert others.pod_changed("MODIFIED", pod("a", cpu="1")) is None, "nothing has changed"
    others.pod_changed("MODIFIED", pod("a", cpu="1", phase="Succeeded"))
    others.pod_changed("DELETED", pod("b", cpu="1"))
    assert others.share("n1", {}).cpus == 1
    others.pod_changed("MODIFIED", pod("c", cpu="1"), Amounts(1000, 0))
    assert others.share("n1", {}).cpus == 0
    assert others.pod_changed("DELETED", pod("unknown")) is None


def test_what_comes_with_the_node_is_taken_off_what_it_offers() -> None:
    others = Others()
    others.pod_changed("ADDED", pod("proxy", cpu="100m", memory="512Mi", owner="DaemonSet"))
    assert others.share("n1", {}) == NodeShare("n1", 0, 0, tasks=0)
    assert others.reserved("n1") == Amounts(100, 512)
    node = {"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "8", "memory": "8Gi"}}}
    described = node_config(node, reserved=others.reserved("n1"))
    assert (described.cpus, described.memory_mib) == (7, 7680)


def test_what_a_guest_was_given_after_it_was_placed_counts_too() -> None:
    others, held = Others(), Amounts(2000, 1024)
    assert others.pod_changed("ADDED", pod("g", cpu="2", memory="1Gi", gpu="1"), held) is None
    others.pod_changed("MODIFIED", pod("g", cpu="5", memory="2Gi", gpu="1"), held)
    assert others.share("n1", LABELS) == NodeShare("n1", 3, 1024, tasks=0)
    others.pod_changed("MODIFIED", pod("g", cpu="1", memory="1Gi", gpu="1"), held)
    assert others.share("n1", LABELS).cpus == 0


def test_a_pod_that_is_made_smaller_counts_in_full_until_the_kubelet_has_done_it() -> None:
    others, shrinking = Others(), pod("a", cpu="1")
    shrinking["spec"]["containers"][0]["name"] = "main"
    shrinking["status"]["containerStatuses"] = [{"name": "main", "allocatedResources": {"cpu": "4"}}]
    others.pod_changed("MODIFIED", shrinking)
    assert others.share("n1", {}).cpus == 4
    shrinking["status"]["containerStatuses"][0]["allocatedResources"]["cpu"] = "1"
    others.pod_changed("MODIFIED", shrinking)
    assert others.share("n1", {}).cpus == 1
