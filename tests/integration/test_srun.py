"""srun, salloc and sattach on a real cluster: layout, streams, signals, exit codes, steps side by side."""

from __future__ import annotations

import hashlib
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
from tests.support.cluster import Cluster, virtual_nodes

CONF = virtual_nodes(3, 4, cpus=8).replace("KillWait=2", "KillWait=1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(CONF).running() as made:
        yield made


def srun(cluster: Cluster, *words: str, **how: object) -> subprocess.CompletedProcess[str]:
    return cluster.run("srun", *words, check=False, timeout=60, **how)  # type: ignore[arg-type]


def start(cluster: Cluster, *words: str) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    path = str(cluster.home / "bin" / words[0])
    return subprocess.Popen([path, *words[1:]], env=cluster.env, cwd=cluster.work, text=True, **pipes)


# -- layout ----------------------------------------------------------------------------------------------------------


def test_tasks_are_laid_out_and_labelled(cluster: Cluster) -> None:
    done = srun(
        cluster, "-N3", "-n5", "-l", "bash", "-c", "echo $(hostname) $SLURM_PROCID $SLURM_LOCALID $SLURM_NTASKS"
    )
    assert done.stderr == ""
    assert sorted(done.stdout.splitlines()) == [
        "0: n1 0 0 5",
        "1: n1 1 1 5",
        "2: n1 2 2 5",
        "3: n2 3 0 5",
        "4: n3 4 0 5",
    ]


def test_cpus_per_task_and_tasks_per_node(cluster: Cluster) -> None:
    done = srun(cluster, "-N2", "--ntasks-per-node=2", "-c3", "bash", "-c", "echo $SLURM_NODEID $SLURM_CPUS_PER_TASK")
    assert sorted(done.stdout.splitlines()) == ["0 3", "0 3", "1 3", "1 3"]


def test_gpus_are_bound_to_tasks(cluster: Cluster) -> None:
    done = srun(cluster, "-n4", "--gpus-per-task=1", "-N1", "bash", "-c", "echo $CUDA_VISIBLE_DEVICES $SLURM_STEP_GPUS")
    seen = [line.split() for line in done.stdout.splitlines()]
    assert sorted(line[0] for line in seen) == ["0", "1", "2", "3"], done


def test_what_task_scripts_say_reaches_the_user_or_nobody(cluster: Cluster) -> None:
    """As in Slurm: of TaskProlog stdout is understood, of TaskEpilog stderr is shown; nothing fills the agent's log."""
    for name in ("prolog", "epilog"):
        script = cluster.work / name
        script.write_text(f"#!/bin/sh\necho print {name} out\necho {name} err >&2\n")
        script.chmod(0o755)
    scripts = [f"--task-{name}={cluster.work}/{name}" for name in ("prolog", "epilog")]
    done = cluster.run("srun", "-l", "-N1", "-n2", *scripts, "echo", "task")
    assert sorted(done.stdout.splitlines()) == ["0: prolog out", "0: task", "1: prolog out", "1: task"]
    assert sorted(done.stderr.splitlines()) == ["0: epilog err", "1: epilog err"]
    logs = [path.read_text() for path in (cluster.home / "agents").glob("*/agent.log")]
    assert logs
    assert not any("prolog err" in log or "epilog" in log for log in logs)


def test_multi_prog(cluster: Cluster) -> None:
    (cluster.work / "multi.conf").write_text(
        "# which task runs what\n0 echo first %t\n1-2 echo rest %t %o\n* echo other %t\n"
    )
    done = srun(cluster, "-n4", "-l", "--multi-prog", "multi.conf")
    assert sorted(done.stdout.splitlines()) == ["0: first 0", "1: rest 1 0", "2: rest 2 1", "3: other 3"], done


# -- steps side by side ------------------------------------------------------------------------------------------------


def test_exact_steps_run_side_by_side_and_wait_for_each_other(cluster: Cluster) -> None:
    """Four one-CPU steps in a two-CPU job: two at a time, and the others say that they wait."""
    script = cluster.script(
        "for i in 1 2 3 4; do srun --exact -n1 -c1 --mem=10M bash -c "
        "'echo + >> side.log; sleep 0.3; echo - >> side.log' & done; wait; echo all $?",
        "side.sh",
    )
    job = cluster.sbatch("-n2", "-o", "side.out", str(script))
    assert cluster.wait(job, 60)["state"] == "COMPLETED"
    signs = (cluster.work / "side.log").read_text().split()
    depth = most = 0
    for sign in signs:
        depth += 1 if sign == "+" else -1
        most = max(most, depth)
    assert (len(signs), most) == (8, 2)
    out = (cluster.work / "side.out").read_text()
    assert f"srun: Job {job} step creation temporarily disabled, retrying (Requested nodes are busy)" in out
    assert f"srun: Step created for job {job}" in out
    steps = cluster.run("sacct", "-n", "-P", "-j", job, "-o", "JobID,State").stdout.split()
    assert {f"{job}.{n}|COMPLETED" for n in range(4)} <= set(steps)


def test_overlap_shares_what_another_step_has(cluster: Cluster) -> None:
    script = cluster.script(
        "srun -n2 bash -c 'touch in.$SLURM_PROCID; while [ ! -e out ]; do sleep 0.02; done' &\n"
        "while [ ! -e in.0 ] || [ ! -e in.1 ]; do sleep 0.02; done\n"
        "srun --overlap -n1 touch out; wait; echo fine",
        "overlap.sh",
    )
    job = cluster.sbatch("-n2", "-o", "overlap.out", str(script))
    assert cluster.wait(job, 60)["state"] == "COMPLETED"
    assert (cluster.work / "overlap.out").read_text() == "fine\n"


# -- streams -----------------------------------------------------------------------------------------------------------


def test_stdin_goes_to_all_tasks_or_to_one(cluster: Cluster) -> None:
    every = srun(cluster, "-n3", "-l", "cat", input="one\ntwo\n")
    assert sorted(every.stdout.splitlines()) == [f"{t}: {w}" for t in range(3) for w in ("one", "two")]
    single = srun(cluster, "-n3", "-l", "--input=1", "cat", input="hello\n")
    assert single.stdout.splitlines() == ["1: hello"]
    none = srun(cluster, "-n2", "--input=none", "cat", input="hello\n")
    assert (none.stdout, none.returncode) == ("", 0)


def test_files_by_task_and_node(cluster: Cluster) -> None:
    (cluster.work / "in-0").write_text("zero\n")
    (cluster.work / "in-1").write_text("one\n")
    done = srun(
        cluster,
        "-N2",
        "-n2",
        "--input=in-%t",
        "--output=out-%t-%N.txt",
        "--error=err-%t",
        "bash",
        "-c",
        "cat; echo e >&2",
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert (cluster.work / "out-0-n1.txt").read_text() == "zero\n"
    assert (cluster.work / "out-1-n2.txt").read_text() == "one\n"
    assert (cluster.work / "err-1").read_text() == "e\n"


def test_ten_megabytes_arrive_whole_and_in_order(cluster: Cluster) -> None:
    """Per task: four tasks write 2.5 MB each; every line arrives once, in the task's order."""
    program = "i=0; while [ $i -lt 25000 ]; do printf '%06d %0*d\\n' $i 92 7; i=$((i+1)); done"
    done = srun(cluster, "-N2", "-n4", "-l", "bash", "-c", program)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 100_000
    by_task: dict[str, list[str]] = {}
    for line in lines:
        task, _, rest = line.partition(": ")
        by_task.setdefault(task, []).append(rest[:6])
    assert sorted(by_task) == ["0", "1", "2", "3"]
    expected = [f"{i:06d}" for i in range(25000)]
    assert all(numbers == expected for numbers in by_task.values())


def test_binary_passes_through_unchanged(cluster: Cluster) -> None:
    data = os.urandom(3 << 20)
    env = cluster.env
    done = subprocess.run(
        [cluster.home / "bin" / "srun", "-n1", "cat"],
        input=data,
        env=env,
        cwd=cluster.work,
        capture_output=True,
        timeout=60,
    )
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()


def test_pty_gives_a_terminal(cluster: Cluster) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cluster.work)
        path = str(cluster.home / "bin" / "srun")
        os.execve(path, ["srun", "--pty", "bash", "--norc", "-i"], {**cluster.env, "PS1": "prompt> ", "TERM": "dumb"})
    try:
        read_until(terminal, "prompt> ")
        os.write(terminal, b"test -t 0 && test -t 1 && echo is-a-$((1+1))-tty; exit 5\n")
        assert "is-a-2-tty" in read_until(terminal, "is-a-2-tty")
        read_until(terminal, None)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    finally:
        os.close(terminal)


def read_until(terminal: int, word: str | None) -> str:
    """What the terminal shows until a word, or to the end."""
    seen, deadline = "", time.monotonic() + 30
    while word is None or word not in seen:
        assert select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0], f"only: {seen!r}"
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # EIO: nobody is left at the other end
            break
        if not piece:
            break
        seen += piece.decode(errors="replace")
    return seen


