"""Telemetry on a real cluster: what jobs use is gathered, kept and shown, with daemons and gatherers that die."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from cluster import Cluster
from tests.support.measured import ask, curves, until, values_of

from bireme.client.transport import ApiError
from bireme.daemon.telemetry.process import pid_of

BURNS = """#!/bin/bash
#SBATCH --nodes=2 --ntasks=2
srun bash -c 'trap exit TERM; while :; do :; done' &
wait
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    made.variables |= {"BIREME_TELEMETRY_GATHER": "on", "BIREME_TELEMETRY_INTERVAL_S": "1"}
    with made.running():
        yield made


def burning(cluster: Cluster) -> int:
    """A job of two tasks on two nodes that use CPUs, once it is seen doing that."""
    script = cluster.work / "burn.sh"
    script.write_text(BURNS)
    job_id = int(cluster.run("sbatch", "--parsable", str(script)).stdout)

    def seen() -> bool | None:
        return True if (values_of(cluster, job_id) or {}).get("cpu_user", 0.0) > 0 else None

    until(seen, f"nothing is measured of job {job_id}")
    return job_id


def ended(cluster: Cluster, job_id: int) -> None:
    cluster.run("scancel", str(job_id))
    until(lambda: True if values_of(cluster, job_id) is None else None, f"job {job_id} is still measured")


def gatherer(cluster: Cluster) -> int | None:
    return pid_of(str(cluster.home / "gatherer"))


def test_every_task_of_a_job_is_measured_on_its_node(cluster: Cluster) -> None:
    job_id = burning(cluster)
    tasks = {("n1", "-5.0"), ("n1", "0.0"), ("n2", "0.1")}

    def measured() -> dict[tuple[str, str], float]:
        """By node and task: the most that was seen of it."""
        found = curves(cluster, job_id, "cpu_user")
        return {(one["node"], one["id"].split(".", 2)[2]): max(high or 0.0 for high in one["high"]) for one in found}

    def seen_at_work() -> bool:
        seen = measured()
        return seen.keys() == tasks and all(high > 0 for (_, task), high in seen.items() if task != "-5.0")

    until(seen_at_work, "script and two tasks are not seen, or not at work")
    ended(cluster, job_id)


def test_what_was_measured_can_be_read_when_the_job_is_over(cluster: Cluster) -> None:
    job_id = burning(cluster)
    ended(cluster, job_id)
    memory = curves(cluster, job_id, "memory")
    assert memory
    assert all(any(value for value in curve["mean"] if value is not None) for curve in memory)


def test_the_death_of_the_daemon_does_not_stop_gathering(cluster: Cluster) -> None:
    job_id = burning(cluster)
    gathers = gatherer(cluster)
    cluster.kill_daemon()
    spool = cluster.home / "gatherer" / "rounds"
    size = spool.stat().st_size
    until(lambda: True if spool.stat().st_size > size + 1000 else None, "no round is made without a daemon")
    cluster.up_again()
    assert gatherer(cluster) == gathers, "it is found again"
    until(lambda: True if values_of(cluster, job_id) else None, "the rounds of meanwhile do not come")
    ended(cluster, job_id)


def test_a_gatherer_that_dies_is_replaced(cluster: Cluster) -> None:
    first = until(lambda: gatherer(cluster), "there is no gatherer")
    os.kill(first, signal.SIGKILL)
    second = until(lambda: found if (found := gatherer(cluster)) not in (None, first) else None, "none takes its place")
    assert second != first


def test_a_gatherer_that_hangs_is_told_of_with_the_age_of_its_figures_and_replaced(cluster: Cluster) -> None:
    pid = until(lambda: gatherer(cluster), "there is no gatherer")
    until(lambda: True if "Telemetry newest round of " in cluster.run("bireme", "status").stdout else None, "no round")
    os.kill(pid, signal.SIGSTOP)
    try:
        text = until(
            lambda: said if "tells nothing new" in (said := cluster.run("bireme", "status").stdout) else None,
            "not told",
        )
        assert "the machine that measures tells nothing new: a gatherer hangs" in text
        assert "nothing new is told, newest round of " in (told := cluster.run("bireme", "doctor", check=False).stdout)
        assert f"this machine's gatherer is pid {pid}" in told
        other = until(lambda: found if (found := gatherer(cluster)) not in (None, pid) else None, "it is not replaced")
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    until(
        lambda: True if "is not whole" not in cluster.run("bireme", "status").stdout else None, "it is not well again"
    )
    assert gatherer(cluster) == other


