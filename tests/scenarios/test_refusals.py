"""What is refused when it is submitted, with Slurm's reason, and leaves no trace."""

import pytest

from bireme.core.model.cluster import Settings
from bireme.core.model.policy import Policy
from bireme.core.model.refusals import Refusal, Why
from bireme.testing.scenario import Scenario

REFUSED = [
    ("an unknown partition", {"partition": "nowhere"}, Why.INVALID_PARTITION_NAME),
    ("one unknown partition among others", {"partition": "main,nowhere"}, Why.INVALID_PARTITION_NAME),
    ("more nodes than there are", {"nodes": 5}, Why.NODE_CONFIG_UNAVAILABLE),
    ("more CPUs than a node has", {"cpus": 9}, Why.NODE_CONFIG_UNAVAILABLE),
    ("more memory than a node has", {"mem": 1001}, Why.NODE_CONFIG_UNAVAILABLE),
    ("more GPUs than a node has", {"gpus_per_node": 9}, Why.NODE_CONFIG_UNAVAILABLE),
    ("more GPUs than there are", {"gpus": 33}, Why.NODE_CONFIG_UNAVAILABLE),
    ("a GPU type nobody has", {"gpus": "b200:1"}, Why.NODE_CONFIG_UNAVAILABLE),
    ("a feature nobody has", {"constraint": "purple"}, Why.INVALID_FEATURE),
    ("every node excluded", {"not_on": "n[1-4]"}, Why.NODE_CONFIG_UNAVAILABLE),
    ("a node that does not exist", {"on": "n9"}, Why.INVALID_NODE_NAME),
    ("an excluded node that does not exist", {"not_on": "n9"}, Why.INVALID_NODE_NAME),
    ("a node both asked for and excluded", {"on": "n1", "not_on": "n1"}, Why.INVALID_NODE_NAME),
    ("no node at all", {"nodes": 0}, Why.INVALID_NODE_COUNT),
    ("more tasks than its nodes may have", {"nodes": 1, "tasks": 4, "ntasks_per_node": 2}, Why.NODE_CONFIG_UNAVAILABLE),
    ("more threads than a core has", {"threads_per_core": 4}, Why.NODE_CONFIG_UNAVAILABLE),
    ("more sockets than a node has", {"sockets_per_node": 2}, Why.NODE_CONFIG_UNAVAILABLE),
    ("a deadline in the past", {"deadline_at": 5.0}, Why.INVALID_TIME_LIMIT),
    ("a least time above the limit", {"time_min_s": 120, "time_s": 60}, Why.INVALID_TIME_MIN_LIMIT),
    ("a dependency on a job to come", {"after": "afterok:77"}, Why.DEPENDENCY),
    ("no script", {"script": ""}, Why.JOB_SCRIPT_MISSING),
    ("a partition for root", {"partition": "rooted"}, Why.ACCESS_DENIED),
    ("a partition for a group", {"partition": "grouped"}, Why.ACCESS_DENIED),
    ("a partition for other accounts", {"partition": "accounts", "account": "mine"}, Why.INVALID_ACCOUNT),
    ("a partition that denies the account", {"partition": "denies", "account": "poor"}, Why.INVALID_ACCOUNT),
    ("a partition for another QOS", {"partition": "qos", "qos": "normal"}, Why.INVALID_QOS),
]


@pytest.fixture
def world() -> Scenario:
    partitions = {
        "main": {},
        "rooted": {"root_only": True},
        "grouped": {"allow_groups": ("staff",)},
        "accounts": {"allow_accounts": ("rich",)},
        "denies": {"deny_accounts": ("poor",)},
        "qos": {"allow_qos": ("high",)},
    }
    return Scenario("4x8:h100", partitions=partitions, memory_mib=1000)