# -- ends --------------------------------------------------------------------------------------------------------------


def test_the_exit_code_is_the_largest(cluster: Cluster) -> None:
    done = srun(cluster, "-n3", "bash", "-c", "exit $((SLURM_PROCID * 3))")
    assert done.returncode == 6
    assert "srun: error: n1: task 1: Exited with exit code 3" in done.stderr
    killed = srun(cluster, "-n1", "bash", "-c", "kill -9 $$")
    assert killed.returncode == 137
    assert "srun: error: n1: task 0: Killed" in killed.stderr


def test_kill_on_bad_exit_ends_the_others(cluster: Cluster) -> None:
    body = "if [ $SLURM_PROCID = 1 ]; then exit 4; fi; sleep 300"
    done = srun(cluster, "-N2", "-n2", "-K1", "bash", "-c", body)
    assert "srun: error: n2: task 1: Exited with exit code 4" in done.stderr
    assert "Terminating StepId" in done.stderr or "CANCELLED" in done.stderr
    assert done.returncode == 143, "the largest of 4 and 128+SIGTERM, as srun counts it"


def test_wait_ends_the_stragglers(cluster: Cluster) -> None:
    body = "if [ $SLURM_PROCID = 1 ]; then exit 0; fi; sleep 300"
    done = srun(cluster, "-n2", "--wait=1", "bash", "-c", body)
    assert "srun: First task exited 1s ago" in done.stderr
    assert done.returncode != 0


