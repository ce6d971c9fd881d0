"""A real cluster whose journal was damaged does not start in silence, and what its agents know does not run again."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.cluster import Cluster, virtual_nodes
from tests.support.rollback import journal, keep, keep_home, put_back, put_home_back

MakeCluster = Callable[..., Cluster]
ONE_RUN = "echo run >> {place}\n"


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> Iterator[Cluster]:
    return make_cluster(virtual_nodes(2, cpus=4))


def test_a_home_that_went_back_to_an_earlier_day_is_found_out_by_its_nodes(cluster: Cluster) -> None:
    """Its mark agrees with its journal: only the agents know of what came later."""
    long, once = script(cluster, "long", "sleep 1000\n"), script(cluster, "once")
    waits = [cluster.sbatch("-H", "-o", "/dev/null", name) for name, _ in (long, once)]
    kept = keep_home(cluster)
    for job in waits:
        cluster.run("scontrol", "release", job)
    unknown = cluster.sbatch("-o", "/dev/null", "--wrap", "sleep 1000")
    cluster.wait(waits[1])
    cluster.until(lambda: runs(long[1]) == 1 and cluster.records(unknown)[0]["state"] == "RUNNING")
    cluster.kill_daemon()
    put_home_back(cluster, kept)

    cluster.up_again()
    cluster.until(lambda: "events were lost" in (cluster.home / "log" / "daemon.log").read_text())
    cluster.run("scontrol", "release", ",".join(waits), check=False)  # that it was done is lost with the rest
    assert cluster.wait(waits[1])["state"] == "COMPLETED"
    cluster.until(lambda: runs(long[1]) == 2)
    assert runs(once[1]) == 1, "an agent saw its end"
    later = cluster.sbatch("-o", "/dev/null", "--wrap", "true")
    assert int(later) > int(unknown)
    assert cluster.wait(later)["state"] == "COMPLETED"
    cluster.run("scancel", waits[0])
    cluster.down()
    logged = (cluster.home / "log" / "daemon.log").read_text().count("events were lost")
    cluster.up_again()
    assert cluster.wait(cluster.sbatch("-o", "/dev/null", "--wrap", "true"))["state"] == "COMPLETED"
    assert (cluster.home / "log" / "daemon.log").read_text().count("events were lost") == logged, "it is over"


def script(cluster: Cluster, name: str, more: str = "") -> tuple[str, Path]:
    """A script that notes each run of it."""
    place = cluster.work / f"{name}.runs"
    cluster.script(ONE_RUN.format(place=place) + more, f"{name}.sh")
    return f"{name}.sh", place


def runs(place: Path) -> int:
    return place.read_text().count("run") if place.exists() else 0


def test_what_agents_know_does_not_run_again(cluster: Cluster) -> None:
    """Lost are: the end of one job, start and end of another, the start of a running one, and a whole submission."""
    gate = cluster.work / "gate"
    wait = f"while [ ! -e {gate} ]; do sleep 0.05; done\n"
    names = {name: script(cluster, name, more) for name, more in (
        ("end", wait), ("both", ""), ("start", "sleep 1000\n"), ("unknown", "sleep 1000\n")
    )}  # fmt: skip
    ended = cluster.sbatch("-o", "/dev/null", names["end"][0])
    cluster.until(lambda: runs(names["end"][1]) == 1)
    both = cluster.sbatch("-H", "-o", "/dev/null", names["both"][0])
    started = cluster.sbatch("-H", "-o", "/dev/null", names["start"][0])
    older = keep(cluster)
    gate.touch()
    cluster.wait(ended)
    for job in (both, started):
        cluster.run("scontrol", "release", str(job))
    assert cluster.wait(both)["state"] == "COMPLETED"
    unknown = cluster.sbatch("-o", "/dev/null", names["unknown"][0])
    cluster.until(lambda: runs(names["start"][1]) == runs(names["unknown"][1]) == 1)
    cluster.kill_daemon()
    put_back(cluster, older)

    refused = cluster.bireme("up", check=False)
    assert refused.returncode != 0
    assert "events" in refused.stderr
    assert "bireme store verify" in refused.stderr
    seen = json.loads(cluster.bireme("store", "verify", "--json", check=False).stdout)
    assert not seen["sound"]
    assert seen["journal"]["lost_events"]
    assert cluster.bireme("store", "recover", check=False).returncode == 1, "it wants to be told"
    said = cluster.bireme("store", "recover", "--accept-loss").stdout
    assert "Lost: the newest" in said
    cluster.up_again()

    assert cluster.wait(ended)["state"] == "COMPLETED"
    for job in (both, started):  # their release was lost with the rest
        cluster.run("scontrol", "release", str(job), check=False)
    assert cluster.wait(both)["state"] == "COMPLETED"
    cluster.until(lambda: runs(names["start"][1]) == 2)
    assert [runs(names[name][1]) for name in ("end", "both", "start", "unknown")] == [1, 1, 2, 1]
    later = cluster.sbatch("-o", "/dev/null", "--wrap", "true")
    assert int(later) > int(unknown)
    assert cluster.bireme("store", "verify").returncode == 0
    cluster.run("scancel", str(started))


def test_a_changed_script_never_runs_and_is_named(cluster: Cluster) -> None:
    name, place = script(cluster, "changed", "# " + "x" * 100 + "\n")
    job = cluster.sbatch("-H", "-o", "/dev/null", name)
    cluster.down()
    content = journal(cluster).read_bytes()
    text = place.name.encode()
    assert text in content
    journal(cluster).write_bytes(content.replace(text, b"changed.stol"))
    told = cluster.bireme("store", "verify", check=False)
    assert told.returncode == 1
    assert "a script or an environment" in told.stdout
    cluster.up_again()
    cluster.run("scontrol", "release", str(job))
    assert cluster.wait(job)["state"] == "FAILED"
    assert "its script is lost: blob" in cluster.bireme("why", str(job)).stdout
    assert not place.exists()
    assert not (cluster.work / "changed.stol").exists()


def test_a_journal_that_is_gone_is_no_empty_cluster(cluster: Cluster) -> None:
    job = cluster.sbatch("-H", "-o", "/dev/null", "--wrap", "true")
    cluster.down()
    os.unlink(journal(cluster))
    refused = cluster.bireme("up", check=False)
    assert refused.returncode != 0
    assert "journal.db is gone, and it had" in refused.stderr
    (cluster.home / "run" / "conf").unlink()
    cluster.bireme("store", "recover", "--accept-loss")
    lost = cluster.bireme("up", check=False)
    assert "run/conf is gone: say what is meant with bireme up --conf" in lost.stderr
    cluster.up()
    assert cluster.run("squeue", "-h").stdout == ""
    assert int(cluster.sbatch("-H", "--wrap", "true")) > int(job)


def test_a_home_that_lost_journal_and_mark_is_no_new_cluster(cluster: Cluster) -> None:
    """While its jobs run, which a daemon that knows of none would end; nor afterwards, when only files tell of it."""
    job = cluster.sbatch("-w", "n1", "-o", "/dev/null", "--wrap", "sleep 1000")
    cluster.until_started(job)
    cluster.kill_daemon()
    for file in cluster.home.glob("journal.*"):
        file.unlink()
    refused = cluster.bireme("up", check=False)
    assert refused.returncode == 1
    assert "journal.db and its mark are gone, and this home had them" in refused.stderr
    assert "run/engine tells of an earlier start" in refused.stderr
    assert "agents of n[1-2] run, and may hold jobs" in refused.stderr
    assert "bireme store recover" in refused.stderr
    assert "BIREME_HOME" in refused.stderr
    assert cluster.pids_with(f"BIREME_JOB={job}."), "it runs on"
    for looks in ("status", "doctor"):
        assert "gents of n[1-2] run on, with the jobs that they hold" in cluster.bireme(looks, check=False).stdout
    assert cluster.bireme("store", "verify", check=False).returncode == 1
    pruned = cluster.bireme("store", "prune", "--older-than", "1", check=False)
    assert "this home had them" in pruned.stderr
    assert not journal(cluster).exists()
    cluster.down("--end-jobs")
    assert "has records of n[1-2]" in cluster.bireme("up", check=False).stderr
    cluster.bireme("store", "recover", "--accept-loss")
    cluster.up_again()
    assert int(cluster.sbatch("-o", "/dev/null", "--wrap", "true")) > int(job)


def test_sacct_names_a_damaged_record_and_shows_the_others(cluster: Cluster) -> None:
    jobs = [cluster.sbatch("-o", "/dev/null", "--wrap", "true") for _ in range(3)]
    for job in jobs:
        cluster.wait(job)
    cluster.down()
    with sqlite3.connect(journal(cluster)) as database:
        database.execute('UPDATE runs SET "end" = "end" + 1 WHERE job_id = ?', (jobs[1],))
    cluster.up_again()
    done = cluster.run("sacct", "-X", "-n", "-o", "JobID,State", check=False)
    assert done.returncode == 1
    assert f"sacct: error: the record of job {jobs[1]} is not what was written" in done.stderr
    assert "bireme store verify" in done.stderr
    shown = [line.split() for line in done.stdout.splitlines()]
    assert [[jobs[0], "COMPLETED"], [jobs[2], "COMPLETED"]] == [row for row in shown if row[0] != jobs[1]]
    assert cluster.run("sacct", "-X", "-n", "-j", jobs[0], "-o", "State").stdout.split() == ["COMPLETED"]
