"""The array that is launched, the same on Bireme and on Slurm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

WRAPPED = ("--wrap=bash -c true",)
"""What each task runs: a script of sh, which runs bash."""


def array_options(tasks: int, output: Path, program: Sequence[str] = WRAPPED) -> list[str]:
    """Arguments of sbatch: `tasks` times this program, each with an output file of its own."""
    return ["--parsable", f"--array=0-{tasks - 1}", "--time=1", f"--output={output}/%a.out", *program]