def test_signals_are_forwarded_and_the_second_interrupt_kills(cluster: Cluster) -> None:
    step = start(cluster, "srun", "-n2", "bash", "-c", "trap 'echo usr1' USR1; echo on; while :; do sleep 0.05; done")
    assert step.stdout is not None
    assert step.stderr is not None
    assert [step.stdout.readline() for _ in range(2)] == ["on\n", "on\n"]
    step.send_signal(signal.SIGUSR1)
    assert [step.stdout.readline() for _ in range(2)] == ["usr1\n", "usr1\n"]
    step.send_signal(signal.SIGINT)
    line = step.stderr.readline()
    while "interrupt" not in line:
        line = step.stderr.readline()
    assert line == "srun: interrupt (one more within 1 sec to abort)\n"
    assert re.match(r"srun: StepId=\d+\.0 tasks 0-1: running\n", step.stderr.readline())
    step.send_signal(signal.SIGINT)
    _, err = step.communicate(timeout=30)
    assert "srun: sending Ctrl-C to StepId=" in err
    assert step.returncode != 0


def test_a_missing_program_is_told(cluster: Cluster) -> None:
    done = srun(cluster, "-n1", "no-such-program-at-all")
    assert done.returncode == 2
    assert "execve(): no-such-program-at-all: No such file or directory" in done.stderr


