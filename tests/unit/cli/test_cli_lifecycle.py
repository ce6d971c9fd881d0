"""up, down, status, env: what is said and evaluated; the daemon itself has its own tests."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.fake_daemon import FakeDaemon

from bireme.cli import doctor, lifecycle
from bireme.cli.taking_down import command
from bireme.daemon.paths import Paths

NODES = [
    {"name": "n1", "state": "IDLE", "flags": [], "cpus": 8, "gres": "gpu:h100:8(S:0-1)"},
    {"name": "n2", "state": "DOWN", "flags": ["NOT_RESPONDING"], "cpus": 8, "gres": "gpu:h100:8,fpga:2"},
]


def test_env_can_be_evaluated_twice(home: Path) -> None:
    text = lifecycle.env_text(Paths(str(home)), "bash", "/usr/bin:/bin")
    again = lifecycle.env_text(Paths(str(home)), "bash", f"{home}/bin:/usr/bin:/bin")
    assert text == again == f"export PATH='{home}/bin:/usr/bin:/bin';\nexport BIREME_HOME='{home}';"


def test_env_survives_odd_folder_names(tmp_path: Path) -> None:
    odd = tmp_path / "it's $HOME"
    text = lifecycle.env_text(Paths(str(odd)), "sh", "/usr/bin:/bin")
    done = subprocess.run(["sh", "-c", f'{text}\nprintf %s "$BIREME_HOME"'], capture_output=True, text=True, check=True)
    assert done.stdout == str(odd)


def test_env_for_other_shells(home: Path) -> None:
    paths = Paths(str(home))
    assert lifecycle.env_text(paths, "fish", "/bin") == (
        f"set -gx PATH '{home}/bin' '/bin';\nset -gx BIREME_HOME '{home}';"
    )
    assert lifecycle.env_text(paths, "csh", "/bin").startswith("setenv PATH ")
    assert (
        lifecycle.env_text(paths, "bash", f"{home}/bin:/bin", unset=True) == "export PATH='/bin';\nunset BIREME_HOME;"
    )


def test_env_writes_the_launchers(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lifecycle.env(["--shell", "bash"]) == 0
    assert (home / "bin" / "sbatch").stat().st_mode & 0o111


def test_status_of_a_running_cluster(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.routes["GET /v1/ping"] = (
        200,
        {
            "cluster": "lab", "engine": "embedded", "now": 100.0, "up_since": 39.0, "pid": 7, "version": "0.1.0",
            "silent_agents": ["n1", "n2"],
        },
    )  # fmt: skip
    daemon.routes["GET /v1/nodes"] = (200, {"nodes": NODES})
    daemon.routes["GET /v1/jobs"] = (200, {"jobs": [{"state": "RUNNING"}, {"state": "RUNNING"}]})
    assert lifecycle.status([]) == 0
    text = capsys.readouterr().out
    assert "Cluster   lab (embedded engine), up 00:01:01" in text
    assert "2 nodes, 16 CPUs, 16 GPUs (h100)" in text
    assert "2 running" in text
    assert "Agents    of n[1-2] do not answer: see bireme doctor" in text
    assert lifecycle.status(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == {"RUNNING": 2}


@pytest.mark.parametrize(
    ("telemetry", "says"),
    [
        ({}, ["Telemetry off: nothing is measured (telemetry.gather)"]),
        ({"problem": "", "machines": 0, "rounds": []}, []),
        (
            {
                "problem": "",
                "machines": 9,
                "rounds": [{"node": f"n{i}", "age_s": 9.0 - i, "late": False} for i in (1, 2)],
            },
            ["Telemetry newest round of n1 8 s ago, of n2 7 s ago, of 7 more since then"],
        ),
        (
            {
                "problem": "a gatherer hangs",
                "machines": 2,
                "rounds": [
                    {"node": "n1", "age_s": None, "late": True},
                    {"node": "n2", "age_s": 4000.0, "late": True},
                ],
            },
            [
                "Telemetry is not whole: a gatherer hangs",
                "Telemetry newest round of n1 before the daemon started, of n2 01:06:40 ago",
            ],
        ),
    ],
    ids=["off", "nobody", "well", "late"],
)
def test_status_says_how_new_what_is_measured_is(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], telemetry: dict[str, Any], says: list[str]
) -> None:
    about = {"cluster": "lab", "engine": "embedded", "now": 1.0, "up_since": 0.0, "pid": 7, "version": "0.1.0"}
    daemon.routes["GET /v1/ping"] = (200, {**about, "telemetry": telemetry})
    daemon.routes["GET /v1/nodes"] = (200, {"nodes": NODES})
    daemon.routes["GET /v1/jobs"] = (200, {"jobs": []})
    assert lifecycle.status([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("Telemetry")] == says


@pytest.mark.parametrize(
    ("telemetry", "says"),
    [
        (None, []),
        ({}, [("ok", "off: what jobs and GPUs do is not measured")]),
        ({"problem": "", "machines": 0, "rounds": []}, [("ok", "what jobs and GPUs do is measured by nobody")]),
        (
            {"problem": "", "machines": 1, "rounds": [{"node": "n1", "age_s": 3.2, "late": False}]},
            [("ok", "what jobs and GPUs do is measured: newest round of n1 3 s ago")],
        ),
        (
            {
                "problem": "1 of 2 machines tell nothing new",
                "machines": 2,
                "rounds": [{"node": "n1", "age_s": 62.0, "late": True}, {"node": "n2", "age_s": 3.2, "late": False}],
            },
            [
                ("warn", "what is measured is not whole: 1 of 2 machines tell nothing new"),
                ("warn", "nothing new is told, newest round of n1 62 s ago"),
            ],
        ),
    ],
    ids=["an older daemon", "off", "nobody", "well", "late"],
)
def test_doctor_says_how_new_what_is_measured_is(
    home: Path, telemetry: dict[str, Any] | None, says: list[tuple[str, str]]
) -> None:
    checks = list(doctor._telemetry(telemetry, Paths(str(home))))
    assert [(check.status, check.why[: len(why)]) for check, (_, why) in zip(checks, says, strict=True)] == says


def test_what_is_of_another_release_is_named_with_what_ends_that(home: Path) -> None:
    releases = [
        {"part": "agent", "release": "0.0.9", "count": 2, "nodes": "n[1-2]"},
        {"part": "router", "release": "0.0.8", "count": 1, "nodes": ""},
    ]
    agents, router = lifecycle.releases_words({"version": "0.1.0", "releases": releases})
    assert agents.startswith("2 agents (n[1-2]) are of 0.0.9, the daemon of 0.1.0: ")
    assert agents.endswith("when its jobs have ended: bireme down; bireme up")
    assert router.startswith("1 router is of 0.0.8, the daemon of 0.1.0: ")
    assert lifecycle.releases_words({"version": "0.1.0"}) == [], "an older daemon"


def test_status_without_a_cluster(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lifecycle.status([]) == 3
    assert "Start it with: bireme up" in capsys.readouterr().out


def test_down_without_a_cluster_is_no_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.down([]) == 0
    assert "No cluster runs at" in capsys.readouterr().out


def test_up_with_a_missing_configuration(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert lifecycle.up(["--conf", "nope.conf"]) == 1
    assert "there is no configuration file nope.conf" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("gres", "found"),
    [
        ("gpu:h100:8(S:0-1)", {"h100": 8}),
        ("gpu:2(IDX:0,3),fpga:1", {"": 2}),
        ("gpu:a:1,gpu:b:2", {"a": 1, "b": 2}),
        ("(null)", {}),
        ("", {}),
    ],
)
def test_gpus_in_a_gres_text(gres: str, found: dict[str, int]) -> None:
    assert lifecycle.gpus_of(gres) == found
