"""`--only`: some sections of a run, by name. Used by `python -m bench` and `python -m bench.kubernetes`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def add_only(parser: argparse.ArgumentParser, sections: Sequence[str]) -> None:
    def some(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if unknown := set(names).difference(sections):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(sections)}")
        return names

    parser.add_argument("--only", type=some, default=tuple(sections), help=f"some of {','.join(sections)}")
