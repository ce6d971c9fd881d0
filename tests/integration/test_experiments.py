"""Jobs and their runs in a real MLflow: one run for all starts of a job, and no start that waits for a server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, virtual_nodes
from trackers import PYTHON, MlflowServer, needed, tags_of

from bireme.client.transport import Transport

pytestmark = pytest.mark.timeout(900)  # to import MLflow alone takes minutes on a busy machine
SOME_TIME_S = 240.0

PROGRAM = """\
import os, sys, mlflow
with mlflow.start_run() as run:
    start = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    mlflow.log_metric("loss", 1.0 / (start + 1), step=start)
    print("run", run.info.run_id, "experiment", run.info.experiment_id, flush=True)
    if sys.argv[1:] == ["stay"] and not start:
        open("logged", "w").close()
        import signal; signal.pause()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    needed()
    with MlflowServer(tmp_path_factory.mktemp("mlflow")).running() as running:
        yield running


@pytest.fixture(scope="module")
def cluster(server: MlflowServer) -> Iterator[Cluster]:
    made = told_of(
        server.url,
        BIREME_TELEMETRY_GATHER="on",
        BIREME_TELEMETRY_INTERVAL_S="1",
        BIREME_EXPERIMENTS_SYSTEM_METRICS_S="1",
    )
    with made.running():
        yield made


def told_of(url: str, **more: str) -> Cluster:
    made = Cluster(virtual_nodes(1))
    made.variables |= {
        "BIREME_EXPERIMENTS_MLFLOW": url,
        "BIREME_EXPERIMENTS_MLFLOW_EXPERIMENT": "{cluster}/{user}",
        "BIREME_EXPERIMENTS_MLFLOW_WAIT_MS": "60000",
        "BIREME_EXPERIMENTS_WANDB": "on",
        "BIREME_EXPERIMENTS_WANDB_PROJECT": "rehearsals",
        **more,
    }
    (made.work / "train.py").write_text(PROGRAM)
    return made


def told(cluster: Cluster, *words: str, **how: Any) -> dict[str, str]:
    """The variables of a job, and of a step in it, which are the same."""
    script = cluster.script("env -0 > script.$SLURM_JOB_ID\nsrun -n1 env -0 > step.$SLURM_JOB_ID\n", "variables.sh")
    job_id = cluster.sbatch(*words, str(script), **how)
    assert cluster.wait(job_id, 180)["state"] == "COMPLETED", cluster.output(job_id)
    both = [ours((cluster.work / f"{name}.{job_id}").read_text()) for name in ("script", "step")]
    assert both[0] == both[1]
    return both[0]


def ours(text: str) -> dict[str, str]:
    found = dict(each.partition("=")[::2] for each in text.split("\0") if "=" in each)
    return {name: value for name, value in found.items() if name.startswith(("MLFLOW_", "WANDB_"))}


def experiment_of(cluster: Cluster, job_id: str, metrics: str = "") -> Any:
    with Transport(str(cluster.home)) as transport:
        return transport.get(f"/v1/jobs/{job_id}/experiment", {"metrics": metrics} if metrics else {})


def user_of(cluster: Cluster) -> str:
    return cluster.run("whoami").stdout.strip()


