"""srun from arguments to StepSpec: inside a job, with the job's variables, and outside one."""

import contextlib
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.core.model.distribution import NodeMethod
from bireme.core.model.jobs import JobKind, Owner
from bireme.core.model.resources import GresRequest
from bireme.core.model.steps import StepSpec
from bireme.slurm.options.context import SubmitContext
from bireme.slurm.options.errors import OptionError
from bireme.slurm.options.interactive import RunSubmission, read_run

CONTEXT = SubmitContext(
    owner=Owner(uid=1000, gid=1000, user="ada"), cwd="/home/ada", now=1.8e9, utc_offset=lambda at: 0.0
)
JOB = {"SLURM_JOB_ID": "42", "SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2", "SLURM_JOB_NAME": "train"}
FOUR_TASKS = {**JOB, "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2", "SLURM_MEM_PER_NODE": "1000"}


def run(*argv: str, environment: Mapping[str, str] | None = None) -> RunSubmission:
    return read_run(argv, replace(CONTEXT, environment=environment or {}))


def step(*argv: str, environment: Mapping[str, str] | None = None) -> StepSpec:
    return run(*argv, environment=environment).steps[0].spec


def test_outside_a_job_there_is_an_allocation_first() -> None:
    got = run("-n4", "-N2", "--gres=gpu:1", "hostname", "-f")
    assert got.jobs[0].spec.kind is JobKind.INTERACTIVE
    assert got.jobs[0].spec.resources.ntasks == 4
    assert got.steps[0].spec.argv == ("hostname", "-f")
    assert got.steps[0].job_id is None


def test_inside_a_job_the_job_says_how_many() -> None:
    got = run("hostname", environment=FOUR_TASKS)
    spec = got.steps[0].spec
    assert (got.jobs, got.steps[0].job_id, spec.name) == ((), 42, "hostname")
    assert (spec.nodes_min, spec.ntasks, spec.ntasks_per_node) == (2, 4, 2)
    assert spec.memory_per_node_mib is None, "the step gets what the job has"
    assert spec.gres_per_node is None


def test_fewer_tasks_than_the_job_has_nodes() -> None:
    got = run("-n1", "hostname", environment=FOUR_TASKS)
    assert got.notices == ("Warning: can't run 1 processes on 2 nodes, setting nnodes to 1",)
    assert (got.steps[0].spec.nodes_min, got.steps[0].spec.nodes_max) == (1, 1)


def test_tasks_per_node_by_hand_win_over_the_jobs_tasks() -> None:
    spec = step("--ntasks-per-node=1", "nvidia-smi", environment=FOUR_TASKS)
    assert (spec.ntasks, spec.ntasks_per_node, spec.nodes_min) == (None, 1, 2)


def test_cpus_per_task_come_from_sruns_own_variable_only() -> None:
    assert step("x", environment={**JOB, "SLURM_CPUS_PER_TASK": "8"}).cpus_per_task is None
    assert step("x", environment={**JOB, "SRUN_CPUS_PER_TASK": "8"}).cpus_per_task == 8


def test_cpus_by_hand_are_exact() -> None:
    assert step("-c2", "x", environment=JOB).exact
    assert step("--exclusive", "x", environment=JOB).exact
    assert not step("x", environment=JOB).exact


def test_generic_resources_of_a_step() -> None:
    assert step("--gres=none", "x", environment=JOB).gres_per_node == ()
    assert step("--gres=gpu:1", "x", environment=JOB).gres_per_node == (GresRequest("gpu", None, 1),)
    inherited = {**JOB, "SLURM_GPUS_PER_TASK": "1", "SLURM_GPUS": "4"}
    assert step("x", environment=inherited).gres_per_task == (GresRequest("gpu", None, 1),)
    assert step("x", environment=inherited).gres_per_step == ()
    assert step("--gres=none", "x", environment=inherited).gres_per_task == ()


