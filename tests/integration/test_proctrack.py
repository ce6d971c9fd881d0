"""A job's end is the end of all its processes, however they hide, whoever runs them and whatever the kernel offers.

Every hidden process keeps a lock (`tests/support/hiding.py`). The moment the cluster says that a job has ended, or
starts it again, the lock must be free: nothing is waited for after that.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator

import pytest
from tests.support.cluster import Cluster
from tests.support.hidden_jobs import CONF, ENDS, MODES, Hidden, cluster_of, is_free
from tests.support.hiding import WAYS


@pytest.fixture(scope="module", params=MODES)
def hidden(request: pytest.FixtureRequest) -> Iterator[Hidden]:
    with cluster_of(request.param).running() as cluster:
        yield Hidden(cluster)


@pytest.mark.parametrize(("end", "state"), ENDS.items())
@pytest.mark.parametrize("way", WAYS)
def test_nothing_survives(hidden: Hidden, way: str, end: str, state: str) -> None:
    hidden.check(way, end, state)


# -- who is killed meanwhile ----------------------------------------------------------------------------------------

HOST = socket.gethostname().partition(".")[0]
KILLED = ("agent", "daemon", "both")


@pytest.fixture(scope="module", params=["root, cgroup v2", "user, no cgroup"])
def mortal(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster_of(request.param).running() as cluster:
        yield cluster


@pytest.mark.parametrize("killed", KILLED)
@pytest.mark.parametrize("way", ["cleared_environment", "fork_chain", "stopped"])
def test_nothing_survives_the_death_of_those_who_look_after_it(mortal: Cluster, way: str, killed: str) -> None:
    """The job is requeued (its agent died) or cancelled (only the daemon did): its next run finds nobody there."""
    name = f"{way}-{killed}"
    python = mortal.python if mortal.owner else sys.executable
    script = mortal.script(
        f"exec 9>>{name}.lock; flock -n 9 || touch {name}.twice\n"
        f'[ -n "$SLURM_RESTART_COUNT" ] && exit 0\n{python} hiding.py {way} {name}.hidden\nsleep 3600\n',
        f"{name}.sh",
    )
    job = mortal.sbatch("-n1", "--mem=10", "--requeue", "-o", f"{name}.out", str(script))
    mortal.until((mortal.work / f"{name}.hidden").exists, 60)
    if killed in ("agent", "both"):
        mortal.kill_agent("n1")
    if killed in ("daemon", "both"):
        mortal.kill_daemon()
        mortal.up_again()
    if killed == "daemon":
        mortal.run("scancel", job)
    ended = mortal.wait(job, 90)
    assert is_free(mortal.work / f"{name}.lock")
    assert not (mortal.work / f"{name}.twice").exists(), "it ran twice at once"
    assert ended["state"] == ("CANCELLED" if killed == "daemon" else "COMPLETED")


def test_a_job_that_kills_its_keeper_ends_with_everything_of_it(mortal: Cluster) -> None:
    """Only root's jobs and those of the agent's own user can."""
    python = mortal.python if mortal.owner else sys.executable
    script = mortal.script(
        f"exec 9>>keeperless.lock; flock -n 9\n{python} hiding.py cleared_environment keeperless.hidden\n"
        "kill -9 $PPID; sleep 3600\n",
        "keeperless.sh",
    )
    job = mortal.sbatch("-n1", "--mem=10", "--no-requeue", "-o", "/dev/null", str(script))
    ended = mortal.wait(job, 60)
    assert is_free(mortal.work / "keeperless.lock")
    assert ended["state"] == "FAILED"
    assert mortal.wait(mortal.sbatch("-n1", "--mem=10", "-o", "/dev/null", "--wrap", "exit 3"), 60)["exit_code"] == 3


# -- what cannot be killed ------------------------------------------------------------------------------------------


@pytest.fixture
def stubborn() -> Iterator[Cluster]:
    """A user's cluster on which a job has become root: nothing that the agent may send ends it."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a program that becomes root")
    settings = "UnkillableStepTimeout=1"
    cluster = cluster_of("user, no cgroup", settings)
    program = cluster.work / "became"
    program.write_text('#!/bin/sh\necho "$SLURM_JOB_ID $SLURM_STEP_ID" > "$(dirname "$0")/became.told"\n')
    program.chmod(0o755)
    # Not a virtual node: in its user namespace nobody becomes root.
    text = cluster.conf_file.read_text().replace("UnkillableStepTimeout=120\n", "").replace("n[1-1]", HOST)
    cluster.conf_file.write_text(f"{text}UnkillableStepProgram={program}\n")
    setpriv = shutil.copy(shutil.which("setpriv") or "/usr/bin/setpriv", cluster.folder / "setpriv")
    os.chmod(setpriv, 0o4755)
    with cluster.running():
        yield cluster


