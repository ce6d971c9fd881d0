"""How jobs end: limits, signals, cancellation, requeues, prologs, memory. Real processes, Slurm's words and codes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster, virtual_nodes

from bireme.client.sdk import Client

CONF = virtual_nodes(2, 2, cpus=16, settings="RequeueExit=99\nRequeueExitHold=98").replace("KillWait=2", "KillWait=1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(CONF).running() as made:
        yield made


def submit_for(cluster: Cluster, seconds: int, script: Path, **options: Any) -> str:
    """A time limit in seconds, from when the script says `on`: sbatch counts in minutes, as Slurm's does."""
    output = cluster.work / options["output"]
    with Client(str(cluster.home)) as client:
        job = client.submit(script, time="10", chdir=str(cluster.work), **options)
        cluster.until(lambda: output.exists() and "on" in output.read_text())
        ran_s = time.time() - cluster.records(str(job))[0]["start_time"]
        client.update(job, time_limit_s=int(ran_s) + seconds)
        return str(job)


def sacct(cluster: Cluster, job: str, fields: str = "JobID,State,ExitCode") -> list[list[str]]:
    lines = cluster.run("sacct", "-n", "-P", "-j", job, "-o", fields).stdout.splitlines()
    return [line.split("|") for line in lines]


def own_words(path: Path) -> list[str]:
    """Without what bash says about its own `sleep`, which gets the signal too (as with Slurm)."""
    return sorted(path.read_text().replace("User defined signal 1", "").split())


# -- time limits -----------------------------------------------------------------------------------------------------


def test_a_time_limit_warns_then_terminates_then_kills(cluster: Cluster) -> None:
    """--signal=B:USR1@n first, SIGTERM at the limit, SIGKILL KillWait later for a script that does not listen."""
    script = cluster.script(
        "trap 'echo warned' USR1; trap 'echo terminated' TERM; echo on\nwhile :; do sleep 0.05; done", "deaf.sh"
    )
    job = submit_for(cluster, 2, script, signal="B:USR1@1", output="deaf.out")
    record = cluster.wait(job, 30)
    assert record["state"] == "TIMEOUT"
    words = (cluster.work / "deaf.out").read_text()
    told = [line for line in words.splitlines() if line in ("on", "warned", "terminated")]
    assert told == ["on", "warned", "terminated"]
    assert re.search(rf"slurmstepd: error: \*\*\* JOB {job} ON n\d CANCELLED AT \S+ DUE TO TIME LIMIT \*\*\*", words)
    assert sacct(cluster, job) == [[job, "TIMEOUT", "0:0"], [f"{job}.batch", "CANCELLED", "0:9"]]


def test_the_warning_goes_to_steps_unless_told_otherwise(cluster: Cluster) -> None:
    script = cluster.script(
        "trap 'echo batch' USR1\n"
        "srun bash -c 'trap \"echo step; exit 0\" USR1; echo on; while :; do sleep 0.05; done'\n"
        "echo after $?",
        "warn.sh",
    )
    job = submit_for(cluster, 30, script, signal="USR1@29", output="warn.out")
    assert cluster.wait(job, 30)["state"] == "COMPLETED"
    assert own_words(cluster.work / "warn.out") == ["0", "after", "on", "step"]


def test_a_script_that_listens_ends_by_itself(cluster: Cluster) -> None:
    script = cluster.script("trap 'echo bye; exit 7' TERM; echo on; while :; do sleep 0.05; done", "listens.sh")
    job = submit_for(cluster, 1, script, output="listens.out")
    record = cluster.wait(job, 30)
    assert (record["state"], "bye" in (cluster.work / "listens.out").read_text()) == ("TIMEOUT", True)


# -- scancel ---------------------------------------------------------------------------------------------------------


