"""submitit against sbatch, squeue, sacct, scontrol and scancel: jobs, arrays, errors, checkpoints, cancelling."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster

submitit = pytest.importorskip("submitit", reason="submitit is not installed")
cloudpickle = pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")

# The jobs cannot import this module: what they run travels whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.usefixtures("user")


def executor(folder: Path, **parameters: Any) -> Any:
    made = submitit.AutoExecutor(folder=folder / "%j", cluster="slurm")
    made.update_parameters(timeout_min=5, cpus_per_task=1, **parameters)
    return made


def final_state(user: Cluster, job: Any) -> str:
    """What submitit reads from sacct once the job has ended; a result may be there before its job's end is."""
    user.wait(job.job_id)
    return str(job.watcher.get_state(job.job_id, mode="force"))


def square(number: int) -> int:
    return number * number


def where() -> dict[str, Any]:
    """What submitit itself reads from the variables."""
    environment = submitit.JobEnvironment()
    return {
        "job": environment.job_id,
        "host": environment.hostname,
        "hosts": environment.hostnames,
        "rank": environment.global_rank,
        "tasks": environment.num_tasks,
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def fail(message: str) -> None:
    raise ValueError(message)


class Counting:
    """Counts up one step at a time; on the preemption signal it carries the count into its next life."""

    def __init__(self, goal: int) -> None:
        self.goal = goal
        self.count = 0
        self.lives = 1

    def __call__(self, started: str) -> tuple[int, int]:
        Path(started).touch()
        while self.count < self.goal:
            self.count += 1
            if self.count == 1 or self.lives == 1:
                time.sleep(0.05)
        return self.count, self.lives

    def checkpoint(self, started: str) -> Any:
        carried = Counting(goal=self.count)  # enough: the next life only has to end
        carried.count, carried.lives = self.count, self.lives + 1
        return submitit.helpers.DelayedSubmission(carried, started)


def test_a_single_job_returns_its_result(user: Cluster, tmp_path: Path) -> None:
    job = executor(tmp_path).submit(square, 7)
    assert job.result() == 49
    assert job.done()
    assert final_state(user, job) == "COMPLETED"


def test_two_nodes_with_gpus_see_their_ranks_and_each_other(tmp_path: Path) -> None:
    job = executor(tmp_path, nodes=2, tasks_per_node=2, gpus_per_node=2).submit(where)
    seen = job.results()
    assert [one["rank"] for one in seen] == [0, 1, 2, 3]
    assert {one["job"] for one in seen} == {job.job_id}
    assert len(seen[0]["hosts"]) == 2
    assert [one["host"] for one in seen] == [seen[0]["hosts"][0]] * 2 + [seen[0]["hosts"][1]] * 2
    assert {one["gpus"] for one in seen} == {"0,1"}


def test_an_array_never_runs_more_than_its_parallelism(user: Cluster, tmp_path: Path) -> None:
    jobs = executor(tmp_path, slurm_array_parallelism=2).map_array(square, range(6))
    assert len({job.job_id.partition("_")[0] for job in jobs}) == 1, "one array"
    assert [job.result() for job in jobs] == [0, 1, 4, 9, 16, 25]
    assert {final_state(user, job) for job in jobs} == {"COMPLETED"}
    spans = [(one["start_time"], one["end_time"]) for one in user.records(jobs[0].job_id.partition("_")[0])]
    assert len(spans) == 6
    assert max(sum(start <= at < end for start, end in spans) for at, _ in spans) <= 2


def test_an_exception_comes_back_with_its_message(user: Cluster, tmp_path: Path) -> None:
    job = executor(tmp_path).submit(fail, "the rudder broke")
    with pytest.raises(submitit.core.utils.FailedJobError, match="the rudder broke"):
        job.result()
    assert final_state(user, job) == "FAILED"


def test_a_preempted_callable_checkpoints_is_requeued_and_finishes(user: Cluster, tmp_path: Path) -> None:
    started = tmp_path / "started"
    job = executor(tmp_path).submit(Counting(goal=100_000), str(started))
    wait_for(started.exists)
    job._interrupt(timeout=False)  # as a preemption: submitit's signal to every task
    count, lives = job.result()
    assert (count > 0, lives) == (True, 2)
    assert final_state(user, job) == "COMPLETED"
    assert user.wait(job.job_id)["restarts"] == 1


def test_the_signal_before_the_time_limit_checkpoints_too(user: Cluster, tmp_path: Path) -> None:
    """One minute of time and the signal 55 seconds before its end: the first life is five seconds long."""
    made = executor(tmp_path, slurm_signal_delay_s=55, slurm_time=1)
    job = made.submit(Counting(goal=100_000), str(tmp_path / "started"))
    assert job.result()[1] == 2
    assert user.wait(job.job_id)["restarts"] == 1


def test_cancelling_ends_the_job(user: Cluster, tmp_path: Path) -> None:
    started = tmp_path / "started"
    job = executor(tmp_path).submit(Counting(goal=100_000), str(started))
    wait_for(started.exists)
    job.cancel(check=False)
    assert final_state(user, job).startswith("CANCELLED by")


def wait_for(condition: Any, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
