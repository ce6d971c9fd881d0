"""Preemption for real: the signal, the grace, the requeue, and a job that goes on from its checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from cluster import Cluster, virtual_nodes

RULES = "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE"

CHECKPOINTING = """\
trap 'echo "told to leave at step $step"; echo $step > checkpoint; exit 0' TERM
step=$(cat checkpoint 2>/dev/null || echo 0)
echo "start ${SLURM_RESTART_COUNT:-0} at step $step"
while ((step < 40)); do step=$((step + 1)); sleep 0.05 & wait $!; done
echo "done at step $step"
"""


def test_a_preempted_job_checkpoints_and_goes_on(make_cluster: Callable[..., Cluster]) -> None:
    """`debug` has the higher tier."""
    cluster = make_cluster(virtual_nodes(1, 4, settings=RULES))
    told = cluster.work / "low.out"
    script = cluster.script(CHECKPOINTING, "low.sh")
    low = cluster.sbatch("--gpus=4", "--open-mode=append", f"--output={told}", str(script))
    cluster.until(lambda: told.exists() and "at step 0" in told.read_text())
    high = cluster.sbatch("--partition=debug", "--gpus=4", "--wrap", "true")
    cluster.wait(high)
    cluster.wait(low)
    output = told.read_text()
    assert cluster.records(high)[0]["state"] == "COMPLETED"
    final = cluster.records(low)[0]
    assert (final["state"], final["restarts"]) == ("COMPLETED", 1)
    assert "done at step 40" in output
    again = int(output.split("start 1 at step ")[1].split()[0])
    assert 0 < again < 40, output
    preempted = cluster.run("sacct", "-D", "-X", "-n", "-P", "-j", str(low), "-o", "State").stdout.split()
    assert preempted == ["PREEMPTED", "COMPLETED"]
