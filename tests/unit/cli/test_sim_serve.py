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
        (["--curve", "flat:rate=1/s", "--requests", "x.csv"], "one of them"),
        (["--stable-window", "2s", "--panic-window", "1s"], "stable window: 6 s to 3600 s"),
    ],
)
def test_what_cannot_be_is_said(words: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *words]) == 1
    assert said in capfd.readouterr().err
