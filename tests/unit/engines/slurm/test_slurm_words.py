"""What Bireme asks Slurm to do, word by word, and what it makes of Slurm's silence."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bireme.api.routes.orders import _read_changes
from bireme.commands.scontrol.job_keys import job_change
from bireme.core.model.jobs import ArraySpec, Dependencies, Dependency, DependencyKind, JobSpec, Owner, ResourceRequest
from bireme.core.model.refusals import Why
from bireme.core.model.resources import GresRequest
from bireme.engines.slurm.commands import Done, Silent, refusal, why_silent
from bireme.engines.slurm.queries import parsed, version_of, version_warning
from bireme.engines.slurm.rest import token_problem
from bireme.engines.slurm.steps import running_steps
from bireme.engines.slurm.submission import batch_words, order_words
from bireme.engines.slurm.usage import read_usage
from bireme.ports import Order
from bireme.slurm.options.batch import read_batch
from bireme.slurm.options.context import SubmitContext
from bireme.slurm.options.errors import OptionError

ANN = Owner(uid=1000, gid=1000, user="ann")
SPEC = JobSpec(name="train", owner=ANN, partitions=("gpu", "all"), work_dir="/home/ann", argv=("a b", "c"))


def test_a_specification_as_arguments() -> None:
    asked = ResourceRequest(
        nodes_min=2, nodes_max=4, nodes_given=True, ntasks=8, cpus_per_task=2, memory_per_node_mib=4096,
        gres_per_node=(GresRequest("gpu", "a100", 2),), gres_per_job=(GresRequest("gpu", None, 8),), exclusive=True,
        nodelist=("n1", "n2"), constraint="ib&(a|b)",
    )  # fmt: skip
    spec = replace(
        SPEC, resources=asked, time_limit_s=5400, time_limit_given=True, hold=True, requeue=False, comment="it's mine",
        array=ArraySpec((1, 2, 3), 2, "1-3%2"),
        dependencies=Dependencies((Dependency(DependencyKind.AFTER_OK, 7), Dependency(DependencyKind.AFTER, 8, 1, 60))),
    )  # fmt: skip
    words = batch_words([spec], "abc")
    assert words[:2] == ["sbatch", "--parsable"]
    assert words[-3:] == ["/dev/stdin", "a b", "c"]
    assert set(words[2:-3]) == {
        "--job-name=train", "--partition=gpu,all", "--time=1:30:00", "--dependency=afterok:7,after:8_1+1",
        "--array=1-3%2", "--hold", "--no-requeue", "--chdir=/home/ann", "--nodes=2-4", "--ntasks=8",
        "--cpus-per-task=2", "--mem=4096M", "--gres=gpu:a100:2", "--gpus=8", "--exclusive", "--constraint=ib&(a|b)",
        "--nodelist=n[1-2]", "--comment=it's mine [bireme:abc]",
    }  # fmt: skip


def test_containers_are_asked_for_as_they_were() -> None:
    image = replace(SPEC, container_image="registry#a/b:1", container_mounts="/a:/b", container_workdir="/w")
    words = batch_words([image, replace(SPEC, container_bundle="/bundle")], "")
    assert [word for word in words if word.startswith(("--container", ":"))] == [
        "--container-image=registry#a/b:1", "--container-mounts=/a:/b", "--container-workdir=/w", ":",
        "--container=/bundle",
    ]  # fmt: skip


def test_components_of_a_heterogeneous_job_are_told_one_after_the_other() -> None:
    words = batch_words([SPEC, replace(SPEC, partitions=("cpu",))], "k")
    middle = words.index(":")
    assert "--partition=gpu,all" in words[:middle]
    assert "--partition=cpu" in words[middle:]
    assert sum("[bireme:k]" in word for word in words) == 2


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (Order(verb="cancel", target="42_7"), "scancel 42_7"),
        (Order(verb="signal", target="42", signal=10, scope="batch"), "scancel --signal=10 --batch 42"),
        (Order(verb="signal", target="42", signal=10, scope="all"), "scancel --signal=10 --full 42"),
        (Order(verb="hold", target="42"), "scontrol hold 42"),
        (Order(verb="hold", target="42", as_user=True), "scontrol uhold 42"),
        (Order(verb="requeue", target="42", held=True), "scontrol requeuehold 42"),
        (Order(verb="suspend", target="42"), "scontrol suspend 42"),
        (
            Order(verb="update", target="42", changes={"time_limit_s": 600, "partitions": ("a", "b")}),
            "scontrol update JobId=42 TimeLimit=10:00 Partition=a,b",
        ),
        (
            Order(verb="update_nodes", target="n[1-2]", changes={"state": "DRAIN", "weight": None, "features": ("x",)}),
            "scontrol update NodeName=n[1-2] State=DRAIN AvailableFeatures=x",
        ),
    ],
)
def test_orders(order: Order, words: str) -> None:
    assert order_words(order) == words.split()


def test_a_change_that_slurm_has_no_key_for_is_named() -> None:
    with pytest.raises(ValueError, match="umask"):
        order_words(Order(verb="update", target="1", changes={"umask": 7}))


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        ("NumNodes=2-4", "NumNodes=2-4"),
        ("ReqNodes=3", "NumNodes=3"),
        ("MinMemoryNode=4G", "MinMemoryNode=4096"),
        ("MinMemoryCPU=10", "MinMemoryCPU=10"),
        ("Switches=2@10:00", "Switches=2@10:00"),
        ("MinCPUsNode=3", "MinCPUsNode=3"),
        ("MinTmpDiskNode=1G", "MinTmpDiskNode=1024"),
        ("OverSubscribe=yes", "OverSubscribe=yes"),
        ("Prefer=ib", "Prefer=ib"),
        ("Requeue=no", "Requeue=0"),
        ("ArrayTaskThrottle=3", "ArrayTaskThrottle=3"),
        ("Gres=gpu:a100:2", "Gres=gpu:a100:2"),
    ],
)
def test_a_change_of_ours_is_told_to_slurm_in_the_same_words(pair: str, told: str) -> None:
    changes = _read_changes(job_change(*pair.split("=", 1)))
    assert order_words(Order(verb="update", target="1", changes=changes)) == ["scontrol", "update", "JobId=1", told]


@pytest.mark.parametrize(
    "changes", [{"nodes_max": 3}, {"switches_wait_s": 5}, {"memory_per_node_mib": None, "comment": "x"}]
)
def test_half_of_what_slurm_has_one_key_for_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        order_words(Order(verb="update", target="1", changes=changes))


options = st.sampled_from([
    "-N2", "-N2-4", "-n4", "-c2", "--mem=4G", "--gres=gpu:a100:2", "--gpus=a100:4", "-t10", "-t1-0",
    "--exclusive", "-pgpu", "--array=1-9:2%3", "-H", "--nice=5", "-Cib", "-wn1", "-xn[3-4]", "--dependency=afterok:7",
    "--container=/bundle", "--container-image=registry#a/b:1", "--container-mounts=/a:/b", "--container-workdir=/w",
    "--signal=B:USR1@60", "--ntasks-per-node=2", "-Jname", "--begin=2030-01-01T00:00:00", "--comment=word", "-otext",
])  # fmt: skip


@given(st.lists(options, max_size=6, unique=True))
def test_what_sbatch_is_told_means_what_bireme_was_told(given_options: list[str]) -> None:
    """Our own reader of sbatch's options reads our arguments as the same job."""
    context = SubmitContext(owner=ANN, cwd="/home/ann", now=1.7e9, utc_offset=local_offset)
    script = b"#!/bin/sh\n"
    try:
        first = read_batch([*given_options, "job.sh"], script, context).requests[0].spec
    except OptionError:  # words that contradict each other
        assume(False)
        raise
    again = read_batch(batch_words([first], "")[1:], script, context).requests[0].spec
    assert replace(again, command="") == replace(first, command="")


