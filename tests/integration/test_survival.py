"""kill -9 of the daemon, of agents, of both, at seeded moments: no accepted job is lost, none runs twice.

Every job appends one line to a log each time it starts. The kernel orders appends, so the log is the truth about what
ran; the cluster's own records are compared with it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.support.cluster import Cluster, virtual_nodes

from bireme.agent.confining.sweeping import left_groups
from bireme.client.sdk import Client
from bireme.client.transport import BiremeError

CONF = virtual_nodes(3, 0, cpus=8, settings="SlurmdTimeout=60\nMaxBatchRequeue=50")
ENDED = {"COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED", "TIMEOUT"}
WORKER = """#!/bin/bash
echo "$1 $SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0}" >> runs.log
sleep $2
exit $3
"""


Through = Callable[["Submitter", list[str]], str]
"""How a worker with these arguments is submitted; returns its job id."""


class Submitter(threading.Thread):
    """Submits jobs one after another until told to end; knows which were accepted."""

    def __init__(
        self, cluster: Cluster, prefix: str, seed: int, through: Callable[[Submitter, list[str]], str]
    ) -> None:
        super().__init__(daemon=True)
        self.cluster, self.prefix, self.through = cluster, prefix, through
        self.random = random.Random(seed)
        self.accepted: dict[str, str] = {}
        """Job id by token."""
        self.exit_codes: dict[str, int] = {}
        self.doubtful: list[str] = []
        """Tokens whose submission failed: the job may exist, once."""
        self.ended = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.ended.is_set():
            number += 1
            token = f"{self.prefix}-{number}"
            self.exit_codes[token] = self.random.choice([0, 0, 1, 7])
            seconds = self.random.choice(["0", "0", "0.1", "0.4"])
            try:
                self.accepted[token] = self.through(self, [token, seconds, str(self.exit_codes[token])])
            except (BiremeError, AssertionError):
                self.doubtful.append(token)
                time.sleep(0.02)


def by_sbatch(submitter: Submitter, words: list[str]) -> str:
    return submitter.cluster.sbatch("-o", "/dev/null", "-J", words[0], "worker.sh", *words)


def by_sdk(submitter: Submitter, words: list[str]) -> str:
    with Client(str(submitter.cluster.home)) as client:
        options = {"output": "/dev/null", "job_name": words[0], "chdir": str(submitter.cluster.work)}
        return client.submit(str(submitter.cluster.work / "worker.sh"), *words, **options).id


def kill_daemon(cluster: Cluster, dice: random.Random) -> None:
    cluster.kill_daemon()


def kill_agent(cluster: Cluster, dice: random.Random) -> None:
    cluster.kill_agent(dice.choice(["n1", "n2", "n3"]))


def kill_both(cluster: Cluster, dice: random.Random) -> None:
    cluster.kill_agent(dice.choice(["n1", "n2", "n3"]))
    cluster.kill_daemon()


def kill_everything(cluster: Cluster, dice: random.Random) -> None:
    cluster.kill_daemon()
    for node in ("n1", "n2", "n3"):
        cluster.kill_agent(node)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(CONF).running() as made:
        (made.work / "worker.sh").write_text(WORKER)
        yield made


def runs(cluster: Cluster) -> list[tuple[str, str, int]]:
    """(token, job id, restart count) of every start, in order."""
    path = cluster.work / "runs.log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(token, job, int(restarts)) for token, job, restarts in (line.split() for line in lines)]


def all_ended(cluster: Cluster, job_ids: list[str]) -> dict[str, dict[str, Any]]:
    with Client(str(cluster.home), patience_s=20) as client:
        for job_id in job_ids:
            client.wait(job_id, 60)
        return {str(record["job_id"]): record for record in client.jobs()}


def check_story(cluster: Cluster, submitters: list[Submitter]) -> None:
    accepted = {token: job for one in submitters for token, job in one.accepted.items()}
    codes = {token: code for one in submitters for token, code in one.exit_codes.items()}
    doubtful = {token for one in submitters for token in one.doubtful}
    records = all_ended(cluster, list(accepted.values()))
    by_name: dict[str, list[dict[str, Any]]] = {}
    for record in records.values():
        by_name.setdefault(record["name"], []).append(record)
    for token in doubtful:  # it may have been accepted without the client knowing: then it must end too
        for record in by_name.get(token, ()):
            records[str(record["job_id"])] = all_ended(cluster, [str(record["job_id"])])[str(record["job_id"])]
    starts = runs(cluster)
    assert len(accepted) == len(set(accepted.values())), "an id was given twice"
    for token in doubtful:
        assert len(by_name.get(token, ())) <= 1, f"{token} exists twice"
    twice = [key for key, count in Counter(starts).items() if count > 1]
    assert not twice, f"started twice: {twice}"
    for token, job in accepted.items():
        record = records.get(job)
        assert record is not None, f"{token} (job {job}) was accepted and is lost"
        mine = [start for start in starts if start[0] == token]
        assert {start[1] for start in mine} <= {job}, f"{token} ran under other ids: {mine}"
        assert len(mine) <= record["restarts"] + 1, f"{token}: {mine}, {record['restarts']} restarts"
        assert record["state"] in ENDED, f"{token}: {record['state']}"
        if record["state"] in ("COMPLETED", "FAILED"):
            assert mine, f"{token} ended as {record['state']} and never ran"
            assert record["exit_code"] == codes[token], f"{token}: {record}"
            assert record["state"] == ("FAILED" if codes[token] else "COMPLETED")
        else:
            assert record["state"] == "NODE_FAIL", f"{token}: {record}"


KILLS = 6
"""A test kills so often: six moments for each of five choices of victims."""


@pytest.mark.parametrize(
    ("kill", "seed"),
    [(kill_daemon, 1), (kill_agent, 2), (kill_daemon, 3), (kill_both, 4), (kill_everything, 5)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_nothing_is_lost_and_nothing_runs_twice(cluster: Cluster, kill: Callable[..., None], seed: int) -> None:
    dice = random.Random(seed)
    submitters = [
        Submitter(cluster, f"s{seed}", seed, by_sdk),
        Submitter(cluster, f"c{seed}", seed + 1000, by_sbatch),
    ]
    for one in submitters:
        one.start()
    for _ in range(KILLS):
        time.sleep(dice.uniform(0.02, 0.5))  # the moment itself is what varies
        kill(cluster, dice)
        cluster.up_again()
    for one in submitters:
        one.ended.set()
        one.join()
    assert all(one.accepted for one in submitters)
    check_story(cluster, submitters)


def test_gangs_start_on_all_nodes_or_none_through_kills(cluster: Cluster) -> None:
    """Three-node jobs, killed while they are being prepared: each start reaches the script once."""
    dice = random.Random(77)
    jobs = []
    for number in range(6):
        ids = [
            cluster.sbatch("-N3", "-o", "/dev/null", "-J", f"g{number}{k}", "worker.sh", f"g{number}{k}", "0.2", "3")
            for k in range(2)
        ]
        jobs += [(f"g{number}{k}", job) for k, job in enumerate(ids)]
        time.sleep(dice.uniform(0, 0.15))
        dice.choice([kill_daemon, kill_agent, kill_both])(cluster, dice)
        cluster.up_again()
    records = all_ended(cluster, [job for _, job in jobs])
    starts = runs(cluster)
    for token, job in jobs:
        mine = [start for start in starts if start[0] == token]
        assert len(mine) == len(set(mine)) <= records[job]["restarts"] + 1, (token, mine)
        assert (records[job]["state"], records[job]["exit_code"]) == ("FAILED", 3), records[job]


def test_jobs_outlive_the_daemon_and_their_exit_codes_are_known(cluster: Cluster) -> None:
    """One ends while no daemon is there, one after it came back."""
    gate = cluster.work / "gate"
    during = cluster.sbatch("-o", "/dev/null", "--wrap", "while [ ! -e down ]; do sleep 0.05; done; exit 5")
    after = cluster.sbatch("-o", "/dev/null", "--wrap", "while [ ! -e gate ]; do sleep 0.05; done; exit 6")
    killed = cluster.sbatch("-o", "/dev/null", "--wrap", "while [ ! -e down ]; do sleep 0.05; done; kill -SEGV $$")
    for job in (during, after, killed):
        cluster.until_started(job)
    before = cluster.records(after)[0]
    cluster.kill_daemon()
    (cluster.work / "down").touch()
    cluster.until(lambda: len([1 for _, words in cluster.processes() if "slurm_script" in words]) <= 1)
    cluster.up_again()
    assert cluster.records(after)[0]["state"] == "RUNNING"
    assert cluster.records(after)[0]["start_time"] == before["start_time"]
    gate.touch()
    ends = {name: cluster.wait(job, 30) for name, job in (("during", during), ("after", after), ("killed", killed))}
    assert {name: (end["state"], end["exit_code"], end["exit_signal"]) for name, end in ends.items()} == {
        "during": ("FAILED", 5, 0),
        "after": ("FAILED", 6, 0),
        "killed": ("FAILED", 0, signal.SIGSEGV),
    }
    assert {end["restarts"] for end in ends.values()} == {0}


DURABLE = """
    job_id array_job_id array_task_id array_tasks name user_id account partition state nice submit_time start_time
    time_limit_s node_list shares dependency restarts generation held_by std_out command argv comment exit_code
    tres_requested tres_allocated features licenses
