"""The variables of batch scripts, salloc and prologs, as Slurm 22.05 sets them for the same requests."""

from dataclasses import replace
from typing import Any

import pytest

from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.jobs import (
    ArrayTask,
    Dependencies,
    Dependency,
    DependencyKind,
    Job,
    JobSpec,
    Owner,
    Pending,
    ResourceRequest,
)
from bireme.core.model.resources import Allocation, ExitStatus, GresRequest, GresShare, NodeShare
from bireme.slurm.conf.loading import parse_configuration
from bireme.slurm.variables.allocation import (
    batch_variables,
    cpu_bind_variables,
    memory_bind_variables,
    merged_environment,
    salloc_variables,
)
from bireme.slurm.variables.cluster import GPU_VARIABLES, cluster_facts
from bireme.slurm.variables.prologs import JobEnd, JobFiles, prolog_variables

OWNER = Owner(uid=1000, gid=100, user="ada", group="users")


def cluster(gpu_type: str = "a100", extra: str = "") -> ClusterConfig:
    return parse_configuration(
        {
            "slurm.conf": f"ClusterName=oracle\nGresTypes=gpu\nNodeName=n[1-4] CPUs=16 Gres=gpu:{gpu_type}:4\n"
            f"PartitionName=gpu Nodes=ALL\n{extra}",
            "topology.conf": "SwitchName=leaf1 Nodes=n[1-2]\nSwitchName=leaf2 Nodes=n[3-4]\n"
            "SwitchName=spine Switches=leaf[1-2]",
        }
    ).cluster


FACTS = cluster_facts(cluster())


def job(id: int = 2, array: ArrayTask | None = None, restarts: int = 0, **spec: Any) -> Job:
    request = spec.pop("resources", ResourceRequest())
    given = {"name": "plain", "work_dir": "/home/ada", "submit_host": "login", "qos": "", "owner": OWNER, **spec}
    return Job(id, JobSpec(resources=request, **given), 0.0, Pending(0.0), array=array, restarts=restarts)


def share(node: str, cpus: int = 2, tasks: int | None = None, gpus: tuple[int, ...] = ()) -> NodeShare:
    gres = (GresShare("gpu", "a100", len(gpus), gpus),) if gpus else ()
    return NodeShare(node, cpus, 0, gres=gres, tasks=cpus if tasks is None else tasks)


def allocation(*shares: NodeShare) -> Allocation:
    return Allocation(2, 1, "gpu", shares)


ONE = allocation(share("n1"))


def test_a_plain_job_has_exactly_slurms_set() -> None:
    assert batch_variables(job(process_nice=5), ONE, FACTS) == {
        "ENVIRONMENT": "BATCH",
        "HOSTNAME": "n1",
        "SLURMD_NODENAME": "n1",
        "SLURM_CLUSTER_NAME": "oracle",
        "SLURM_CPUS_ON_NODE": "2",
        "SLURM_GTIDS": "0",
        "SLURM_JOBID": "2",
        "SLURM_JOB_CPUS_PER_NODE": "2",
        "SLURM_JOB_EXCLUSIVE": "NO",
        "SLURM_JOB_GID": "100",
        "SLURM_JOB_ID": "2",
        "SLURM_JOB_NAME": "plain",
        "SLURM_JOB_NODELIST": "n1",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_OVERSUBSCRIBE": "NO",
        "SLURM_JOB_PARTITION": "gpu",
        "SLURM_JOB_UID": "1000",
        "SLURM_JOB_USER": "ada",
        "SLURM_LOCALID": "0",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_NODELIST": "n1",
        "SLURM_NODE_ALIASES": "(null)",
        "SLURM_OOM_KILL_STEP": "0",
        "SLURM_PRIO_PROCESS": "5",
        "SLURM_PROCID": "0",
        "SLURM_SUBMIT_DIR": "/home/ada",
        "SLURM_SUBMIT_HOST": "login",
        "SLURM_TASKS_PER_NODE": "2",
        "SLURM_TOPOLOGY_ADDR": "spine.leaf1.n1",
        "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
        "TMPDIR": "/tmp",
    }


