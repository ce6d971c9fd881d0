"""The program itself: dispatch, help, versions, launchers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.cli import launchers
from bireme.cli.main import SLURM_COMMANDS, main
from bireme.daemon.interpreter import import_paths
from bireme.daemon.paths import Paths


def test_help_shows_the_first_three_commands(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert "bireme up" in text
    assert 'eval "$(bireme env)"' in text
    assert str(home) in text


def test_a_mistyped_command_is_told_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["squeu"]) == 2
    assert "Did you mean: bireme squeue?" in capsys.readouterr().err


@pytest.mark.parametrize("name", SLURM_COMMANDS)
def test_every_slurm_command_answers_version(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--version"]) == 0
    assert capsys.readouterr().out.startswith("slurm ")


def test_version_imports_nothing_heavy() -> None:
    """`squeue --version` is called in loops by programs: no command module, no dataclasses, no JSON."""
    code = "import sys; from bireme.cli.main import run; run('squeue', ['--version']); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "bireme.commands.squeue" not in loaded
    assert "json" not in loaded


@pytest.mark.parametrize("command", ["sbatch", "srun", "salloc"])
def test_submitting_imports_no_third_party_package(command: str, home: Path) -> None:
    argv = ["--wrap", "x"] if command == "sbatch" else ["true"]
    heavy = ("rich", "starlette", "numpy", "msgspec")
    code = (
        f"import sys; from bireme.cli.main import run; run({command!r}, {argv!r});"
        f"print(*(name for name in sys.modules if name.split('.')[0] in {heavy!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_launchers_work_anywhere_whatever_the_user_has_set(home: Path, tmp_path: Path) -> None:
    paths = Paths(str(home))
    paths.create()
    assert set(launchers.write_launchers(paths)) == {*SLURM_COMMANDS, "bireme"}
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "os.py").write_text("raise SystemExit('a module of the user got in the way')")
    environment = {"PYTHONPATH": str(trap), "PATH": "/usr/bin:/bin", "VIRTUAL_ENV": "/nowhere"}
    done = subprocess.run(
        [f"{paths.bin}/squeue", "--version"], cwd=trap, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("slurm ")


def test_a_launcher_names_its_own_cluster_when_nobody_else_does(home: Path) -> None:
    paths = Paths(str(home))
    paths.create()
    launchers.write_launchers(paths)
    done = subprocess.run([f"{paths.bin}/scancel", "1"], env={"PATH": "/bin"}, capture_output=True, text=True)
    assert done.returncode == 1
    assert str(home) in done.stderr
    assert "start it with: bireme up" in done.stderr


def test_a_launcher_writes_the_launchers_as_they_were(home: Path) -> None:
    """People have them on their PATH, and type `bireme env` and `bireme up` again."""
    paths = Paths(str(home))
    paths.create()
    launchers.write_launchers(paths)
    before = Path(paths.bin, "squeue").read_text()
    subprocess.run([f"{paths.bin}/bireme", "env"], env={"PATH": "/bin"}, capture_output=True, check=True)
    assert Path(paths.bin, "squeue").read_text() == before


def test_launchers_are_left_alone_when_nothing_changed(home: Path) -> None:
    paths = Paths(str(home))
    paths.create()
    launchers.write_launchers(paths)
    assert launchers.write_launchers(paths) == []


def test_a_launcher_reaches_an_interpreter_whose_path_has_blanks_or_is_long(tmp_path: Path) -> None:
    for folder in ("with blank's", "x" * 150):
        place = tmp_path / folder
        place.mkdir()
        python = place / "python"
        os.symlink(sys.executable, python)
        program = place / "squeue"
        program.write_text(launchers.launcher_text("squeue", str(python), import_paths(), str(tmp_path)))
        program.chmod(0o755)
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("slurm ")