def test_a_requeued_job_goes_on_in_the_run_that_was_made_for_it(cluster: Cluster, server: MlflowServer) -> None:
    script = cluster.script(f"{PYTHON} train.py stay\n", "requeued.sh")
    job_id = cluster.sbatch("--requeue", "--gres=gpu:1", "--open-mode=append", "--job-name=digits", str(script))
    cluster.until((cluster.work / "logged").exists, SOME_TIME_S)
    cluster.run("scontrol", "requeue", job_id)
    cluster.until(lambda: cluster.records(job_id)[0]["restarts"] == 1, SOME_TIME_S)
    record = cluster.wait(job_id, 180)
    assert record["state"] == "COMPLETED", cluster.output(job_id)
    lines = [line for line in cluster.output(job_id).splitlines() if line.startswith("run ")]
    assert len(lines) == 2
    assert lines[0] == lines[1], "both starts wrote to one run"
    run_id = lines[0].split()[1]
    assert server.history(run_id, "loss") == [(0, 1.0), (1, 0.5)]
    run = server.run(run_id)
    assert run["info"]["run_name"] == "digits"
    assert run["info"]["status"] == "FINISHED"
    tags = tags_of(run)
    assert tags["bireme.job_id"] == job_id
    assert tags["bireme.cluster"] == "rehearsal"
    assert tags["mlflow.user"] == user_of(cluster)
    assert tags["bireme.nodes"] == "n1"
    mine = [each for each in server.runs(f"rehearsal/{user_of(cluster)}") if tags_of(each)["bireme.job_id"] == job_id]
    assert len(mine) == 1, "no run was made beside it"
    shown = experiment_of(cluster, job_id, "loss")
    assert shown["mlflow"]["link"] == f"{server.url}/#/experiments/{run['info']['experiment_id']}/runs/{run_id}"
    assert [point[1:] for point in shown["mlflow"]["curves"][0]["points"]] == [[0, 1.0], [1, 0.5]]
    assert shown["wandb"]["project"] == "rehearsals"
    text = cluster.bireme("experiment", job_id, "--metric", "loss").stdout
    assert shown["mlflow"]["link"] in text
    assert "step        1  0.5" in text
    (timeline,) = json.loads(cluster.bireme("timeline", job_id, "--json").stdout)["timelines"]
    lanes = {lane["name"]: lane for lane in timeline["lanes"]}
    assert lanes["run"]["marks"][0]["more"] == shown["mlflow"]["link"]
    (curve,) = lanes["logged loss"]["lines"]
    assert [value for value in curve["mean"] if value is not None] == [1.0, 0.5]
    assert "loss: mean 0.75, most 1" in cluster.bireme("timeline", job_id).stdout


def test_script_and_steps_are_told_the_same_and_every_job_its_own(cluster: Cluster) -> None:
    first, second = (told(cluster, "--gres=gpu:1") for _ in range(2))
    assert first["MLFLOW_EXPERIMENT_NAME"] == f"rehearsal/{user_of(cluster)}"
    assert first["WANDB_RESUME"] == "allow"
    assert first["WANDB_PROJECT"] == "rehearsals"
    for name in ("MLFLOW_RUN_ID", "WANDB_RUN_ID"):
        assert first[name] != second[name]
    assert "MLFLOW_TRACKING_TOKEN" not in first


def test_a_job_without_gpus_is_told_nothing(cluster: Cluster) -> None:
    assert told(cluster, "-n1") == {}


def test_what_the_user_set_stays(cluster: Cluster, server: MlflowServer) -> None:
    own = {"MLFLOW_TRACKING_URI": "http://mlflow.example.org", "WANDB_RUN_ID": "mine", "WANDB_MODE": "offline"}
    found = told(cluster, "--gres=gpu:1", env=own)
    assert {name: found.get(name) for name in own} == own
    assert "MLFLOW_RUN_ID" not in found, "the run is another server's"
    assert "WANDB_RESUME" not in found
    found = told(cluster, "--gres=gpu:1", env={"MLFLOW_EXPERIMENT_NAME": "my own"})
    assert found["MLFLOW_EXPERIMENT_NAME"] == "my own"
    assert [run["info"]["run_id"] for run in server.runs("my own")] == [found["MLFLOW_RUN_ID"]]
    found = told(cluster, "--gres=gpu:1", env={"MLFLOW_RUN_ID": "0" * 32})
    assert found["MLFLOW_RUN_ID"] == "0" * 32


def test_a_job_submitted_from_inside_another_has_a_run_of_its_own(cluster: Cluster) -> None:
    inner = cluster.script("env -0 > inner\n", "inner.sh")
    outer = cluster.script(f"env -0 > outer\nsbatch --wait --gres=gpu:1 {inner}\n", "outer.sh")
    assert cluster.wait(cluster.sbatch("--gres=gpu:1", str(outer)))["state"] == "COMPLETED"
    outside, inside = (ours((cluster.work / name).read_text()) for name in ("outer", "inner"))
    for name in ("MLFLOW_RUN_ID", "WANDB_RUN_ID", "MLFLOW_RUN_CONTEXT"):
        assert outside[name] != inside[name]


