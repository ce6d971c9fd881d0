"""Reservations with the real commands: made, used, waited for, shown, outlived by nothing."""

from __future__ import annotations

import getpass
from collections.abc import Iterator

import pytest
from tests.support.cluster import Cluster, virtual_nodes

ME = getpass.getuser()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(virtual_nodes(2, 2, cpus=4)).running() as made:
        yield made


def scontrol(cluster: Cluster, *words: str) -> str:
    return cluster.run("scontrol", *words).stdout.strip()


def refused(cluster: Cluster, *words: str) -> str:
    done = cluster.run(*words, check=False)
    assert done.returncode == 1, done
    return done.stderr.splitlines()[0]


def test_a_reservation_from_its_making_to_its_end(cluster: Cluster) -> None:
    assert scontrol(cluster, "show", "reservation") == "No reservations in the system"
    assert cluster.run("sinfo", "-T").stdout == "No reservations in the system\n"
    when = ("StartTime=now", "Duration=60")
    assert scontrol(cluster, "create", "reservation=mine", *when, "Nodes=n2", f"Users={ME}") == (
        "Reservation created: mine"
    )
    shown = scontrol(cluster, "show", "reservation", "mine")
    assert "ReservationName=mine StartTime=" in shown
    assert "Nodes=n2 NodeCnt=1 CoreCnt=4 Features=(null) PartitionName=(null) Flags=SPEC_NODES" in shown
    assert f"Users={ME} Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE" in shown
    assert cluster.run("sinfo", "-hN", "-pmain", "-o%N %t").stdout.split("\n")[:2] == ["n1 idle", "n2 resv"]
    assert "State=IDLE+RESERVED" in scontrol(cluster, "show", "node", "n2")

    inside = cluster.sbatch("--reservation=mine", "--wrap", "echo $SLURM_JOB_NODELIST $SLURM_JOB_RESERVATION")
    outside = cluster.sbatch("-wn2", "--wrap", "hostname")
    assert cluster.wait(inside)["state"] == "COMPLETED"
    assert cluster.output(inside) == "n2 mine\n"
    cluster.until(lambda: cluster.records(outside)[0]["reason"] not in ("None", ""))
    assert cluster.run("squeue", "-hj", outside, "-o%T %r").stdout == (
        "PENDING ReqNodeNotAvail, May be reserved for other job\n"
    )
    scontrol(cluster, "update", f"job={outside}", "ReservationName=mine")
    assert cluster.wait(outside)["state"] == "COMPLETED"
    assert scontrol(cluster, "delete", "reservation=mine") == ""
    assert scontrol(cluster, "show", "res") == "No reservations in the system"


def test_waiting_for_one(cluster: Cluster) -> None:
    made = scontrol(
        cluster, "create", "reservation", "StartTime=now+1hour", "Duration=1:00:00", "NodeCnt=1", f"User={ME}"
    )
    name = made.removeprefix("Reservation created: ")
    assert name == f"{ME}_1"
    job = cluster.sbatch("--reservation", name, "--wrap", "hostname")
    cluster.until(lambda: cluster.records(job)[0]["reason"] == "Reservation")
    assert cluster.run("squeue", "-hj", job, "-o%v").stdout == f"{name}\n"
    assert refused(cluster, "scontrol", "delete", "reservation", name) == (
        f"delete_reservation reservation={name}: Requested reservation is in use"
    )
    assert scontrol(cluster, "update", f"reservation={name}", "StartTime=now", "Flags+=MAINT") == "Reservation updated."
    assert cluster.wait(job)["state"] == "COMPLETED"
    assert "maint" in cluster.run("sinfo", "-hN", "-o%t").stdout
    scontrol(cluster, "delete", f"reservation={name}")


def test_refusals(cluster: Cluster) -> None:
    assert refused(cluster, "sbatch", "--reservation=nosuch", "--wrap", "true") == (
        "sbatch: error: Batch job submission failed: Requested reservation is invalid"
    )
    assert refused(cluster, "scontrol", "create", "reservation", "Nodes=n1") == (
        "scontrol: error: A start time must be given.  No reservation created."
    )
    assert refused(cluster, "scontrol", "update", "reservation=nosuch", "Duration=5") == (
        "Error updating the reservation: Requested reservation is invalid"
    )
    asked = ("scontrol", "create", "reservation", "StartTime=now", "Duration=5", "Nodes=n1")
    assert refused(cluster, *asked, "Users=nobody-here") == "Error creating the reservation: Invalid user id"
    assert refused(cluster, *asked[:-1], f"Users={ME}", "Nodes=n9") == (
        "Error creating the reservation: Invalid node name specified"
    )