def test_a_second_gatherer_does_not_begin(cluster: Cluster) -> None:
    until(lambda: gatherer(cluster), "there is no gatherer")
    words = ["--agents", "/nowhere", "--daemon", "/nowhere", "--machine", "x", "--log", "/dev/null"]
    folder = str(cluster.home / "gatherer")
    done = cluster.run(cluster.python, "-m", "bireme.gather", "--folder", folder, *words, check=False)
    assert (done.returncode, done.stderr) == (1, "bireme gather: another one gathers here already\n")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({}, "one of job, gpu and node"),
        ({"job": "1", "node": "n1"}, "one of job, gpu and node"),
        ({"job": "1", "metrics": "gpu_dreams"}, "there is no metric 'gpu_dreams'"),
        ({"node": "n1", "start": "9", "end": "3"}, "end is before start"),
        ({"node": "n1", "reduce": "median"}, "it is one of band"),
        ({"job": "424242"}, "Invalid job id"),
    ],
)
def test_bad_questions_are_answered_with_what_is_wrong(cluster: Cluster, query: dict[str, str], says: str) -> None:
    with pytest.raises(ApiError, match=says):
        ask(cluster, "/v1/telemetry/series", **query)


# --- GPUs that follow a script ---------------------------------------------------------------------------------------

BUSY = {"uuid": "GPU-a", "minor": 0, "values": {"gpu_util": 97, "gpu_copy_util": 20}}
IDLE = {"uuid": "GPU-b", "minor": 1, "values": {"gpu_util": 3, "gpu_copy_util": 1}}

CONF = """
ClusterName=measured
SlurmctldHost=localhost
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
KillWait=2
NodeName=n1 NodeHostname=localhost CPUs=4 Gres=gpu:2
PartitionName=main Nodes=ALL Default=YES
"""


@pytest.fixture(scope="module")
def with_gpus() -> Iterator[Cluster]:
    made = Cluster(CONF)
    made.conf(CONF, gres="NodeName=n1 Name=gpu File=/dev/nvidia[0-1]\n")
    play(made, [BUSY, IDLE])
    made.variables |= {
        "BIREME_TELEMETRY_GATHER": "on",
        "BIREME_TELEMETRY_INTERVAL_S": "1",
        "BIREME_NVML_MODULE": "bireme.testing.scripted_nvml",
        "BIREME_NVML_SCRIPT": str(made.folder / "cards.json"),
    }
    with made.running():
        yield made


def play(cluster: Cluster, cards: list[dict[str, Any]]) -> None:
    """What the cards do from now on."""
    file = cluster.folder / "cards.json"
    file.with_suffix(".new").write_text(json.dumps({"cards": cards}))
    file.with_suffix(".new").replace(file)


def gpus(cluster: Cluster) -> dict[str, dict[str, Any]]:
    return {gpu["uuid"]: gpu for gpu in ask(cluster, "/v1/telemetry/now")["gpus"]}


def sleeping(cluster: Cluster, *options: str) -> int:
    return int(cluster.run("sbatch", "--parsable", *options, "--wrap", "sleep 600").stdout)


def test_a_gpu_is_its_jobs_while_that_has_it(with_gpus: Cluster) -> None:
    job_id = sleeping(with_gpus, "--gpus=1")

    def owner() -> str | None:
        return next((uuid for uuid, gpu in gpus(with_gpus).items() if gpu["job_ids"] == [job_id]), None)

    uuid = until(owner, "no GPU is the job's")
    assert gpus(with_gpus)["GPU-b" if uuid == "GPU-a" else "GPU-a"]["unowned"]

    def curve() -> list[dict[str, Any]] | None:
        found = curves(with_gpus, job_id, "gpu_util")
        return found if found and any(value is not None for value in found[0]["mean"]) else None

    (found,) = until(curve, "there is no curve of the job's GPU")
    assert found["id"] == uuid
    assert {value for value in found["mean"] if value is not None} == {97.0 if uuid == "GPU-a" else 3.0}
    with_gpus.run("scancel", str(job_id))
    until(lambda: True if gpus(with_gpus)[uuid]["unowned"] else None, "the GPU is still the job's")


def test_the_curves_of_a_jobs_gpus_go_on_with_the_next_daemon(with_gpus: Cluster) -> None:
    job_id = sleeping(with_gpus, "--gpus=2")
    until(lambda: True if len(curves(with_gpus, job_id, "gpu_util")) == 2 else None, "its GPUs have no curves")
    with_gpus.kill_daemon()
    with_gpus.up_again()
    back_at = ask(with_gpus, "/v1/telemetry/now")["at"]

    def measured_since() -> bool | None:
        found = curves(with_gpus, job_id, "gpu_util")
        known = ([at for at, value in zip(times_of(each), each["mean"]) if value is not None] for each in found)
        ends = [max(times, default=0.0) for times in known]
        return True if len(ends) == 2 and min(ends) > back_at else None

    until(measured_since, "nothing that was measured since is the job's")
    with_gpus.run("scancel", str(job_id))
    until(lambda: True if gpus(with_gpus)["GPU-a"]["unowned"] else None, "the GPU is still the job's")


