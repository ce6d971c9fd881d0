"""What a script may count on, on pods as on any machine: files, signals, limits, restarts, prologs, figures."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Iterator

import pytest
from tests.kubernetes_cluster.cluster import Kubernetes, missing
from tests.support.kubernetes import BASH, KubernetesCluster

from bireme.client.sdk import Client
from bireme.engines.kubernetes.crossing.brought import MIB, MOST_BYTES

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
LONG_S = 120.0


CONF = """\
ClusterName=contract
SlurmctldHost=localhost
KillWait=2
GresTypes=gpu
MinJobAge=3600
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobAcctGatherFrequency=1
Prolog={etc}/prolog
Epilog={etc}/epilog
TaskProlog={etc}/task_prolog
PartitionName=main Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=10
"""
AROUND = "#!/bin/sh\necho {name} of $SLURM_JOB_ID on $(hostname) >> {shared}/{name}\n"


@pytest.fixture(scope="module")
def cluster(kubelets: Kubernetes) -> Iterator[KubernetesCluster]:
    """Pods share one folder, `shared`; all other output comes back. Prolog and Epilog are files of this machine."""
    bireme = KubernetesCluster(kubelets, slurm_conf=CONF, job_images=[BASH])
    shared = bireme.work / "shared"
    shared.mkdir(mode=0o777)
    reserved = bireme.work / "reserved"
    reserved.mkdir(mode=0o777)
    bireme.settings["volumes"] = [f"host:{shared}:{shared}", f"partition=urgent:host:{reserved}:{reserved}"]
    etc = bireme.conf(CONF.format(etc=bireme.folder / "etc")).parent
    for name in ("prolog", "epilog"):
        (etc / name).write_text(AROUND.format(name=name, shared=shared))
    (etc / "task_prolog").write_text("#!/bin/sh\necho export BY_TASK_PROLOG=$SLURM_PROCID\n")
    with bireme.running():
        yield bireme


def why(cluster: KubernetesCluster, job: str) -> str:
    return " ".join(cluster.bireme("why", job).stdout.split())


# --- output without a volume ----------------------------------------------------------------------------------------


def test_output_of_scripts_and_steps_comes_back_to_the_submitters_files(cluster: KubernetesCluster) -> None:
    script = cluster.script(
        "#!/bin/bash\n"
        "#SBATCH -N2 -o out-%x-%j -e err-%x-%j -J both\n"
        "echo in $PWD; echo to stderr >&2\n"
        "srun -o step-%t.txt sh -c 'echo task $SLURM_PROCID'\n"
        "srun -o one-file.txt hostname\n"
        "test -e one-file.txt || echo not in the pod\n"
    )
    (cluster.work / "step-1.txt").write_text("of an earlier run\n")
    job = cluster.sbatch(str(script))
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    assert (cluster.work / f"out-both-{job}").read_text() == f"in {cluster.work}\nnot in the pod\n"
    assert (cluster.work / f"err-both-{job}").read_text() == "to stderr\n"
    assert cluster.bireme("logs", job).stdout == f"in {cluster.work}\nnot in the pod\n"
    assert cluster.bireme("logs", "--err", job).stdout == "to stderr\n"
    assert [(cluster.work / f"step-{rank}.txt").read_text() for rank in (0, 1)] == ["task 0\n", "task 1\n"]
    assert sorted((cluster.work / "one-file.txt").read_text().split()) == ["node1", "node2"]


def test_tasks_of_an_array_write_their_own_files_two_at_a_time(cluster: KubernetesCluster) -> None:
    job = cluster.sbatch(
        "--array=0-3%2", "-o", "task-%A_%a", "--wrap", "echo $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_JOB_ID"
    )
    most = 0

    def over() -> bool:
        nonlocal most
        states = [record["state"] for record in cluster.records(job)]
        most = max(most, sum(state in ("CONFIGURING", "RUNNING") for state in states))
        return states == 4 * ["COMPLETED"]

    cluster.until(over, LONG_S)
    assert most == 2
    written = [(cluster.work / f"task-{job}_{task}").read_text() for task in range(4)]
    assert written == [f"{task} of {job}\n" for task in range(4)]


def test_output_is_followed_while_the_job_runs_and_outlives_the_daemon(cluster: KubernetesCluster) -> None:
    job = cluster.sbatch(
        "--open-mode=append", "-o", "grows", "--wrap", "for i in 1 2 3 4 5 6; do echo $i; sleep 1; done"
    )
    grows = cluster.work / "grows"
    cluster.until(lambda: grows.exists() and grows.read_text(), LONG_S)
    cluster.kill_daemon()
    cluster.up_again()
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    assert grows.read_text() == "1\n2\n3\n4\n5\n6\n"
    again = cluster.sbatch("--open-mode=append", "-o", "grows", "--wrap", "echo 7")
    assert cluster.wait(again, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    assert grows.read_text() == "1\n2\n3\n4\n5\n6\n7\n"


def test_a_file_that_cannot_be_made_fails_the_job_as_slurm_does(cluster: KubernetesCluster) -> None:
    (cluster.work / "file").touch()
    job = cluster.sbatch("-o", "file/out", "--wrap", "true")
    ended = cluster.wait(job, LONG_S)
    assert (ended["state"], ended["exit_signal"]) == ("FAILED", 53), ended


def test_a_volume_of_a_partition_is_seen_by_its_jobs_alone(cluster: KubernetesCluster) -> None:
    reserved = cluster.work / "reserved"
    for partition in ("main", "urgent"):
        write = f"echo {partition} > {reserved}/{partition}; ls {reserved}"
        job = cluster.sbatch("-p", partition, "-o", f"{reserved}/out-%x", "-J", partition, "--wrap", write)
        cluster.wait(job, LONG_S)
    assert (reserved / "urgent").read_text() == "urgent\n"
    assert (reserved / "out-urgent").read_text().split() == ["out-main", "out-urgent", "urgent"]
    assert not (reserved / "main").exists(), "it has no such folder, or an empty one of its own"
    assert (reserved / "out-main").exists(), "its output came back through the daemon"


def test_input_is_brought_from_the_submitters_files(cluster: KubernetesCluster) -> None:
    """To scripts and to tasks on both nodes; a file that is the pod's own stays one."""
    script = cluster.script(
        "#!/bin/bash\n"
        "#SBATCH -N2 --input=in.txt -o read\n"
        "cat; echo of the pod > own.txt\n"
        "srun -o read-%t --input=in-%t.txt cat\n"
        "srun -n1 -N1 --input=own.txt cat\n"
    )
    (cluster.work / "in.txt").write_text("to the script\n" * 50_000)
    for rank in (0, 1):
        (cluster.work / f"in-{rank}.txt").write_text(f"to task {rank}\n")
    job = cluster.sbatch(str(script))
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    assert (cluster.work / "read").read_text() == "to the script\n" * 50_000 + "of the pod\n"
    assert [(cluster.work / f"read-{rank}").read_text() for rank in (0, 1)] == ["to task 0\n", "to task 1\n"]