# -- allocations -------------------------------------------------------------------------------------------------------


def test_salloc_runs_a_command_in_its_allocation(cluster: Cluster) -> None:
    done = cluster.run(
        "salloc", "-N2", "-n2", "bash", "-c", "echo $SLURM_JOB_NODELIST; srun hostname; exit 3", check=False
    )
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    assert lines[0] == "n[1-2]"
    assert sorted(lines[1:]) == ["n1", "n2"]
    job = re.search(r"salloc: Granted job allocation (\d+)", done.stderr)
    assert job is not None, done.stderr
    assert f"salloc: Relinquishing job allocation {job[1]}" in done.stderr
    assert cluster.wait(job[1], 30)["state"] in ("COMPLETED", "FAILED")


def test_sattach_shows_a_running_step(cluster: Cluster) -> None:
    ticking = "echo on; while [ ! -e leave ]; do echo tick; sleep 0.05; done; echo late"
    step = start(cluster, "srun", "-n2", "-l", "bash", "-c", ticking)
    assert step.stdout is not None
    assert step.stdout.readline().endswith(": on\n")
    job = cluster.run("squeue", "-h", "-t", "R", "-o", "%i").stdout.split()[-1]
    attached = start(cluster, "sattach", "-l", f"{job}.0")
    assert attached.stdout is not None
    assert attached.stdout.readline().endswith(": tick\n")
    (cluster.work / "leave").touch()
    out, err = attached.communicate(timeout=30)
    assert {"0: late", "1: late"} <= set(out.splitlines()), err
    step.communicate(timeout=30)
    assert step.returncode == 0


def test_srun_into_a_job_that_is_not_there(cluster: Cluster) -> None:
    done = srun(cluster, "--jobid=99999", "hostname")
    assert done.returncode == 1
    assert "srun: error: Unable to confirm allocation for job 99999: Invalid job id specified" in done.stderr


def test_slurm_hostfile_says_where_tasks_run(cluster: Cluster) -> None:
    hosts = cluster.work / "hosts"
    hosts.write_text("n3\nn1\nn3\n")
    words = ("srun", "-l", "sh", "-c", "echo $SLURMD_NODENAME")
    expected = ["0: n3", "1: n1", "2: n3"]
    assert sorted(cluster.run(*words, env={"SLURM_HOSTFILE": str(hosts)}).stdout.splitlines()) == expected
    inside = cluster.run("salloc", "-Q", *words, env={"SLURM_HOSTFILE": str(hosts)})
    assert sorted(inside.stdout.splitlines()) == expected
    for command in (("srun", "true"), ("salloc", "true"), ("sbatch", "--wrap", "true")):
        missing = cluster.run(*command, env={"SLURM_HOSTFILE": "/nowhere"}, check=False)
        assert missing.returncode == 1
        assert "'/nowhere', which SLURM_HOSTFILE names: No such file or directory" in missing.stderr


def test_numbers_of_a_waiting_job_are_changed_one_by_one(cluster: Cluster) -> None:
    job = cluster.sbatch("-H", "-n2", "-o", "/dev/null", "--wrap", "true")
    cluster.run("scontrol", "update", f"JobId={job}", "NumTasks=6")
    cluster.run("scontrol", "update", f"JobId={job}", "NumCPUs=8")
    assert "NumCPUs=8 NumTasks=6 " in cluster.run("scontrol", "show", "job", job).stdout
    over = cluster.run("scontrol", "update", f"JobId={job}", "Deadline=2020-01-01", check=False)
    assert (over.returncode, over.stderr) == (1, f"Invalid time specified for job {job}\n")
    assert "JobState=PENDING" in cluster.run("scontrol", "show", "job", job).stdout
    cluster.run("scancel", job)
