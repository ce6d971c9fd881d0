"""Clusters and policies by their names, and keys of slurm.conf laid over them."""

from pathlib import Path

import pytest

from bireme.sim.clusters import read_cluster
from bireme.sim.policies import PredictedShortestFirst, UnknownPolicyError, find_policy
from bireme.sim.workloads.trace import TraceJob
from bireme.slurm.conf.altered import BadClusterError, with_keys
from bireme.slurm.conf.diagnostics import ConfigurationError


def test_one_line() -> None:
    cluster = read_cluster("4x8:H100+2x4:a100 leaf=3 mem=1T")
    assert [node.name for node in cluster.nodes] == ["n1", "n2", "n3", "n4", "n5", "n6"]
    assert [node.gres_count("gpu") for node in cluster.nodes] == [8, 8, 8, 8, 4, 4]
    assert cluster.nodes[0].gres[0].type == "h100"
    assert (cluster.nodes[0].cpus, cluster.nodes[0].memory_mib) == (128, 1024**2)
    assert [switch.nodes for switch in cluster.topology.switches[:2]] == [("n1", "n2", "n3"), ("n4", "n5", "n6")]
    assert cluster.settings.memory_is_consumable


def test_nodes_without_gpus() -> None:
    cluster = read_cluster("240x2")
    assert (len(cluster.nodes), cluster.nodes[0].cpus, cluster.nodes[0].gres) == (240, 2, ())
    assert not cluster.settings.memory_is_consumable


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("8h100", "'8h100' is not NODESxGPUS:TYPE"),
        ("8x8:h100 leef=2", "'leef=2': after the nodes come leaf="),
        ("8x8:h100 leaf=two", "leaf=two: not a whole number"),
        ("8x8:h100 mem=lots", "Invalid memory specification"),
        ("no/such/slurm.conf", "there is no file no/such/slurm.conf"),
        ("fit", "a workload that is known"),
    ],
)
def test_what_is_no_cluster(text: str, said: str) -> None:
    with pytest.raises(BadClusterError) as caught:
        read_cluster(text)
    assert said in str(caught.value)


def test_a_cluster_made_to_fit() -> None:
    """Partition a wants 8 GPUs for 90 of 100 hours and 48 for the rest; b has one job of nine."""
    steady = TraceJob(submit=0.0, run_s=100 * 3600.0, gpus=8, partition="a")
    burst = TraceJob(submit=90 * 3600.0, run_s=10 * 3600.0, gpus=40, partition="a")
    last = TraceJob(submit=100 * 3600.0, run_s=1.0, gpus=9, partition="b")
    for enough, nodes in (("0.8", 5), ("0.95", 6)):
        cluster = read_cluster(f"fit enough={enough}", [steady, burst, last])
        sizes = {partition.name: len(partition.nodes) for partition in cluster.partitions}
        assert sizes == {"a": nodes, "b": 2}, "at least the largest job"
    with pytest.raises(BadClusterError, match="enough=2"):
        read_cluster("fit enough=2", [steady])


def test_slurm_conf(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(
        "GresTypes=gpu\nNodeName=g[1-2] CPUs=8 Gres=gpu:a100:4\nPartitionName=main Nodes=ALL Default=YES\n"
    )
    cluster = read_cluster(str(tmp_path / "slurm.conf"))
    assert [node.gres_count("gpu", "a100") for node in cluster.nodes] == [4, 4]


def test_openb_nodes(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("sn,cpu_milli,memory_mib,gpu,model\nopenb-node-0000,64000,262144,2,P100\n")
    (node,) = read_cluster(str(path)).nodes
    assert (node.cpus, node.memory_mib, node.gres_count("gpu", "p100"), node.gres_count("shard")) == (
        64,
        262144,
        2,
        2000,
    )
    path.write_text("sn,cpu_milli,memory_mib,gpu,model\nopenb-node-0000,many,262144,2,P100\n")
    with pytest.raises(BadClusterError, match=r"nodes\.csv:2: a node is sn,cpu_milli"):
        read_cluster(str(path))


def test_keys_change_only_what_they_say() -> None:
    plain = read_cluster("2x8:h100")
    changed = with_keys(plain, {"prioritytype": "priority/multifactor", "PriorityWeightFairshare": "100000"})
    assert changed.settings.priority.multifactor
    assert changed.settings.priority.weight_fair_share == 100_000
    assert changed.settings.policy == plain.settings.policy
    assert changed.raw["PriorityWeightFairShare"] == "100000"


def test_keys_that_are_none() -> None:
    with pytest.raises(ConfigurationError, match="unrecognized key: PriorityWeightFareShare"):
        with_keys(read_cluster("1x1"), {"PriorityWeightFareShare": "1"})
    with pytest.raises(ConfigurationError, match="SchedulerType"):
        with_keys(read_cluster("1x1"), {"SchedulerType": "sched/magic"})


def test_a_fragment_of_slurm_conf_is_a_policy(tmp_path: Path) -> None:
    path = tmp_path / "mine.conf"
    path.write_text("# ours\nSchedulerType=sched/builtin\n")
    assert (find_policy(str(path)).name, find_policy(str(path)).keys) == ("mine", {"SchedulerType": "sched/builtin"})
    path.write_text("SchedulerType\n")
    with pytest.raises(UnknownPolicyError, match=r"mine\.conf:1: not Key=Value"):
        find_policy(str(path))
    with pytest.raises(UnknownPolicyError, match="there are as-configured, fifo"):
        find_policy("lifo")


def test_predictions_come_from_the_nearest_kind_that_has_enough_runs() -> None:
    guess = PredictedShortestFirst()
    known = TraceJob(submit=0.0, run_s=1.0, gpus=8, user="ada", partition="a")
    for ran in (10.0, 20.0, 30.0, 40.0, 50.0):
        guess.learn(known, ran)
    assert guess.predict(known, 600) == 30.0
    assert guess.predict(known, 25) == 25, "no job outlives its limit"
    stranger = TraceJob(submit=0.0, run_s=1.0, gpus=8, user="bob", partition="b")
    assert guess.predict(stranger, 600) == 30.0, "jobs of that size"
    other = TraceJob(submit=0.0, run_s=1.0, gpus=1, user="bob", partition="b")
    assert guess.predict(other, 600) == 600.0, "nothing is known: the user's own limit"