def added(job_: Job, allocation_: Allocation = ONE, **options: Any) -> dict[str, str]:
    """What this job has that a plain one has not."""
    plain = batch_variables(job(), ONE, FACTS)
    return {k: v for k, v in batch_variables(job_, allocation_, FACTS, **options).items() if plain.get(k) != v}


def with_parts(name: str, *parts: tuple[int, int]) -> Allocation:
    held = GresShare(name, "a100", sum(count for _, count in parts), (), parts)
    return allocation(replace(share("n1"), gres=(held,)))


def test_a_job_with_shards_sees_the_gpu_they_are_of() -> None:
    assert added(job(), with_parts("shard", (2, 3))) == {
        "SLURM_SHARDS_ON_NODE": "3",
        "SLURM_JOB_GPUS": "2",
        **dict.fromkeys(GPU_VARIABLES, "2"),
    }


def test_mps_says_how_much_of_the_gpu_in_percent() -> None:
    config = parse_configuration(
        {
            "slurm.conf": "GresTypes=gpu,mps\nNodeName=n[1-4] CPUs=16 Gres=gpu:a100:4,mps:a100:800\n"
            "PartitionName=gpu Nodes=ALL"
        }
    ).cluster
    found = batch_variables(job(), with_parts("mps", (1, 50)), cluster_facts(config))
    assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert found["CUDA_VISIBLE_DEVICES"] == found["SLURM_JOB_GPUS"] == "1"
    assert "SLURM_GPUS_ON_NODE" not in found


def test_five_tasks_on_three_nodes() -> None:
    request = ResourceRequest(nodes_min=3, ntasks=5)
    nodes = allocation(share("n1"), share("n2"), share("n3", tasks=1))
    assert added(job(resources=request), nodes) == {
        "SLURM_JOB_CPUS_PER_NODE": "2(x3)",
        "SLURM_JOB_NODELIST": "n[1-3]",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_NNODES": "3",
        "SLURM_NODELIST": "n[1-3]",
        "SLURM_NPROCS": "5",
        "SLURM_NTASKS": "5",
        "SLURM_TASKS_PER_NODE": "2(x2),1",
    }


def test_tasks_per_node_give_a_number_of_tasks() -> None:
    request = ResourceRequest(nodes_min=2, ntasks_per_node=3, cpus_per_task=2)
    found = added(job(resources=request), allocation(share("n1", 6, 3), share("n2", 6, 3)))
    assert (found["SLURM_NTASKS"], found["SLURM_NTASKS_PER_NODE"], found["SLURM_CPUS_PER_TASK"]) == ("6", "3", "2")
    assert found["SLURM_TASKS_PER_NODE"] == "3(x2)"


def test_gpus() -> None:
    request = ResourceRequest(gres_per_job=(GresRequest("gpu", "a100", 5),))
    assert added(job(resources=request), allocation(share("n1", gpus=(0, 1, 3)))) == {
        "CUDA_VISIBLE_DEVICES": "0,1,3",
        "GPU_DEVICE_ORDINAL": "0,1,3",
        "ROCR_VISIBLE_DEVICES": "0,1,3",
        "SLURM_GPUS": "a100:5",
        "SLURM_GPUS_ON_NODE": "3",
        "SLURM_JOB_GPUS": "0,1,3",
        "ZE_AFFINITY_MASK": "0,1,3",
    }


def test_a_confined_job_counts_its_gpus_from_zero() -> None:
    found = added(job(), allocation(share("n1", gpus=(2, 3))), confined=True)
    assert (found["CUDA_VISIBLE_DEVICES"], found["SLURM_JOB_GPUS"]) == ("0,1", "2,3")


