"""How much of what they had jobs used, on a real cluster: reports, seff, sacct and sstat, with daemons that die."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from tests.integration.test_telemetry import ask, curves, gpus, play, until

from bireme.store.series.database import connect_to_inspect

BUSY = {
    "uuid": "GPU-a",
    "minor": 0,
    "values": {
        "gpu_util": 97, "gpu_sm_active": 40, "gpu_tensor_active": 25, "gpu_memory_used": 2048, "gpu_memory_free": 6144,
        "gpu_power": 300,
    },
}  # fmt: skip
UNUSED = {
    "uuid": "GPU-b",
    "minor": 1,
    "values": {"gpu_util": 0, "gpu_sm_active": 0, "gpu_memory_used": 0, "gpu_memory_free": 8192, "gpu_power": 60},
}
CONF = """
ClusterName=measured
SlurmctldHost=localhost
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
DefMemPerCPU=256
KillWait=2
NodeName=n1 NodeHostname=localhost CPUs=4 RealMemory=4096 Gres=gpu:2
PartitionName=main Nodes=ALL Default=YES DefaultTime=10
"""
GATED = """#!/bin/bash
echo $$ > {folder}/pid-$SLURM_JOB_ID
until [ -e {folder}/gate-$SLURM_JOB_ID ]; do sleep 0.1; done
"""
STEPPED = """#!/bin/bash
srun bash -c 'echo $$ > {folder}/step-$SLURM_JOB_ID; until [ -e {folder}/gate-$SLURM_JOB_ID ]; do sleep 0.1; done'
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(CONF)
    made.conf(CONF, gres="NodeName=n1 Name=gpu File=/dev/nvidia[0-1]\n")
    play(made, [BUSY, UNUSED])
    made.variables |= {
        "BIREME_TELEMETRY_GATHER": "on",
        "BIREME_TELEMETRY_INTERVAL_S": "1",
        "BIREME_NVML_MODULE": "bireme.testing.scripted_nvml",
        "BIREME_NVML_SCRIPT": str(made.folder / "cards.json"),
    }
    with made.running():
        yield made


def gated(cluster: Cluster, *options: str, script: str = GATED) -> int:
    """A job that runs until `finish`."""
    file = cluster.work / "gated.sh"
    file.write_text(script.replace("{folder}", str(cluster.work)))
    return int(cluster.run("sbatch", "--parsable", *options, str(file)).stdout.split(";")[0])


def finish(cluster: Cluster, job_id: int) -> None:
    (cluster.work / f"gate-{job_id}").touch()


def over(cluster: Cluster, job_id: int | str) -> None:
    def ended() -> bool | None:
        return True if all(job["over"] for job in report(cluster, job_id)) else None

    until(ended, f"job {job_id} does not end")


def pid_of(cluster: Cluster, job_id: int) -> int:
    file = cluster.work / f"pid-{job_id}"
    return int(until(lambda: file.read_text().strip() or None if file.exists() else None, "the script does not begin"))


def report(cluster: Cluster, job_id: int | str) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = ask(cluster, f"/v1/jobs/{job_id}/report")["jobs"]
    return jobs


def with_gpus(cluster: Cluster, job_id: int | str, least_s: float = 2.0) -> dict[str, Any]:
    """The report of a job, once so much of each of its GPUs was measured."""

    def seen() -> dict[str, Any] | None:
        (job,) = report(cluster, job_id)
        found = (job["digest"] or {"gpus": []})["gpus"]
        return job if found and all(gpu["measured_s"] >= least_s for gpu in found) else None

    return until(seen, f"the GPUs of job {job_id} are not measured")


def digest_kept(cluster: Cluster, job_id: int) -> None:
    """Whether it is on disk once the daemon has ended."""
    cluster.down()
    with closing(connect_to_inspect(str(cluster.home / "series.db"))) as connection:
        found = connection.execute("SELECT count(*) FROM digests WHERE job_id = ?", (job_id,)).fetchone()
    cluster.up_again()
    assert found == (1,), f"no digest of job {job_id} is kept"


