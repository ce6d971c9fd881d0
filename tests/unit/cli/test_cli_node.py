"""`bireme node` and its tokens: what is refused before anything begins, and the unit file that starts it."""

from __future__ import annotations

import configparser
import json
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from bireme.cli import node
from bireme.daemon.telemetry.premises import Premises
from bireme.gather.dialling import host_and_port, pinned

ROOT = Path(__file__).resolve().parents[3]
UNIT = ROOT / "deploy" / "slurm" / "bireme-node.service"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIREME_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BIREME_TELEMETRY_LISTEN", "10.1.2.3:8700")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return tmp_path / "home"


def said_by(capfd: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = node.main(list(argv))
    told = capfd.readouterr()
    return code, told.out + told.err


def test_a_token_is_a_private_file_with_all_that_a_node_needs(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "n.json"
    code, said = said_by(capfd, "token", "n[1-8]", "--out", str(file))
    assert code == 0, said
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    made = json.loads(file.read_text())
    assert made["address"] == "10.1.2.3:8700"
    assert host_and_port(made["address"]) == ("10.1.2.3", 8700)
    pinned(made["certificate"])
    assert "PRIVATE KEY" not in file.read_text()
    assert Premises.at(str(home / "telemetry")).tokens.nodes_of(made["token"]) == {
        f"n{number}" for number in range(1, 9)
    }
    assert made["token"] not in said
    code, said = said_by(capfd, "token", "n1", "--out", str(file))
    assert (code, "is there already" in said) == (1, True)


def test_what_cannot_make_a_token_says_what_to_do(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "n.json")
    assert "names no node" in said_by(capfd, "token", "", "--out", file)[1]
    assert "not HOST:PORT" in said_by(capfd, "token", "n1", "--out", file, "--address", "here")[1]
    monkeypatch.setenv("BIREME_TELEMETRY_LISTEN", "0.0.0.0:8700")
    assert "--address HOST:PORT" in said_by(capfd, "token", "n1", "--out", file)[1]
    assert said_by(capfd, "token", "n1", "--out", file, "--address", "head:8700")[0] == 0
    monkeypatch.setenv("BIREME_TELEMETRY_LISTEN", "")
    assert "telemetry.listen" in said_by(capfd, "token", "n1", "--out", file)[1]


def test_a_node_without_a_pass_does_not_begin(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "gathered"
    code, said = said_by(capfd, "--pass", str(tmp_path / "none"), "--folder", str(folder))
    assert (code, "bireme node token" in said, folder.exists()) == (1, True, False)


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser


def test_the_unit_file_starts_it_with_flags_that_it_has(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program, command, *words = shlex.split(unit()["Service"]["ExecStart"])
    assert (Path(program).name, command) == ("bireme", "node")
    with pytest.raises(SystemExit):
        node.main([*words, "--help"])
    assert "usage: bireme node" in capfd.readouterr().out
    folder = words[words.index("--folder") + 1]
    assert folder == f"/var/lib/{unit()['Service']['StateDirectory']}"


def test_the_unit_file_gives_no_more_rights_than_it_says_why() -> None:
    text = UNIT.read_text()
    for right in unit()["Service"]["CapabilityBoundingSet"].split():
        assert f"#   {right} " in text, f"{right}: why?"


def test_the_unit_file_closes_no_device_that_it_reads() -> None:
    """Each of these closes devices that are not on a list of its own: the GPUs' and /dev/kmsg."""
    closing = {"DeviceAllow", "DevicePolicy", "PrivateDevices", "ProtectClock", "ProtectKernelLogs"}
    assert not closing & set(unit()["Service"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_the_unit_file(tmp_path: Path) -> None:
    program = tmp_path / "bireme"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / "bireme-node.service"
    copy.write_text(UNIT.read_text().replace("/opt/bireme/bin/bireme", str(program)))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