@pytest.mark.parametrize(
    ("type_", "flags", "autodetect", "expected"),
    [
        ("mi300x", (), "", {"ROCR_VISIBLE_DEVICES"}),
        ("h100", (), "nvml", {"CUDA_VISIBLE_DEVICES"}),
        ("h100", ("nvidia_gpu_env", "opencl_env"), "rsmi", {"CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"}),
        ("h100", ("no_gpu_env",), "", set()),
    ],
)
def test_which_gpu_variables_are_set(type_: str, flags: tuple[str, ...], autodetect: str, expected: set[str]) -> None:
    facts = cluster_facts(cluster(type_), lambda node, name: flags, lambda node: autodetect)
    found = batch_variables(job(), allocation(share("n1", gpus=(0,))), facts)
    assert {name for name in found if not name.startswith("SLURM")} - {"ENVIRONMENT", "HOSTNAME", "TMPDIR"} == expected


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (ResourceRequest(), {"SLURM_MEM_PER_CPU": "512"}),
        (ResourceRequest(memory_per_node_mib=1024), {"SLURM_MEM_PER_NODE": "1024"}),
        (ResourceRequest(memory_per_cpu_mib=100), {"SLURM_MEM_PER_CPU": "100"}),
        (ResourceRequest(memory_per_gpu_mib=100), {"SLURM_MEM_PER_GPU": "100"}),
        (ResourceRequest(memory_per_node_mib=0), {}),
    ],
)
def test_memory(request_: ResourceRequest, expected: dict[str, str]) -> None:
    facts = cluster_facts(cluster(extra="DefMemPerCPU=512"))
    found = batch_variables(job(resources=request_), ONE, facts)
    assert {name: value for name, value in found.items() if "_MEM_" in name} == expected


def test_an_array_task() -> None:
    task = ArrayTask(array_job_id=13, task_id=6, task_count=3, task_min=3, task_max=9, task_step=3)
    assert added(job(id=14, array=task)) == {
        "SLURM_ARRAY_JOB_ID": "13",
        "SLURM_ARRAY_TASK_COUNT": "3",
        "SLURM_ARRAY_TASK_ID": "6",
        "SLURM_ARRAY_TASK_MAX": "9",
        "SLURM_ARRAY_TASK_MIN": "3",
        "SLURM_ARRAY_TASK_STEP": "3",
        "SLURM_JOBID": "14",
        "SLURM_JOB_ID": "14",
    }


def test_only_when_there_is_something_to_say() -> None:
    dependencies = Dependencies((Dependency(DependencyKind.AFTER_ANY, 1),))
    found = added(job(restarts=2, account="acct", qos="high", reservation="r", dependencies=dependencies))
    assert found == {
        "SLURM_RESTART_COUNT": "2",
        "SLURM_JOB_ACCOUNT": "acct",
        "SLURM_JOB_QOS": "high",
        "SLURM_JOB_RESERVATION": "r",
        "SLURM_JOB_DEPENDENCY": "afterany:1",
    }


def test_options_for_srun_inside() -> None:
    request = ResourceRequest(overcommit=True, hint="nomultithread")
    defaults = (("SLURM_DISTRIBUTION", "plane=2"), ("SLURM_HINT", "nomultithread"), ("SLURM_MEM_BIND", "local"))
    assert added(job(resources=request, step_defaults=defaults)) == {
        "SLURM_DISTRIBUTION": "plane",
        "SLURM_DIST_PLANESIZE": "2",
        "SLURM_HINT": "nomultithread",
        "SLURM_OVERCOMMIT": "1",
        "SLURM_THREADS_PER_CORE": "1",
        "SLURM_MEM_BIND": "local",
        "SLURM_MEM_BIND_VERBOSE": "quiet",
    }


def test_start_and_end_times() -> None:
    assert added(job(time_limit_s=600), started_at=1000.7) == {
        "SLURM_JOB_START_TIME": "1000",
        "SLURM_JOB_END_TIME": "1600",
    }
    assert "SLURM_JOB_END_TIME" not in added(job(), started_at=1000.0)


