"""Bireme's own commands read their words in one way (`cli/parsing`): no flag may be shortened."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme.cli.parsing import Arguments

CLI = Path(__file__).resolve().parents[2] / "src" / "bireme" / "cli"


def test_every_command_of_our_own_has_the_parser_that_shortens_nothing() -> None:
    others = [path.name for path in CLI.rglob("*.py") if "argparse.ArgumentParser(" in path.read_text()]
    assert others == [], "use bireme.cli.parsing.Arguments"


def test_neither_it_nor_its_verbs_take_a_shortened_flag() -> None:
    parser = Arguments(prog="bireme x")
    parser.add_argument("--follow", action="store_true")
    verb = parser.add_subparsers().add_parser("y")
    verb.add_argument("--lines")
    assert parser.parse_args(["--follow", "y", "--lines", "3"]).lines == "3"
    for words in (["--foll"], ["y", "--line", "3"]):
        with pytest.raises(SystemExit):
            parser.parse_args(words)
