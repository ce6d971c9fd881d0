"""What srun gets inside a job."""

from dataclasses import replace

import pytest

from bireme.core.jobs import requests
from bireme.core.jobs.requests import Target
from bireme.core.lifecycle.outstanding import outstanding
from bireme.core.model.commands import TerminateStep
from bireme.core.model.jobs import JobKind
from bireme.core.model.refusals import Why
from bireme.core.model.resources import GresRequest
from bireme.core.model.steps import Step, StepState
from bireme.testing.scenario import Scenario, caller_named


def in_a_job(**options: object) -> Scenario:
    world = Scenario("2x8:h100")
    world.submit("job", **options)
    world.settle()
    return world


def layout(step: Step) -> dict[str, tuple[int, ...]]:
    return {node.node: node.task_ids for node in step.nodes}


def test_a_step_takes_all_nodes_and_cpus_of_the_job() -> None:
    world = in_a_job(nodes=2, cpus=4)
    step = world.step("job")
    assert layout(step) == {"n1": (0,), "n2": (1,)}
    assert [node.cpus for node in step.nodes] == [4, 4]
    assert step.state is StepState.RUNNING


def test_tasks_are_laid_out_in_blocks_over_the_nodes() -> None:
    world = in_a_job(nodes=2, tasks=8)
    assert layout(world.step("job", ntasks=8)) == {"n1": (0, 1, 2, 3, 4, 5, 6), "n2": (7,)}


def test_a_second_step_waits_until_the_first_is_over() -> None:
    world = in_a_job(cpus=4)
    world.step("job")
    with world.refused(Why.NODES_BUSY):
        world.step("job")
    world.finish_step("job", 0)
    assert world.step("job").id == 1


def test_exact_steps_share_the_job_without_sharing_a_cpu() -> None:
    world = in_a_job(tasks=4)
    steps = [world.step("job", ntasks=1, exact=True) for _ in range(4)]
    assert sorted(step.nodes[0].cpu_ids for step in steps) == [(0,), (1,), (2,), (3,)]
    with world.refused(Why.NODES_BUSY):
        world.step("job", ntasks=1, exact=True)


def test_cpus_per_task_implies_exact() -> None:
    world = in_a_job(tasks=1, cpus=8)
    assert world.step("job", ntasks=1, cpus_per_task=2).nodes[0].cpus == 2
    assert world.step("job", ntasks=1, cpus_per_task=6).nodes[0].cpus == 6


def test_overlapping_steps_share_everything() -> None:
    world = in_a_job(cpus=4, gpus=2)
    world.step("job", overlap=True)
    step = world.step("job", overlap=True)
    assert step.nodes[0].cpus == 4
    assert step.nodes[0].gres[0].count == 2
    world.step("job")


def test_exact_steps_do_not_share_a_gpu() -> None:
    world = in_a_job(tasks=4, gpus=4)
    one = GresRequest("gpu", None, 1)
    steps = [world.step("job", ntasks=1, exact=True, gres_per_task=(one,)) for _ in range(4)]
    assert sorted(step.nodes[0].gres[0].indices for step in steps) == [(0,), (1,), (2,), (3,)]


def test_each_task_has_its_own_gpu() -> None:
    world = in_a_job(nodes=2, tasks=8, gpus_per_node=4)
    step = world.step("job", ntasks=8, gres_per_task=(GresRequest("gpu", None, 1),))
    assert [node.task_gres for node in step.nodes] == [((0,), (1,), (2,), (3,))] * 2


def test_gpus_of_a_step_are_counted_over_its_nodes() -> None:
    world = in_a_job(nodes=2, ntasks_per_node=4, gpus_per_node=4)
    step = world.step("job", gres_per_step=(GresRequest("gpu", None, 2),), cpus_per_gpu=1)
    assert [node.gres[0].indices for node in step.nodes] == [(0,), (0,)]


def test_a_step_keeps_the_order_of_the_jobs_nodes() -> None:
    world = in_a_job(nodes=2)
    assert [node.node for node in world.step("job", nodelist=("n2",), nodes_min=2).nodes] == ["n1", "n2"]


def test_more_tasks_than_the_job_has_cpus_is_refused() -> None:
    world = in_a_job(cpus=2)
    with world.refused(Why.TOO_MANY_REQUESTED_CPUS):
        world.step("job", ntasks=3)
    assert world.step("job", ntasks=3, overcommit=True).ntasks == 3


def test_more_memory_than_the_job_has_is_refused() -> None:
    world = Scenario("1x8", memory_mib=1000)
    world.submit("job", mem=500)
    world.settle()
    with world.refused(Why.INVALID_TASK_MEMORY):
        world.step("job", memory_per_node_mib=501)
    assert world.step("job", memory_per_node_mib=500).ntasks == 1