def local_offset(at: float) -> float:
    return float(time.localtime(at).tm_gmtoff)


# -- silence ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "slurmctld does not answer"),
        ("squeue: error: Munge encode failed: Failed to access", "does not accept who we are"),
        ("sinfo: fatal: something else", "sinfo: something else"),
        ("", "sinfo: no output"),
    ],
)
def test_one_message_says_what_to_check(said: str, told: str) -> None:
    assert told in why_silent("sinfo", said)


@pytest.mark.parametrize(
    ("out", "told"),
    [
        (b"", "cannot be read"),
        (b"{ not json", r"it begins with: \{ not json"),
        (b"[]", "is not an object"),
        (b'{"meta": {"slurm": {"release": "99.01"}}}', "of Slurm 99.01 has no list of jobs"),
        (b'{"errors": [{"description": "Failed while looking for jobs"}], "jobs": []}', "slurmctld does not answer"),
    ],
)
def test_answers_that_cannot_be_read(out: bytes, told: str) -> None:
    with pytest.raises(Silent, match=told):
        parsed("jobs", "squeue", out)


def test_an_empty_database_is_no_error() -> None:
    assert parsed("jobs", "sacct", b'{"errors": [{"error": "Nothing found"}], "jobs": []}') == []


def test_refusals_keep_slurms_words() -> None:
    what = "Batch job submission failed: Invalid partition name specified"
    err = f"sbatch: error: invalid partition specified: x\nsbatch: error: {what}"
    found = refusal(Done(1, b"", err, 0.1), ("Batch job submission failed: ",))
    assert (found.why, found.message) == (Why.INVALID_PARTITION_NAME, "Invalid partition name specified")
    assert found.remark == "invalid partition specified: x"