def test_an_arbitrary_step_has_a_task_for_each_host_of_its_list() -> None:
    spec = step("-m", "arbitrary", "-w", "n3,n1,n1", "true", environment=JOB)
    assert (spec.ntasks, spec.nodes_min, spec.nodes_max) == (3, 2, 2)
    assert spec.arbitrary_hosts == ("n3", "n1", "n1")
    assert step("-m", "arbitrary", "-n2", "-w", "n3,n1,n1", "true", environment=JOB).arbitrary_hosts == ("n3", "n1")


def test_packed_tasks_take_no_more_nodes_than_they_need() -> None:
    assert step("-m", "block,pack", "-n2", "true", environment=JOB).nodes_min is None
    assert step("-m", "block,pack", "-N2", "-n2", "true", environment=JOB).nodes_min == 2


def test_streams_and_launch() -> None:
    spec = step("-l", "-oout-%t.log", "-inone", "-K", "-W30", "--mpi=pmi2", "--cpu-bind=cores", "-D", "sub", "x")
    assert (spec.label, spec.std_out, spec.std_in) == (True, "out-%t.log", "none")
    assert (spec.kill_on_bad_exit, spec.wait_s, spec.mpi, spec.cpu_bind) == (True, 30, "pmi2", "cores")
    assert spec.work_dir == "/home/ada/sub"
    assert step("--pty", "bash").unbuffered
    assert step("-mcyclic", "x").distribution.nodes is NodeMethod.CYCLIC


def test_job_id_by_hand_and_overlap() -> None:
    got = run("--jobid=7", "--overlap", "nvidia-smi")
    assert got.steps[0].job_id == 7
    assert got.steps[0].spec.overlap


def test_export() -> None:
    got = run("--export=NONE", "x", environment={**JOB, "HOME": "/home/ada"})
    assert got.steps[0].environment == JOB
    inherited = run("x", environment={**JOB, "SLURM_EXPORT_ENV": "NIL", "HOME": "/home/ada"})
    assert "HOME" not in inherited.steps[0].environment


def test_components() -> None:
    got = run("-n1", "server", ":", "-n2", "client", environment=JOB)
    assert [(each.spec.argv, each.spec.ntasks) for each in got.steps] == [(("server",), 1), (("client",), 2)]
    shared = run("-n1", ":", "-n2", "both", environment=JOB)
    assert [each.spec.argv for each in shared.steps] == [("both",), ("both",)]


def test_refusals() -> None:
    for argv, text in (
        ([], "srun: fatal: No command given to execute."),
        (["-r1", "x"], "srun: fatal: --relative option invalid for job allocation request"),
        (["--mpi=ucx", "x"], "srun: error: Invalid MPI type 'ucx', --mpi=list for acceptable types"),
        (
            ["--mpi=pmix_v4", "x"],
            "srun: error: Invalid MPI type 'pmix_v4', --mpi=list for acceptable types\n"
            "srun: error: programs that speak PMIx are not served: torch needs no --mpi, an MPI with PMI --mpi=pmi2",
        ),
    ):
        with pytest.raises(OptionError) as caught:
            run(*argv)
        assert (caught.value.exit_code, caught.value.text_for("srun")) == (1, text)


@given(
    st.lists(st.one_of(st.sampled_from(["-n2", "-N3", ":", "--gpus=1", "-w", "x"]), st.text(max_size=8)), max_size=6),
    st.dictionaries(st.sampled_from(sorted(FOUR_TASKS)), st.text(max_size=6), max_size=4),
)
def test_any_run_is_understood_or_refused(argv: list[str], environment: dict[str, str]) -> None:
    with contextlib.suppress(OptionError):
        run(*argv, environment=environment)


def test_what_the_job_says_in_two_ways_counts_once() -> None:
    told = {**JOB, "SLURM_GPUS_PER_TASK": "1", "SLURM_CPUS_PER_TASK": "2", "SLURM_TRES_PER_TASK": "cpu=2,gres/gpu=1"}
    spec = step("hostname", environment=told)
    assert (spec.gres_per_task, spec.cpus_per_task) == ((GresRequest("gpu", None, 1),), None)
    by_hand = step("--gpus-per-task=2", "-c3", "hostname", environment=told)
    assert (by_hand.gres_per_task, by_hand.cpus_per_task) == ((GresRequest("gpu", None, 2),), 3)
    as_tres = step("--tres-per-task=cpu=4,gres/gpu=3", "hostname", environment=told)
    assert (as_tres.gres_per_task, as_tres.cpus_per_task) == ((GresRequest("gpu", None, 3),), 4)


