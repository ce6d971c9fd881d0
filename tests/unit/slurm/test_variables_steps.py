"""The variables of a step's tasks, as Slurm 22.05 sets them."""

from dataclasses import replace

import pytest

from bireme.core.model.distribution import Distribution, NodeMethod
from bireme.core.model.jobs import Job, JobSpec, Owner, Pending, ResourceRequest
from bireme.core.model.resources import Allocation, GresRequest, GresShare, NodeShare
from bireme.core.model.steps import HetStep, Step, StepNode, StepSpec
from bireme.slurm.variables.cluster import ClusterFacts
from bireme.slurm.variables.steps import (
    Launch,
    fallback_variables,
    merged_step_environment,
    step_variables,
    task_variables,
)

FACTS = ClusterFacts(name="c", topology={"n2": ("s.n2", "switch.node")})
JOB = Job(
    19,
    JobSpec(owner=Owner(uid=1, gid=2, user="ada", group="crew"), resources=ResourceRequest(ntasks=3)),
    0.0,
    Pending(0.0),
)
ALLOCATION = Allocation(19, 1, "gpu", (NodeShare("n1", 2, 0, tasks=2), NodeShare("n2", 2, 0, tasks=1)))
LAUNCH = Launch(host="127.0.0.1", port=4242)


def step(*nodes: StepNode, spec: StepSpec | None = None) -> Step:
    return Step(19, 0, spec or StepSpec(process_nice=5), nodes, 0.0)


TWO_NODES = step(StepNode("n1", (0, 1), 2), StepNode("n2", (2,), 2))


def test_cpus_on_a_node_are_whole_cores_as_far_as_they_are_the_jobs() -> None:
    facts = replace(FACTS, threads={"n1": 2})
    one = step(StepNode("n1", (0,), 1))
    assert [task_variables(one, 0, 0, facts, held=held)["SLURM_CPUS_ON_NODE"] for held in (1, 2, 16)] == ["1", "2", "2"]
    assert task_variables(step(StepNode("n1", (0,), 4)), 0, 0, facts, held=4)["SLURM_CPUS_ON_NODE"] == "4"


def test_what_all_tasks_share() -> None:
    assert step_variables(JOB, ALLOCATION, TWO_NODES, FACTS, LAUNCH) == {
        "SLURM_CLUSTER_NAME": "c",
        "SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0": "2(x2)",
        "SLURM_DISTRIBUTION": "block",
        "SLURM_JOBID": "19",
        "SLURM_JOB_GID": "2",
        "SLURM_JOB_GROUP": "crew",
        "SLURM_JOB_ID": "19",
        "SLURM_JOB_PARTITION": "gpu",
        "SLURM_JOB_UID": "1",
        "SLURM_JOB_USER": "ada",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_NNODES": "2",
        "SLURM_NODELIST": "n[1-2]",
        "SLURM_NPROCS": "3",
        "SLURM_NTASKS": "3",
        "SLURM_PRIO_PROCESS": "5",
        "SLURM_SRUN_COMM_HOST": "127.0.0.1",
        "SLURM_SRUN_COMM_PORT": "4242",
        "SLURM_STEPID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_LAUNCHER_PORT": "4242",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_TASKS_PER_NODE": "2,1",
        "SLURM_TASKS_PER_NODE": "2,1",
        "SLURM_UMASK": "0022",
        "SRUN_DEBUG": "3",
        "TMPDIR": "/tmp",
    }


def test_what_each_task_has_of_its_own() -> None:
    assert task_variables(TWO_NODES, 1, 0, FACTS) == {
        "SLURMD_NODENAME": "n2",
        "SLURM_CPUS_ON_NODE": "2",
        "SLURM_GTIDS": "2",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "1",
        "SLURM_PROCID": "2",
        "SLURM_TOPOLOGY_ADDR": "s.n2",
        "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.node",
    }
    assert task_variables(TWO_NODES, 0, 1, FACTS)["SLURM_GTIDS"] == "0,1"


def test_a_step_over_components_is_one_to_its_tasks() -> None:
    whole = HetStep(
        leader=18, first_task=1, first_node=1, nodes=("n1", "n1", "n2"), node_of_task=(0, 1, 1, 2),
        held=(("n1", 2), ("n1", 4), ("n2", 4)),
    )  # fmt: skip
    part = replace(TWO_NODES, spec=StepSpec(het=whole))
    said = step_variables(JOB, ALLOCATION, part, FACTS, LAUNCH)
    assert (said["SLURM_JOB_ID"], said["SLURM_JOBID"], said["SLURM_NTASKS"]) == ("18", "18", "4")
    assert (said["SLURM_JOB_NUM_NODES"], said["SLURM_JOB_CPUS_PER_NODE"]) == ("3", "2,4(x2)")
    assert (said["SLURM_STEP_NODELIST"], said["SLURM_STEP_TASKS_PER_NODE"]) == ("n[1,1-2]", "1,2,1")
    assert "SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0" not in said  # srun's own environment has the first component's
    task = task_variables(part, 1, 0, FACTS)
    assert (task["SLURM_PROCID"], task["SLURM_NODEID"], task["SLURM_GTIDS"]) == ("3", "2", "3")