def test_input_that_cannot_be_had_fails_the_job_and_says_why(cluster: KubernetesCluster) -> None:
    with (cluster.work / "large").open("wb") as file:
        file.truncate(MOST_BYTES + MIB)
    for name, reason in (("absent", "No such file or directory"), ("large", "it must lie on a volume")):
        job = cluster.sbatch("--input", name, "--wrap", "cat")
        ended = cluster.wait(job, LONG_S)
        assert (ended["state"], ended["exit_signal"]) == ("FAILED", 53), ended
        told = why(cluster, job)
        assert f"Could not open stdin file {cluster.work / name}" in told, told
        assert reason in told, told


# --- around a job ---------------------------------------------------------------------------------------------------


def test_prolog_epilog_and_task_prolog_run_in_every_pod(cluster: KubernetesCluster) -> None:
    job = cluster.sbatch("-N2", "-o", "around", "--wrap", "srun sh -c 'echo told $BY_TASK_PROLOG'")
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    assert sorted((cluster.work / "around").read_text().splitlines()) == ["told 0", "told 1"]
    for name in ("prolog", "epilog"):
        lines = (cluster.work / "shared" / name).read_text().splitlines()
        assert sorted(line for line in lines if f" {job} " in line) == [
            f"{name} of {job} on node1",
            f"{name} of {job} on node2",
        ]


