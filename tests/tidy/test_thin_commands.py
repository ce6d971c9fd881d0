"""What a thin command imports is the time that it takes: here is all that it may."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bireme.cli import named_files
from bireme.cli.thin import ANSWERED
from bireme.slurm.options.catalogue.all_options import TABLES
from bireme.slurm.options.catalogue.table import Arity, Command

SOURCE = Path(__file__).resolve().parents[2] / "src"
OURS = {
    "bireme", "bireme.cli", "bireme.cli.named_files", "bireme.cli.thin", "bireme.commands", "bireme.commands.parcels",
    "bireme.daemon", "bireme.daemon.paths",
}  # fmt: skip
STANDARD = {"__future__", "_collections_abc", "_socket", "_stat", "abc", "_abc", "genericpath", "os", "os.path",
            "posixpath", "stat"}  # fmt: skip
"""Beyond what Python itself has loaded when it runs its first line."""


@pytest.mark.parametrize("command", sorted(ANSWERED))
def test_a_thin_command_imports_almost_nothing(command: str, tmp_path: Path) -> None:
    code = (
        f"import sys; before = set(sys.modules); sys.path[:0] = [{str(SOURCE)!r}]\n"
        "import os; os.environ['BIREME_HOME'] = sys.argv[1]\n"
        f"from bireme.cli.thin import ask; code = ask({command!r}, ['--help'])\n"
        "print(code, *sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-IS", "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    answer, *loaded = done.stdout.split()
    assert answer == "None", "there is no daemon"
    assert set(loaded) - OURS - STANDARD == set()


def test_what_is_typed_enters_no_path_as_it_is() -> None:
    """Commands name the API's routes with `commands/paths.py`."""
    written = [
        f"{file.name}: {line.strip()}"
        for file in (SOURCE / "bireme" / "commands").rglob("*.py")
        for line in file.read_text().splitlines()
        if 'f"/v1' in line or '"/v1" +' in line
    ]
    assert written == []


def test_routes_use_no_threads_but_those_that_users_take_turns_in() -> None:
    """`Context.in_thread`, `Callers.ask`, `Errands`: of asyncio's common ones a single user could take all."""
    routes = (SOURCE / "bireme" / "api" / "routes").glob("*.py")
    assert [file.name for file in routes if "to_thread(" in file.read_text()] == []


def test_a_thin_sbatch_knows_which_options_leave_the_next_word_alone() -> None:
    """It decides by that what the script is, which alone it reads for a daemon."""
    table = TABLES[Command.SBATCH]
    alone = [option for option in table.options if option.arity is not Arity.REQUIRED]
    assert {option.name for option in alone} == named_files.ALONE
    assert {option.short for option in alone if option.short} == set(named_files.ALONE_LETTERS)
    for option in table.options:
        for end in range(1, len(option.name) + 1):
            meant = table.matching(option.name[:end])
            if len(meant) == 1:
                assert named_files.stands_alone(f"--{option.name[:end]}") is (meant[0] in alone), option.name[:end]