def test_a_run_that_its_program_left_open_is_ended_as_its_job_ended(cluster: Cluster, server: MlflowServer) -> None:
    ends = {"exit 0": "FINISHED", "exit 3": "FAILED", "scancel $SLURM_JOB_ID; sleep 60": "KILLED"}
    for index, (body, status) in enumerate(ends.items()):
        script = cluster.script(f"echo $MLFLOW_RUN_ID > id.{index}\n{body}\n", f"end{index}.sh")
        cluster.wait(cluster.sbatch("--gres=gpu:1", str(script)))
        run_id = (cluster.work / f"id.{index}").read_text().strip()
        cluster.until(lambda run_id=run_id, status=status: server.run(run_id)["info"]["status"] == status, SOME_TIME_S)


def test_a_run_is_told_what_its_jobs_node_does(cluster: Cluster, server: MlflowServer) -> None:
    """Of GPUs, which this machine need not have, the same way (tests/unit/daemon/test_experiments_figures.py)."""
    script = cluster.script("echo $MLFLOW_RUN_ID > measured\nwhile :; do sleep 0.1; done\n", "measured.sh")
    job_id = cluster.sbatch("--gres=gpu:1", str(script))
    cluster.until(
        lambda: (cluster.work / "measured").exists() and (cluster.work / "measured").read_text().strip(), SOME_TIME_S
    )
    run_id = (cluster.work / "measured").read_text().strip()
    cluster.until(lambda: server.history(run_id, "system/cpu_utilization_percentage"), SOME_TIME_S)
    assert all(0 < value <= 100 for _, value in server.history(run_id, "system/system_memory_usage_percentage"))
    cluster.run("scancel", job_id)


def test_a_server_that_comes_late_is_used_by_the_next_start(tmp_path: Path) -> None:
    """The first start begins without a run; the program makes its own, and the next start goes on with that one."""
    needed()
    server = MlflowServer(tmp_path)
    made = told_of(server.url)
    with made.running() as cluster:
        script = cluster.script(
            f"""env -0 > variables.$SLURM_RESTART_COUNT
if [ -z "$SLURM_RESTART_COUNT" ]; then touch begun; while [ ! -e up ]; do sleep 0.1; done; fi
{PYTHON} train.py stay
"""
        )
        job_id = cluster.sbatch("--requeue", "--gres=gpu:1", "--open-mode=append", str(script))
        cluster.until((cluster.work / "begun").exists, SOME_TIME_S)
        first = ours((cluster.work / "variables.").read_text())
        assert "MLFLOW_RUN_ID" not in first
        assert first["MLFLOW_TRACKING_URI"] == server.url
        with server.running():
            (cluster.work / "up").touch()
            cluster.until((cluster.work / "logged").exists, SOME_TIME_S)
            cluster.run("scontrol", "reconfigure")  # the server is believed in again
            cluster.run("scontrol", "requeue", job_id)
            cluster.until(lambda: cluster.records(job_id)[0]["restarts"] == 1, SOME_TIME_S)
            assert cluster.wait(job_id, 180)["state"] == "COMPLETED", cluster.output(job_id)
            lines = [line for line in cluster.output(job_id).splitlines() if line.startswith("run ")]
            second = ours((cluster.work / "variables.1").read_text())
            assert second.get("MLFLOW_RUN_ID") == lines[0].split()[1], experiment_of(cluster, job_id)
            assert lines[1] == lines[0]
            assert second["WANDB_RUN_ID"] == first["WANDB_RUN_ID"]


def test_a_server_that_hangs_holds_up_no_job() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(16)  # the kernel accepts, nobody answers
        made = told_of(f"http://127.0.0.1:{silent.getsockname()[1]}", BIREME_EXPERIMENTS_MLFLOW_WAIT_MS="200")
        with made.running() as cluster:
            for _ in range(3):
                found = told(cluster, "--gres=gpu:1")
                assert "MLFLOW_RUN_ID" not in found
                assert json.loads(found["MLFLOW_RUN_CONTEXT"])["bireme.cluster"] == "rehearsal"
            missed = experiment_of(cluster, "1")["mlflow"]
            assert missed["run_id"] == ""
            assert "no answer within 0.2 s" in missed["missed"]
            assert "no answer within 0.2 s" in cluster.bireme("experiment", "1").stdout