def test_versions() -> None:
    assert version_of("slurm-wlm 22.05.8") == (22, 5)
    assert version_warning("22.05.8") == version_warning("26.05.1") == ""
    assert "found Slurm 20.11.4; 22.05 to 26.05 are supported" in version_warning("20.11.4")
    assert "may write JSON that is not understood" in version_warning("27.11.0")


def test_tokens() -> None:
    def token(exp: int) -> str:
        return f"h.{base64.urlsafe_b64encode(json.dumps({'exp': exp}).encode()).decode().rstrip('=')}.s"

    assert token_problem(token(200), 100.0) == ""
    assert "it expired at" in token_problem(token(50), 100.0)
    assert token_problem("rubbish", 100.0) == "it is none"


def test_running_steps() -> None:
    written = (
        "StepId=7.batch StartTime=2026-11-15T08:41:33 State=RUNNING NodeList=n1 Nodes=1 CPUs=0 Tasks=1 Name=batch\n"
        "StepId=7.0 StartTime=2026-11-15T08:41:33 State=RUNNING NodeList=n[1-2] Nodes=2 CPUs=6 Tasks=3 Name=sleep\n"
        "StepId=5_2.1 StartTime=Unknown State=RUNNING NodeList=n3 Nodes=1 CPUs=1 Tasks=1 Name=x\n"
        "StepId=99.0 State=RUNNING NodeList=n1\nNo job steps in the system\n"
    )
    found = running_steps(written, {"7": 7, "5_2": 9})
    assert {job: [step.id for step in steps] for job, steps in found.items()} == {7: [0], 9: [1]}
    (step,) = found[7]
    assert [(node.node, node.task_ids, node.cpus) for node in step.nodes] == [("n1", (0, 1), 3), ("n2", (2,), 3)]
    assert (step.spec.name, step.ntasks, step.started_at is not None) == ("sleep", 3, True)


def test_live_usage() -> None:
    found = read_usage("7.batch|1|00:01:00|2048K|n1|0|4096K\n7.0|2|00:00:10|1048576|n2|1|2097152\n")
    assert found["batch"]["max_rss_kib"] == 2048
    assert (found["0"]["max_rss_kib"], found["0"]["user_cpu_s"], found["0"]["max_rss_node"]) == (1024, 20.0, "n2")
