"""The example in examples/gpu, for real: torchrun under srun trains, is requeued in the middle, and goes on."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from tests.gpu.asking import Report
from tests.support.cluster import ROOT, Cluster

from bireme.agent.devices.gpus import GpuInfo

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(280)]

EXAMPLE = ROOT / "examples" / "gpu"
STEPS, HELD_AT = 40, 15
OUR_WORDS = ("start ", "done: ", "slurmstepd: ", "srun: ")
"""How the lines of the output begin that are not torch's."""
TRAINING_S = 120.0
"""The first start of torch on a cold machine reads a few GB from disk."""


def steps_done(cluster: Cluster) -> list[dict[str, Any]]:
    """One row per training step, in the order they were made."""
    file = cluster.work / "run" / "losses.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def wait_for_step(cluster: Cluster, job_id: str, step: int) -> None:
    """Until the training has made this step; a job that ended instead is told with its output."""

    def is_so() -> bool:
        record = cluster.records(job_id)[0]
        assert record["state"] in ("PENDING", "CONFIGURING", "RUNNING"), f"{record['state']}\n{cluster.output(job_id)}"
        return len(steps_done(cluster)) >= step

    cluster.until(is_so, TRAINING_S)


def test_a_requeued_training_resumes_from_its_checkpoint(
    machine: Cluster, cards: tuple[GpuInfo, ...], torch_python: str, report: Report
) -> None:
    for name in ("train.sh", "train.py"):
        shutil.copy(EXAMPLE / name, machine.work)
    arguments = [f"--steps={STEPS}", f"--hold-at={HELD_AT}"]
    job_id = machine.sbatch("train.sh", *arguments, env={"BIREME_TEST_PYTHON": torch_python})
    wait_for_step(machine, job_id, HELD_AT)

    machine.run("scontrol", "requeue", job_id)
    machine.until(lambda: machine.records(job_id)[0]["restarts"] == 1, TRAINING_S)
    ended = machine.wait(job_id, TRAINING_S)

    output, rows = machine.output(job_id), steps_done(machine)
    columns = "JobID,JobName%12,State,ExitCode,Restarts,Elapsed,AllocTRES%50"
    accounted = machine.run("sacct", "--jobs", job_id, f"--format={columns}").stdout
    report("training job", "\n".join(line for line in output.splitlines() if line.startswith(OUR_WORDS)))
    report("sacct", accounted)
    assert (ended["state"], ended["restarts"]) == ("COMPLETED", 1), output
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1)), "no step is lost, none is made twice"
    assert [row["start"] for row in rows] == [0] * HELD_AT + [1] * (STEPS - HELD_AT)
    assert {row["device"] for row in rows} == {cards[0].model}
    assert f"start 1: after step {HELD_AT} on {cards[0].model} with nccl" in output
    assert f"done: {STEPS} steps" in output
    _assert_it_learned(rows, report)
    _assert_it_is_accounted_for(machine, job_id)


def _assert_it_learned(rows: list[dict[str, Any]], report: Report) -> None:
    losses = [row["loss"] for row in rows]
    report("losses", " ".join(f"{loss:.4f}" for loss in losses))
    first, resumed, last = losses[0], losses[HELD_AT], losses[-1]
    assert last < resumed < first
    assert last < first / 2


def _assert_it_is_accounted_for(cluster: Cluster, job_id: str) -> None:
    shown = cluster.run("sacct", "--noheader", "-P", "--jobs", job_id, "--format=JobID,State,ExitCode").stdout
    rows = shown.splitlines()
    for name in (job_id, f"{job_id}.batch", f"{job_id}.0"):
        assert f"{name}|COMPLETED|0:0" in rows, shown