def test_gpus_that_the_job_does_not_have_are_refused() -> None:
    world = in_a_job(cpus=2)
    with world.refused(Why.INVALID_GRES):
        world.step("job", gres_per_node=(GresRequest("gpu", None, 1),))


def test_a_cancelled_step_is_killed_and_a_failed_one_is_warned() -> None:
    world = in_a_job(tasks=2)
    world.step("job", ntasks=1, exact=True)
    world.step("job", ntasks=1, exact=True)
    job = world.job("job").id
    world.record(requests.end_step(world.state, caller_named("alice"), Target(job, step_id=0), None))
    world.record(requests.fail_step(world.state, caller_named("alice"), Target(job, step_id=1)))
    sent = [command for command in world.engine.commands if isinstance(command, TerminateStep)]
    assert [command.grace_s for command in sent] == [0, 30]


def test_more_nodes_than_the_job_has_is_refused() -> None:
    world = in_a_job(nodes=2)
    with world.refused(Why.INVALID_NODE_COUNT):
        world.step("job", nodes_min=3)


def test_a_node_that_is_not_the_jobs_is_refused() -> None:
    world = in_a_job()
    with world.refused(Why.NODE_CONFIG_UNAVAILABLE):
        world.step("job", nodelist=("n2",))


def test_a_step_on_one_named_node() -> None:
    world = in_a_job(nodes=2)
    assert layout(world.step("job", nodelist=("n2",), ntasks=1)) == {"n2": (0,)}


def test_no_step_before_the_job_runs_nor_after() -> None:
    world = Scenario("1x8")
    world.submit("job", hold=True)
    with world.refused(Why.JOB_PENDING):
        world.step("job")
    world.cancel("job")
    with world.refused(Why.ALREADY_DONE):
        world.step("job")


def test_a_cancelled_step_leaves_its_job_running() -> None:
    world = in_a_job()
    step = world.step("job")
    world.record(requests.end_step(world.state, caller_named("alice"), Target(world.id_of("job"), step_id=0), None))
    assert (step.state, step.outcome) == (StepState.ENDED, "CANCELLED")
    world.expect(job="runs n1")


def test_a_step_ends_at_its_own_limit() -> None:
    world = in_a_job()
    step = world.step("job", time_limit_s=60)
    world.wait(59)
    assert step.state is StepState.RUNNING
    world.wait(1)
    assert step.outcome == "TIMEOUT"


def test_the_worst_step_is_the_derived_exit_code() -> None:
    world = in_a_job(nodes=2)
    for number, code in enumerate((0, 3, 1)):
        world.step("job")
        world.finish_step("job", number, code)
    assert world.job("job").worst_step_status.code == 3
    assert [step.outcome for step in world.job("job").steps.values()] == ["COMPLETED", "FAILED", "FAILED"]


@pytest.mark.parametrize("user", ["bob"])
def test_only_the_owner_makes_steps(user: str) -> None:
    world = in_a_job()
    with world.refused(Why.ACCESS_DENIED):
        world.step("job", user=user)


def test_a_step_that_was_being_ended_is_ended_again_after_a_restart() -> None:
    """Found by fault worlds: the daemon died between the commit and the order."""
    world = Scenario("1x8")
    world.submit("job")
    world.settle()
    step = world.step("job", ntasks=1)
    world.engine.obeys = False
    job = world.job("job")
    world.record(requests.end_step(world.state, caller_named("alice"), Target(job.id, step_id=step.id), None))
    ordered = world.engine.commands[-1]
    assert isinstance(ordered, TerminateStep)
    assert [c for c in outstanding(world.replayed()) if isinstance(c, TerminateStep)] == [replace(ordered, grace_s=30)]


def test_a_step_has_the_container_of_an_allocation_and_not_of_a_script() -> None:
    asked = {"container_image": "ubuntu", "container_mounts": "/data", "container_writable": False}
    held = in_a_job(**asked, kind=JobKind.INTERACTIVE, script="")
    spec = held.step("job", container_mounts="/own").spec
    assert (spec.container_image, spec.container_mounts, spec.container_writable) == ("ubuntu", "/own", False)
    bundled = in_a_job(**asked, kind=JobKind.INTERACTIVE, script="").step("job", container_bundle="/bundle").spec
    assert (bundled.container_image, bundled.container_bundle, bundled.container_mounts) == ("", "/bundle", "/data")
    assert in_a_job(**asked).step("job").spec.container_image == ""
    line = "srun --container-image=ubuntu bash"
    by_srun = in_a_job(**asked, kind=JobKind.INTERACTIVE, script="", submit_line=line)
    by_srun.step("job", container_image="ubuntu", submit_line=line)
    assert by_srun.step("job", overlap=True, submit_line="srun hostname").spec.container_image == ""
