"""simple-slurm: here-document submissions, dependencies, and its squeue and scancel wrappers."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from tests.support.cluster import Cluster

simple_slurm = pytest.importorskip("simple_slurm", reason="simple-slurm is not installed")


def test_a_job_and_one_that_depends_on_it(user: Cluster) -> None:
    first = simple_slurm.Slurm(
        job_name="first", cpus_per_task=2, time=datetime.timedelta(minutes=5), output="%x-%j.out", gres="gpu:2"
    )
    first.add_cmd("echo cpus $SLURM_CPUS_PER_TASK gpus $CUDA_VISIBLE_DEVICES")
    first_id = first.sbatch("hostname", verbose=False)
    then = simple_slurm.Slurm("-J", "then", "-o", "%x.out", dependency={"afterok": first_id})
    then_id = then.sbatch("cat first-*.out", verbose=False)

    assert user.wait(then_id)["state"] == "COMPLETED"
    words, host = Path("then.out").read_text().splitlines()
    assert words.startswith("cpus 2 gpus ")
    assert len(words.split()[-1].split(",")) == 2
    assert host in ("n1", "n2", "n3", "n4")
    one, other = user.wait(first_id), user.wait(then_id)
    assert other["start_time"] >= one["end_time"]


def test_an_array_from_a_range(user: Cluster) -> None:
    slurm = simple_slurm.Slurm(array=range(3, 12, 4), job_name="array", output="%A_%a.txt")
    job_id = slurm.sbatch("echo task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT", verbose=False)
    user.wait(job_id)
    assert sorted(path.name for path in Path().glob("*.txt")) == sorted(f"{job_id}_{task}.txt" for task in (3, 7, 11))
    assert Path(f"{job_id}_7.txt").read_text() == "task 7 of 3\n"


def test_its_squeue_and_scancel_wrappers(user: Cluster) -> None:
    slurm = simple_slurm.Slurm(job_name="sleeper", output="/dev/null")
    job_id = slurm.sbatch("sleep 100", verbose=False)
    waiting = simple_slurm.Slurm(job_name="waiting", output="/dev/null", dependency={"afterok": job_id})
    waiting_id = waiting.sbatch("true", verbose=False)

    slurm.squeue.update_squeue()
    assert set(slurm.squeue.jobs) == {job_id, waiting_id}
    assert slurm.squeue.get_filtered_jobs("waiting")[waiting_id]["NODELIST(REASON)"] == "(Dependency)"
    assert slurm.squeue.jobs[job_id]["ST"] == "R"

    slurm.scancel.cancel_job(waiting_id)
    slurm.scancel.signal_job(job_id)
    slurm.scancel.cancel_all()
    assert user.wait(waiting_id)["state"] == "CANCELLED"
    assert user.wait(job_id)["state"] in ("CANCELLED", "FAILED")  # the signal may have ended it first
    slurm.squeue.update_squeue()
    assert slurm.squeue.jobs == {}


def test_srun_with_the_same_arguments(user: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    slurm = simple_slurm.Slurm(ntasks=2, nodes=2, job_name="direct")
    assert slurm.srun("hostname") == 0
    assert sorted(capfd.readouterr().out.split()) == ["n1", "n2"]