def test_a_terminal_reaches_into_a_pod(cluster: KubernetesCluster) -> None:
    """With a size, an echo, and an exit code."""
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (33, 77))
    process = subprocess.Popen(
        ["srun", "--pty", "sh", "-c", "test -t 0 && stty size && read word && echo got $word && exit 5"],
        env={name: value for name, value in cluster.env.items() if name not in ("LINES", "COLUMNS")},
        cwd=cluster.work,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    said = until_said(controller, "33 77")
    os.write(controller, b"hello\n")
    said += until_said(controller, "got hello")
    assert process.wait(LONG_S) == 5, said
    os.close(controller)


def until_said(terminal: int, words: str) -> str:
    said = ""
    deadline = time.monotonic() + LONG_S
    while words not in said:
        assert time.monotonic() < deadline, said
        if select.select([terminal], [], [], 1.0)[0]:
            try:
                said += os.read(terminal, 4096).decode(errors="replace")
            except OSError:  # nobody has its other end any more
                raise AssertionError(said) from None
    return said


# --- signals and limits ---------------------------------------------------------------------------------------------


def test_signals_reach_the_script_its_steps_or_both(cluster: KubernetesCluster) -> None:
    """--signal=B: comes before the limit to the script, --signal to the steps; scancel as it is told."""
    listen = "trap 'echo {who} got USR1; exit 0' USR1; echo {who} listens; while true; do sleep 0.1; done"
    script, step = listen.format(who="batch"), f'srun sh -c "{listen.format(who="step")}"; echo script goes on'
    told = {
        "to-batch": (cluster.sbatch("-t10", "--signal=B:USR1@60", "-o", "to-batch", "--wrap", script), "batch"),
        "to-steps": (cluster.sbatch("-t10", "--signal=USR1@60", "-o", "to-steps", "--wrap", step), "step"),
        "by-hand": (cluster.sbatch("-o", "by-hand", "--wrap", script), "batch"),
    }
    for name, (job, who) in told.items():
        cluster.until(lambda name=name, who=who: f"{who} listens" in text_of(cluster, name), LONG_S)
        if name == "by-hand":
            cluster.run("scancel", "-b", "-s", "USR1", job)
        else:
            with Client(str(cluster.home)) as client:
                client.update(job, time_limit_s=61)  # so that its last minute begins now
        ended = cluster.wait(job, LONG_S)
        assert ended["state"] == "COMPLETED", f"{name}: {ended}\n{text_of(cluster, name)}{cluster.log_tail()}"
        assert f"{who} got USR1" in text_of(cluster, name)
    assert "script goes on" in text_of(cluster, "to-steps")


def text_of(cluster: KubernetesCluster, name: str) -> str:
    path = cluster.work / name
    return path.read_text() if path.exists() else ""


# --- coming back ----------------------------------------------------------------------------------------------------


def test_a_preempted_job_resumes_from_its_checkpoint(cluster: KubernetesCluster) -> None:
    """And a node's loss counts the same: both are starts, and both are told."""
    script = cluster.script(
        "#!/bin/bash\n"
        "#SBATCH --requeue --open-mode=append -o resumes --gpus=8 -w node1\n"
        f"cd {cluster.work}/shared\n"
        "done=$(cat checkpoint 2>/dev/null || echo 0)\n"
        "echo start ${SLURM_RESTART_COUNT:-0} at $done\n"
        "echo $((done + 1)) > checkpoint\n"
        "touch began-${SLURM_RESTART_COUNT:-0}\n"
        "until [ -e enough ]; do sleep 0.1; done\n"
    )
    shared = cluster.work / "shared"
    job = cluster.sbatch(str(script))
    cluster.until(lambda: (shared / "began-0").exists(), LONG_S)
    urgent = cluster.sbatch("-p", "urgent", "--gpus=8", "-w", "node1", "-o", "urgent", "--wrap", "echo now")
    assert cluster.wait(urgent, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    cluster.until(lambda: (shared / "began-1").exists(), LONG_S)
    assert f"so that job {urgent} can run" in why(cluster, job)
    cluster.until(lambda: "start 1" in text_of(cluster, "resumes"), LONG_S)  # a pod that is torn away says no more
    (pod,) = [name for name in cluster.pods() if name.startswith(f"contract-{job}-")]
    cluster.kubernetes.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
    cluster.until(lambda: (shared / "began-2").exists(), LONG_S)
    assert "the pod was deleted" in why(cluster, job)
    (shared / "enough").touch()
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    lines = (cluster.work / "resumes").read_text().splitlines()
    assert [line for line in lines if line.startswith("start")] == ["start 0 at 0", "start 1 at 1", "start 2 at 2"]


# --- figures and names ----------------------------------------------------------------------------------------------


def test_the_figures_of_a_step_come_from_its_pod(cluster: KubernetesCluster) -> None:
    work = "head -c 60000000 /dev/zero | tail -c 50000000 | md5sum > /dev/null; sleep 3"
    job = cluster.sbatch("--mem=300M", "-o", "figures", "--wrap", f"srun sh -c '{work}'")
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    row = cluster.run("sacct", "-n", "-P", "-j", f"{job}.0", "-o", "MaxRSS,MaxRSSNode,TotalCPU,State").stdout.strip()
    largest, node, cpu, state = row.split("|")
    assert (node, state) == ("node1", "COMPLETED")
    assert int(largest.removesuffix("K")) > 45_000, row
    assert cpu not in ("", "00:00:00"), row


def test_rank_0_is_found_by_name_from_every_pod(cluster: KubernetesCluster) -> None:
    job = cluster.sbatch(
        "-N2", "-o", "meets", "--wrap",
        "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1); "
        "srun sh -c 'if [ $SLURM_PROCID = 0 ]; then echo hello from rank 0 | nc -l -p 29500; "
        "else until nc $MASTER_ADDR 29500 < /dev/null 2> /dev/null | grep hello; do sleep 0.1; done; fi'",
    )  # fmt: skip
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    assert (cluster.work / "meets").read_text() == "hello from rank 0\n"


def test_the_components_of_a_heterogeneous_job_reach_each_other(cluster: KubernetesCluster) -> None:
    """Each has pods of its own, perhaps on one node; the leader's script starts steps in all of them."""
    script = cluster.script(
        "#!/bin/bash\n"
        "#SBATCH -o het -w node1 --gpus=1\n"
        "#SBATCH hetjob\n"
        "#SBATCH -w node1 --gpus=2\n"
        "#SBATCH hetjob\n"
        "#SBATCH -w node2 --gpus=3\n"
        "echo $SLURM_HET_SIZE components\n"
        "for n in 0 1 2; do srun --het-group=$n sh -c 'echo $SLURM_JOB_ID $(hostname) $SLURM_GPUS_ON_NODE'; done\n"
        "srun --het-group=2 grep -c node1 /etc/hosts\n"
    )
    job = int(cluster.sbatch(str(script)))
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", text_of(cluster, "het") + cluster.log_tail()
    lines = (cluster.work / "het").read_text().splitlines()
    # Steps in later components are told the leader's id, as under Slurm.
    assert lines == ["3 components", f"{job} node1 1", f"{job} node1 2", f"{job} node2 3", "1"]
