"""How the commands that are Bireme's own read their words: argparse, without its shortened names.

Slurm's commands have getopt's rules, shortened names among them (`commands/optline`, `slurm/options`); ours do not: a
script that says `--foll` would stop working on the day on which there is a second flag that begins so.
"""

from __future__ import annotations

import argparse
from typing import Any


class Arguments(argparse.ArgumentParser):
    """A parser that takes flags by their whole names only; so do the parsers of its verbs."""

    def __init__(self, *words: Any, **settings: Any) -> None:
        super().__init__(*words, **{"allow_abbrev": False, **settings})