def test_a_heterogeneous_job_tells_of_each_component() -> None:
    leader = job(id=27, resources=ResourceRequest(ntasks=2))
    second = job(id=28)
    found = added(leader, components=((leader, ONE), (second, allocation(share("n3"), share("n4")))))
    assert found["SLURM_HET_SIZE"] == "2"
    assert (found["SLURM_JOB_ID_HET_GROUP_0"], found["SLURM_JOB_ID_HET_GROUP_1"]) == ("27", "28")
    assert found["SLURM_JOB_NODELIST_HET_GROUP_1"] == "n[3-4]"
    assert (found["SLURM_PACK_SIZE"], found["SLURM_JOB_NODELIST_PACK_GROUP_1"]) == ("2", "n[3-4]")
    assert (found["SLURM_NTASKS_HET_GROUP_0"], "SLURM_NTASKS_HET_GROUP_1" in found) == ("2", False)


def test_salloc_sets_no_variables_of_a_node() -> None:
    found = salloc_variables(
        job(resources=ResourceRequest(ntasks=3)), allocation(share("n1"), share("n2", tasks=1)), FACTS
    )
    assert found["SLURM_TASKS_PER_NODE"] == "2,1"
    assert not {"SLURM_PROCID", "SLURMD_NODENAME", "SLURM_MEM_PER_CPU", "TMPDIR", "SLURM_JOB_UID"} & set(found)


def test_the_users_tmpdir_wins_and_another_jobs_variables_go() -> None:
    user = {"TMPDIR": "/scratch", "SLURM_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": "7", "SLURM_MPI_TYPE": "pmi2", "A": "b"}
    merged = merged_environment({**user, "CUDA_VISIBLE_DEVICES": "3"}, batch_variables(job(), ONE, FACTS))
    assert (merged["TMPDIR"], merged["SLURM_JOB_ID"], merged["SLURM_MPI_TYPE"], merged["A"]) == (
        "/scratch",
        "2",
        "pmi2",
        "b",
    )
    assert not {"SLURM_ARRAY_TASK_ID", "CUDA_VISIBLE_DEVICES"} & set(merged)


def test_without_another_job_the_users_own_choices_stay() -> None:
    assert merged_environment({"SLURM_CPUS_PER_TASK": "4"}, {})["SLURM_CPUS_PER_TASK"] == "4"


@pytest.mark.parametrize(
    ("value", "whole", "type_", "listed"),
    [
        ("cores", "quiet,cores", "cores", ""),
        ("verbose,map_cpu:0,1", "verbose,map_cpu:0,1", "map_cpu:", "0,1"),
        ("q,mask_cpu:0x3", "quiet,mask_cpu:0x3", "mask_cpu:", "0x3"),
    ],
)
def test_binding(value: str, whole: str, type_: str, listed: str) -> None:
    found = cpu_bind_variables(value)
    assert (found["SLURM_CPU_BIND"], found["SLURM_CPU_BIND_TYPE"], found["SLURM_CPU_BIND_LIST"]) == (
        whole,
        type_,
        listed,
    )


def test_memory_binding() -> None:
    assert memory_bind_variables("v,prefer,map_mem:0,1") == {
        "SLURM_MEM_BIND": "map_mem:0,1",
        "SLURM_MEM_BIND_LIST": "0,1",
        "SLURM_MEM_BIND_PREFER": "prefer",
        "SLURM_MEM_BIND_TYPE": "map_mem:",
        "SLURM_MEM_BIND_VERBOSE": "verbose",
    }


