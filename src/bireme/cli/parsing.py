"""How the commands that are Bireme's own read their words (argparse, without its shortened names), and carry out verbs.

Slurm's commands have getopt's rules, shortened names among them (`commands/optline`, `slurm/options`); ours do not: a
script that says `--foll` would stop working on the day on which there is a second flag that begins so.
"""

from __future__ import annotations

import argparse
from typing import Any

from bireme.cli.connection import make_transport
from bireme.client.transport import ApiError, BiremeUnavailable
from bireme.commands.voice import refused_by_daemon


class Arguments(argparse.ArgumentParser):
    """A parser that takes flags by their whole names only; so do the parsers of its verbs."""

    def __init__(self, *words: Any, **settings: Any) -> None:
        super().__init__(*words, **{"allow_abbrev": False, **settings})


def carry_out(given: argparse.Namespace) -> int:
    """Runs the verb that was read (`run`, set by its parser) over a connection to the daemon; its exit code."""
    with make_transport() as transport:
        try:
            code: int = given.run(transport, given)
        except (ApiError, BiremeUnavailable) as error:
            raise refused_by_daemon("", error) from error
    return code