@pytest.mark.parametrize(("options", "why"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refused_at_submission(world: Scenario, options: dict[str, object], why: Why) -> None:
    with world.refused(why):
        world.submit("job", **options)
    assert world.state.next_job_id == 1


@pytest.mark.parametrize(
    ("options", "remark"),
    [
        ({"partition": "main,nowhere"}, "invalid partition specified: nowhere"),
        ({"cpus": 9}, "CPU count per node can not be satisfied"),
        ({"min_cpus_per_node": 9}, "CPU count per node can not be satisfied"),
        ({"ntasks_per_node": 9}, "CPU count per node can not be satisfied"),
        ({"mem": 1001}, "Memory specification can not be satisfied"),
        ({"mem_per_cpu": 1001}, "Memory specification can not be satisfied"),
        ({"tmp_disk_mib": 1}, "Temporary disk specification can not be satisfied"),
        ({"threads_per_core": 2}, "Socket, core and/or thread specification can not be satisfied"),
        ({"cores_per_socket": 9}, "Socket, core and/or thread specification can not be satisfied"),
        ({"gpus_per_node": 9}, ""),
    ],
)
def test_what_slurm_says_before_it_refuses(world: Scenario, options: dict[str, object], remark: str) -> None:
    with pytest.raises(Refusal) as caught:
        world.submit("job", **options)
    assert caught.value.remark == remark


def test_no_default_partition() -> None:
    world = Scenario("1x8")
    world.partition("main", default=False)
    with world.refused(Why.DEFAULT_PARTITION_NOT_SET):
        world.submit("job")


def test_root_is_refused_where_root_may_not_run_jobs() -> None:
    world = Scenario("1x8", partitions={"main": {"disable_root_jobs": True}})
    with world.refused(Why.ACCESS_DENIED):
        world.submit("job", user="root")


def test_an_array_above_maxarraysize() -> None:
    world = Scenario("1x8", settings=Settings(max_array_size=10, memory_is_consumable=False))
    with world.refused(Why.INVALID_ARRAY):
        world.submit("job", array="0-10")
    world.submit("fits", array="0-9")


def test_an_array_of_more_tasks_than_max_array_tasks() -> None:
    settings = Settings(policy=Policy(array_tasks_max=3), memory_is_consumable=False)
    world = Scenario("1x8", settings=settings)
    with world.refused(Why.INVALID_ARRAY):
        world.submit("job", array="0-3")
    world.submit("fits", array="7-9")


def test_more_jobs_than_maxjobcount() -> None:
    world = Scenario("1x8", settings=Settings(max_job_count=2, memory_is_consumable=False))
    world.submit("one")
    world.submit("two")
    with world.refused(Why.TOO_MANY_JOBS):
        world.submit("three")


def test_limits_are_enforced_at_submission_where_the_cluster_says_so() -> None:
    settings = Settings(enforce_part_limits="ALL", memory_is_consumable=False)
    world = Scenario("4x8", partitions={"main": {"max_time_s": 600, "max_nodes": 2}}, settings=settings)
    with world.refused(Why.INVALID_TIME_LIMIT):
        world.submit("long", time_s=1200)
    with world.refused(Why.INVALID_NODE_COUNT):
        world.submit("wide", nodes=3)


def test_one_bad_component_refuses_all_of_a_heterogeneous_job(world: Scenario) -> None:
    with world.refused(Why.NODE_CONFIG_UNAVAILABLE):
        world.submit_het("het", {"cpus": 1}, {"cpus": 99})


def test_a_job_that_does_not_exist(world: Scenario) -> None:
    world.labels[42] = "ghost"
    with world.refused(Why.INVALID_JOB_ID):
        world.cancel("ghost")


def test_too_many_gpus_in_all_are_told_with_how_many_there_are() -> None:
    world = Scenario("2x4:h100")
    with pytest.raises(Refusal) as caught:
        world.submit("greedy", gpus=9)
    assert caught.value.hint == "9 gpu asked, the nodes of partition main have 8 together"