def test_prolog_and_epilog() -> None:
    with_gpu = allocation(share("n1", 4, gpus=(0,)), share("n2", 4, gpus=(1,)))
    files = JobFiles(std_out="/home/ada/a.out")
    request = ResourceRequest(constraint="gpu")
    prolog = prolog_variables(job(comment="a b", resources=request), with_gpu, "n2", FACTS, files)
    assert prolog == {
        "CUDA_VISIBLE_DEVICES": "1",
        "GPU_DEVICE_ORDINAL": "1",
        "ROCR_VISIBLE_DEVICES": "1",
        "SLURMD_NODENAME": "n2",
        "SLURM_CLUSTER_NAME": "oracle",
        "SLURM_CONF": "slurm.conf",
        "SLURM_JOBID": "2",
        "SLURM_JOB_COMMENT": "a b",
        "SLURM_JOB_CONSTRAINTS": "gpu",
        "SLURM_JOB_CPUS_PER_NODE": "4(x2)",
        "SLURM_JOB_GID": "100",
        "SLURM_JOB_GPUS": "1",
        "SLURM_JOB_ID": "2",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_PARTITION": "gpu",
        "SLURM_JOB_RESTART_COUNT": "0",
        "SLURM_JOB_STDIN": "/dev/null",
        "SLURM_JOB_STDOUT": "/home/ada/a.out",
        "SLURM_JOB_UID": "1000",
        "SLURM_JOB_USER": "ada",
        "SLURM_JOB_WORK_DIR": "/home/ada",
        "SLURM_NODELIST": "n[1-2]",
        "SLURM_SCRIPT_CONTEXT": "prolog_slurmd",
        "SLURM_UID": "1000",
        "ZE_AFFINITY_MASK": "1",
    }
    end = JobEnd(ExitStatus(3, 0), ExitStatus(0, 9))
    epilog = prolog_variables(job(), with_gpu, "n1", FACTS, files, end=end)
    assert (epilog["SLURM_JOB_EXIT_CODE"], epilog["SLURM_JOB_EXIT_CODE2"], epilog["SLURM_JOB_DERIVED_EC"]) == (
        "768",
        "3:0",
        "9",
    )
    assert epilog["SLURM_SCRIPT_CONTEXT"] == "epilog_slurmd"


@pytest.mark.parametrize(
    ("request_", "cpus", "expected"),
    [
        (ResourceRequest(), (2,), "2"),
        (ResourceRequest(nodes_min=2), (2, 2), "2(x2)"),
        (ResourceRequest(exclusive=True), (16,), "16"),
        (ResourceRequest(cpus_per_task=5), (6,), "1"),
        (ResourceRequest(cpus_per_task=4, nodes_min=2), (8, 4), "2,1"),
    ],
)
def test_tasks_that_nobody_asked_for_are_as_many_as_the_cpus_hold(
    request_: ResourceRequest, cpus: tuple[int, ...], expected: str
) -> None:
    shares = [share(f"n{number}", count, tasks=1) for number, count in enumerate(cpus, start=1)]
    found = batch_variables(job(resources=request_), allocation(*shares), FACTS)
    assert found["SLURM_TASKS_PER_NODE"] == expected
    assert "SLURM_NTASKS" not in found


def test_idle_threads_are_not_counted() -> None:
    facts = replace(FACTS, threads={"n1": 2})
    asked = ResourceRequest(ntasks=4, threads_per_core=1)
    found = batch_variables(job(resources=asked), allocation(share("n1", 8, tasks=4)), facts)
    assert (found["SLURM_JOB_CPUS_PER_NODE"], found["SLURM_CPUS_ON_NODE"]) == ("4", "4")


@pytest.mark.parametrize(
    ("asked", "shown"),
    [("task", "Task"), ("all", "Energy,Lustre,Network,Task"), ("task,energy", "Energy,Task"), ("none", "None")],
)
def test_profile(asked: str, shown: str) -> None:
    found = batch_variables(job(step_defaults=(("SLURM_PROFILE", asked),)), ONE, FACTS)
    assert found["SLURM_PROFILE"] == shown


def test_what_newer_releases_say_of_a_request() -> None:
    per_task = (GresRequest("gpu", "a100", 2),)
    asked = ResourceRequest(ntasks=1, cpus_per_task=3, gres_per_task=per_task, exclusive=True)
    said = added(job(resources=asked, step_defaults=(("SLURM_OOM_KILL_STEP", "1"),)))
    assert said["SLURM_TRES_PER_TASK"] == "cpu=3,gres/gpu:a100=2"
    assert said["SLURM_TRES_BIND"] == "gres/gpu:per_task:2"
    assert (said["SLURM_JOB_EXCLUSIVE"], said["SLURM_OOM_KILL_STEP"]) == ("NODE", "1")
    bound = job(resources=asked, step_defaults=(("SLURM_GPU_BIND", "closest"),))
    assert added(bound)["SLURM_TRES_BIND"] == "gres/gpu:closest"