def test_an_allocation_of_its_own_has_the_allocations_variables_too() -> None:
    found = step_variables(JOB, ALLOCATION, TWO_NODES, FACTS, Launch(own_allocation=True))
    assert (found["SLURM_JOB_NODELIST"], found["SLURM_JOB_PARTITION"]) == ("n[1-2]", "gpu")
    assert not {"SLURM_DISTRIBUTION", "SLURM_NODE_ALIASES"} & set(found)


def test_an_allocation_of_its_own_does_not_tell_srun_what_srun_asked() -> None:
    asked = ResourceRequest(
        ntasks=3, gres_per_job=(GresRequest("gpu", None, 2),), cpus_per_gpu=3, memory_per_node_mib=2000
    )
    own = replace(JOB, spec=replace(JOB.spec, resources=asked, step_defaults=(("SLURM_HINT", "nomultithread"),)))
    spec = StepSpec(memory_per_node_mib=2000, gpu_bind="closest")
    found = step_variables(own, ALLOCATION, replace(TWO_NODES, spec=spec), FACTS, Launch(own_allocation=True))
    unset = {"SLURM_GPUS", "SLURM_CPUS_PER_GPU", "SLURM_MEM_PER_NODE", "SLURM_HINT", "SLURM_GPU_BIND"}
    assert not unset & set(found)
    assert found["SLURM_DISTRIBUTION"] == "block"  # Slurm sets it where memory was asked for


@pytest.mark.parametrize(
    ("asked", "whole", "type_", "listed", "prefer"),
    [
        ("local", "quiet,local", "local", "", None),
        ("verbose,local", "verbose,local", "local", "", None),
        ("prefer,local", "quiet,prefer,local", "local", "", "prefer"),
        ("map_mem:0", "quiet,map_mem:0", "map_mem:", "0", None),
    ],
)
def test_memory_binding_of_a_task(asked: str, whole: str, type_: str, listed: str, prefer: str | None) -> None:
    found = step_variables(JOB, ALLOCATION, replace(TWO_NODES, spec=StepSpec(mem_bind=asked)), FACTS, LAUNCH)
    names = ("SLURM_MEM_BIND", "SLURM_MEM_BIND_TYPE", "SLURM_MEM_BIND_LIST", "SLURM_MEM_BIND_PREFER")
    assert tuple(found.get(name) for name in names) == (whole, type_, listed, prefer)


def test_the_kind_of_mpi_is_told() -> None:
    found = step_variables(JOB, ALLOCATION, replace(TWO_NODES, spec=StepSpec(mpi="pmi2")), FACTS, LAUNCH)
    assert found["SLURM_MPI_TYPE"] == "pmi2"


def test_one_task_a_node_is_cyclic() -> None:
    spread = step(StepNode("n1", (0,), 1), StepNode("n2", (1,), 1))
    assert step_variables(JOB, ALLOCATION, spread, FACTS, LAUNCH)["SLURM_DISTRIBUTION"] == "cyclic"


def test_options_of_srun() -> None:
    spec = StepSpec(
        cpus_per_task=2, label=True, cpu_bind="cores", distribution=Distribution(NodeMethod.PLANE, plane_size=4)
    )
    found = step_variables(JOB, ALLOCATION, step(StepNode("n1", (0,), 2), spec=spec), FACTS, LAUNCH)
    assert (found["SLURM_CPUS_PER_TASK"], found["SLURM_LABELIO"], found["SLURM_CPU_BIND"]) == ("2", "1", "quiet,cores")
    assert (found["SLURM_DISTRIBUTION"], found["SLURM_DIST_PLANESIZE"]) == ("plane", "4")


GPUS = (GresShare("gpu", "a100", 2, (2, 3)),)


def test_all_tasks_see_the_steps_gpus() -> None:
    found = task_variables(step(StepNode("n1", (0, 1), 2, gres=GPUS)), 0, 1, FACTS)
    assert (found["CUDA_VISIBLE_DEVICES"], found["SLURM_STEP_GPUS"], found["SLURM_GPUS_ON_NODE"]) == ("2,3", "2,3", "2")


def test_a_task_sees_the_gpus_bound_to_it() -> None:
    bound = step(StepNode("n1", (0, 1), 2, gres=GPUS, task_gres=((2,), (3,))))
    found = task_variables(bound, 0, 1, FACTS)
    assert (found["CUDA_VISIBLE_DEVICES"], found["SLURM_STEP_GPUS"]) == ("3", "3")
    assert task_variables(bound, 0, 1, FACTS, confined=True)["CUDA_VISIBLE_DEVICES"] == "1"


def test_a_step_without_gpus_does_not_inherit_the_jobs() -> None:
    inherited = {"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "0", "TMPDIR": "/scratch", "A": "b"}
    merged = merged_step_environment(inherited, task_variables(TWO_NODES, 0, 0, FACTS) | {"TMPDIR": "/tmp"})
    assert "CUDA_VISIBLE_DEVICES" not in merged
    assert (merged["SLURM_JOB_GPUS"], merged["TMPDIR"], merged["A"]) == ("0", "/scratch", "b")


def test_a_stripped_environment_gets_the_names_that_a_jobs_script_has() -> None:
    fallback = fallback_variables(TWO_NODES)
    assert merged_step_environment({}, {}, fallback)["SLURM_JOB_NODELIST"] == "n[1-2]"
    assert merged_step_environment({"SLURM_JOB_NODELIST": "n[1-4]"}, {}, fallback)["SLURM_JOB_NODELIST"] == "n[1-4]"
