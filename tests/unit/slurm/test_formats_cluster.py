"""Nodes and partitions as sinfo and scontrol print them; expected lines were printed by Slurm 22.05."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.slurm.conf.accounting import billing_weights
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.formats.fields import plan_percent
from bireme.slurm.formats.layout import parse_percent
from bireme.slurm.formats.node_states import compact_node_state, complete_state, long_state, parse_node_states
from bireme.slurm.formats.show.cluster import node_block, partition_block, topology_lines
from bireme.slurm.formats.show.job import block_text
from bireme.slurm.formats.sinfo_fields import SINFO_FIELDS, group_nodes
from bireme.slurm.formats.values import Context

CONTEXT = Context(now=1000, stamp=lambda at: f"T{int(at)}")


def node(name: str, state: str = "IDLE", *flags: str, **more: Any) -> dict[str, Any]:
    gpu = name.startswith("n")
    return {
        "name": name, "state": state, "flags": list(flags), "hostname": "vm", "address": "127.0.0.1",
        "cpus": 16 if gpu else 8, "sockets": 2 if gpu else 1, "cores_per_socket": 4 if gpu else 8,
        "threads_per_core": 2 if gpu else 1, "memory_mib": 32000 if gpu else 16000, "weight": 1,
        "gres": "gpu:a100:4" if gpu else "", "features": ["gpu", "a100"] if gpu else ["cpu"], "cpus_allocated": 0,
        **more,
    }  # fmt: skip


NODES = {
    each["name"]: each
    for each in (
        node("n1", "MIXED", cpus_allocated=6), node("n2", "MIXED", cpus_allocated=2), node("n3"),
        node("n4", "IDLE", "DRAIN", reason="bad fan", reason_user="root", reason_uid=0, reason_time=5),
        node("c1", "ALLOCATED", cpus_allocated=8), node("c2", "DOWN", "NOT_RESPONDING"),
    )
}  # fmt: skip
PARTITIONS: list[dict[str, Any]] = [
    {"name": "gpu", "nodes": ["n1", "n2", "n3", "n4"], "default": True, "max_time_s": 604800, "default_time_s": 3600},
    {"name": "cpu", "nodes": ["c1", "c2"], "max_time_s": None},
    {"name": "all", "nodes": ["c1", "c2", "n1", "n2", "n3", "n4"], "max_time_s": 86400},
]


def table(form: str, *, exact: bool = False, each_node: bool = False) -> list[str]:
    plan = plan_percent(parse_percent(form), SINFO_FIELDS, "")
    headers = {field.header for field in plan.fields}
    groups = group_nodes(
        PARTITIONS, lambda partition: [NODES[name] for name in partition["nodes"]], headers,
        exact=exact, each_node=each_node,
    )  # fmt: skip
    return plan.lines(groups, CONTEXT)


def test_like_nodes_of_a_partition_share_a_line() -> None:
    assert table("%9P %.5a %.10l %.6D %.6t %N")[:4] == [
        "gpu*         up 7-00:00:00      2    mix n[1-2]",
        "gpu*         up 7-00:00:00      1   idle n3",
        "gpu*         up 7-00:00:00      1  drain n4",
        "cpu          up   infinite      1  alloc c1",
    ]


def test_without_a_partition_column_every_node_counts_once() -> None:
    assert table("%D|%F|%C") == ["6|3/1/2/6|16/40/24/80"]


def test_different_sizes_show_the_least_with_a_plus_unless_exact() -> None:
    assert table("%R %c %m %z %D")[2] == "all 8+ 16000+ 1+:4+:1+ 6"
    assert table("%R %c %m %D", exact=True)[2:] == ["all 8 16000 2", "all 16 32000 4"]


def test_one_line_a_node() -> None:
    assert table("%N %P %t", each_node=True)[:2] == ["n1 gpu* mix", "n2 gpu* mix"]


def test_reasons() -> None:
    assert "bad fan|root|root(0)|T5|drained|n4" in table("%E|%u|%U|%H|%T|%N")
    assert "none|Unknown|Unknown|Unknown|mixed|n[1-2]" in table("%E|%u|%U|%H|%T|%N")


@pytest.mark.parametrize(
    ("state", "flags", "long", "short", "complete"),
    [
        ("IDLE", (), "idle", "idle", "IDLE"),
        ("MIXED", (), "mixed", "mix", "MIXED"),
        ("ALLOCATED", ("COMPLETING",), "allocated+", "alloc+", "ALLOCATED+COMPLETING"),
        ("IDLE", ("COMPLETING",), "completing", "comp", "IDLE+COMPLETING"),
        ("IDLE", ("DRAIN",), "drained", "drain", "IDLE+DRAIN"),
        ("MIXED", ("DRAIN",), "draining", "drng", "MIXED+DRAIN"),
        ("DOWN", ("NOT_RESPONDING",), "down*", "down*", "DOWN+NOT_RESPONDING"),
        ("DOWN", ("DRAIN", "NOT_RESPONDING"), "drained*", "drain*", "DOWN+DRAIN+NOT_RESPONDING"),
        ("IDLE", ("PLANNED",), "planned", "plnd", "IDLE+PLANNED"),
        ("UNKNOWN", ("NOT_RESPONDING",), "unknown*", "unk*", "UNKNOWN+NOT_RESPONDING"),
    ],
)
def test_state_words(state: str, flags: tuple[str, ...], long: str, short: str, complete: str) -> None:
    each = node("n1", state, *flags)
    assert (long_state(each), compact_node_state(each), complete_state(each)) == (long, short, complete)


def test_node_filters() -> None:
    def chosen(text: str) -> list[str]:
        return [name for name, each in NODES.items() if parse_node_states(text)(each)]

    assert chosen("idle") == ["n3", "n4"]  # as Slurm: the base state counts
    assert chosen("mix,ALLOC") == ["n1", "n2", "c1"]
    assert chosen("idle&drain") == ["n4"]
    assert chosen("all") == list(NODES)
    with pytest.raises(SlurmSyntaxError, match='Bad state string: "foo"'):
        parse_node_states("foo")


def test_show_node() -> None:
    drained = {
        **NODES["n4"], "arch": "x86_64", "os": "Linux 6", "port": 16831, "version": "22.05.8", "cpu_load": 0.09,
        "memory_free_mib": 23688, "boot_time": 1, "up_since": 2, "last_busy": 3, "partitions": ["gpu", "all"],
        "tres": {"cpu": 16, "mem": 32000, "billing": 16}, "tres_allocated": {},
    }  # fmt: skip
    assert (
        block_text(node_block(drained, CONTEXT), oneliner=False)
        == """\