def test_scancel_ends_a_job_and_everything_of_it(cluster: Cluster) -> None:
    job = cluster.sbatch("-o", "c.out", "--wrap", "sleep 500 & setsid -f sleep 501; echo ready; wait")
    cluster.until(lambda: (cluster.work / "c.out").exists() and "ready" in (cluster.work / "c.out").read_text())
    cluster.run("scancel", job)
    record = cluster.wait(job, 30)
    assert (record["state"], record["cancelled_by"]) == ("CANCELLED", os.getuid())
    assert sacct(cluster, job)[0] == [job, f"CANCELLED by {os.getuid()}", "0:0"]
    assert re.search(rf"\*\*\* JOB {job} ON n\d CANCELLED AT ", (cluster.work / "c.out").read_text())
    assert not cluster.pids_with(f"BIREME_JOB={job}.")


def test_scancel_with_a_signal_signals_and_does_not_cancel(cluster: Cluster) -> None:
    """-b: the script alone. Without it: the steps, and not the script."""
    script = cluster.script(
        "trap 'echo batch-got; got=1' USR1\n"
        "srun bash -c 'trap \"echo step-got; exit 0\" USR1; echo step-on; while :; do sleep 0.05; done' &\n"
        "while [ -z $got ]; do sleep 0.05; done; wait; echo end",
        "sig.sh",
    )
    job = cluster.sbatch("-o", "sig.out", str(script))
    out = cluster.work / "sig.out"
    cluster.until(lambda: out.exists() and "step-on" in out.read_text())
    cluster.run("scancel", "-b", "-s", "USR1", job)
    cluster.until(lambda: "batch-got" in out.read_text())
    assert "step-got" not in out.read_text()
    cluster.run("scancel", "--signal=USR1", job)
    assert cluster.wait(job, 30)["state"] == "COMPLETED"
    assert own_words(out) == ["batch-got", "end", "step-got", "step-on"]


def test_scancel_takes_parts_of_arrays_and_filters(cluster: Cluster) -> None:
    array = cluster.sbatch("--array=1-6", "-H", "-J", "part", "-o", "/dev/null", "--wrap", "true")
    cluster.run("scancel", f"{array}_[2-3,5]")
    left = cluster.run("squeue", "-h", "-r", "-j", array, "-o", "%i").stdout.split()
    assert left == [f"{array}_{task}" for task in (1, 4, 6)]
    other = cluster.sbatch("-H", "-J", "other", "-o", "/dev/null", "--wrap", "true")
    cluster.run("scancel", "-n", "part", "-t", "PENDING")
    assert cluster.run("squeue", "-h", "-o", "%i").stdout.split() == [other]
    cluster.run("scancel", "--state=RUNNING", other)
    assert cluster.records(other)[0]["state"] == "PENDING"
    cluster.run("scancel", other)
    unknown = cluster.run("scancel", "999999")
    assert unknown.stderr == "", "as Slurm's, it says nothing about what is not there"


# -- requeue ---------------------------------------------------------------------------------------------------------


def test_requeue_exit_codes_and_open_mode(cluster: Cluster) -> None:
    """RequeueExit sends it back; SLURM_RESTART_COUNT says how often; --open-mode decides what is left of the output."""
    body = 'echo "run ${SLURM_RESTART_COUNT:-none}"; [ "${SLURM_RESTART_COUNT:-0}" -ge 2 ] || exit 99'
    cluster.script(body, "again.sh")
    append = cluster.sbatch("--open-mode=append", "-o", "append.out", "again.sh")
    truncate = cluster.sbatch("--open-mode=truncate", "-o", "truncate.out", "again.sh")
    for job in (append, truncate):
        record = cluster.wait(job, 30)
        assert (record["state"], record["restarts"]) == ("COMPLETED", 2)
    assert (cluster.work / "append.out").read_text() == "run none\nrun 1\nrun 2\n"
    assert (cluster.work / "truncate.out").read_text() == "run 2\n"


def test_requeue_exit_hold_holds(cluster: Cluster) -> None:
    job = cluster.sbatch("-o", "/dev/null", "--wrap", "[ -n $SLURM_RESTART_COUNT ] && [ -e ok ] || exit 98")
    cluster.until(lambda: cluster.records(job)[0]["restarts"] == 1)
    shown = cluster.run("scontrol", "show", "job", job).stdout
    assert "JobState=SPECIAL_EXIT" in shown, shown
    assert cluster.run("squeue", "-h", "-j", job, "-o", "%t %r").stdout.split() == ["SE", "JobHeldUser"]
    (cluster.work / "ok").touch()
    cluster.run("scontrol", "release", job)
    assert cluster.wait(job, 30)["state"] == "COMPLETED"