def told_anew(cluster: Cluster, job_id: int) -> None:
    """Waits until its digest is put together."""
    until(lambda: True if report(cluster, job_id)[0]["kept"] else None, f"no digest of job {job_id} is made")


def test_a_report_of_a_requeued_job_has_all_its_starts_and_their_sum(cluster: Cluster) -> None:
    job_id = gated(cluster, "--gpus=1", "--requeue", "--job-name=again")
    with_gpus(cluster, job_id)
    cluster.run("scontrol", "requeue", str(job_id))

    def requeued() -> dict[str, Any] | None:
        (job,) = report(cluster, job_id)
        return job if job["state"] == "RUNNING" and job["starts"] else None

    until(requeued, f"job {job_id} does not run again")
    with_gpus(cluster, job_id)
    finish(cluster, job_id)
    over(cluster, job_id)
    (job,) = report(cluster, job_id)
    (earlier,) = job["starts"]
    assert earlier["state"] == "REQUEUED"
    assert earlier["efficiency"]["gpu_use"] == pytest.approx(40.0, rel=0.2), "its digest is its own"
    assert job["sum"]["starts"] == 2
    assert job["sum"]["gpu_held_s"] == earlier["efficiency"]["gpu_held_s"] + job["efficiency"]["gpu_held_s"]
    text = cluster.bireme("report", str(job_id)).stdout
    assert "Above is its latest start; it was started 2 times:" in text, text


def test_a_report_says_which_gpus_a_job_used_and_which_it_did_not(cluster: Cluster) -> None:
    job_id = gated(cluster, "--gpus=2", "--mem=512", "--job-name=train")
    running = with_gpus(cluster, job_id)
    assert not running["over"]
    assert running["efficiency"]["gpus_never_used"] == 1
    finish(cluster, job_id)
    over(cluster, job_id)
    (job,) = report(cluster, job_id)
    busy, unused = job["digest"]["gpus"]
    assert (busy["by"], busy["use"]) == ("gpu_sm_active", {"mean": 40.0, "peak": 40.0})
    assert busy["tensor"]["mean"] == 25.0
    assert busy["memory_mib"]["peak"] == 2048
    assert busy["memory_total_mib"] == 8192
    assert busy["energy_j"] == pytest.approx(300 * busy["measured_s"], rel=0.5)
    assert unused["use"]["peak"] == 0.0
    assert unused["idle_s"] == pytest.approx(unused["measured_s"])
    assert job["efficiency"]["gpu_use"] == pytest.approx(20.0, rel=0.2)
    told_anew(cluster, job_id)
    digest_kept(cluster, job_id)
    assert report(cluster, job_id)[0]["digest"]["gpus"], "the kept one is told"

    lines = cluster.run("seff", str(job_id)).stdout.splitlines()
    assert lines[0] == f"Job ID: {job_id}"
    assert "State: COMPLETED (exit code 0)" in lines
    assert any(
        line.startswith("Memory Efficiency: ") and line.endswith("of 512.00 MB (512.00 MB/node)") for line in lines
    )
    assert any(line.startswith("GPU n1 GPU-b: mean 0.0%, peak 0.0%") for line in lines), lines
    text = cluster.bireme("report", str(job_id)).stdout
    assert "of 2, 1 never used" in text, text
    page = Path(cluster.work / "report.html")
    cluster.bireme("report", str(job_id), "--html", str(page))
    assert 'class="plot bars"' in page.read_text()
    assert page.stat().st_mode & 0o777 == 0o600