def times_of(curve: dict[str, Any]) -> list[float]:
    return [curve["start"] + curve["step_s"] * no for no in range(len(curve["mean"]))]


def test_a_card_that_disappears_is_absent_and_not_idle(with_gpus: Cluster) -> None:
    play(with_gpus, [BUSY, {**IDLE, "lost": True}])

    def lost() -> dict[str, float] | None:
        values: dict[str, float] = gpus(with_gpus)["GPU-b"]["values"]
        return values if values.get("gpu_answers") == 0 else None

    assert "gpu_util" not in until(lost, "nobody notices")
    play(with_gpus, [BUSY, IDLE])
    until(lambda: True if gpus(with_gpus)["GPU-b"]["values"].get("gpu_util") == 3 else None, "it does not come back")


# --- one job over time -----------------------------------------------------------------------------------------------

TELLS = """#!/bin/bash
#SBATCH --gpus=2 --job-name=<i>tells</i>
echo begun
srun --ntasks=1 true
bireme checkpoint
while [ ! -e go ]; do sleep 0.1; done
date "+%Y-%m-%d %H:%M:%S its own time"
echo end
"""


def lanes_of(cluster: Cluster, job_id: int) -> dict[str, dict[str, Any]]:
    (timeline,) = ask(cluster, f"/v1/jobs/{job_id}/timeline")["timelines"]
    return {lane["name"]: lane for lane in timeline["lanes"]}


def test_a_timeline_has_the_wait_with_its_reason_the_run_and_the_end(with_gpus: Cluster) -> None:
    script = with_gpus.work / "tells.sh"
    script.write_text(TELLS)
    before = sleeping(with_gpus, "--gpus=2")
    job_id = int(with_gpus.run("sbatch", "--parsable", str(script)).stdout)

    def reason() -> dict[str, Any] | None:
        """Once it has lasted so long that it is written down."""
        answer = ask(with_gpus, f"/v1/jobs/{job_id}/timeline")
        spans = [
            span for lane in answer["timelines"][0]["lanes"] if lane["name"] == "reasons" for span in lane["spans"]
        ]
        long = (span for span in spans if answer["now"] - span["start"] > 1.5)
        return next((span for span in long if span["text"] == "Resources"), None)

    assert until(reason, "nobody says why it waits")["end"] is None
    with_gpus.run("scancel", str(before))

    def measured() -> dict[str, dict[str, Any]] | None:
        found = lanes_of(with_gpus, job_id)
        return found if {"gpu_util", "checkpoints", "steps"} <= found.keys() else None

    found = until(measured, "its GPUs are not on its timeline")
    assert [line["name"] for line in found["gpu_util"]["lines"]] == ["n1 GPU 0", "n1 GPU 1"]
    looks = until(
        lambda: ask(with_gpus, f"/v1/jobs/{job_id}/timeline")["timelines"][0]["outputs"][0]["looks"] or None,
        "nobody looks how far its output has come",
    )
    assert looks[0][2] == len("begun\n")
    (with_gpus.work / "go").touch()
    with_gpus.run("srun", "--dependency", f"afterany:{job_id}", "true")
    shown = with_gpus.run("bireme", "timeline", str(job_id)).stdout
    for said in ("<i>tells</i>", "COMPLETED", "Resources", "0 true", "checkpoint", "begun", "its own time"):
        assert said in shown, shown
    lanes = lanes_of(with_gpus, job_id)
    (waited,) = [span for span in lanes["reasons"]["spans"] if span["text"] == "Resources"]
    (wait, *_) = lanes["state"]["spans"]
    assert waited["end"] == wait["end"]
    page = with_gpus.run("bireme", "timeline", str(job_id), "--html", "-").stdout
    assert "<i>tells" not in page
    assert "&lt;i&gt;tells" in page


def test_an_xid_is_on_the_timeline_of_the_job_that_has_the_gpu(with_gpus: Cluster) -> None:
    job_id = sleeping(with_gpus, "--gpus=2")
    until(lambda: True if gpus(with_gpus)["GPU-a"]["job_ids"] == [job_id] else None, "the GPU is not the job's")
    play(with_gpus, [{**BUSY, "xids": [79]}, IDLE])

    def fault() -> dict[str, Any] | None:
        marks = lanes_of(with_gpus, job_id).get("faults", {}).get("marks", ())
        return next((mark for mark in marks if mark["text"] == "Xid 79 on n1 GPU 0"), None)

    assert until(fault, "the Xid is not told")["tone"] == "bad"
    with_gpus.kill_daemon()
    with_gpus.up_again()
    until(fault, "the Xid is forgotten with the daemon")
    with_gpus.run("scancel", str(job_id))
    play(with_gpus, [BUSY, IDLE])
