"""up, down, status, env: what is said and evaluated; the daemon itself has its own tests."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.unit.cli.fake_daemon import FakeDaemon

from bireme.cli import lifecycle
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
        {"cluster": "lab", "engine": "embedded", "now": 100.0, "up_since": 39.0, "pid": 7, "version": "0.1.0"},
    )
    daemon.routes["GET /v1/nodes"] = (200, {"nodes": NODES})
    daemon.routes["GET /v1/jobs"] = (200, {"jobs": [{"state": "RUNNING"}, {"state": "RUNNING"}]})
    assert lifecycle.status([]) == 0
    text = capsys.readouterr().out
    assert "Cluster   lab (embedded engine), up 00:01:01" in text
    assert "2 nodes, 16 CPUs, 16 GPUs (h100)" in text
    assert "2 running" in text
    assert lifecycle.status(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == {"RUNNING": 2}


def test_status_without_a_cluster(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lifecycle.status([]) == 3
    assert "Start it with: bireme up" in capsys.readouterr().out


def test_down_without_a_cluster_is_no_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lifecycle.down([]) == 0
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