def test_sacct_and_sstat_show_the_gpus_of_a_step(cluster: Cluster) -> None:
    job_id = gated(cluster, "--gpus=1", script=STEPPED)
    file = cluster.work / f"step-{job_id}"
    pid = int(until(lambda: file.read_text().strip() or None if file.exists() else None, "the step does not begin"))
    mine = until(lambda: next((u for u, gpu in gpus(cluster).items() if gpu["job_ids"] == [job_id]), None), "no GPU")
    processes = [{"pid": pid, "memory_mib": 1000, "util": 80}]
    cards = [{**card, "processes": processes if card["uuid"] == mine else []} for card in (BUSY, UNUSED)]
    play(cluster, cards)

    def shown() -> str | None:
        line = cluster.run("sstat", "-nP", "-j", f"{job_id}.0", "-o", "TRESUsageInTot").stdout.strip()
        return line if "gres/gpuutil=80," in line else None

    assert "gres/gpumem=1000M," in until(shown, "sstat does not show the GPU")
    finish(cluster, job_id)
    over(cluster, job_id)
    play(cluster, [BUSY, UNUSED])
    fields = "JobID,TRESUsageInMax,TRESUsageInMaxNode,TRESUsageInMaxTask,ConsumedEnergyRaw"
    lines = cluster.run("sacct", "-nP", "-j", str(job_id), "-o", fields).stdout.splitlines()
    (step,) = [line.split("|") for line in lines if line.startswith(f"{job_id}.0|")]
    assert "gres/gpumem=1000M,gres/gpuutil=80,mem=" in step[1]
    assert "gres/gpuutil=n1" in step[2]
    assert "gres/gpuutil=0" in step[3]
    assert int(step[4]) > 0, "its GPU drew power while it was there"
    (batch,) = [line.split("|") for line in lines if line.startswith(f"{job_id}.batch|")]
    assert "gres/gpuutil" not in batch[1], "the script was on no GPU: that is not measured, and not zero"
    told = json.loads(cluster.run("sacct", "--json", "-j", str(job_id)).stdout)["jobs"][0]["steps"]
    peaks = {each["name"]: each for step in told for each in step["tres"]["requested"]["max"] if each["type"] == "gres"}
    assert peaks["gpumem"]["count"] == 1000 << 20
    assert (peaks["gpuutil"]["count"], peaks["gpuutil"]["node"]) == (80, "n1")


def test_a_burner_of_known_cpu_time_is_reported_as_that(cluster: Cluster) -> None:
    burns = "import time\nwhile time.process_time() < 3: pass"
    job_id = int(cluster.run("sbatch", "--parsable", "--wrap", f"{cluster.python} -c '{burns}'").stdout)
    over(cluster, job_id)
    (job,) = report(cluster, job_id)
    assert job["efficiency"]["cpu_used_s"] == pytest.approx(3.0, abs=1.0)
    assert job["efficiency"]["gpu_use"] is None
    assert not job["had"]["gpus"]


RANKS = """#!/bin/bash
#SBATCH --ntasks=2
{python} -c 'import time
while time.process_time() < 1: pass
time.sleep(3)'
srun {python} -c 'import os, time
while time.process_time() < 2 + 3 * int(os.environ["SLURM_PROCID"]): pass
time.sleep(3)'
"""
"""The sleeps are for the round that sees what was used: what is used after it is in the accounting alone."""


def cells(curve: dict[str, Any], start: float, end: float) -> Iterator[tuple[float, float]]:
    """How long each step of a curve is within that time, and its value."""
    for number, value in enumerate(curve["mean"]):
        begins = curve["start"] + number * curve["step_s"]
        if value is not None:
            yield max(0.0, min(begins + curve["step_s"], end) - max(begins, start)), value


def test_what_the_tasks_used_is_what_the_job_used(cluster: Cluster) -> None:
    script = cluster.work / "ranks.sh"
    script.write_text(RANKS.replace("{python}", cluster.python))
    job_id = int(cluster.run("sbatch", "--parsable", str(script)).stdout)
    over(cluster, job_id)
    told_anew(cluster, job_id)
    (job,) = report(cluster, job_id)
    steps = {step["step"]: step["figures"]["cpu_s"] for step in job["digest"]["steps"]}
    batch, step = steps[-5], steps[0]
    assert batch["total"] == pytest.approx(1.0, abs=0.7), "what it used before it was first looked at is in it"
    assert 1.0 < step["least"] < step["most"]
    assert (step["least_task"], step["most_task"], step["tasks"]) == (0, 1, 2)
    assert step["total"] == pytest.approx(step["least"] + step["most"], abs=0.1)
    found = curves(cluster, job_id, "cpu_user", "cpu_system")
    start, end = job["digest"]["start"], job["digest"]["end"]
    added = sum(seconds * value for curve in found for seconds, value in cells(curve, start, end))
    told = batch["total"] + step["total"]
    assert 0.7 * told < added < told + 20.0, "what a plot shows: what was measured of a cell counts for all its 10 s"
    assert told == pytest.approx(1 + 2 + 5, abs=1.5)
    assert told == pytest.approx(job["efficiency"]["cpu_used_s"], abs=0.5), "the accounting, which is exact"


