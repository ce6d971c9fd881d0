"""`bireme chaos` on a rehearsal cluster: each fault is made, what should come of it comes, and it is over in time."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, virtual_nodes
from tests.support.measured import until

SETTINGS = {
    "BIREME_CLUSTER_REHEARSAL": "on",
    "BIREME_TELEMETRY_GATHER": "on",
    "BIREME_TELEMETRY_INTERVAL_S": "1",
    "BIREME_CHECKPOINTS_INTERVAL_S": "1",
    "BIREME_DETECTORS_THROTTLE_S": "2",
    "BIREME_DETECTORS_HANG_S": "5",
    "BIREME_HEALING_MODE": "act",
}
TRAIN = """#!/bin/bash
#SBATCH --job-name={name} --ntasks={ranks} --gpus=4 --output={folder}/{name}-%j
#BIREME --heal=restart --checkpoint={folder}/{name}
mkdir -p {folder}/{name}
echo "start ${{SLURM_RESTART_COUNT:-0}} from ${{BIREME_CHECKPOINT:-nothing}}"
[ -e {folder}/{name}/step-1.pt ] || for n in 1 2; do
  python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1], "w").writestr("data.pkl", b"x" * 9000)' \\
    {folder}/{name}/step-$n.pt
  touch -d "now - $((100 - n)) seconds" {folder}/{name}/step-$n.pt
done
srun -K bash -c 'while [ ! -e {folder}/{name}/stop ]; do echo step; sleep 0.2; done'
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """With a job that is at work from the beginning: a hang is told by what it did for half a minute before."""
    made = Cluster(virtual_nodes(3, 4))
    made.variables |= SETTINGS
    with made.running():
        train(made, "frozen", ranks=1)
        yield made


@pytest.fixture
def steady(cluster: Cluster) -> str:
    """The job that is at work from the beginning."""
    return cluster.run("squeue", "-h", "-n", "frozen", "-o", "%i").stdout.strip()


def train(cluster: Cluster, name: str, ranks: int = 4) -> str:
    """Ranks that do not wait for each other: a job that is to hang has one."""
    script = cluster.folder / f"{name}.sh"
    script.write_text(TRAIN.format(name=name, folder=cluster.work, ranks=ranks))
    job = cluster.run("sbatch", "--parsable", str(script)).stdout.strip()
    until(lambda: "step\n" in output(cluster, name, job), "it does not train")
    return job


def output(cluster: Cluster, name: str, job: str) -> str:
    file = cluster.work / f"{name}-{job}"
    return file.read_text() if file.exists() else ""


def node_of(cluster: Cluster, job: str) -> str:
    return cluster.run("squeue", "-h", "-j", job, "-o", "%N").stdout.strip()


def chaos(cluster: Cluster, *words: str) -> dict[str, Any]:
    """What it says as JSON; every sign was seen."""
    told: dict[str, Any] = json.loads(cluster.run("bireme", "chaos", *words, "--wait", "90", "--json").stdout)
    assert all(sign["after_s"] is not None for sign in told["signs"])
    return told


