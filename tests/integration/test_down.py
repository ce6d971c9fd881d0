"""`bireme down`: at its end nothing of the cluster is left, or the screen says what is, by pid, and what ends it.

Once as whoever runs the tests, and once as an ordinary user, where those are two: with cgroups and without.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.cluster import Cluster, virtual_nodes

from bireme.agent.confining.hierarchy import find_v1
from bireme.daemon.telemetry import process as gatherer

CONF = virtual_nodes(2, 0, cpus=8, settings="SlurmdTimeout=60")
STUBBORN = "#!/bin/bash\ntrap '' TERM INT HUP\nwhile [ ! -e go ]; do sleep 0.05; done\nexit 7\n"
ORDINARY = "nobody"


by_both = pytest.mark.parametrize("cluster", ["", ORDINARY], indirect=True, ids=["own", "ordinary"])


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Down when a test gets it, and when it is done with it. Its parameter: whose it is, where not our own."""
    owner = getattr(request, "param", "")
    if owner and os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    made = Cluster(CONF, owner or None)
    made.variables |= {"BIREME_TELEMETRY_GATHER": "on"}
    with made.running():
        made.script(STUBBORN, "stubborn.sh")
        made.down("--end-jobs")
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left(cluster: Cluster) -> Iterator[None]:
    (cluster.work / "go").unlink(missing_ok=True)
    yield
    cluster.down("--end-jobs")
    assert not cluster.processes()


def started(cluster: Cluster, *options: str) -> str:
    """A job that does not end for SIGTERM, or before there is a file `go`."""
    job = cluster.sbatch("--no-requeue", "-w", "n1", "-o", "/dev/null", *options, "stubborn.sh")
    cluster.until_started(job)
    cluster.until(lambda: cluster.pids_with(f"BIREME_JOB={job}."))
    return job


@by_both
def test_what_jobs_need_goes_on_is_named_and_ends_with_them(cluster: Cluster) -> None:
    """Also of a job that is on its way to its end; the next `up` knows how each came."""
    cluster.up()
    job, cancelled = started(cluster), started(cluster)
    cluster.run("scancel", cancelled)
    agent, other = cluster.agent_pid("n1"), cluster.agent_pid("n2")
    cluster.until(lambda: gatherer.pid_of(str(cluster.home / "gatherer")))
    measures = gatherer.pid_of(str(cluster.home / "gatherer"))
    said = cluster.bireme("down").stdout
    assert re.search(rf"jobs? \({job}(, {cancelled})?\) goe?s? on.* the agents of n1 \(pids {agent}\)", said), said
    assert "ended by: bireme down --end-jobs" in said
    assert f"What they do is gathered on (pid {measures})" in said
    assert other not in dict(cluster.processes()), "it holds nothing"
    (cluster.work / "go").touch()
    cluster.until(lambda: agent not in dict(cluster.processes()))
    assert [words for _, words in cluster.processes() if "bireme.gather" not in words] == []
    assert "No cluster runs" in cluster.bireme("down").stdout
    assert not cluster.processes()
    cluster.up()
    assert cluster.wait(job)["exit_code"] == 7
    assert cluster.wait(cancelled)["state"] == "CANCELLED"


@by_both
def test_all_ends_while_an_array_still_starts_and_the_daemon_was_stopped(cluster: Cluster) -> None:
    cluster.up()
    array = cluster.sbatch("--array=0-99", "-o", "/dev/null", "stubborn.sh")
    pid = cluster.daemon_pid()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    assert "The cluster at" in cluster.bireme("down", "--end-jobs").stdout
    assert not cluster.processes()
    cluster.up()
    cluster.run("scancel", array)


def test_agents_without_a_daemon_leave_when_they_hold_nothing(cluster: Cluster) -> None:
    """It was killed: nobody has told them that the cluster is down."""
    cluster.up()
    cluster.kill_daemon()
    assert any("bireme.agent" in words for _, words in cluster.processes())
    assert f"The cluster at {cluster.home} is down." in cluster.bireme("down").stdout
    assert not cluster.processes()


def test_two_that_take_it_down_at_once_both_see_its_end(cluster: Cluster) -> None:
    cluster.up()
    started(cluster)
    both = [
        subprocess.Popen(
            [cluster.python, "-m", "bireme", "down", "--end-jobs"], env=cluster.env, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    said = [one.communicate()[0].decode() for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert not cluster.processes()


def test_an_agent_that_says_nothing_is_named_and_can_be_ended(cluster: Cluster) -> None:
    cluster.up()
    started(cluster)
    agent = cluster.agent_pid("n1")
    assert agent is not None
    os.kill(agent, signal.SIGSTOP)
    refused = cluster.bireme("down", check=False)
    assert refused.returncode == 1
    assert f"did not leave: n1 (pid {agent})" in refused.stderr
    assert "bireme down --end-jobs" in refused.stderr
    cluster.down("--end-jobs")
    assert not cluster.processes()


@by_both
def test_a_stopped_keeper_without_its_agent_ends_too(cluster: Cluster) -> None:
    cluster.up()
    started(cluster)
    agent = cluster.agent_pid("n1")
    keepers = [pid for pid, words in cluster.processes() if "bireme.agent" in words and _parent(pid) == agent]
    assert keepers
    for pid in keepers:
        os.kill(pid, signal.SIGSTOP)
    cluster.kill_daemon()
    cluster.kill_agent("n1")
    cluster.down("--end-jobs")
    assert not cluster.processes()


def test_what_cannot_be_killed_is_named(cluster: Cluster) -> None:
    """A frozen process (cgroup v1) takes no SIGKILL, as one that waits for a dead disk takes none."""
    freezer = find_v1("freezer")
    if freezer is None or os.geteuid() != 0:
        pytest.skip("only a freezer of cgroup v1 makes a process that cannot be killed, and only for root")
    cold = freezer.home / f"bireme-test-down-{os.getpid()}"
    cluster.up()
    job = started(cluster)
    (stuck, *_) = cluster.pids_with(f"BIREME_JOB={job}.")
    cold.mkdir()
    try:
        (cold / "cgroup.procs").write_text(str(stuck))
        (cold / "freezer.state").write_text("FROZEN")
        cluster.kill_daemon()
        cluster.kill_agent("n1")
        refused = cluster.bireme("down", "--end-jobs", check=False)
        assert refused.returncode == 1
        assert re.search(rf"could be ended: .*process of a job on n1 \(pid {stuck}\)", refused.stderr), refused.stderr
        assert "then again: bireme down --end-jobs" in refused.stderr
    finally:
        (cold / "freezer.state").write_text("THAWED")
        cluster.until(lambda: not _members(cold))
        cluster.until(lambda: _removed(cold))


def _members(group: Path) -> str:
    return (group / "cgroup.procs").read_text()


def _removed(group: Path) -> bool:
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


def _parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])
