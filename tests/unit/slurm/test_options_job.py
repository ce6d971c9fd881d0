"""sbatch and salloc from arguments to JobSpec: defaults, combinations, and whole scripts."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.core.model.cluster import PartitionConfig, Settings
from bireme.core.model.jobs import DependencyKind, JobKind, JobSpec, Owner
from bireme.core.model.resources import GresRequest
from bireme.core.placement.demand import requested_tres, resolve
from bireme.slurm.options.batch import BatchSubmission, read_batch, script_of
from bireme.slurm.options.catalogue.help import depends_on_engine, engine_notices, is_applied
from bireme.slurm.options.context import SubmitContext
from bireme.slurm.options.errors import OptionError
from bireme.slurm.options.interactive import read_allocation
from bireme.slurm.understood import as_json, describe

ADA = Owner(uid=1000, gid=1000, user="ada")
CONTEXT = SubmitContext(owner=ADA, cwd="/home/ada", now=1.8e9, utc_offset=lambda at: 0.0, submit_host="login1")


def submit(*argv: str, script: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> BatchSubmission:
    context = replace(CONTEXT, environment=environment or {})
    words = list(argv) if any(word.startswith("--wrap") for word in argv) else [*argv, "train.sh"]
    text = "\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in script), "srun hostname", ""])
    return read_batch(words, text.encode(), context)


def spec(*argv: str, script: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> JobSpec:
    (request,) = submit(*argv, script=script, environment=environment).requests
    return request.spec


def refusal(*argv: str) -> tuple[int, str]:
    with pytest.raises(OptionError) as caught:
        submit(*argv)
    return caught.value.exit_code, caught.value.text_for("sbatch")


def test_defaults() -> None:
    got = spec()
    assert (got.kind, got.name, got.command, got.work_dir) == (
        JobKind.BATCH, "train.sh", "/home/ada/train.sh", "/home/ada",
    )  # fmt: skip
    assert (got.std_in, got.std_out, got.std_err) == ("/dev/null", "", "")
    assert (got.time_limit_s, got.time_limit_given, got.requeue, got.hold, got.export) == (
        None,
        False,
        None,
        False,
        "ALL",
    )
    asked = got.resources
    assert (asked.nodes_min, asked.nodes_max, asked.nodes_given, asked.ntasks) == (1, None, False, None)


def test_names() -> None:
    assert spec("--wrap=hostname").name == "wrap"
    assert spec("-J", "mine").name == "mine"
    (request,) = read_batch([], b"#!/bin/sh\n", CONTEXT).requests
    assert request.spec.name == "sbatch"


def test_the_script_to_read() -> None:
    assert script_of(["-N2", "dir/run.sh", "-x"]) == "dir/run.sh"
    assert script_of(["-N2"]) == ""
    assert script_of(["--wrap", "x"]) is None
    with pytest.raises(OptionError, match="Script arguments not permitted with --wrap option"):
        script_of(["--wrap=x", "run.sh"])


def test_the_command_is_where_the_script_was_found() -> None:
    found = read_batch(["run.sh"], b"#!/bin/sh\n", CONTEXT, "/opt/run.sh")
    assert found.requests[0].spec.command == "/opt/run.sh"


def test_files_belong_to_the_working_directory() -> None:
    got = spec("-D", "run", "-o", "logs/%j.out", "-e", "/tmp/%j.err", "-i", "none")
    assert got.work_dir == "/home/ada/run"
    assert (got.std_out, got.std_err, got.std_in) == ("/home/ada/run/logs/%j.out", "/tmp/%j.err", "/dev/null")


def test_when_and_after_what() -> None:
    got = spec(
        "-t1-12", "--begin=now+60", "-dafterok:12,afterany:13", "--array=0-31:2%4", "-H", "--nice=7", "--priority=9"
    )
    assert got.time_limit_s == 36 * 3600
    assert got.begin_at == 1.8e9 + 60
    assert [item.kind for item in got.dependencies.items] == [DependencyKind.AFTER_OK, DependencyKind.AFTER_ANY]
    assert got.array is not None
    assert (len(got.array.task_ids), got.array.throttle) == (16, 4)
    assert (got.hold, got.nice, got.priority) == (True, 7, 9)
    assert spec("--priority=0").hold


def test_unlimited_is_not_the_same_as_not_asked() -> None:
    got = spec("-tUNLIMITED")
    assert (got.time_limit_s, got.time_limit_given) == (None, True)


def test_more_nodes_than_tasks() -> None:
    submission = submit("-N8", "-n4")
    assert submission.notices == ("Warning: can't run 4 processes on 8 nodes, setting nnodes to 4",)
    asked = submission.requests[0].spec.resources
    assert (asked.nodes_min, asked.nodes_max) == (4, 4)
    assert spec("-wn[1-3]", "-n2").resources.nodelist == ("n1", "n2")
    assert spec("-wn[1-3]").resources.nodes_min == 3
    assert refusal("-wn[1-3]", "-N2") == (1, "sbatch: error: invalid number of nodes (-N 3-2)")


def test_numbers_that_follow_from_gpus() -> None:
    assert spec("--gpus=4", "--gpus-per-task=1").resources.ntasks == 4
    assert spec("--gpus=4", "--ntasks-per-gpu=2").resources.ntasks == 8
    assert spec("-n4", "--ntasks-per-gpu=2").resources.gres_per_job == (GresRequest("gpu", None, 2),)
    asked = spec("--gpus=8", "--gpus-per-node=4").resources
    assert (asked.nodes_min, asked.nodes_max, asked.nodes_given) == (2, 2, True)
    assert spec("-n8", "--gpus-per-task=1", "--gpus-per-node=4").resources.ntasks_per_node == 4
    assert spec("-N2", "--gres=gpu:2", "--ntasks-per-gpu=2").resources.ntasks == 8
    assert spec("--tres-per-task=cpu=3,gres/gpu=1", "-n2").resources.cpus_per_task == 3


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--gpus-per-task=1"], "error: Failed to validate job spec. --gpus-per-task used without either --gpus or"),
        (["-n2", "--gpus-per-task=1", "--gpus=8"], "error: Failed to validate job spec. Based on --gpus and"),
        (["--gpus=3", "--gpus-per-node=2"], "error: Failed to validate job spec, --gpus is not multiple of"),
        (["-N1", "--gpus=4", "--gpus-per-node=2"], "error: Failed to validate job spec. Based on --gpu and --gres=gpu"),
        (["--gpus-per-socket=1"], "error: --gpus-per-socket option requires --sockets-per-node specification"),
        (["--mem-per-gpu=1G"], "error: Requested mem_per_tres=gres:gpu:1024 but did not request any GPU."),
        (["-N4", "--gpus=2"], "error: Failed to validate job spec, --gpus < -N"),
        (["--gres=gpu:a100:1", "--gpus-per-node=2"], "error: Invalid GRES specification (with and without type"),
        (["--cpus-per-gpu=2", "-c2"], "error: --cpus-per-gpu is mutually exclusive with --cpus-per-task"),
        (
            ["--ntasks-per-gpu=1", "--ntasks-per-node=2"],
            "fatal: --ntasks-per-node is mutually exclusive with --ntasks-per-gpu and SLURM_NTASKS_PER_GPU",
        ),
    ],
)
def test_contradictions(argv: list[str], text: str) -> None:
    code, message = refusal(*argv)
    assert code == 1
    assert message.startswith(f"sbatch: {text}")


def test_hints_are_shapes() -> None:
    assert spec("--hint=nomultithread").resources.threads_per_core == 1
    assert spec("--hint=memory_bound").resources.cores_per_socket == 1
    submission = submit("--hint=nomultithread", "--ntasks-per-core=1")
    assert submission.requests[0].spec.resources.hint == ""
    assert "Ignoring --hint" in submission.notices[0]


def test_shape_says_how_many_tasks() -> None:
    asked = spec("-N2", "-B1:2").resources
    assert (asked.sockets_per_node, asked.cores_per_socket, asked.ntasks) == (1, 2, 4)
    assert spec("-N2", "--sockets-per-node=2", "--threads-per-core=2").resources.ntasks == 8
    assert spec("-N1-2", "--sockets-per-node=2").resources.ntasks is None
    assert spec("--cores-per-socket=2").resources.ntasks is None


def test_what_is_not_applied_is_said_once() -> None:
    submission = submit("--reboot", script=["--reboot", "--mail-type=END"])
    assert [notice.split(" ")[0] for notice in submission.notices] == ["--mail-type", "--reboot"]
    assert submission.requests[0].spec.ignored == ("mail-type", "reboot")
    assert submission.requests[0].spec.mail_user == "ada"


def test_defaults_for_the_steps_inside() -> None:
    got = spec("-mcyclic:block", "--gpu-bind=closest", "--export=NONE", "--open-mode=append")
    assert dict(got.step_defaults) == {
        "SLURM_DISTRIBUTION": "cyclic:block",
        "SLURM_GPU_BIND": "closest",
        "SLURM_EXPORT_ENV": "NONE",
        "SLURM_OPEN_MODE": "a",
    }
    assert got.get_user_env


def test_the_environment_goes_along() -> None:
    (request,) = submit("--export=FOO=1", environment={"BAR": "2", "SLURM_UMASK": "0077"}).requests
    assert request.environment == {"FOO": "1", "SLURM_UMASK": "0077"}
    assert request.spec.umask == 0o077


def test_the_jobs_processes_are_told_how_nice_its_submitter_was() -> None:
    (request,) = read_batch(["--wrap=true"], b"", replace(CONTEXT, process_nice=4)).requests
    assert request.spec.process_nice == 4


def test_heterogeneous_job() -> None:
    requests = submit("-N1", ":", "-N2", script=["--mem=1G", "hetjob", "--mem=2G"]).requests
    assert [request.spec.het_component for request in requests] == [0, 1]
    assert [request.spec.resources.memory_per_node_mib for request in requests] == [1024, 2048]
    assert {request.spec.command for request in requests} == {"/home/ada/train.sh"}


def test_lines_of_other_schedulers() -> None:
    text = b"#!/bin/sh\n#PBS -N fluid -q long\n#PBS -l nodes=2:ppn=3,walltime=1:00:00\n#PBS -W group_list=x\n"
    submission = read_batch(["run.sh"], text, CONTEXT)
    got = submission.requests[0].spec
    assert (got.name, got.partitions, got.time_limit_s) == ("fluid", ("long",), 3600)
    assert (got.resources.nodes_min, got.resources.ntasks) == (2, 6)
    assert submission.notices == ("line 4: #PBS -W has no counterpart and is ignored",)
    assert read_batch(["--ignore-pbs", "run.sh"], text, CONTEXT).requests[0].spec.name == "run.sh"
    text = b"#!/bin/sh\n#BSUB -J sweep[1-8] -n 4 -W 1:30\n"
    got = read_batch(["run.sh"], text, CONTEXT).requests[0].spec
    assert (got.name, got.resources.ntasks, got.time_limit_s) == ("sweep", 4, 5400)


def test_salloc() -> None:
    submission = read_allocation(["-N2", "--gpus-per-node=8", "-t30", "python", "-i"], CONTEXT)
    got = submission.jobs[0].spec
    assert (got.kind, got.name, submission.program) == (JobKind.INTERACTIVE, "python", ("python", "-i"))
    assert read_allocation(["-N1"], CONTEXT).jobs[0].spec.name == "interactive"


# Scripts of our own with the options that articles on GPU clusters use.
GPU_SCRIPTS = [
    ["--job-name=sanity", "--nodes=1", "--ntasks-per-node=1", "--gres=gpu:1", "--time=00:05:00"],
    [
        "--job-name=fsdp", "--nodes=4", "--ntasks-per-node=1", "--gres=gpu:8", "--exclusive", "--time=48:00:00",
        "--output=logs/%j/train.out", "--error=logs/%j/train.err",
    ],
    [
        "--job-name=finetune", "--partition=training", "--nodes=4", "--gres=gpu:a100:8", "--ntasks-per-node=8",
        "--cpus-per-task=16", "--mem=900G", "--time=48:00:00", "--output=training_%j.log",
    ],
    ["--gres=gpu:a100_3g.20gb:1"],
    ["--gpus-per-node=8", "--nodes=4", "--partition=a100"],
    ["--job-name=embed", "--array=0-999 # one for each shard", "--nodes=1", "--gres=gpu:1", "--time=02:00:00"],
    ["--requeue", "--signal=B:USR1@120", "--open-mode=append"],
    ["--container-image=registry/image:tag", "--container-mounts=/data:/data", "--dependency=afternotok:17"],
    ["--hint=nomultithread", "--constraint=h100&nvlink", "--mem-per-cpu=4G", "--qos=high", "--account=ml"],
    ["--wait-all-nodes=1", "--mail-type=BEGIN,END,FAIL", "--mail-user=ada@example.org", "--switches=1@00:10:00"],
]  # fmt: skip


@pytest.mark.parametrize("script", GPU_SCRIPTS)
def test_scripts_of_gpu_clusters_are_understood(script: list[str]) -> None:
    got = spec(script=script)
    told = describe(got)
    assert as_json(told)["name"] == got.name
    assert told.sections[0].title == "Resources"


def test_explanation_of_a_training_job() -> None:
    told = as_json(describe(spec(script=GPU_SCRIPTS[1])))
    assert told["gpus_total"] == 32
    assert told["nodes"] == {"min": 4, "max": 4, "given": True}
    assert told["time_limit"] == "2-00:00:00"
    assert told["std_out"] == "/home/ada/logs/%j/train.out"
    assert told["ignored"] == []


def test_explanation_names_what_is_not_applied() -> None:
    told = describe(spec(script=["--core-spec=1", "--array=0-3"]))
    assert [(each.option, bool(each.reason)) for each in told.ignored] == [("--core-spec", True)]
    assert as_json(told)["std_out"] == "/home/ada/slurm-%A_%a.out"


WORDS = st.one_of(
    st.sampled_from(
        ["-N2", "--mem=1G", "--gpus=2", ":", "hetjob", "--wrap=x", "-n", "--export", "-a1-3", "--tres-per-task=cpu=1"]
    ),
    st.text(max_size=10),
)


@given(st.lists(WORDS, max_size=6), st.lists(WORDS, max_size=4), st.binary(max_size=40))
def test_any_submission_is_understood_or_refused(argv: list[str], script: list[str], tail: bytes) -> None:
    lines = "\n".join(["#!/bin/sh", *(f"#SBATCH {word}" for word in script), ""])
    with contextlib.suppress(OptionError):
        submission = read_batch(argv, lines.encode("utf-8", "surrogatepass") + tail, CONTEXT)
        for request in submission.requests:
            as_json(describe(request.spec))


@pytest.mark.parametrize(
    ("options", "nodes", "tasks", "gpus"),
    [
        ("--gpus=2 --gpus-per-task=1 -n2", 1, 2, 2),
        ("--gpus=4 --gpus-per-node=2 -N2", 2, 2, 4),
        ("--gpus-per-node=8 --gres=gpu:8", 1, 1, 8),
        ("--gpus=1 --gres=gpu:1", 1, 1, 1),
        ("--gpus=4 --gres=gpu:2 --gpus-per-task=1", 2, 4, 4),
        ("--gpus-per-node=2 --gpus-per-socket=1 --sockets-per-node=2", 1, 1, 2),
        ("--gpus=4 --gpus-per-socket=1 --sockets-per-node=2", 2, 2, 4),
        ("--gpus-per-socket=1 --sockets-per-node=2 -N2", 2, 4, 4),
        ("--gpus-per-task=1 --gpus-per-socket=1 --sockets-per-node=2 -n4", 2, 4, 4),
        ("--gpus-per-node=4 --gpus-per-task=2 -n4", 2, 4, 8),
        ("--gpus=4 --gpus-per-node=2 --ntasks-per-gpu=2", 2, 8, 4),
        ("--ntasks-per-gpu=2 -N2", 2, 4, 2),
        ("--tres-per-task=gres/gpu:2 --gpus=4", 1, 2, 4),
    ],
)
def test_gpus_asked_for_in_several_words_count_once(options: str, nodes: int, tasks: int, gpus: int) -> None:
    demand = resolve(spec(*options.split()), PartitionConfig(name="p", nodes=("n1",)), Settings())
    totals = requested_tres(demand)
    assert (totals["node"], demand.ntasks, totals["gres/gpu"]) == (nodes, tasks, gpus)


def test_two_words_for_the_gpus_of_a_node_are_remarked_upon() -> None:
    (request,) = submit("--gpus-per-node=8", "--gres=gpu:8,shard:1").requests
    assert "counted once" in request.warnings[0]
    assert request.spec.resources.gres_per_node == (GresRequest("gpu", None, 8), GresRequest("shard", None, 1))
    assert "mutually exclusive" in refusal("--gpus-per-node=8", "--gres=gpu:4")[1]
    assert "with and without type" in refusal("--gpus=2", "--gpus-per-task=h100:1", "-n2")[1]
    assert "did not request any GPU" in refusal("--cpus-per-gpu=4")[1]
    assert "--gpus-per-task used without" in refusal("--gpus-per-task=1", "--gres=gpu:h100:2")[1]


IMAGE = ["--container-image=img", "--container-mounts=/a:/b", "--container-name=x", "--reboot"]


@pytest.mark.parametrize(
    ("engine", "step", "words"),
    [
        ("embedded", False, []),
        ("embedded", True, []),
        ("kubernetes", False, ["docs/kubernetes.md"]),
        ("kubernetes", True, ["steps run in the container", "steps run in the container", "docs/kubernetes.md"]),
        ("kubernetes+slurm", False, ["docs/kubernetes.md"]),
        ("slurm", False, []),
    ],
)
def test_what_an_engine_does_not_apply_is_said_for_that_engine(engine: str, step: bool, words: list[str]) -> None:
    submission = submit(*IMAGE, "--wrap=true")
    assert [notice.partition(" ")[0] for notice in submission.notices] == ["--reboot"], "whatever the engine"
    said = engine_notices(submission.components, engine, step=step)
    assert len(said) == len(words)
    assert all(word in notice for word, notice in zip(words, said, strict=True)), said


def test_which_engine_it_is_is_asked_only_where_that_makes_a_difference() -> None:
    assert depends_on_engine(submit("--container-image=img", "--wrap=true").components)
    assert not depends_on_engine(submit("--reboot", "--comment=x", "--wrap=true").components)


def test_what_is_applied_is_not_recorded_as_ignored() -> None:
    assert [name for name in ("container-image", "reboot") if not is_applied(name, "kubernetes")] == ["reboot"]
    assert [name for name in ("container-image", "container-id") if not is_applied(name, "embedded")] == [
        "container-id"
    ]


def test_slurm_hostfile_names_the_nodes_of_a_job() -> None:
    context = replace(CONTEXT, environment={"SLURM_HOSTFILE": "hosts"}, host_file="n3\nn1\nn3\n")
    asked = read_batch(["--wrap", "x"], None, context).requests[0].spec.resources
    assert (asked.nodelist, asked.nodes_min, asked.distribution.lower()) == (("n3", "n1", "n3"), 2, "arbitrary")
    assert asked.min_cpus_per_node == 2, "for an srun that follows the file"
    script = b"#!/bin/sh\n#SBATCH -w n2\n"
    gone = replace(context, host_file="", host_file_fault="No such file or directory")
    assert read_batch(["job.sh"], script, gone).requests[0].spec.resources.nodelist == ("n2",)
    for reads in (lambda: read_batch(["--wrap", "x"], None, gone), lambda: read_allocation(["true"], gone)):
        with pytest.raises(OptionError, match="which SLURM_HOSTFILE names"):
            reads()


def test_an_arbitrary_job_needs_hosts() -> None:
    code, said = refusal("-m", "arbitrary", "-N1", "-n1", "--wrap", "x")
    assert code == 1
    assert "With Arbitrary distribution you need to specify a nodelist or hostfile with the -w option" in said
    assert spec("-m", "arbitrary", "-w", "n1,n2", "--wrap", "x").resources.nodelist == ("n1", "n2")


def test_what_is_not_applied_is_said_of_variables_too() -> None:
    by_hand = submit("--core-spec=1").notices
    assert by_hand
    assert submit(environment={"SBATCH_CORE_SPEC": "1"}).notices == by_hand


def test_a_wrong_time_limit_names_the_right_forms() -> None:
    code, said = refusal("-t", "1h", "--wrap", "x")
    assert (code, said.splitlines()[0]) == (255, "sbatch: error: Invalid --time specification")
    assert "minutes, MM:SS, HH:MM:SS, D-HH" in said
