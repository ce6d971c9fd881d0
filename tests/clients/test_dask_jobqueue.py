"""dask-jobqueue's SLURMCluster: workers are batch jobs that dial back to a scheduler in this process."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from tests.support.cluster import Cluster

dask_jobqueue = pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is not installed")
distributed = pytest.importorskip("distributed", reason="distributed is not installed")

TIMEOUT_S = 60


def make_workers(**options: Any) -> Any:
    """The scheduler listens on this machine's loopback, which every virtual node shares."""
    return dask_jobqueue.SLURMCluster(
        queue="main",
        cores=1,
        processes=1,
        memory="512MiB",
        walltime="00:10:00",
        interface="lo",
        n_workers=0,
        scheduler_options={"dashboard": False, "dashboard_address": ":0", "interface": "lo"},
        worker_extra_args=["--no-dashboard", "--no-nanny"],
        **options,
    )


def test_four_workers_compute_and_leave(user: Cluster) -> None:
    with make_workers() as workers, distributed.Client(workers) as client:
        script = workers.job_script()
        assert script.startswith("#!/usr/bin/env bash\n")
        assert "#SBATCH -p main" in script
        assert "#SBATCH --mem=512M" in script

        workers.scale(4)
        client.wait_for_workers(4, timeout=TIMEOUT_S)
        assert user.run("squeue", "-h", "-t", "R", "-o", "%j").stdout.split() == ["dask-worker"] * 4
        assert client.submit(sum, client.map(lambda number: number**2, range(100))).result(TIMEOUT_S) == 328350
        jobs = set(client.run(lambda: os.environ["SLURM_JOB_ID"]).values())
        assert len(jobs) == 4, "each worker is a job of its own"

        workers.scale(0)
        deadline = time.monotonic() + TIMEOUT_S
        while user.run("squeue", "-h").stdout and time.monotonic() < deadline:
            time.sleep(0.1)
        assert user.run("squeue", "-h").stdout == ""
        states = user.run("sacct", "-X", "-n", "-P", "-o", "State", "-j", ",".join(jobs)).stdout.splitlines()
        assert len(states) == 4
        assert all(state == "COMPLETED" or state.startswith("CANCELLED") for state in states), states