"""


def facts(cluster: Cluster) -> list[dict[str, Any]]:
    with Client(str(cluster.home)) as client:
        return [{name: record[name] for name in DURABLE.split()} for record in client.jobs()]


def test_the_state_after_a_kill_is_the_state_before(cluster: Cluster) -> None:
    held = cluster.sbatch("-H", "--comment=why not", "--nice=5", "worker.sh", "x", "0", "0")
    cluster.sbatch(f"--dependency=afterok:{held}", "-N2", "-n6", "--mem=3G", "worker.sh", "x", "0", "0")
    cluster.sbatch("--array=1-20:3%2", "--begin=now+1hour", "worker.sh", "x", "0", "0")
    running = cluster.sbatch("-o", "/dev/null", "--wrap", "sleep 60")
    cluster.until_started(running)
    cluster.run("scontrol", "update", f"JobId={held}", "TimeLimit=5", "Name=renamed")
    cluster.run("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=looked at")
    before, nodes = facts(cluster), cluster.run("sinfo", "-h", "-N", "-o", "%N %T %E %C").stdout
    cluster.kill_daemon()
    cluster.up_again()
    assert facts(cluster) == before
    assert cluster.run("sinfo", "-h", "-N", "-o", "%N %T %E %C").stdout == nodes
    cluster.run("scontrol", "update", "NodeName=n3", "State=RESUME")
    cluster.run("scancel", "-u", "root" if os.geteuid() == 0 else str(os.getuid()))


def test_down_leaves_jobs_running_and_up_finds_them(cluster: Cluster) -> None:
    job = cluster.sbatch("-o", "/dev/null", "--wrap", "while [ ! -e go ]; do sleep 0.05; done; exit 4")
    cluster.until_started(job)
    cluster.down()
    refused = cluster.run("sbatch", "--wrap", "true", check=False)
    assert refused.returncode == 1
    assert "Unable to contact slurm controller" in refused.stderr
    (cluster.work / "go").touch()
    cluster.up_again()
    assert cluster.wait(job, 30)["exit_code"] == 4


def test_an_agent_that_died_leaves_no_process(cluster: Cluster) -> None:
    """Its successor ends the script, its children, and the child that hid in a session of its own."""
    job = cluster.sbatch(
        "--no-requeue", "-w", "n2", "-o", "pids", "--wrap", "sleep 600 & setsid -f sleep 601; echo $$ $!; wait"
    )
    cluster.until(lambda: (cluster.work / "pids").exists() and (cluster.work / "pids").read_text().strip())
    cluster.kill_agent("n2")
    record = cluster.wait(job, 30)
    assert record["state"] == "NODE_FAIL"
    assert not cluster.pids_with(f"BIREME_JOB={job}."), "left by the agent"
    again = cluster.sbatch("-w", "n2", "-o", "/dev/null", "--wrap", "exit 2")
    assert cluster.wait(again, 30)["exit_code"] == 2, "the node serves again"


@pytest.mark.parametrize("victim", ["daemon", "agent"])
def test_srun_through_a_kill(cluster: Cluster, victim: str) -> None:
    """Without the daemon a step goes on; without its agent it ends with a sentence and not with silence."""
    step = subprocess.Popen(
        ["srun", "-w", "n1", "-n2", "-l", "bash", "-c", "echo ready; read line; echo got $line; exit 3"],
        env=cluster.env,
        cwd=cluster.work,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert step.stdout is not None
    assert {step.stdout.readline(), step.stdout.readline()} == {"0: ready\n", "1: ready\n"}
    if victim == "daemon":
        cluster.kill_daemon()
        cluster.up_again()
    else:
        cluster.kill_agent("n1")
    out, err = step.communicate("hello\n", timeout=60)
    if victim == "daemon":
        assert {"0: got hello", "1: got hello"} <= set(out.splitlines()), err
        assert step.returncode == 3
    else:
        assert step.returncode != 0
        assert "srun: error" in err
    with Client(str(cluster.home), patience_s=10) as client:
        newest = max(client.jobs(), key=lambda record: record["job_id"])
        ended = client.wait(newest["job_id"], 30)
    assert ended["state"] == ("FAILED" if victim == "daemon" else "NODE_FAIL"), ended


def test_srun_inside_a_job_waits_for_the_daemon_to_come_back(cluster: Cluster) -> None:
    cluster.script(
        "touch begun; while [ ! -e no-daemon ]; do sleep 0.02; done; srun -n1 hostname; echo code $?", "w.sh"
    )
    job = cluster.sbatch("-w", "n2", "-o", "waits.out", "w.sh")
    cluster.until(lambda: (cluster.work / "begun").exists())
    cluster.kill_daemon()
    (cluster.work / "no-daemon").touch()
    cluster.until(lambda: any("srun" in words for _, words in cluster.processes()))
    cluster.up_again()
    assert cluster.wait(job, 60)["state"] == "COMPLETED"
    assert (cluster.work / "waits.out").read_text().splitlines()[-2:] == ["n2", "code 0"]


def test_down_with_the_jobs_ends_them_and_says_so(cluster: Cluster) -> None:
    """`bireme down --end-jobs`: nothing runs on, and the next `up` knows how each job ended."""
    job = cluster.sbatch("--no-requeue", "-o", "/dev/null", "--wrap", "sleep 600")
    cluster.until_started(job)
    waiting = cluster.sbatch("-H", "-o", "/dev/null", "--wrap", "true")
    said = cluster.bireme("down", "--end-jobs").stdout
    assert "Ended 1 running job and the agents of n[1-3]." in said
    assert not cluster.processes()
    cluster.up_again()
    assert cluster.wait(job, 30)["state"] == "CANCELLED"
    assert cluster.records(waiting)[0]["state"] == "PENDING"
    cluster.run("scancel", waiting)


def test_down_with_the_jobs_leaves_no_cgroup_of_an_agent_that_was_killed(cluster: Cluster) -> None:
    job = cluster.sbatch("-w", "n1", "--no-requeue", "-o", "/dev/null", "--wrap", "sleep 600")
    cluster.until_started(job)
    if not left_groups(str(cluster.home), "n1"):
        cluster.run("scancel", job)
        pytest.skip("no cgroup can be made here")
    cluster.kill_daemon()  # it would start another agent, which removes them
    cluster.kill_agent("n1")
    cluster.bireme("down", "--end-jobs")
    assert not [group.path for node in ("n1", "n2", "n3") for group in left_groups(str(cluster.home), node)]
    cluster.up_again()
    assert cluster.wait(job, 60)["state"] in ENDED


def test_a_node_that_left_the_configuration_takes_its_jobs_along(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(virtual_nodes(4, 0, cpus=8))
    gone = cluster.sbatch("--no-requeue", "-w", "n3", "-o", "/dev/null", "--wrap", "sleep 600")
    stays = cluster.sbatch("-w", "n1", "-o", "/dev/null", "--wrap", "while [ ! -e go ]; do sleep 0.05; done; exit 3")
    for job in (gone, stays):
        cluster.until_started(job)
    cluster.down()
    cluster.conf(virtual_nodes(2, 0, cpus=8))
    cluster.up_again()
    assert cluster.wait(gone, 30)["state"] == "NODE_FAIL"
    assert cluster.records(stays)[0]["state"] == "RUNNING"
    (cluster.work / "go").touch()
    assert cluster.wait(stays, 30)["exit_code"] == 3
    assert cluster.run("sinfo", "-h", "-o", "%N", "-p", "main").stdout.split() == ["n[1-2]"]
    cluster.until(lambda: not cluster.pids_with(f"BIREME_JOB={gone}."))


def test_a_removed_folder_of_a_node_lets_no_job_run_twice(cluster: Cluster) -> None:
    """Nobody reaches its agent any more: what that holds is ended before anything of the node is started again."""
    cluster.script("exec 9>>removed.lock; flock -n 9 || touch removed.twice; echo run >> removed.runs; sleep 600\n")
    job, runs = cluster.sbatch("--requeue", "-w", "n1", "-o", "/dev/null", "job.sh"), cluster.work / "removed.runs"
    cluster.until(lambda: runs.exists())
    agent = cluster.agent_pid("n1")
    cluster.kill_daemon()
    shutil.rmtree(cluster.home / "agents" / "n1")
    cluster.up_again()
    cluster.until(lambda: runs.read_text().count("run") == 2)
    assert not (cluster.work / "removed.twice").exists()
    assert agent not in dict(cluster.processes())

    cluster.kill_daemon()
    second = cluster.agent_pid("n1")
    shutil.rmtree(cluster.home / "agents" / "n1")
    said = cluster.bireme("down", "--end-jobs").stdout
    assert "Ended agents that no daemon heard, with the jobs that they held: n[1-3] (pids " in said
    assert str(second) in said
    assert second not in dict(cluster.processes())
    assert not cluster.pids_with(f"BIREME_JOB={job}.")
    cluster.up_again()
    cluster.run("scancel", job)


def test_an_agent_whose_socket_was_removed_is_found_by_the_next_daemon(cluster: Cluster) -> None:
    job = cluster.sbatch("-w", "n1", "-o", "/dev/null", "--wrap", "while [ ! -e sock.go ]; do sleep 0.05; done; exit 5")
    cluster.until_started(job)
    cluster.kill_daemon()
    (cluster.home / "agents" / "n1" / "agent.sock").unlink()
    cluster.up_again()
    cluster.until(lambda: "*" not in cluster.run("sinfo", "-h", "-n", "n1", "-o", "%t").stdout)
    (cluster.work / "sock.go").touch()
    assert cluster.wait(job, 60)["exit_code"] == 5, "it was neither lost nor ended"


def test_damaged_records_of_an_agent_do_not_keep_it_from_starting(cluster: Cluster) -> None:
    """A torn line is what a crash leaves; what it would have said is honestly unknown."""
    records = cluster.home / "agents" / "n1" / "tasks.jsonl"
    job = cluster.sbatch("--no-requeue", "-w", "n1", "-o", "/dev/null", "--wrap", "sleep 600")
    cluster.until_started(job)
    cluster.kill_daemon()
    cluster.kill_agent("n1")
    with records.open("ab") as file:
        file.write(b'{"r":"pid","job":99,\xff\x00 garbage\n{"r":')
    cluster.up_again()
    assert cluster.wait(job, 30)["state"] == "NODE_FAIL"
    assert not cluster.pids_with(f"BIREME_JOB={job}.")
    again = cluster.sbatch("-w", "n1", "-o", "/dev/null", "--wrap", "exit 2")
    assert cluster.wait(again, 30)["exit_code"] == 2


def test_a_stopped_agent_is_told_to_go_on_when_all_is_to_end(cluster: Cluster) -> None:
    """It would not hear that it is to end: `bireme down --end-jobs` waits for nobody who cannot come."""
    job = cluster.sbatch("-w", "n1", "-o", "/dev/null", "--wrap", "sleep 600")
    cluster.until_started(job)
    agent = cluster.agent_pid("n1")
    cluster.kill_daemon()
    os.kill(agent, signal.SIGSTOP)
    assert str(agent) in cluster.bireme("down", "--end-jobs").stdout
    assert not cluster.processes()
    cluster.up_again()


def test_of_two_that_start_a_cluster_at_once_both_have_it(cluster: Cluster) -> None:
    cluster.down()
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda _: cluster.bireme("up", check=False), range(2)))
    assert [each.returncode for each in said] == [0, 0], said
    assert sorted("is up already" in each.stdout for each in said) == [False, True]


def test_doctor_asks_the_agents_and_names_those_that_do_not_answer(cluster: Cluster) -> None:
    agent = cluster.agent_pid("n2")
    os.kill(agent, signal.SIGSTOP)
    try:
        said = cluster.bireme("doctor", check=False).stdout
        assert "of n2 do not answer: see bireme doctor" in cluster.bireme("status").stdout
    finally:
        os.kill(agent, signal.SIGCONT)
    assert "agents that do not answer now: n2" in said
    cluster.until(lambda: "all 3 nodes answer" in cluster.bireme("doctor", check=False).stdout)
