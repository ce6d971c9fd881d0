"""Limits and licences on a running cluster, from `sacctmgr` to `squeue`: the words are those of Slurm 22.05."""

from __future__ import annotations

import getpass
from collections.abc import Iterator

import pytest
from tests.support.cluster import Cluster, virtual_nodes

POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
CONF = virtual_nodes(2, 2, cpus=8, settings="Licenses=matlab:3,ansys\nAccountingStorageEnforce=limits,qos")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(CONF).running() as made:
        made.script("sleep 100\n", "long.sh")
        me = getpass.getuser()
        made.run("sacctmgr", "-i", "add", "account", "lab")
        made.run("sacctmgr", "-i", "add", "user", me, "account=lab", check=False)
        made.run("sacctmgr", "-i", "modify", "user", me, "set", "DefaultAccount=lab")
        yield made


def limit(cluster: Cluster, *words: str) -> None:
    cluster.run("sacctmgr", "-i", "modify", *words)


def expect(cluster: Cluster, **lines: str) -> None:
    """What `squeue` says of these jobs, as soon as the planner has looked at them."""
    wanted = {f"{name} {line}" for name, line in lines.items()}
    cluster.until(lambda: wanted <= set(cluster.run("squeue", "-h", "-o", "%j %T %r").stdout.splitlines()))


def test_jobs_of_an_account_wait_for_each_other(cluster: Cluster) -> None:
    limit(cluster, "account", "lab", "set", "GrpTRES=gres/gpu=2")
    for name in ("a", "b"):
        cluster.run("sbatch", "-J", name, "--gpus=2", "-N1", "long.sh")
    cluster.run("sbatch", "-J", "c", "long.sh")
    expect(cluster, a="RUNNING None", b="PENDING AssocGrpGRES", c="RUNNING None")
    limit(cluster, "account", "lab", "set", "GrpTRES=gres/gpu=-1")
    expect(cluster, b="RUNNING None")
    cluster.run("scancel", "-n", "a,b,c")


def test_too_many_submissions_are_refused(cluster: Cluster) -> None:
    limit(cluster, "qos", "normal", "set", "MaxSubmitJobsPerUser=2")
    done = cluster.run("sbatch", "--array=0-2", "long.sh", check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[:2] == [
        "sbatch: error: QOSMaxSubmitJobPerUserLimit",
        f"sbatch: error: Batch job submission failed: {POLICY}",
    ]
    limit(cluster, "qos", "normal", "set", "MaxSubmitJobsPerUser=-1")


def test_licences_are_shown_as_slurm_shows_them(cluster: Cluster) -> None:
    cluster.run("sbatch", "-J", "l1", "-L", "matlab:2", "long.sh")
    cluster.run("sbatch", "-J", "l2", "-L", "matlab:2", "long.sh")
    expect(cluster, l1="RUNNING None", l2="PENDING Licenses")
    shown = cluster.run("scontrol", "show", "lic").stdout
    assert shown == (
        "LicenseName=ansys\n    Total=1 Used=0 Free=1 Reserved=0 Remote=no\n"
        "LicenseName=matlab\n    Total=3 Used=2 Free=1 Reserved=0 Remote=no\n"
    )
    line = cluster.run("scontrol", "-o", "show", "licenses", "ansys").stdout
    assert line == "LicenseName=ansys Total=1 Used=0 Free=1 Reserved=0 Remote=no\n"
    done = cluster.run("sbatch", "-L", "fluent", "long.sh", check=False)
    assert done.stderr.splitlines()[0] == "sbatch: error: Batch job submission failed: Invalid license specification"
    cluster.run("scancel", "-n", "l1,l2")