NodeName=n4 Arch=x86_64 CoresPerSocket=4\x20
   CPUAlloc=0 CPUEfctv=16 CPUTot=16 CPULoad=0.09
   AvailableFeatures=gpu,a100
   ActiveFeatures=gpu,a100
   Gres=gpu:a100:4
   NodeAddr=127.0.0.1 NodeHostName=vm Port=16831 Version=22.05.8
   OS=Linux 6\x20
   RealMemory=32000 AllocMem=0 FreeMem=23688 Sockets=2 Boards=1
   State=IDLE+DRAIN ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=gpu,all\x20
   BootTime=T1 SlurmdStartTime=T2
   LastBusyTime=T3
   CfgTRES=cpu=16,mem=32000M,billing=16
   AllocTRES=
   CapWatts=n/a
   CurrentWatts=0 AveWatts=0
   ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s
   Reason=bad fan [root@T5]

"""
    )


def test_show_partition() -> None:
    partition = {
        **PARTITIONS[0], "node_list": "n[1-4]", "state": "UP", "total_cpus": 64, "total_nodes": 4, "min_nodes": 0,
        "tres": {"cpu": 64, "mem": 128000, "node": 4, "billing": 64},
    }  # fmt: skip
    assert (
        block_text(partition_block(partition, CONTEXT), oneliner=False)
        == """\
PartitionName=gpu
   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL
   AllocNodes=ALL Default=YES QoS=N/A
   DefaultTime=01:00:00 DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO
   MaxNodes=UNLIMITED MaxTime=7-00:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED
   Nodes=n[1-4]
   PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO
   OverTimeLimit=NONE PreemptMode=OFF
   State=UP TotalCPUs=64 TotalNodes=4 SelectTypeParameters=NONE
   JobDefaults=(null)
   DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED
   TRES=cpu=64,mem=125G,node=4,billing=64

"""
    )


@pytest.mark.parametrize(
    "text",
    ["CPU=1.0,Mem=0.25G,GRES/gpu=2.0", "CPU=0.5,Node=3.0,GRES/gpu:a100=12.0,License/matlab=1.5", "Mem=0.00001G", ""],
)
def test_billing_weights_are_shown_as_they_are_documented(text: str) -> None:
    partition = {**PARTITIONS[0], "tres_billing_weights": billing_weights(text) if text else ()}
    shown = [line for line in partition_block(partition, CONTEXT) if line.startswith("TRESBillingWeights=")]
    assert shown == ([f"TRESBillingWeights={text}"] if text else [])


def test_show_topology() -> None:
    topology = {
        "switches": [
            {"name": "leaf1", "nodes": ["n1", "n2"]},
            {"name": "leaf2", "nodes": ["c1", "c2"]},
            {"name": "spine", "switches": ["leaf1", "leaf2"]},
        ]
    }
    assert topology_lines(topology) == [
        "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]",
        "SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=c[1-2]",
        "SwitchName=spine Level=1 LinkSpeed=1 Nodes=c[1-2],n[1-2] Switches=leaf[1-2]",
    ]
    assert [line.split()[0] for line in topology_lines(topology, "n1")] == ["SwitchName=leaf1", "SwitchName=spine"]
    assert topology_lines(topology, "nowhere") == []
