"""Checkpoints on a real cluster: found by a process of the owner's, shown, told to the next start; broken ones are not
taken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.cluster import Cluster, virtual_nodes

TRAIN = """#!/bin/bash
#SBATCH --requeue
#BIREME --checkpoint=run-%j
echo "start ${SLURM_RESTART_COUNT:-0} from ${BIREME_CHECKPOINT:-nothing}" >> run-$SLURM_JOB_ID.log
step=1000; [ -n "$SLURM_RESTART_COUNT" ] && step=2000
python3 - run-$SLURM_JOB_ID $step <<'PROGRAM'
import json, os, sys
def save(folder, whole):
    os.makedirs(folder)
    header = json.dumps({"w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
    data = len(header).to_bytes(8, "little") + header + b"12345678"
    open(folder + "/model.safetensors", "wb").write(data if whole else data[:-2])
    if whole:
        open(folder + "/trainer_state.json", "w").write(json.dumps({"global_step": int(folder.rpartition("-")[2])}))
root, step = sys.argv[1], int(sys.argv[2])
save(f"{root}/checkpoint-{step}", True)
save(f"{root}/checkpoint-{step + 500}", False)
PROGRAM
exec sleep 1000
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(virtual_nodes(2, 0, settings="KillWait=1"))
    made.variables["BIREME_CHECKPOINTS_INTERVAL_S"] = "1"
    with made.running():
        yield made


def record(cluster: Cluster, job: str) -> dict[str, Any]:
    (found,) = cluster.records(job)
    return found


def found(cluster: Cluster, job: str, step: int) -> bool:
    checkpoint = record(cluster, job).get("checkpoint")
    return checkpoint is not None and checkpoint["step"] == step


def test_a_start_goes_on_from_the_newest_whole_checkpoint_and_everybody_is_told_of_it(cluster: Cluster) -> None:
    job = cluster.sbatch(str(cluster.script(TRAIN, "train.sh")))
    cluster.until(lambda: found(cluster, job, 1000), 90.0)
    path = str(cluster.work / f"run-{job}" / "checkpoint-1000")
    shown = cluster.run("squeue", "-h", "-j", job, "-O", "checkpoint:100,checkpointstep,checkpointage").stdout.split()
    assert shown[:2] == [path, "1000"]
    assert shown[2] != "N/A"
    assert f"Checkpoint={path} CheckpointStep=1000" in cluster.run("scontrol", "show", "job", job).stdout
    assert "CheckpointPath=run-%j" in cluster.run("scontrol", "show", "job", job).stdout
    why = cluster.bireme("why", job).stdout
    assert f"from {path} (step 1000)" in why
    assert "checkpoint-1500" in why
    told = cluster.bireme("checkpoint", "--show", job).stdout
    assert "hf-trainer" in told
    assert "checkpoint-1500 has no trainer_state.json" in told
    assert path in cluster.bireme("timeline", job).stdout
    shape = json.loads(cluster.run("squeue", "-j", job, "--json").stdout)["jobs"][0]
    assert shape["checkpoint"]["path"] == path

    cluster.run("scontrol", "requeue", job)
    log = cluster.work / f"run-{job}.log"
    cluster.until(lambda: log.read_text().count("\n") == 2, 60.0)
    assert log.read_text().splitlines() == ["start 0 from nothing", f"start 1 from {path}"]
    cluster.until(lambda: found(cluster, job, 2000), 60.0)
    cluster.kill_daemon()
    cluster.up()
    assert found(cluster, job, 2000)
    cluster.run("scancel", job)
    cluster.wait(job)
    assert record(cluster, job)["checkpoint"]["step"] == 2000


def test_a_flag_that_is_not_known_is_refused(cluster: Cluster) -> None:
    script = cluster.script("#!/bin/bash\n#BIREME --chekpoint=x\ntrue\n", "wrong.sh")
    said = cluster.run("sbatch", str(script), check=False)
    assert said.returncode == 255
    assert "did you mean --checkpoint?" in said.stderr
