"""The small programs in BIREME_HOME/bin: sbatch, srun, squeue ... and bireme, for people's PATH and for jobs'.

Written by `bireme up` and `bireme env`. A launcher starts the interpreter that runs Bireme with `-I -S`: isolated
from the user's PYTHONPATH, PYTHONHOME, current directory and virtual environments, and without `site`, which costs
more than the rest of the start. So it names the import paths itself.
Invariant: a launcher is replaced whole or not at all; jobs may be starting it at this very moment.
"""

from __future__ import annotations

import os
import sys

from bireme.cli.main import SLURM_COMMANDS
from bireme.daemon.interpreter import import_paths
from bireme.daemon.paths import Paths

_LONGEST_SHEBANG = 127  # older kernels read no more than 128 bytes of the first line

_BODY = """\
import os, sys
sys.path[:0] = {paths!r}
os.environ.setdefault("BIREME_HOME", {home!r})
from bireme.cli.{module} import {entry}
{call}
"""


def write_launchers(paths: Paths) -> list[str]:
    """Brings BIREME_HOME/bin up to date; returns the names that were (re)written."""
    os.makedirs(paths.bin, exist_ok=True)
    written = []
    for name in (*SLURM_COMMANDS, "bireme"):
        text = launcher_text(name, sys.executable, import_paths(), paths.home)
        if _write_if_different(os.path.join(paths.bin, name), text):
            written.append(name)
    return written


def launcher_text(name: str, python: str, paths: list[str], home: str) -> str:
    if name == "bireme":
        module, entry, call = "main", "main", "sys.exit(main())"
    else:
        module, entry, call = "thin", "run_and_exit", f"run_and_exit({name!r})"
    return _first_lines(python) + _BODY.format(paths=paths, home=home, module=module, entry=entry, call=call)


def _first_lines(python: str) -> str:
    plain = f"#!{python} -IS\n"
    if len(os.fsencode(plain)) <= _LONGEST_SHEBANG and not any(char.isspace() for char in python):
        return plain
    # Read by sh up to exec, by Python as a string: the way around blanks and length in a #! line.
    quoted = python.replace("'", "'\"'\"'")
    return f"#!/bin/sh\n''':'\nexec '{quoted}' -IS \"$0\" \"$@\"\n'''\n"


def _write_if_different(path: str, text: str) -> bool:
    data = text.encode("utf-8", "surrogateescape")
    try:
        with open(path, "rb") as file:
            if file.read() == data:
                return False
    except OSError:
        pass  # not there yet, or not readable: written below
    fresh = f"{path}.new{os.getpid()}"
    with open(fresh, "wb") as file:
        file.write(data)
        os.fchmod(file.fileno(), 0o755)
    os.replace(fresh, path)
    return True
