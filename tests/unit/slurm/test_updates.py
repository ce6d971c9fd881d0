"""`scontrol update`: words to typed changes, and scontrol's own complaints."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.core.lifecycle.operators import PARTITION_FIELDS
from bireme.core.lifecycle.requests import RESOURCE_FIELDS, SPEC_FIELDS
from bireme.core.model.cluster import PartitionConfig, PartitionState
from bireme.core.model.jobs import Dependencies, JobSpec, Owner, ResourceRequest
from bireme.core.model.resources import GresRequest
from bireme.slurm.updates import (
    JOB_KEYS,
    NODE_KEYS,
    PARTITION_KEYS,
    UpdateError,
    parse_job_changes,
    parse_node_changes,
    parse_partition_changes,
)

SPEC = JobSpec(
    owner=Owner(uid=1, gid=1, user="a"),
    time_limit_s=3600,
    time_limit_given=True,
    resources=ResourceRequest(cpus_per_task=2),
)
PARTITION = PartitionConfig(name="p", nodes=("n1", "n2"))


def changes(**pairs: str) -> dict[str, object]:
    return parse_job_changes(pairs, SPEC, 1000.0, lambda _: 0.0)


def test_one_of_each() -> None:
    assert changes(TimeLimit="1:30:00") == {"time_limit_s": 5400}
    assert changes(timelimit="UNLIMITED") == {"time_limit_s": None}
    assert changes(Partition="a,b") == {"partitions": ("a", "b")}
    assert changes(JobName="x") == changes(name="x") == {"name": "x"}
    assert changes(Nice="") == {"nice": 100}
    assert changes(Nice="-5") == {"nice": -5}
    assert changes(Priority="7") == {"priority": 7}
    assert changes(NumNodes="2-4") == {"nodes_min": 2, "nodes_max": 4, "nodes_given": True}
    assert changes(NumCPUs="8") == {"ntasks": 4}
    assert changes(NumTasks="8") == {"ntasks": 8}
    assert changes(MinMemoryCPU="2G")["memory_per_cpu_mib"] == 2048
    assert changes(MinMemoryNode="100") == {
        "memory_per_node_mib": 100, "memory_per_cpu_mib": None, "memory_per_gpu_mib": None,
    }  # fmt: skip
    assert changes(Gres="gpu:h100:2") == {"gres_per_node": (GresRequest("gpu", "h100", 2),)}
    assert changes(TresPerNode="gres/gpu:2") == {"gres_per_node": (GresRequest("gpu", None, 2),)}
    assert changes(Features="fast&big") == {"constraint": "fast&big"}
    assert changes(ExcNodeList="n[1-2]") == {"exclude": ("n1", "n2")}
    assert changes(ReqNodeList="") == {"nodelist": ()}
    assert changes(Dependency="") == {"dependencies": Dependencies()}
    assert changes(StartTime="now+60") == changes(EligibleTime="now+60") == {"begin_at": 1060.0}
    assert changes(Deadline="now+60") == {"deadline_at": 1060.0}
    assert changes(Requeue="0") == {"requeue": False}
    assert changes(ArrayTaskThrottle="0") == {"array_throttle": 0}
    assert changes(OverSubscribe="yes") == changes(Shared="YES") == {"oversubscribe": True}
    assert changes(Contiguous="no") == {"contiguous": False}
    assert changes(MailType="begin,end") == {"mail_type": ("BEGIN", "END")}
    assert changes(Switches="2@10") == {"switches": 2, "switches_wait_s": 600}
    assert changes(StdOut="o-%j", WCKey="k", Comment="c c") == {"std_out": "o-%j", "wckey": "k", "comment": "c c"}


@pytest.mark.parametrize(
    ("key", "value", "seconds"),
    [("TimeLimit+", "30", 5400), ("TimeLimit-", "30", 1800), ("TimeLimit", "+1:00:00", 7200), ("timel", "5", 300)],
)
def test_time_limits_may_be_relative(key: str, value: str, seconds: int) -> None:
    assert parse_job_changes({key: value}, SPEC, 0.0, lambda _: 0.0) == {"time_limit_s": seconds}


@pytest.mark.parametrize(
    ("pairs", "message", "bare"),
    [
        ({"foo": "3"}, "Update of this parameter is not supported: foo=3\nRequest aborted", True),
        ({"BurstBuffer": "x"}, "Update of this parameter is not supported: BurstBuffer=x\nRequest aborted", True),
        ({"JobId": "1"}, "No changes specified", True),
        ({"TimeLimit": "xx"}, "Invalid TimeLimit value", False),
        ({"Requeue": "x"}, "Invalid Requeue value: x", False),
        ({"NumNodes": "z"}, 'Invalid numeric value "z" for requested node count.', False),
        ({"StartTime": "z"}, "Invalid time specification (pos=0): z", True),
        ({"MinMemoryNode": "1.5G"}, "Invalid MinMemoryNode value: 1.5G", False),
        ({"Contiguous": "perhaps"}, "Invalid Contiguous value: perhaps", False),
        ({"Comment+": "x"}, "Invalid syntax, variations of +=- are not accepted.", False),
        ({"MailType": "SOMETIMES"}, "Invalid MailType: SOMETIMES", False),
    ],
)
def test_complaints_are_scontrols_own(pairs: dict[str, str], message: str, bare: bool) -> None:
    with pytest.raises(UpdateError) as caught:
        parse_job_changes(pairs, SPEC, 0.0, lambda _: 0.0)
    assert (str(caught.value), caught.value.bare) == (message, bare)


@given(st.sampled_from(sorted(JOB_KEYS)), st.text(max_size=12))
def test_any_value_is_understood_or_complained_about(key: str, value: str) -> None:
    try:
        result = parse_job_changes({key: value}, SPEC, 1e9, lambda _: 0.0)
    except UpdateError:
        return
    assert result.keys() <= SPEC_FIELDS | RESOURCE_FIELDS | {"array_throttle"}


def test_nodes() -> None:
    assert parse_node_changes({"NodeName": "n1", "State": "drain", "Reason": "fan"}) == {
        "new_state": "DRAIN", "note": "fan",
    }  # fmt: skip
    assert parse_node_changes({"state": "resu"}) == {"new_state": "RESUME", "note": None}
    assert parse_node_changes({"Weight": "3"})["weight"] == 3
    assert parse_node_changes({"AvailableFeatures": "a,b"})["features"] == ("a", "b")


@pytest.mark.parametrize(
    ("pairs", "beginning"),
    [
        ({"State": "purple"}, "Invalid input: State=purple\nRequest aborted\nValid states are:"),
        ({"State": "drain"}, "You must specify a reason when DOWNING or DRAINING a node. Request denied"),
        ({"foo": "x"}, "Update of this parameter is not supported: foo=x\nRequest aborted"),
        ({"Weight": "heavy"}, "Invalid input: Weight=heavy"),
        ({"NodeName": "n1"}, "No changes specified"),
    ],
)
def test_complaints_about_nodes(pairs: dict[str, str], beginning: str) -> None:
    with pytest.raises(UpdateError) as caught:
        parse_node_changes(pairs)
    assert str(caught.value).startswith(beginning)


def partition_changes(**pairs: str) -> dict[str, object]:
    return parse_partition_changes(pairs, PARTITION, ("n1", "n2", "n3"))


def test_partitions() -> None:
    assert partition_changes(State="down") == {"state": PartitionState.DOWN}
    assert partition_changes(MaxTime="1:00:00") == {"max_time_s": 3600}
    assert partition_changes(MaxTime="INFINITE", MaxNodes="UNLIMITED") == {"max_time_s": None, "max_nodes": None}
    assert partition_changes(Nodes="ALL") == {"nodes": ("n1", "n2", "n3")}
    assert parse_partition_changes({"Nodes+": "n3"}, PARTITION) == {"nodes": ("n1", "n2", "n3")}
    assert parse_partition_changes({"Nodes-": "n1"}, PARTITION) == {"nodes": ("n2",)}
    assert partition_changes(Priority="9") == {"priority_tier": 9, "priority_job_factor": 9}
    assert partition_changes(AllowAccounts="ALL", DenyQOS="a,b") == {"allow_accounts": None, "deny_qos": ("a", "b")}
    assert partition_changes(OverSubscribe="force:4") == {"over_subscribe": "FORCE:4"}


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({"State": "z"}, "Invalid input: State=z\nAcceptable State values are UP, DOWN, DRAIN and INACTIVE"),
        ({"Default": "z"}, "Invalid input: Default=z\nAcceptable Default values are YES and NO"),
        ({"MaxTime": "z"}, "Invalid input: MaxTime=z"),
        ({"foo": "3"}, "Update of this parameter is not supported: foo=3\n\nRequest aborted"),
    ],
)
def test_complaints_about_partitions(pairs: dict[str, str], message: str) -> None:
    with pytest.raises(UpdateError) as caught:
        partition_changes(**pairs)
    assert str(caught.value) == message


def test_every_key_leads_to_a_field_that_exists() -> None:
    known = {field.name for field in fields(PartitionConfig)}
    assert {name for target, _ in PARTITION_KEYS.values() for name in target.split()} <= known == PARTITION_FIELDS
    assert NODE_KEYS.keys() >= {"State", "Reason", "Weight"}
