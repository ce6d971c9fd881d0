"""The ways in which tools that are not installed here talk to Slurm: their command lines and what they parse."""

from __future__ import annotations

import getpass
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.cluster import Cluster

PROGRAMS = Path(__file__).parent / "programs"
QUIET = ("--output", "/dev/null")


@pytest.fixture(scope="module")
def jobs(cluster: Cluster) -> dict[str, str]:
    """One job of each kind: ended well, ended badly, running, waiting for that one."""
    made = {name: cluster.sbatch(*QUIET, "--wrap", script) for name, script in (("good", "true"), ("bad", "exit 3"))}
    made["running"] = cluster.sbatch(*QUIET, "--gres=gpu:h100:2", "--wrap", "sleep 600")
    made["waiting"] = cluster.sbatch(*QUIET, "-d", f"afterok:{made['running']}", "--wrap", "true")
    for name in ("good", "bad"):
        cluster.wait(made[name])
    until(lambda: cluster.run("squeue", "-h", "-j", made["running"], "-o", "%T").stdout == "RUNNING\n")
    return made


def test_nextflow_lists_ids_and_short_states(cluster: Cluster, jobs: dict[str, str]) -> None:
    said = cluster.run("squeue", "--noheader", "-o", "%i %t", "-t", "all", "-u", getpass.getuser()).stdout
    found = dict(line.split() for line in said.splitlines())
    assert [found[jobs[name]] for name in ("good", "bad", "running", "waiting")] == ["CD", "F", "R", "PD"]


def test_cromwell_asks_whether_a_job_is_alive(cluster: Cluster, jobs: dict[str, str]) -> None:
    assert jobs["running"] in cluster.run("squeue", "-j", jobs["running"]).stdout
    unknown = cluster.run("squeue", "-j", "99999", check=False)
    assert (unknown.returncode, unknown.stderr) == (1, "slurm_load_jobs error: Invalid job id specified\n")


def test_return_codes_are_read_from_sacct(cluster: Cluster, jobs: dict[str, str]) -> None:
    wanted = ",".join(jobs[name] for name in ("good", "bad", "running"))
    said = cluster.run("sacct", "-X", "-n", "-P", "-j", wanted, "-o", "State,ExitCode,DerivedExitCode").stdout
    assert said.split() == ["COMPLETED|0:0|0:0", "FAILED|3:0|0:0", "RUNNING|0:0|0:0"]


def test_turm_gives_columns_a_delimiter_and_no_width(cluster: Cluster, jobs: dict[str, str]) -> None:
    columns = "jobid:#|#,statecompact:#|#,nodelist:#|#,tres-alloc:#|#"
    said = cluster.run("squeue", "--array", "--noheader", "-j", jobs["running"], "--Format", columns).stdout
    job_id, state, node, tres, rest = said.split("#|#")
    assert (job_id, state, rest) == (jobs["running"], "R", "\n")
    assert node in ("n1", "n2", "n3", "n4")
    assert "gres/gpu=2" in tres.split(",")


def test_a_job_described_on_one_line(cluster: Cluster, jobs: dict[str, str]) -> None:
    said = cluster.run("scontrol", "show", "job", jobs["waiting"], "-o").stdout
    found = dict(word.partition("=")[::2] for word in said.split())
    assert found["JobState"] == "PENDING"
    assert found["Dependency"] == f"afterok:{jobs['running']}(unfulfilled)"


def test_waiting_for_a_submission_ends_with_its_exit_code(cluster: Cluster) -> None:
    assert cluster.run("sbatch", "--wait", *QUIET, "--wrap", "exit 5", check=False).returncode == 5


def test_lightning_requeues_its_array_task_from_within_a_step(cluster: Cluster) -> None:
    program = PROGRAMS / "requeue_on_signal.py"
    # The signal comes 58 seconds before the end of the only minute.
    options = ["-a", "5", "-N2", "--ntasks-per-node=1", "--signal=SIGUSR1@58", "-t", "1", "--open-mode=append"]
    job_id = cluster.sbatch(*options, "-o", "lightning.out", "--wrap", f"srun {sys.executable} {program}")
    ended = cluster.wait(job_id)
    assert (ended["state"], ended["restarts"]) == ("COMPLETED", 1)
    lines = (cluster.work / "lightning.out").read_text().splitlines()
    assert {"trains 0", "trains 1", "resumed 0", "resumed 1"} <= set(lines)


def test_ray_starts_a_head_and_a_worker_on_each_other_node(cluster: Cluster) -> None:
    script = cluster.script(
        f"""\
#SBATCH --nodes=3 --tasks-per-node=1 --cpus-per-task=4 --gpus-per-task=2 --exclusive
#SBATCH --output=ray.out
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
address=$(srun --nodes=1 --ntasks=1 -w "${{nodes[0]}}" hostname --ip-address)
port=$((20000 + SLURM_JOB_ID))
meet="{sys.executable} {PROGRAMS / "meet.py"}"
srun --nodes=1 --ntasks=1 -w "${{nodes[0]}}" $meet head $address $port 3 &
for node in "${{nodes[@]:1}}"; do
    srun --nodes=1 --ntasks=1 -w "$node" $meet worker $address $port &
done
srun --overlap --nodes=1 --ntasks=1 -w "${{nodes[0]}}" $meet worker $address $port
wait
""",
        "ray.sh",
    )
    job_id = cluster.sbatch(str(script))
    assert cluster.wait(job_id)["state"] == "COMPLETED", cluster.output(job_id)
    nodes = cluster.run("scontrol", "show", "hostnames", cluster.records(job_id)[0]["node_list"]).stdout.split()
    assert cluster.output(job_id).splitlines() == [f"{node} gpus 0,1" for node in nodes]


def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