def test_tasks_of_an_array_and_components_have_reports_of_their_own(cluster: Cluster) -> None:
    array = int(cluster.run("sbatch", "--parsable", "--array=1-2", "--wrap", "true").stdout)
    over(cluster, array)
    assert {job["job"] for job in report(cluster, array)} == {f"{array}_1", f"{array}_2"}
    assert f"Array Job ID: {array}_2" in cluster.run("seff", f"{array}_2").stdout.splitlines()
    script = cluster.work / "het.sh"
    script.write_text("#!/bin/bash\n#SBATCH -n1\n#SBATCH hetjob\n#SBATCH -n1\ntrue\n")
    het = int(cluster.run("sbatch", "--parsable", str(script)).stdout)
    over(cluster, het)
    assert [job["job"] for job in report(cluster, het)] == [f"{het}+0", f"{het}+1"]
    assert [job["job"] for job in report(cluster, f"{het}+1")] == [f"{het}+1"]


def test_a_group_is_told_worst_first_in_every_form(cluster: Cluster) -> None:
    since = ("--since", "now-1hour")
    told = json.loads(cluster.bireme("report", *since, "--json").stdout)
    assert told["total"]["starts"] >= 5
    held = told["total"]["gpu_held_s"]
    parts = [told["total"][name] for name in ("gpu_used_s", "gpu_unused_s", "gpu_unmeasured_s")]
    assert sum(parts) == pytest.approx(held)
    unused = [job["efficiency"]["gpu_unused_s"] for job in told["jobs"]]
    assert unused == sorted(unused, reverse=True)
    assert unused[0] > 0
    assert "GPU-hours were not measured." in cluster.bireme("report", *since).stdout
    rows = cluster.bireme("report", *since, "--csv").stdout.splitlines()
    assert rows[0].startswith("kind,name,user,account,start,starts,measured,gpu_held_s")
    assert rows[1].startswith("total,")
    page = cluster.bireme("report", *since, "--html", "-").stdout
    assert page.count('class="plot ') == 3
    assert "<script" not in page


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("424242",), "there is no job 424242"),
        (("1", "--user", "root"), "not both"),
        (("1", "--csv"), "of a job: --json"),
        (("--since", "someday"), "--since 'someday' is not a time"),
        (("--since", "2026-11-10", "--until", "2026-11-09"), "end is before start"),
        (("--html", "/nowhere/x.html"), "No such file or directory"),
    ],
)
def test_bad_words_are_answered_with_what_to_do(cluster: Cluster, words: tuple[str, ...], says: str) -> None:
    done = cluster.bireme("report", *words, check=False)
    assert done.returncode != 0
    assert says in done.stderr


def test_a_job_that_ends_while_no_daemon_runs_has_its_digest_afterwards(cluster: Cluster) -> None:
    job_id = gated(cluster, "--gpus=2")
    with_gpus(cluster, job_id)
    pid = pid_of(cluster, job_id)
    cluster.kill_daemon()
    finish(cluster, job_id)
    until(lambda: True if not Path(f"/proc/{pid}").exists() else None, "the script does not end")
    cluster.up_again()
    over(cluster, job_id)
    told_anew(cluster, job_id)
    digest_kept(cluster, job_id)
    assert with_gpus(cluster, job_id)["efficiency"]["gpus_never_used"] == 1