def become_root(cluster: Cluster) -> tuple[str, int]:
    """The job, and the process of it that is root."""
    command = f"{cluster.folder}/setpriv --reuid 0 --regid 0 --clear-groups sh -c 'echo $$ > pid; exec sleep 3600'"
    job = cluster.sbatch("-n1", "--gpus=8", "--mem=10", "--no-requeue", "-o", "out", "--wrap", command)
    cluster.until(lambda: (cluster.work / "pid").exists() and (cluster.work / "pid").read_text().strip(), 60)
    pid = int((cluster.work / "pid").read_text())
    if os.stat(f"/proc/{pid}").st_uid != 0:
        pytest.skip("programs that become root are forbidden here")
    return job, pid


def test_what_cannot_be_killed_keeps_its_gpus_and_drains_its_node(stubborn: Cluster) -> None:
    job, pid = become_root(stubborn)
    try:
        stubborn.run("scancel", job)
        stubborn.until(lambda: "drain" in stubborn.run("sinfo", "-h", "-o", "%T").stdout, 60)
        assert stubborn.run("sinfo", "-h", "-R", "-o", "%E").stdout.startswith(
            f"Kill task failed (job {job}: pids {pid}"
        )
        assert stubborn.run("squeue", "-h", "-j", job, "-o", "%T").stdout.strip() == "COMPLETING"
        stubborn.until((stubborn.work / "became.told").exists)
        assert (stubborn.work / "became.told").read_text().split() == [job, "batch"]
        stubborn.kill_agent(HOST)  # its successor does not forget it either
        stubborn.run("scontrol", "update", f"nodename={HOST}", "state=resume")
        stubborn.until(lambda: "drain" in stubborn.run("sinfo", "-h", "-o", "%T").stdout, 60)
        assert stubborn.run("squeue", "-h", "-j", job, "-o", "%T").stdout.strip() == "COMPLETING"
        assert os.path.exists(f"/proc/{pid}")
    finally:
        os.kill(pid, signal.SIGKILL)
    assert stubborn.wait(job, 60)["state"] == "CANCELLED"


# -- what is said ---------------------------------------------------------------------------------------------------


def test_the_doctor_says_how_jobs_are_tracked(hidden: Hidden, request: pytest.FixtureRequest) -> None:
    mode = request.node.callspec.params["hidden"]
    said = hidden.cluster.bireme("doctor", check=False).stdout
    line = next(line for line in said.splitlines() if " tracking " in line)
    assert "child subreaper" in line
    assert ("cgroup v2" in line, "cgroup v1" in line) == ("v2" in mode, "v1" in mode), line


def test_a_wish_for_cgroups_that_cannot_be_had_is_said_on_the_screen() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be a user that may not make cgroups")
    cluster = Cluster(CONF + "\nProctrackType=proctrack/cgroup\n", "nobody")
    try:
        said = cluster.bireme("up", "--conf", str(cluster.conf_file)).stdout
    finally:
        left = cluster.stop()
    assert not left
    assert "ProctrackType=proctrack/cgroup cannot be had: cgroup v" in said, said
