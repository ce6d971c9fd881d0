"""--set KEY=VALUE: keys of slurm.conf on the command line of `bireme sim` and `bireme whatif`.

Whether there is such a key, and what it may be, `bireme.sim.clusters` says.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bireme.commands.voice import CommandFailure


def add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a key of slurm.conf; may be repeated"
    )


def keys_of(pairs: Sequence[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise CommandFailure(f"--set {pair}: not KEY=VALUE, like PriorityWeightFairshare=100000")
    return dict(pair.split("=", 1) for pair in pairs)
