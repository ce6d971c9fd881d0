"""The array that is launched, the same on Bireme and on Slurm."""

from __future__ import annotations

from pathlib import Path


def array_options(tasks: int, output: Path) -> list[str]:
    """Arguments of sbatch: `tasks` times `bash -c true`, each with an output file of its own."""
    return ["--parsable", f"--array=0-{tasks - 1}", "--time=1", f"--output={output}/%a.out", "--wrap=bash -c true"]
