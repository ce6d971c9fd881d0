"""The variables of a step's tasks, as Slurm 22.05 sets them."""

from bireme.core.model.distribution import Distribution, NodeMethod
from bireme.core.model.jobs import Job, JobSpec, Owner, Pending, ResourceRequest
from bireme.core.model.resources import Allocation, GresShare, NodeShare
from bireme.core.model.steps import Step, StepNode, StepSpec
from bireme.slurm.variables.cluster import ClusterFacts
from bireme.slurm.variables.steps import (
    Launch,
    fallback_variables,
    merged_step_environment,
    step_variables,
    task_variables,
)

FACTS = ClusterFacts(name="c", topology={"n2": ("s.n2", "switch.node")})
JOB = Job(19, JobSpec(owner=Owner(uid=1, gid=2, user="ada"), resources=ResourceRequest(ntasks=3)), 0.0, Pending(0.0))
ALLOCATION = Allocation(19, 1, "gpu", (NodeShare("n1", 2, 0, tasks=2), NodeShare("n2", 2, 0, tasks=1)))
LAUNCH = Launch(host="127.0.0.1", port=4242)


def step(*nodes: StepNode, spec: StepSpec | None = None) -> Step:
    return Step(19, 0, spec or StepSpec(), nodes, 0.0)


TWO_NODES = step(StepNode("n1", (0, 1), 2), StepNode("n2", (2,), 2))


def test_what_all_tasks_share() -> None:
    assert step_variables(JOB, ALLOCATION, TWO_NODES, FACTS, LAUNCH) == {
        "SLURM_CLUSTER_NAME": "c",
        "SLURM_DISTRIBUTION": "block",
        "SLURM_JOBID": "19",
        "SLURM_JOB_GID": "2",
        "SLURM_JOB_ID": "19",
        "SLURM_JOB_PARTITION": "gpu",
        "SLURM_JOB_UID": "1",
        "SLURM_JOB_USER": "ada",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_NNODES": "2",
        "SLURM_NODELIST": "n[1-2]",
        "SLURM_NPROCS": "3",
        "SLURM_NTASKS": "3",
        "SLURM_PRIO_PROCESS": "0",
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


def test_an_allocation_of_its_own_has_the_allocations_variables_too() -> None:
    found = step_variables(JOB, ALLOCATION, TWO_NODES, FACTS, Launch(own_allocation=True))
    assert (found["SLURM_JOB_NODELIST"], found["SLURM_JOB_PARTITION"]) == ("n[1-2]", "gpu")
    assert not {"SLURM_DISTRIBUTION", "SLURM_NODE_ALIASES"} & set(found)


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
