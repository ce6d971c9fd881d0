"""Idle GPUs on a real cluster, with cards that follow a script: told, in the job's output and by the hook; requeued;
and the busy one untouched."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from tests.support.measured import until

from bireme.client.transport import Transport

_PATIENCE_S = 180.0
CONF = """
ClusterName=lazy
SlurmctldHost=localhost
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
KillWait=2
NodeName=n1 NodeHostname=localhost CPUs=8 Gres=gpu:2
PartitionName=main Nodes=ALL Default=YES
PartitionName=scrap Nodes=ALL
"""
POLICY = """
[train]
partitions = ["main"]
below_percent = 5
idle_time = "00:00:30"
grace_time = "00:00:10"
action = "requeue"
exempt_comments = ["keep-gpu"]

[shells]
jobs = "interactive"
idle_time = "00:00:30"
grace_time = "00:00:10"
action = "cancel"
"""
HOOK = """#!/bin/sh
cat > "{folder}/$BIREME_IDLE_WHAT.$BIREME_IDLE_JOB_ID.new"
mv "{folder}/$BIREME_IDLE_WHAT.$BIREME_IDLE_JOB_ID.new" "{folder}/$BIREME_IDLE_WHAT.$BIREME_IDLE_JOB_ID"
"""


def card(uuid: str, minor: int, util: float) -> dict[str, Any]:
    values = {"gpu_util": util, "gpu_copy_util": 0, "gpu_memory_used": 70_000}
    return {"uuid": uuid, "minor": minor, "values": values}


def play(cluster: Cluster, cards: list[dict[str, Any]]) -> None:
    """What the cards do from now on."""
    file = cluster.folder / "cards.json"
    file.with_suffix(".new").write_text(json.dumps({"cards": cards}))
    file.with_suffix(".new").replace(file)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(CONF)
    made.conf(CONF, gres="NodeName=n1 Name=gpu File=/dev/nvidia[0-1]\n")
    play(made, [card("GPU-a", 0, 97), card("GPU-b", 1, 0)])
    (made.folder / "idle.toml").write_text(POLICY)
    hook = made.folder / "hook"
    (made.folder / "told").mkdir()
    hook.write_text(HOOK.format(folder=made.folder / "told"))
    hook.chmod(0o755)
    made.variables |= {
        "BIREME_TELEMETRY_GATHER": "on",
        "BIREME_TELEMETRY_INTERVAL_S": "2",
        "BIREME_NVML_MODULE": "bireme.testing.scripted_nvml",
        "BIREME_NVML_SCRIPT": str(made.folder / "cards.json"),
        "BIREME_IDLE_MODE": "act",
        "BIREME_IDLE_POLICY": str(made.folder / "idle.toml"),
        "BIREME_IDLE_HOOK": str(hook),
    }
    with made.running():
        until(lambda: True if measured(made) == {"GPU-a", "GPU-b"} else None, "the cards are not measured")
        yield made


def sleeping(cluster: Cluster, name: str, *options: str) -> int:
    words = ("--gpus=1", "--open-mode=append", f"--output={cluster.work}/{name}.out", *options, "--wrap", "sleep 900")
    return int(cluster.run("sbatch", "--parsable", f"--job-name={name}", *words).stdout)


def measured(cluster: Cluster) -> set[str]:
    """The cards of which there is a figure of now: one that was never seen cannot disappear."""
    with Transport(str(cluster.home)) as transport:
        return {gpu["uuid"] for gpu in transport.get("/v1/telemetry/now")["gpus"]}


def job(cluster: Cluster, job_id: int) -> dict[str, Any]:
    with Transport(str(cluster.home)) as transport:
        (record,) = transport.get(f"/v1/jobs/{job_id}")["jobs"]
        return dict(record)


def listed(cluster: Cluster) -> dict[int, dict[str, Any]]:
    told = json.loads(cluster.run("bireme", "idle", "--json").stdout)
    return {row["job_id"]: row for row in told["jobs"]}


def stages_of(rows: dict[int, dict[str, Any]]) -> set[str]:
    return {row["stage"] for row in rows.values()}


def told(cluster: Cluster, what: str, job_id: int) -> dict[str, Any] | None:
    file: Path = cluster.folder / "told" / f"{what}.{job_id}"
    return json.loads(file.read_text()) if file.exists() else None


def test_the_idle_job_is_told_and_requeued_and_the_busy_one_is_left_alone(cluster: Cluster) -> None:
    jobs = [sleeping(cluster, name) for name in ("first", "second")]
    until(lambda: True if all(job(cluster, each)["state"] == "RUNNING" for each in jobs) else None, "they do not run")
    stages = until(
        lambda: seen if stages_of(seen := listed(cluster)) == {"idle", "busy"} else None,
        "nobody notices that one is idle and one busy",
    )
    lazy = next(job_id for job_id in jobs if stages[job_id]["stage"] == "idle")
    (busy,) = set(jobs) - {lazy}
    assert stages[lazy]["measure"] == "gpu_util"
    assert stages[lazy]["memory_mib"] == 70_000, "memory that is held does not make it busy"

    notice = until(lambda: told(cluster, "notice", lazy), "the hook is not called")
    assert notice["action"] == "requeue"
    assert notice["rule"] == "train"
    name = "first" if lazy == jobs[0] else "second"
    output = Path(cluster.work) / f"{name}.out"
    line = until(lambda: text if "GPU" in (text := output.read_text()) else None, "its output does not say it")
    assert f"slurmstepd: warning: *** JOB {lazy} ON n1: its GPU was below 5% for " in line
    assert "(policy idle.toml [train]): it will be requeued in 10 seconds unless it is used ***" in line

    cluster.kill_daemon()  # between the notice and what comes of it
    cluster.up_again()
    until(lambda: told(cluster, "ended", lazy), "it is not requeued")
    record = until(lambda: found if (found := job(cluster, lazy))["restarts"] else None, "it does not come back")
    assert record["restarts"] == 1
    assert "DUE TO IDLE GPUS" in output.read_text()
    history = cluster.run("sacct", "-D", "-n", "-X", "-P", "-j", str(lazy), "-o", "State,SystemComment").stdout
    assert "REQUEUED|Its GPU was below 5% for" in history
    assert (job(cluster, busy)["state"], job(cluster, busy)["restarts"]) == ("RUNNING", 0)
    assert told(cluster, "notice", busy) is None
    cluster.run("scancel", *map(str, jobs))


def test_a_card_that_disappears_and_a_comment_keep_jobs(cluster: Cluster) -> None:
    play(cluster, [card("GPU-a", 0, 0), {**card("GPU-b", 1, 0), "lost": True}])
    jobs = [sleeping(cluster, "one"), sleeping(cluster, "two")]
    until(
        lambda: True if stages_of(listed(cluster)) == {"idle", "unknown"} else None, "nobody says that one is not known"
    )
    unknown = next(job_id for job_id, row in listed(cluster).items() if row["stage"] == "unknown")
    (idle,) = set(jobs) - {unknown}
    cluster.run("scontrol", "update", f"JobId={idle}", "Comment=keep-gpu please")
    until(lambda: True if listed(cluster)[idle]["stage"] == "exempt" else None, "its comment is not read")
    text = until(
        lambda: said if "there is no figure of now of" in (said := cluster.run("bireme", "idle").stdout) else None,
        "nobody says that a card is silent",
    )
    assert "its comment says keep-gpu" in text
    assert "there is no figure of now of GPU-b on n1" in text
    assert told(cluster, "notice", unknown) is None
    cluster.run("scancel", *map(str, jobs))
    play(cluster, [card("GPU-a", 0, 97), card("GPU-b", 1, 0)])


def test_an_interactive_job_is_told_in_its_terminal_and_ended_by_its_own_rule(cluster: Cluster) -> None:
    play(cluster, [card("GPU-a", 0, 0), card("GPU-b", 1, 0)])
    errors = cluster.work / "shell.err"
    with errors.open("w") as file:
        shell = subprocess.Popen(
            ["srun", "--gpus=1", "sleep", "900"], env=cluster.env, stdin=subprocess.DEVNULL, stderr=file
        )
    try:
        (job_id,) = until(lambda: list(listed(cluster)) or None, "it does not run")
        notice = until(lambda: told(cluster, "notice", job_id), "the hook is not called")
        assert (notice["rule"], notice["action"]) == ("shells", "cancel")
        text = until(lambda: said if "GPU" in (said := errors.read_text()) else None, "its terminal does not say it")
        assert "(policy idle.toml [shells]): it will be cancelled in 10 seconds unless it is used ***" in text
        assert shell.wait(timeout=_PATIENCE_S) != 0
    finally:
        shell.kill()
    assert "DUE TO IDLE GPUS" in errors.read_text()
    history = cluster.run("sacct", "-n", "-X", "-P", "-j", str(job_id), "-o", "State,SystemComment").stdout
    assert re.match(r"CANCELLED.*\|Its GPU was below 5% for", history), history
    play(cluster, [card("GPU-a", 0, 97), card("GPU-b", 1, 0)])


def test_a_policy_with_a_mistake_is_refused_and_the_old_one_stays(cluster: Cluster) -> None:
    policy = cluster.folder / "idle.toml"
    policy.write_text(POLICY.replace("below_percent", "below_percnt"))
    done = cluster.run("scontrol", "reconfigure", check=False)
    assert done.returncode == 1
    assert "there is no key 'below_percnt'; did you mean below_percent?" in done.stderr
    policy.write_text(POLICY)
    cluster.run("scontrol", "reconfigure")
