"""bireme sim serve: the words of `bireme serve` and a traffic in, figures out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bireme.cli.simulator.run import main

FEW = ["--curve", "steps:00:00=0/s, 09:00=1/s, 10:00=0/s", "--work", "1s"]


def test_flags_of_serve_and_a_curve_give_figures(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--replicas", "0-2", "--max-concurrency=4", *FEW, "--changes"]) == 0
    said = capfd.readouterr().out
    assert "0 to 2 replicas, one for each 2.8 requests at once; each loads for 1 min" in said
    assert "1 cold starts" in said
    assert "-> no replicas: no request for 300 s." in said


def test_a_script_says_its_policy(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "chat.sh"
    script.write_text("#!/bin/bash\n#SBATCH --gpus=1\n#BIREME --replicas=1-3 --target-rps=2\nexec serve\n")
    assert main(["serve", str(script), *FEW, "--json", "--replicas", "1-2"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["requests"] == found["answered"]
    assert found["wait_s"]["p99"] == 0.0
    assert found["replica_hours"] >= 24.0
    assert len(found["hours"]) == 24


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--replica-count", "2"], "there is no flag --replica-count"),
        (["--replicas", "4-2"], "4-2"),
        (["--curve", "hill:peak=1/s"], "there is no shape 'hill'"),
        (["--curve", "flat:rate=0/s"], "no requests"),
        (["--requests", "/nowhere.csv"], "/nowhere.csv: No such file or directory"),
        (["--zone", "Atlantis"], "there is no such time zone"),
        (["--first-day", "someday"], "a date such as"),
        (["--work", "long"], "a time of at least"),
        (["--query", "up=1"], "the simulator has no figures for it"),
        (["--curve", "flat:rate=1/s", "--requests", "x.csv"], "give one of the two"),
        (["--save", "10s"], "--save says something of a cluster: name one (--cluster 4x8:h100), or training"),
        (["--set", "KillWait=5"], "--set says something of a cluster"),
        (["--cluster", "fit"], "name the training that it is to fit"),
        (["--cluster", "many"], "is not NODESxGPUS:TYPE"),
        (["--cluster", "/nowhere/slurm.conf"], "there is no file /nowhere/slurm.conf"),
        (["--workload", "jobs:1x1 for ever"], "a group of jobs is written JOBSxGPUS for TIME [at HH:MM]"),
        (["--workload", "jobs:1x1 for 1h at 25:00"], "25:00 is no time of the day"),
        (["--workload", "generate:jobs=many"], "'many' is not a number"),
        (["--workload", "/nowhere.swf"], "/nowhere.swf: No such file or directory"),
        (["--workload", "jobs:1x1 for 1h", "--checkpoint", "daily"], "--checkpoint"),
        (["--workload", "jobs:1x1 for 1h", "--policy", "best"], "is no file and no policy"),
        (["--workload", "jobs:1x64 for 1h", "--cluster", "1x8:h100"], "can never run it"),
        (["--replicas", "3", "--gpus=1", "--cluster", "1x2:h100"], "2 of the 3 replicas"),
        (["--gpus=4", "--cluster", "1x2:h100"], "this cluster does not take the service: "),
        (["--array=1-3", "--cluster", "1x2:h100"], "--array is nothing for a service"),
        (["--stable-window", "2s", "--panic-window", "1s"], "stable window: 6 s to 3600 s"),
    ],
)
def test_what_cannot_be_is_said(words: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *words]) == 1
    assert said in capfd.readouterr().err


def test_training_on_a_cluster_makes_way_and_what_it_lost_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One request after two and a half hours, to a service that sleeps, beside four hours of training on all GPUs."""
    script, asked = tmp_path / "chat.sh", tmp_path / "day.csv"
    script.write_text("#!/bin/bash\n#SBATCH --gpus=1\n#BIREME --replicas=0-1 --max-concurrency=1\nexec serve\n")
    asked.write_text("time,duration\n0,10\n9000,10\n")
    words = ["serve", str(script), "--requests", str(asked), "--cluster", "1x2:h100", "--set", "KillWait=10"]
    training = ["--workload", "jobs:1x2 for 4h at 01:00", "--checkpoint", "30m", "--restart", "60s", "--save", "5s"]
    assert main([*words, *training, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["cluster"] | {"name": ""} == {
        "name": "", "nodes": 1, "unit": "GPU", "units": 2, "policy": "as-configured", "replica_gpus": 1.0,
        "without_room_replica_hours": pytest.approx(5 / 3600),
    }  # fmt: skip
    lost = found["training"]
    assert (lost["jobs"], lost["preemptions"], lost["unfinished"], lost["lost_hours"]) == (1, 1, 0, 0.0)
    assert lost["grace_hours"] == pytest.approx(2 * 5 / 3600)
    assert lost["restart_hours"] == pytest.approx(2 * 60 / 3600)
    assert found["wait_s"]["max"] == pytest.approx(65.0)
    assert main([*words, *training]) == 0
    said = capfd.readouterr().out
    assert "on simulated (as-configured): 1 nodes with 2 GPUs; a replica holds 1 GPU\n" in said
    assert "a checkpoint every 30 min and within 5.0 s when told to make way; 1 min to come back" in said
    assert "1 preemptions of 1 jobs; 0.04 GPU-hours wasted: 0.00 since the last checkpoint, 0.00 making way" in said


def test_a_replica_that_asks_for_no_gpu_is_told_of(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--replicas", "0-2", *FEW, "--cluster", "1x2:h100"]) == 0
    assert "Replicas ask for no GPU, so that no training makes way for one: say --gpus=1." in capfd.readouterr().out
