"""A job that is submitted under another of one's groups (`sg`, `newgrp`) has that group on a cluster without root."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cluster import Cluster

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a user another group"),
    pytest.mark.skipif(shutil.which("sg") is None, reason="sg is not installed"),
]
OWNER = "daemon"
CLUB, OTHER = grp.getgrnam("games"), grp.getgrnam("users")
"""In the first its owner is while the cluster is started, in the second never."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """On this machine as it is: in the user namespaces of virtual nodes setuid programs have no power."""
    made = Cluster(owner=OWNER)
    try:
        made.run(made.python, "-m", "bireme", "up", "--quiet", groups=[CLUB.gr_gid])
        yield made
    finally:
        left = made.stop()
    assert not left, left


def own_gid() -> int:
    return pwd.getpwnam(OWNER).pw_gid


def written(cluster: Cluster, name: str) -> list[str]:
    return (cluster.work / name).read_text().splitlines()


def test_scripts_and_steps_have_the_group(cluster: Cluster) -> None:
    words = "id -g; touch mine; srun -n2 id -g; srun touch step; exit 7"
    ended = cluster.wait(cluster.sbatch("-n2", "-o", "club.out", "--wrap", words, gid=CLUB.gr_gid))
    assert (ended["state"], ended["exit_code"]) == ("FAILED", 7)
    assert written(cluster, "club.out") == [str(CLUB.gr_gid)] * 3, "and nothing is said of it"
    for name in ("club.out", "mine", "step"):
        assert (cluster.work / name).stat().st_gid == CLUB.gr_gid


def test_the_next_job_has_the_owners_group_again(cluster: Cluster) -> None:
    cluster.wait(cluster.sbatch("-o", "again.out", "--wrap", "id -g; srun id -g"))
    assert written(cluster, "again.out") == [str(own_gid())] * 2


def test_environment_input_and_terminal_pass_sg_by(cluster: Cluster) -> None:
    """A setuid program would drop some variables, and starts a shell of its own."""
    env = {"LD_LIBRARY_PATH": "/nowhere", "TMPDIR": "/tmp/mine", "ODD": "a'b\"c $(id)\n"}
    show = 'printf "%s|%s|%s|" "$LD_LIBRARY_PATH" "$TMPDIR" "$ODD"; cat'
    done = cluster.run("srun", "bash", "-c", show, gid=CLUB.gr_gid, env=env, input="from stdin")
    assert done.stdout == "/nowhere|/tmp/mine|a'b\"c $(id)\n|from stdin"
    on_tty = cluster.run("srun", "--pty", "bash", "-c", "tty; id -g", gid=CLUB.gr_gid, input="")
    assert on_tty.stdout.split()[0].startswith("/dev/pts/")
    assert on_tty.stdout.split()[1] == str(CLUB.gr_gid)


def test_it_ends_with_all_that_it_started(cluster: Cluster) -> None:
    """Signals reach the script, a step's exit is its own, and what hides is found: its keeper is like any other."""
    body = "trap 'echo got it' USR1\n(setsid env -i sleep 987 &)\nsrun bash -c 'kill -9 $$'; echo rc=$?\ntouch ready\n"
    cluster.script(body + "while :; do sleep 0.05; done\n", "hides.sh")
    job = cluster.sbatch("-o", "hides.out", "hides.sh", gid=CLUB.gr_gid)
    cluster.until((cluster.work / "ready").exists)
    cluster.run("scancel", "-b", "-s", "USR1", job)
    cluster.until(lambda: "got it" in (cluster.work / "hides.out").read_text())
    assert "rc=137" in written(cluster, "hides.out")
    cluster.run("scancel", job)
    assert cluster.wait(job)["state"] == "CANCELLED"
    cluster.until(lambda: not sleeping("987"))


def sleeping(seconds: str) -> bool:
    found = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
    return any(words.split(b"\0")[:2] == [b"sleep", seconds.encode()] for words in found)


def test_a_group_that_sg_refuses_is_not_applied_and_that_is_said(cluster: Cluster) -> None:
    """It would ask for a password; nobody is there to give one."""
    job = cluster.sbatch("-o", "other.out", "--wrap", "id -g", gid=OTHER.gr_gid)
    assert cluster.wait(job)["state"] == "COMPLETED"
    notice, gid = written(cluster, "other.out")
    assert f"group {OTHER.gr_name} is not applied" in notice
    assert gid == str(own_gid())


def test_the_daemon_may_come_and_go(cluster: Cluster) -> None:
    gate = cluster.work / "gate"
    job = cluster.sbatch("-o", "kept.out", "--wrap", f"while [ ! -e {gate} ]; do sleep 0.05; done; id -g",
                         gid=CLUB.gr_gid)  # fmt: skip
    cluster.until(lambda: cluster.records(job)[0]["state"] == "RUNNING")
    cluster.kill_daemon()
    cluster.run(cluster.python, "-m", "bireme", "up", "--quiet")
    gate.touch()
    assert cluster.wait(job)["state"] == "COMPLETED"
    assert written(cluster, "kept.out") == [str(CLUB.gr_gid)]


def test_nothing_of_it_outlives_its_agent(cluster: Cluster) -> None:
    job = cluster.sbatch("--no-requeue", "-o", "/dev/null", "--wrap", "(setsid env -i sleep 986 &) ; srun sleep 986",
                         gid=CLUB.gr_gid)  # fmt: skip
    cluster.until(lambda: f"{job}.0" in cluster.run("squeue", "-s", "-h", "-o", "%i").stdout.split())
    cluster.kill_agent(os.uname().nodename.partition(".")[0])
    assert cluster.wait(job)["state"] == "NODE_FAIL"
    cluster.until(lambda: not sleeping("986"))