def test_scontrol_requeue_restarts_a_running_job(cluster: Cluster) -> None:
    job = cluster.sbatch(
        "-o", "rq.out", "--wrap", 'echo run $SLURM_RESTART_COUNT; [ -n "$SLURM_RESTART_COUNT" ] || sleep 600'
    )
    cluster.until_started(job)
    cluster.run("scontrol", "requeue", job)
    cluster.until(lambda: cluster.records(job)[0]["restarts"] == 1)
    assert cluster.wait(job, 30)["state"] == "COMPLETED"
    no = cluster.sbatch("--no-requeue", "-o", "/dev/null", "--wrap", "sleep 600")
    cluster.until_started(no)
    refused = cluster.run("scontrol", "requeue", no, check=False)
    assert refused.returncode == 1
    assert "Requested operation is presently disabled" in refused.stderr
    cluster.run("scancel", no)


# -- exit codes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "state", "code", "batch"),
    [
        ("exit 0", "COMPLETED", "0:0", "COMPLETED"),
        ("exit 7", "FAILED", "7:0", "FAILED"),
        ("kill -SEGV $$", "FAILED", "0:11", "CANCELLED"),
        ("kill -9 $$", "FAILED", "0:9", "CANCELLED"),
        ("srun bash -c 'exit 5'", "FAILED", "5:0", "FAILED"),
        ("srun bash -c 'exit 5'; exit 0", "COMPLETED", "0:0", "COMPLETED"),
        ("/nonexistent/program", "FAILED", "127:0", "FAILED"),
    ],
)
def test_exit_codes_are_told_as_code_and_signal(cluster: Cluster, body: str, state: str, code: str, batch: str) -> None:
    job = cluster.sbatch("-o", "/dev/null", "--wrap", body)
    cluster.wait(job, 30)
    rows = sacct(cluster, job)
    assert rows[0] == [job, state, code]
    assert rows[1] == [f"{job}.batch", batch, code]
    if "srun" in body:
        assert rows[2] == [f"{job}.0", "FAILED", "5:0"]
        assert sacct(cluster, job, "DerivedExitCode")[0] == ["5:0"]


def test_wait_returns_the_exit_code_of_the_job(cluster: Cluster) -> None:
    codes = [
        cluster.run("sbatch", "--wait", "-o", "/dev/null", "--wrap", body, check=False).returncode
        for body in ("exit 0", "exit 9", "kill -9 $$")
    ]
    assert codes == [0, 9, 1]
    array = cluster.run(
        "sbatch", "--wait", "-a", "0-3", "-o", "/dev/null", "--wrap", "exit $SLURM_ARRAY_TASK_ID", check=False
    )
    assert array.returncode == 3


# -- what a script leaves ----------------------------------------------------------------------------------------------


def test_background_processes_do_not_outlive_their_job(cluster: Cluster) -> None:
    job = cluster.sbatch("-o", "bg.out", "--wrap", "sleep 700 & (setsid -f bash -c 'sleep 701 & sleep 702'); echo done")
    assert cluster.wait(job, 30)["state"] == "COMPLETED"
    assert not cluster.pids_with(f"BIREME_JOB={job}.")


def test_background_processes_do_not_outlive_their_step(cluster: Cluster) -> None:
    script = "srun bash -c 'sleep 710 & setsid -f sleep 711; echo step'; pgrep -f 'sleep 71[01]' | wc -l"
    job = cluster.sbatch("-o", "bgs.out", "--wrap", script)
    assert cluster.wait(job, 30)["state"] == "COMPLETED"
    assert (cluster.work / "bgs.out").read_text().split() == ["step", "0"]


# -- prolog and epilog -------------------------------------------------------------------------------------------------