def with_host_file(text: str, fault: str = "", environment: Mapping[str, str] | None = None) -> SubmitContext:
    variables = {"SLURM_HOSTFILE": "hosts", **(environment or {})}
    return replace(CONTEXT, environment=variables, host_file=text, host_file_fault=fault)


@pytest.mark.parametrize(
    ("argv", "hosts"),
    [
        ("x", "n3 n1 n3"),
        ("-m block x", "n3 n1 n3"),
        ("-n2 x", "n3 n1"),
        ("-N1 x", "n3"),
        ("-N2 -n3 x", "n3 n1 n3"),
        ("-w n2 x", ""),
    ],
)
def test_slurm_hostfile_says_where_each_task_runs(argv: str, hosts: str) -> None:
    for outside in (True, False):
        got = read_run(argv.split(), with_host_file("n3\nn1\nn3\n", environment={} if outside else FOUR_TASKS))
        step = got.steps[0].spec
        assert step.arbitrary_hosts == tuple(hosts.split())
        if hosts:
            assert (step.ntasks, step.nodes_min) == (len(hosts.split()), len(set(hosts.split())))
        if outside and hosts:
            asked = got.jobs[0].spec.resources
            assert (asked.ntasks, asked.distribution.lower()) == (len(hosts.split()), "arbitrary")
            assert (asked.min_cpus_per_node or 1) == max(hosts.split().count(host) for host in hosts.split())


@pytest.mark.parametrize(
    ("argv", "text", "fault", "said"),
    [
        ("x", "", "No such file or directory", "Unable to open 'hosts', which SLURM_HOSTFILE names: No such file"),
        ("x", " \n", "", "Hostlist is empty!"),
        ("-n4 x", "n3 n1 n3", "", "Too few NodeNames in Slurm Hostfile"),
    ],
)
def test_a_hostfile_that_cannot_be_followed_is_refused(argv: str, text: str, fault: str, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_run(argv.split(), with_host_file(text, fault))
    assert said in caught.value.text_for("srun")
    assert "srun: error: Failure getting NodeNames from hostfile" in caught.value.text_for("srun")
    assert caught.value.exit_code == 1
    read_run(["-w", "n1", "x"], with_host_file(text, fault))  # nobody needs the file


def test_an_arbitrary_distribution_needs_hosts() -> None:
    for environment in (None, FOUR_TASKS):
        with pytest.raises(OptionError, match="With Arbitrary distribution you need to specify a nodelist or hostfile"):
            run("-m", "arbitrary", "x", environment=environment)
    with pytest.raises(OptionError, match="With Arbitrary"):
        run("x", environment={"SLURM_DISTRIBUTION": "arbitrary"})
    of_the_job = {**FOUR_TASKS, "SLURM_DISTRIBUTION": "arbitrary"}
    assert step("x", environment=of_the_job).ntasks == 4, "what the job was submitted with stops no step in it"


def test_sruns_own_job_lets_go_of_tasks_per_node_that_do_not_fit() -> None:
    got = run("-n4", "-N1", "--ntasks-per-node=2", "x")
    asked = got.jobs[0].spec.resources
    assert (asked.ntasks, asked.nodes_min, asked.ntasks_per_node) == (4, 1, None)
    assert [notice for notice in got.notices if "Ignoring --ntasks-per-node" in notice]
    assert run("-n4", "-N2", "--ntasks-per-node=2", "x").jobs[0].spec.resources.ntasks_per_node == 2


@pytest.mark.parametrize("line", ["--het-group=1 -n1 a : -n1 b", "-n1 a : --het-group=0,2 -n1 b"])
def test_a_component_of_the_job_is_for_one_component_of_the_line(line: str) -> None:
    with pytest.raises(OptionError, match="Duplicate het groups in single srun not supported"):
        read_run(line.split(), CONTEXT)
    read_run(line.replace("=1", "=2").replace("0,2", "2").split(), CONTEXT)