def lasting(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(cluster.run("bireme", "chaos", "list", "--json").stdout)["lasting"]
    return found


def over(cluster: Cluster) -> None:
    until(lambda: not lasting(cluster), "it does not end by itself")


def all_mended(cluster: Cluster) -> None:
    for each in json.loads(cluster.run("bireme", "findings", "--json").stdout)["findings"]:
        cluster.run("bireme", "findings", "mended", str(each["id"]), "--why", "it was a rehearsal", check=False)


def test_processes_nodes_and_checkpoints_of_a_job_that_is_healed(cluster: Cluster) -> None:
    job = train(cluster, "healed")
    shown = lambda: cluster.run("bireme", "checkpoint", "--show", job).stdout  # noqa: E731
    until(lambda: "step-2.pt" in shown(), "its checkpoints are not found")
    cut = chaos(cluster, "checkpoint", job, "--for", "600")
    assert cut["signs"][0]["shows"].endswith("step-1.pt is taken")
    killed = chaos(cluster, "kill", job)
    assert killed["what"].startswith("rank 3 of step 0")
    until(lambda: "start 1 from" in output(cluster, "healed", job), "it is not started again")
    assert "start 1 from " + str(cluster.work / "healed" / "step-1.pt") in output(cluster, "healed", job)
    cluster.run("bireme", "chaos", "end", str(cut["number"]))
    assert (cluster.work / "healed" / "step-2.pt").stat().st_size > 9_000, "what was taken away is back"
    until(lambda: output(cluster, "healed", job).count("step\n") > 5, "it does not train")
    chaos(cluster, "node", node_of(cluster, job))
    until(lambda: "start 2 from" in output(cluster, "healed", job), "it is not started a third time")
    cluster.run("scancel", job)


def test_gpus_and_kernels_that_are_played_are_found_broken_and_fenced(cluster: Cluster, steady: str) -> None:
    job = train(cluster, "busy")
    node, taken = node_of(cluster, job), node_of(cluster, steady)
    other = next(name for name in ("n1", "n2", "n3") if name not in (node, taken))
    hot = chaos(cluster, "throttle", f"{node}:gpu1", "--for", "600")
    assert "held down by heat" in hot["signs"][0]["shows"]
    xid = chaos(cluster, "xid", f"{other}:gpu0", "xid:48")
    assert [sign["shows"] for sign in xid["signs"]] == [
        f"finding {json.loads(cluster.run('bireme', 'findings', '--json').stdout)['findings'][0]['id']}: "
        "GPU 0: uncorrectable memory error (Xid 48)",
        f"{other}:gpu0",
    ]
    lost = chaos(cluster, "lost", f"{other}:gpu2", "--for", "3")
    assert lost["number"] == hot["number"] + 1
    assert chaos(cluster, "kernel", f"{other} EXT4-fs error (device sda1): ext4_find_entry: reading directory")["signs"]
    until(lambda: len(lasting(cluster)) == 1, "the lost one does not end by itself")
    until(
        lambda: "off_the_bus" not in cluster.run("bireme", "findings", "--json").stdout, "it answers again, unnoticed"
    )
    cluster.run("bireme", "chaos", "end", "all")
    assert lasting(cluster) == []
    until(
        lambda: '"detector": "throttle"' not in cluster.run("bireme", "findings", "--json").stdout, "it is cool again"
    )
    cluster.run("scancel", job)
    all_mended(cluster)


def test_a_port_is_taken_for_a_while(cluster: Cluster) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    chaos(cluster, "port", str(port), "--for", "2")
    with socket.socket() as wanted, pytest.raises(OSError, match="in use"):
        wanted.bind(("127.0.0.1", port))
    over(cluster)

    def is_free() -> bool:
        with socket.socket() as wanted:
            return wanted.connect_ex(("127.0.0.1", port)) != 0

    until(is_free, "the port is still taken")


def test_a_disk_of_its_own_is_filled_and_nobody_elses(cluster: Cluster) -> None:
    refused = cluster.run("bireme", "chaos", "disk", str(cluster.work), check=False)
    assert (refused.returncode, "others would stand still" in refused.stderr) == (1, True)
    disk = cluster.folder / "disk"
    disk.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=False).returncode
    ):
        pytest.skip("no file system may be mounted here")
    try:
        chaos(cluster, "disk", str(disk), "--for", "600")
        with pytest.raises(OSError, match="No space left"):
            (disk / "more").write_bytes(b"x" * 5_000)
        cluster.run("bireme", "chaos", "end", "all")
        (disk / "more").write_bytes(b"x" * 5_000)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_node_that_is_cut_off_goes_on_when_it_is_over(cluster: Cluster) -> None:
    """That it is noticed takes a minute: here only that the fault is made, and taken back."""
    agent = cluster.agent_pid("n3")
    cut = json.loads(cluster.run("bireme", "chaos", "network", "n3", "--for", "600", "--json").stdout)
    assert _state(agent) == "T"
    cluster.run("bireme", "chaos", "end", str(cut["number"]))
    assert _state(agent) != "T"


def test_a_rank_that_is_frozen_is_a_hang_and_the_job_runs_again(cluster: Cluster, steady: str) -> None:
    until(lambda: output(cluster, "frozen", steady).count("step\n") > 175, "it has not been seen at work for 35 s")
    told = chaos(cluster, "freeze", steady, "--for", "600")
    assert "hangs since" in told["signs"][0]["shows"]
    until(lambda: "start 1 from" in output(cluster, "frozen", steady), "it is not started again")
    cluster.run("bireme", "chaos", "end", "all")
    cluster.run("scancel", steady)


def _state(pid: int | None) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["burn", "n1"], "is no fault"),
        (["kill"], "say what: bireme chaos kill JOB"),
        (["kill", "x y"], "is no rank"),
        (["kill", "99999"], "job 99999"),
        (["kill", "1.x"], "is no rank"),
        (["node", "n9"], "there is no node n9"),
        (["lost", "n1"], "is no GPU"),
        (["lost", "n1:gpu9"], "has no GPU 9"),
        (["xid", "n1:gpu0", "79"], "is no Xid"),
        (["kernel", "n1", "all is well"], "none of the kernel's words"),
        (["port", "0"], "is no port"),
        (["kernel", "n1 mlx5_0: Link is Down", "--for", "5"], "is over at once"),
        (["lost", "n1:gpu0", "--for", "2d"], "--for 2d"),
        (["end", "77"], "is no fault that lasts"),
        (["disk", "/nowhere"], "is no folder of yours"),
    ],
)
def test_what_cannot_be_is_refused(cluster: Cluster, words: list[str], says: str) -> None:
    refused = cluster.run("bireme", "chaos", *words, check=False)
    assert refused.returncode != 0
    assert says in refused.stderr
    assert "Traceback" not in refused.stderr
    assert lasting(cluster) == []


def test_real_gpus_are_left_alone(cluster: Cluster) -> None:
    """The same words where nothing is played: asked of the settings, so that nobody has to break one to see it."""
    scene = cluster.home / "rehearsal" / "scene.json"
    aside = scene.rename(scene.with_name("aside"))
    try:
        refused = cluster.run("bireme", "chaos", "lost", "n1:gpu0", check=False)
    finally:
        aside.rename(scene)
    assert "are real" in refused.stderr
    assert "cluster.rehearsal" in refused.stderr
