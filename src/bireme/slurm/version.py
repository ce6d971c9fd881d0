"""The Slurm release whose commands Bireme speaks, as `--version` prints it.

Clients split the line at blanks and read the second (or the last) word as X.Y.Z, so the line is exactly two words;
Bireme's own version is what `bireme --version` prints.
"""

SLURM_VERSION = "24.05.0"
VERSION_LINE = f"slurm {SLURM_VERSION}"
