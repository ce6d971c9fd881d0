"""Kubernetes nodes as Bireme sees them: quantities, GPUs, readiness, topology."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.core.model.cluster import Switch
from bireme.engines.kubernetes.nodes import amounts, face, node_config, quantity, readiness, topology

NVIDIA = "network.topology.nvidia.com/"


def node(name: str = "n1", labels: dict[str, str] | None = None, **allocatable: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500m", 0.5),
        ("16", 16),
        ("32Gi", 32 * 2**30),
        ("1e3", 1000),
        ("129M", 129e6),
        (4, 4),
        ("1.5", 1.5),
        ("2k", 2000),
        ("24684100Ki", 24684100 * 1024),
    ],
)
def test_quantities_are_read_as_kubernetes_writes_them(text: str, value: float) -> None:
    assert float(quantity(text)) == value


@pytest.mark.parametrize("text", ["", "abc", "1GiB", "--1", "1..2", "Ki"])
def test_what_is_no_quantity_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity(text)


@given(st.integers(0, 10**6))
def test_what_is_asked_for_is_never_rounded_below_what_was_asked(milli: int) -> None:
    asked = {"cpu": f"{milli * 1000}u", "memory": f"{milli * 1000 + 1}"}
    up, down = amounts(asked, round_up=True), amounts(asked, round_up=False)
    assert up.milli_cpus == down.milli_cpus == milli
    assert up.memory_mib == down.memory_mib + 1


def test_a_node_offers_what_its_kubelet_leaves_to_pods() -> None:
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "feature.bireme.dev/ib": "true",
        "kubernetes.io/arch": "amd64",
    }
    made = node_config(node(labels=labels, cpu="95500m", memory="1000Gi", **{"nvidia.com/gpu": "8"}))
    assert (made.cpus, made.memory_mib) == (95, 1000 * 1024)
    assert made.features == ("amd64", "ib")
    (pool,) = made.gres
    assert (pool.name, pool.type, pool.count) == ("gpu", "nvidia_h100_80gb_hbm3", 8)
    assert [device.index for device in pool.devices] == list(range(8))


def test_mig_slices_are_types_and_devices_are_numbered_through() -> None:
    made = node_config(node(**{"nvidia.com/gpu": "2", "nvidia.com/mig-1g.10gb": "3"}))
    assert [(pool.type, [device.index for device in pool.devices]) for pool in made.gres] == [
        (None, [0, 1]),
        ("1g.10gb", [2, 3, 4]),
    ]


def test_cordons_taints_and_silent_kubelets_keep_jobs_away() -> None:
    fine = node()
    assert readiness(fine).up
    assert readiness(fine).closed == ""
    assert readiness({**fine, "spec": {"unschedulable": True}}).closed == "cordoned"
    tainted = {**fine, "spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}}
    assert readiness(tainted).closed == "tainted gpu:NoSchedule"
    assert readiness(tainted, tolerated=["gpu"]).closed == ""
    soft = {**fine, "spec": {"taints": [{"key": "gpu", "effect": "PreferNoSchedule"}]}}
    assert readiness(soft).closed == ""
    silent = {**fine, "status": {"conditions": [{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped"}]}}
    assert (readiness(silent).up, readiness(silent).why_down) == (False, "Kubelet stopped")


def test_nodes_that_are_rather_not_to_be_used_weigh_more() -> None:
    taints = [{"key": "spot", "effect": "PreferNoSchedule"}, {"key": "old", "effect": "PreferNoSchedule"}]
    soft = {**node(), "spec": {"taints": taints}}
    assert [node_config(node()).weight, node_config(soft).weight] == [1, 3]
    assert node_config(soft, tolerated={"old"}).weight == 2


def wired(name: str, **levels: str) -> dict[str, Any]:
    return node(name, {NVIDIA + level: value for level, value in levels.items()})


def test_a_tree_comes_from_labels_and_does_not_depend_on_order() -> None:
    nodes = [wired("b", leaf="l2", spine="s"), wired("a", leaf="l1", spine="s"), node("alone")]
    tree = topology(nodes)
    assert tree == topology(reversed(nodes))
    assert tree.plugin == "topology/tree"
    assert tree.switches == (
        Switch("l1", nodes=("a",)),
        Switch("l2", nodes=("b",)),
        Switch("s", switches=("l1", "l2")),
    )


def test_a_level_that_some_nodes_lack_is_left_out() -> None:
    tree = topology([wired("a", accelerator="x", leaf="l1"), wired("b", leaf="l1")])
    assert tree.switches == (Switch("l1", nodes=("a", "b")),)


def test_leaves_of_one_name_under_two_spines_are_two_leaves() -> None:
    tree = topology([wired("a", leaf="1", spine="s1"), wired("b", leaf="1", spine="s2")])
    assert [switch.name for switch in tree.switches] == ["cluster-network", "s1", "s1.1", "s2", "s2.1"]
    assert tree.switches[0].switches == ("s1", "s2"), "a gang may be larger than what one spine holds"


def test_own_keys_win_and_no_labels_mean_no_topology() -> None:
    nodes = [node("a", {"rack": "r1", "topology.kubernetes.io/zone": "z"})]
    assert [switch.name for switch in topology(nodes, ["rack"]).switches] == ["r1"]
    assert topology([node("a")]).switches == ()


def test_a_heartbeat_changes_nothing_that_matters_and_all_else_does() -> None:
    before = node(cpu="8")
    beats = node(cpu="8")
    beats["metadata"]["resourceVersion"] = "77"
    beats["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-01-01T00:00:00Z"
    beats["status"]["conditions"].append({"type": "MemoryPressure", "status": "False"})
    beats["status"]["images"] = [{"names": ["new"]}]
    assert face(beats) == face(before)
    tainted, cordoned, silent = node(cpu="8"), node(cpu="8"), node(cpu="8")
    tainted["spec"]["taints"] = [{"key": "k", "effect": "NoSchedule"}]
    cordoned["spec"]["unschedulable"] = True
    silent["status"]["conditions"][0]["status"] = "Unknown"
    others = (node(cpu="9"), node(labels={"a": "b"}, cpu="8"), tainted, cordoned, silent)
    assert all(face(other) != face(before) for other in others)
