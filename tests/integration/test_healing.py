"""Jobs that fail on a real cluster and run again by themselves, from their checkpoints, elsewhere; and those that must
not."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.cluster import Cluster, virtual_nodes

TRAIN = """#!/bin/bash
#SBATCH --nodes=1
#BIREME --heal=restart --checkpoint=run-%j
log=run-$SLURM_JOB_ID.log
echo "start ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST from ${BIREME_CHECKPOINT:-nothing}" >> $log
mkdir -p run-$SLURM_JOB_ID
python3 - run-$SLURM_JOB_ID/step-${SLURM_RESTART_COUNT:-0}.safetensors <<'PROGRAM'
import json, sys
header = json.dumps({"w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
open(sys.argv[1], "wb").write(len(header).to_bytes(8, "little") + header + b"12345678")
PROGRAM
[ -n "$SLURM_RESTART_COUNT" ] || { %s
}
echo "done on $SLURM_JOB_NODELIST" >> $log
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(virtual_nodes(3, 0, settings="KillWait=1\nSlurmdTimeout=30"))
    made.variables |= {"BIREME_CHECKPOINTS_INTERVAL_S": "1", "BIREME_HEALING_MODE": "act"}
    with made.running():
        yield made


def submit(cluster: Cluster, fails: str, name: str = "train.sh", lines: str = "") -> str:
    script = TRAIN.replace("%s", fails).replace("#BIREME", lines + "#BIREME", 1)
    return cluster.sbatch(str(cluster.script(script, name)))


def log_of(cluster: Cluster, job: str) -> list[str]:
    file = cluster.work / f"run-{job}.log"
    return file.read_text().splitlines() if file.exists() else []


def healings(cluster: Cluster, job: str) -> list[dict[str, Any]]:
    told = json.loads(cluster.bireme("healings", "--all", "--json").stdout)
    found = told["healings"] if isinstance(told, dict) else told
    return [each for each in found if str(each["place"]).startswith(f"job {job}.")]


def test_a_job_that_lost_a_rank_runs_again_from_its_checkpoint_and_its_record_tells_both_starts(
    cluster: Cluster,
) -> None:
    job = submit(cluster, "sh -c 'kill -9 $$'; exit 137")
    assert cluster.wait(job)["state"] == "COMPLETED"
    lines = log_of(cluster, job)
    assert lines[0].endswith("from nothing")
    assert lines[1].startswith("start 1")
    assert lines[1].endswith(f"from {cluster.work}/run-{job}/step-0.safetensors")
    states = cluster.run("sacct", "-D", "-X", "-n", "-P", "-j", job, "-o", "State,Restarts").stdout.split()
    assert states == ["FAILED|0", "COMPLETED|1"]


def test_an_application_bug_is_not_tried_again(cluster: Cluster) -> None:
    job = submit(cluster, "python3 -c 'import no_such_module_here'; exit 1")
    assert cluster.wait(job)["state"] == "FAILED"
    assert len(log_of(cluster, job)) == 1
    (healing,) = healings(cluster, job)
    assert healing["act"] == "stop-job"


def test_out_of_gpu_memory_is_told_and_not_tried_again(cluster: Cluster) -> None:
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"
    job = submit(cluster, f"echo '{said}' >&2; exit 1")
    assert cluster.wait(job)["state"] == "FAILED"
    assert len(log_of(cluster, job)) == 1
    (healing,) = healings(cluster, job)
    assert healing["act"] == "tell"
    assert "ran out of GPU memory" in healing["reason"]


def test_a_fallen_gpu_in_its_output_sends_a_job_to_another_node(cluster: Cluster) -> None:
    job = submit(cluster, "echo 'RuntimeError: CUDA error: uncorrectable ECC error encountered' >&2; exit 1")
    assert cluster.wait(job)["state"] == "COMPLETED"
    first, second = (line.split()[3] for line in log_of(cluster, job)[:2])
    assert first != second


def test_a_lost_node_and_a_killed_daemon_do_not_keep_a_job_from_going_on(cluster: Cluster) -> None:
    job = submit(cluster, "sleep 1000")
    cluster.until(lambda: (cluster.work / f"run-{job}" / "step-0.safetensors").exists(), 60.0)
    node = log_of(cluster, job)[0].split()[3]
    agent = cluster.agent_pid(node)
    assert agent is not None
    os.kill(agent, signal.SIGKILL)
    cluster.kill_daemon()
    cluster.up()
    assert cluster.wait(job)["state"] == "COMPLETED"
    assert log_of(cluster, job)[1].endswith("step-0.safetensors")


def test_who_has_not_asked_stays_failed(cluster: Cluster) -> None:
    job = cluster.sbatch(str(cluster.script("#!/bin/bash\nkill -9 $$\n", "plain.sh")))
    assert cluster.wait(job)["state"] == "FAILED"
    (record,) = cluster.records(job)
    assert record["restarts"] == 0