def executable(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return path


def test_prolog_and_epilog_run_around_the_job(make_cluster: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    line = f'echo "{{}} $SLURM_JOB_ID $SLURMD_NODENAME $SLURM_JOB_USER" >> {log}'
    prolog = executable(tmp_path / "prolog", line.format("prolog"))
    epilog = executable(tmp_path / "epilog", line.format("epilog"))
    cluster = make_cluster(virtual_nodes(2, 0, settings=f"Prolog={prolog}\nEpilog={epilog}\nPrologFlags=Alloc"))
    job = cluster.sbatch("-N2", "-o", "/dev/null", "--wrap", f"echo script >> {log}")
    assert cluster.wait(job, 30)["state"] == "COMPLETED"
    lines = log.read_text().splitlines()
    user = cluster.run("id", "-un").stdout.strip()
    assert sorted(lines[:2]) == [f"prolog {job} n1 {user}", f"prolog {job} n2 {user}"]
    assert lines[2] == "script"
    assert sorted(lines[3:]) == [f"epilog {job} n1 {user}", f"epilog {job} n2 {user}"]


def test_a_failing_epilog_drains_the_node(make_cluster: Any, tmp_path: Path) -> None:
    cluster = make_cluster(virtual_nodes(1, 0, settings=f"Epilog={executable(tmp_path / 'epilog', 'exit 1')}"))
    job = cluster.sbatch("-o", "/dev/null", "--wrap", "exit 3")
    assert cluster.wait(job, 30)["exit_code"] == 3
    assert cluster.run("sinfo", "-h", "-R", "-o", "%E %N").stdout.strip() == "Epilog error n1"


def test_a_failing_prolog_drains_the_node_and_holds_the_job(make_cluster: Any, tmp_path: Path) -> None:
    """As Slurm: the node is drained with `Prolog error`, the job goes back to the queue and is held."""
    prolog = executable(tmp_path / "prolog", "[ $SLURMD_NODENAME != n1 ]")
    cluster = make_cluster(virtual_nodes(2, 0, settings=f"Prolog={prolog}"))
    job = cluster.sbatch("-o", "/dev/null", "--wrap", "exit 3")
    cluster.until(lambda: "drain" in cluster.run("sinfo", "-h", "-n", "n1", "-o", "%T").stdout)
    assert cluster.run("sinfo", "-h", "-R", "-o", "%E %N").stdout.strip() == "Prolog error n1"
    cluster.until(lambda: cluster.records(job)[0]["state"] == "PENDING")
    assert cluster.run("squeue", "-h", "-o", "%r").stdout.strip() == "launch failed requeued held"
    cluster.run("scontrol", "release", job)
    assert cluster.wait(job, 30)["exit_code"] == 3
    assert cluster.records(job)[0]["node_list"] == "n2"


# -- memory ------------------------------------------------------------------------------------------------------------


def test_out_of_memory_is_told_apart(make_cluster: Any) -> None:
    settings = "TaskPlugin=task/cgroup\nProctrackType=proctrack/cgroup\nJobAcctGatherType=jobacct_gather/cgroup"
    cluster = make_cluster(
        virtual_nodes(1, 0, settings=settings), cgroup="ConstrainRAMSpace=yes\nConstrainSwapSpace=yes\n"
    )
    if "not enforced" in cluster.bireme("doctor", check=False).stdout.lower():
        pytest.skip("memory cannot be confined here: see bireme doctor")
    greedy = "python3 -c 'x = bytearray(400 << 20); print(len(x))'"
    job = cluster.sbatch("--mem=60M", "-o", "oom.out", "--wrap", greedy)
    record = cluster.wait(job, 60)
    assert record["state"] == "OUT_OF_MEMORY", (record, (cluster.work / "oom.out").read_text())
    assert sacct(cluster, job)[0] == [job, "OUT_OF_MEMORY", "0:125"]
    fine = cluster.sbatch("--mem=900M", "-o", "/dev/null", "--wrap", greedy)
    assert cluster.wait(fine, 60)["state"] == "COMPLETED"
